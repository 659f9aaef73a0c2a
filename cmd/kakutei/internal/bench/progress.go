package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress tells people what goes on: a bar that moves on a terminal, lines of
// what is done elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	start    time.Time
	done     int
	total    int
}

func newProgress(w io.Writer, total int) *progress {
	return &progress{w: w, terminal: isTerminal(w), start: time.Now(), total: total}
}

// isTerminal is true for other character devices too, where it does no harm.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// step tells that the next part of the work begins.
func (p *progress) step(format string, args ...any) {
	if p.terminal {
		p.bar(fmt.Sprintf(format, args...))
	}
	p.done++
}

const (
	barWidth  = 24
	clearLine = "\r\x1b[K"
)

func (p *progress) bar(what string) {
	full := barWidth * p.done / p.total
	left := ""
	if p.done > 0 {
		d := time.Since(p.start) * time.Duration(p.total-p.done) / time.Duration(p.done)
		left = fmt.Sprintf("  %v left", d.Round(time.Second))
	}
	fmt.Fprintf(p.w, "%s[%s%s] %3d%%  %s%s", clearLine, strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		100*p.done/p.total, what, left)
}

// say prints a line that stays.
func (p *progress) say(format string, args ...any) {
	if p.terminal {
		fmt.Fprint(p.w, clearLine)
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// end leaves the line of the bar empty.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.w, clearLine)
	}
}
