package dbtest

import (
	"bytes"
	"slices"
	"strings"
)

// Direction is the way that bytes take through a Switch.
type Direction int

// The directions.
const (
	ToServer Direction = iota
	ToClient
)

// Action is what a Fault does to its connection.
type Action int

const (
	// CutOff resets both sides. Everything before the fault's place was sent on,
	// nothing from there on. Whether the server still acts on a part of a message
	// is open; on no message that it has not got whole.
	CutOff Action = iota + 1
	// LoseReply, of faults ToServer alone, sends on what holds the fault's place,
	// and resets both sides when the server begins to answer: the server has done
	// it, the client cannot know. That order is certain where the answer comes
	// after the effect, as that to a COMMIT does.
	LoseReply
	// Stall leaves the connection open and silent, in both directions, for good.
	// What came before the fault's place was sent on.
	Stall
)

// Fault is one thing that goes wrong, once, at one place in the traffic.
type Fault struct {
	// Direction is that of the bytes that are looked at. Default: ToServer.
	Direction Direction
	// Match is where the fault's place is: at the start of this text, whatever its
	// case ("commit"), on any connection; where the text was received in two pieces,
	// at the second one. Default: at the next byte that comes.
	Match string
	// Skip is how many matches are let through before.
	Skip int
	// After moves the place on by so many bytes: those of the connection that has
	// matched, or, without Match, of all connections since Break.
	After int64
	// Action is what happens there. Default: CutOff.
	Action Action
}

// Break is a fault that has been armed.
type Break struct {
	sw    *Switch
	fault Fault
	match []byte
	seen  map[*link][]byte // the end of what has passed, for a match across reads
	on    *link            // the connection that has matched
	fired bool
	off   bool
}

// Break arms a fault, in place of the one before. If it has not happened when the
// test ends, the test fails, because it has not tested what it says; Disarm
// prevents that.
func (s *Switch) Break(f Fault) *Break {
	s.tb.Helper()
	if f.Action == 0 {
		f.Action = CutOff
	}
	if f.Action == LoseReply && f.Direction != ToServer {
		s.tb.Fatal("LoseReply is for faults on the way to the server")
	}
	b := &Break{sw: s, fault: f, match: []byte(strings.ToLower(f.Match)), seen: map[*link][]byte{}}
	s.mu.Lock()
	s.fault = b
	s.mu.Unlock()
	s.tb.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !b.fired && !b.off && !s.tb.Failed() && !s.tb.Skipped() {
			s.tb.Errorf("the fault did not happen: %+v", f)
		}
	})
	return b
}

// Fired reports whether the fault has happened.
func (b *Break) Fired() bool {
	b.sw.mu.Lock()
	defer b.sw.mu.Unlock()
	return b.fired
}

// Disarm takes the fault back and reports whether it has happened. A loop that
// cuts after 0, 1, 2, … bytes ends with the first that has not.
func (b *Break) Disarm() bool {
	b.sw.mu.Lock()
	defer b.sw.mu.Unlock()
	b.off = true
	if b.sw.fault == b {
		b.sw.fault = nil
	}
	return b.fired
}

// meet looks at bytes that pass and returns those that may, and what happens
// then. The caller holds the lock of the Switch.
func (b *Break) meet(l *link, dir Direction, data []byte) (pass []byte, then Action) {
	if dir != b.fault.Direction || (b.on != nil && b.on != l) {
		return data, 0
	}
	place := 0
	if len(b.match) > 0 && b.on == nil {
		at, ok := b.find(l, data)
		if !ok {
			return data, 0
		}
		b.on = l
		place = at
	}
	if rest := int64(len(data) - place); b.fault.After > rest {
		b.fault.After -= rest
		return data, 0
	}
	place += int(b.fault.After)
	b.fired = true
	b.sw.fault = nil
	if b.fault.Action == LoseReply {
		return data, LoseReply
	}
	return data[:place], b.fault.Action
}

// find looks for the match in data, or across its border to what came before,
// of which nothing can be held back any more.
func (b *Break) find(l *link, data []byte) (at int, ok bool) {
	before := len(b.seen[l])
	text := slices.Concat(b.seen[l], bytes.ToLower(data))
	for from := 0; ; b.fault.Skip-- {
		i := bytes.Index(text[from:], b.match)
		if i < 0 {
			keep := min(len(text)-from, len(b.match)-1)
			b.seen[l] = text[len(text)-keep:]
			return 0, false
		}
		if b.fault.Skip == 0 {
			return max(0, from+i-before), true
		}
		from += i + len(b.match)
	}
}
