package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTime is how long a process may take until it says its URL.
	startTime = 30 * time.Second
	// stopTime is how long one may take to end before it is killed.
	stopTime = 3 * drainTime
)

// process is another process of the demo, as the demo sees it.
type process struct {
	cmd    *exec.Cmd
	url    string
	stdin  io.Closer
	stderr *output
	ended  chan struct{} // closed when the process has ended and was waited for
}

// startProcess runs command with args and waits until it says its URL. The
// process is killed when ctx ends.
func startProcess(ctx context.Context, command, args []string) (*process, error) {
	args = append(command[1:len(command):len(command)], args...)
	stdout := &output{}
	p := &process{cmd: exec.CommandContext(ctx, command[0], args...), stderr: &output{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = stdout, p.stderr
	p.cmd.WaitDelay = time.Second
	stdin, err := p.cmd.StdinPipe() // held open: see Child
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, stdin.Close())
	}
	go func() {
		//nolint:errcheck // how it ended is in ProcessState
		p.cmd.Wait()
		close(p.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := until(ctx, func() (bool, error) {
		select {
		case <-p.ended:
			return false, fmt.Errorf("it ended at once (%v): %s", p.cmd.ProcessState, p.stderr.last())
		default:
			line, _, whole := strings.Cut(stdout.String(), "\n")
			p.url = line
			return whole, nil
		}
	}); err != nil {
		p.stop()
		return nil, fmt.Errorf("start %q: %w", strings.Join(args, " "), err)
	}
	return p, nil
}

// kill ends the process with SIGKILL, and returns an error if it ended otherwise.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	<-p.ended
	if state := p.cmd.ProcessState; !wasKilled(state) {
		return fmt.Errorf("the process was to be killed and ended otherwise: %v", state)
	}
	return nil
}

func wasKilled(state *os.ProcessState) bool {
	if runtime.GOOS == "windows" { // no signals; Process.Kill ends a process with 1
		return state.ExitCode() == 1
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stop lets the process end, and kills it if it does not.
func (p *process) stop() {
	p.stdin.Close()
	select {
	case <-p.ended:
	case <-time.After(stopTime):
		//nolint:errcheck // then it has ended
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// output collects what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns all of it.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// last returns the last line.
func (o *output) last() string {
	lines := strings.Split(strings.TrimSpace(o.String()), "\n")
	return lines[len(lines)-1]
}

// until asks done again and again until it is, fails, or ctx ends.
func until(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
