package dbtest

import (
	"strings"
	"testing"
)

// daemon is a process as one test sees it. Its methods are those that all kinds
// of servers have.
type daemon struct {
	tb testing.TB
	*process
	shared  bool // others use it too, so it may not be broken
	logFrom int  // length of the log when the test came
}

// private starts a process and ties it to the test: at its end the server is
// gone, and if the test failed, the end of the server's log is in the test's.
func private(tb testing.TB, p *process) daemon {
	tb.Helper()
	d := daemon{tb: tb, process: p}
	tb.Cleanup(func() {
		d.tail()
		if err := p.close(); err != nil {
			tb.Errorf("remove %s: %v", p.name, err)
		}
	})
	d.must(p.start())
	return d
}

// tail shows the test what the server wrote, if it failed.
func (d *daemon) tail() {
	if text := d.Log(); d.tb.Failed() && text != "" {
		d.tb.Logf("log of %s at %s:\n%s", d.name, d.addr, lastLines(text, 60))
	}
}

func (d *daemon) must(err error) {
	d.tb.Helper()
	if err != nil {
		d.tb.Fatal(err)
	}
}

func (d *daemon) own(what string) {
	d.tb.Helper()
	if d.shared {
		d.tb.Fatalf("%s on the shared server: other tests use it; start one with dbtest.Postgres", what)
	}
}

// Addr is where the server listens, 127.0.0.1:PORT. It stays the same when the
// server is killed and started again.
func (d *daemon) Addr() string { return d.addr }

// PID is the id of the server's first process, 0 while the server is down.
func (d *daemon) PID() int { return d.pid() }

// Log is what the server has written since the test began to use it.
func (d *daemon) Log() string {
	text := d.log()
	return strings.TrimRight(text[min(d.logFrom, len(text)):], "\n")
}

// Kill9 ends all of the server's processes at once with SIGKILL, as a crash
// does. It returns when they are dead; Start then recovers.
func (d *daemon) Kill9() {
	d.tb.Helper()
	d.own("Kill9")
	d.must(d.kill9())
}

// Start starts the server again, at the same address and on the same data, and
// returns when it serves.
func (d *daemon) Start() {
	d.tb.Helper()
	d.must(d.start())
}

// Pause stops all of the server's processes with SIGSTOP: connections stay open,
// the kernel accepts new ones, and nobody answers. Resume ends it.
func (d *daemon) Pause() {
	d.tb.Helper()
	d.own("Pause")
	d.must(d.pause())
}

// Resume lets a paused server go on.
func (d *daemon) Resume() {
	d.tb.Helper()
	d.must(d.resume())
}
