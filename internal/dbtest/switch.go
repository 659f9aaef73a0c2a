package dbtest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Switch is a TCP address that leads to a server, and can be made to lead to
// another one, or to misbehave: Cut, Blackhole, Delay, and Break for one fault at
// one exact byte. It knows no protocol.
//
// It is not Shopify/toxiproxy because that one cannot say whether a fault was
// met, cannot place one at what the client sends (its COMMIT, say), and cannot
// lose an answer after the server has acted; and it would bring a dozen modules
// into go.mod.
type Switch struct {
	tb testing.TB
	ln net.Listener
	wg sync.WaitGroup

	mu       sync.Mutex
	target   string
	delay    time.Duration
	gate     chan struct{} // closed: bytes pass; open: they wait
	links    map[*link]struct{}
	accepted int
	fault    *Break
	closed   bool
}

// NewSwitch opens an address that leads to target, the address of a server.
func NewSwitch(tb testing.TB, target string) *Switch {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &Switch{tb: tb, ln: ln, target: target, gate: make(chan struct{}), links: map[*link]struct{}{}}
	close(s.gate)
	s.wg.Go(s.accept)
	tb.Cleanup(s.close)
	return s
}

// Addr is the address that clients connect to, 127.0.0.1:PORT.
func (s *Switch) Addr() string { return s.ln.Addr().String() }

// Point sends new connections to another server; "" resets them as soon as they
// are made. Those that are there already stay where they are: see Cut.
func (s *Switch) Point(target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = target
}

// Cut resets all connections, on both sides, and returns how many there were.
// New ones are accepted.
func (s *Switch) Cut() int {
	s.mu.Lock()
	var links []*link
	for l := range s.links {
		links = append(links, l)
	}
	s.mu.Unlock()
	for _, l := range links {
		l.reset()
	}
	return len(links)
}

// Blackhole stops all traffic in both directions without closing anything; new
// connections are accepted and lead nowhere. Restore ends it, and what was held
// back arrives then, as after a network partition.
func (s *Switch) Blackhole() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gate:
		s.gate = make(chan struct{})
	default: // it is one already
	}
}

// Restore ends Blackhole.
func (s *Switch) Restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restore()
}

func (s *Switch) restore() {
	select {
	case <-s.gate:
	default:
		close(s.gate)
	}
}

// Delay makes everything arrive d later, in each direction, from now on; the
// throughput stays as it is.
func (s *Switch) Delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// Links is how many connections there are now.
func (s *Switch) Links() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.links)
}

// Accepted is how many connections have been made so far.
func (s *Switch) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

func (s *Switch) accept() {
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			return // closed
		}
		l := newLink(s, conn.(*net.TCPConn))
		s.mu.Lock()
		s.accepted++
		if s.closed {
			s.mu.Unlock()
			l.reset()
			continue
		}
		s.links[l] = struct{}{}
		s.wg.Go(l.run)
		s.mu.Unlock()
	}
}

func (s *Switch) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
}

// wait returns when bytes may pass, false if the link was closed first.
func (s *Switch) wait(l *link) bool {
	for {
		s.mu.Lock()
		gate := s.gate
		s.mu.Unlock()
		select {
		case <-l.done:
			return false
		case <-gate:
		}
		s.mu.Lock()
		same := gate == s.gate
		s.mu.Unlock()
		if same {
			return true
		}
	}
}

func (s *Switch) close() {
	s.mu.Lock()
	s.closed = true
	s.restore()
	s.mu.Unlock()
	if err := s.ln.Close(); err != nil {
		s.tb.Errorf("close switch: %v", err)
	}
	s.Cut()
	s.wg.Wait()
}
