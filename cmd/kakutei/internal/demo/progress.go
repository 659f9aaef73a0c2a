package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Progress is told how far a demo is.
type Progress interface {
	// Step says that step n of total begins.
	Step(n, total int, text string)
	// Done says how the step ended.
	Done(text string)
}

// steps counts the steps of one layer among those of all.
type steps struct {
	Progress
	before, total int
}

func (s steps) begin(n int, text string) { s.Step(s.before+n, s.total, text) }

// silence is the Progress of who wants none.
type silence struct{}

func (silence) Step(int, int, string) {}
func (silence) Done(string)           {}

// Lines is a [Progress] for files and pipes: one plain line for each step.
type Lines struct {
	// W is written to when a step is done.
	W    io.Writer
	text string
}

// Step implements [Progress].
func (l *Lines) Step(n, total int, text string) { l.text = fmt.Sprintf("%2d/%d %s", n, total, text) }

// Done implements [Progress].
func (l *Lines) Done(text string) { _, _ = fmt.Fprintf(l.W, "%s: %s\n", l.text, text) }

// Live is a [Progress] for terminals: one line that changes. It is made by
// [NewLive] and must be ended by Close.
type Live struct {
	w    io.Writer
	stop chan struct{}
	done sync.WaitGroup

	mu       sync.Mutex
	n, total int
	text     string
	since    time.Time
}

// NewLive writes to w until Close.
func NewLive(w io.Writer) *Live {
	l := &Live{w: w, stop: make(chan struct{}), since: time.Now()}
	l.done.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-l.stop:
				return
			case <-tick.C:
				l.draw()
			}
		}
	})
	return l
}

// Step implements [Progress].
func (l *Live) Step(n, total int, text string) {
	l.mu.Lock()
	l.n, l.total, l.text = n, total, text
	l.mu.Unlock()
	l.draw()
}

// Done implements [Progress].
func (l *Live) Done(string) {}

// Close clears the line.
func (l *Live) Close() {
	close(l.stop)
	l.done.Wait()
	_, _ = fmt.Fprint(l.w, "\r\x1b[K")
}

const (
	barWidth  = 14
	lineWidth = 79 // a terminal that is narrower shows more lines
)

func (l *Live) draw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total == 0 {
		return
	}
	full := barWidth * (l.n - 1) / l.total
	line := fmt.Sprintf("[%s%s] %d s  %s", strings.Repeat("#", full), strings.Repeat("-", barWidth-full), int(time.Since(l.since).Seconds()), l.text)
	if utf8.RuneCountInString(line) > lineWidth {
		line = string([]rune(line)[:lineWidth])
	}
	_, _ = fmt.Fprint(l.w, "\r\x1b[K"+line)
}
