package dbtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// patience is how long a server may take to start, recover or stop. Far more
	// than it needs: machines that run tests are busy.
	patience = time.Minute
	// pollEvery is how often something without a notification is looked at.
	pollEvery = 5 * time.Millisecond
)

// process is a server program that can be started, killed and started again in
// a directory of its own. All of its processes work in that directory or below;
// its children are its own (they keep the server's process as their parent).
type process struct {
	name string // for messages: "PostgreSQL 15"
	addr string // 127.0.0.1:PORT
	argv []string
	// ready reports whether the server that was started with this process id
	// serves; it is polled.
	ready func(pid int) bool

	dir   string
	guard *guard
	port  *port

	mu  sync.Mutex
	cmd *exec.Cmd     // the latest one started, or nil
	end chan struct{} // closed when it has been waited for
}

// newProcess makes the directory and finds the port; the caller fills in argv
// and ready.
func newProcess(name string) (*process, error) {
	g, err := newGuard()
	if err != nil {
		return nil, err
	}
	port, err := takePort()
	if err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return &process{name: name, addr: port.addr(), dir: g.dir, guard: g, port: port}, nil
}

// start runs the server and waits until it serves.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive() {
		return fmt.Errorf("start %s: it is running", p.name)
	}
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the server has it
	if err := giveAway(log.Name()); err != nil {
		return err
	}
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, environ(), log, log
	cmd.SysProcAttr = asServer()
	cmd.SysProcAttr.Setsid = true // Ctrl-C is for the test
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	end := make(chan struct{})
	p.cmd, p.end = cmd, end
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(end)
	}()
	err = poll(func() (bool, error) {
		if !p.alive() {
			return false, errors.New("it ended")
		}
		return p.ready(cmd.Process.Pid), nil
	})
	if err != nil {
		return fmt.Errorf("start %s: %w; its log:\n%s", p.name, err, lastLines(p.log(), 30))
	}
	return nil
}

// alive reports whether the server's first process runs. The caller holds mu.
func (p *process) alive() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.end:
		return false
	default:
		return true
	}
}

// pid is the id of the server's first process, 0 if it does not run.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return 0
	}
	return p.cmd.Process.Pid
}

// signal sends a signal to the server's first process.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return fmt.Errorf("send %s to %s: it is not running", sig, p.name)
	}
	return p.cmd.Process.Signal(sig)
}

// stop sends a signal and waits until the server has ended.
func (p *process) stop(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return fmt.Errorf("stop %s: it is not running", p.name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.end:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("stop %s: still running %s after %v; its log:\n%s", p.name, patience, sig, lastLines(p.log(), 30))
	}
}

// kill9 ends all processes of the server at once, as a crash of the machine
// would, apart from what the kernel still writes to its disk.
func (p *process) kill9() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return fmt.Errorf("kill %s: it is not running", p.name)
	}
	pids, err := p.freeze()
	if err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.end
	// The children are reaped by somebody else, now or later; a zombie is dead.
	return poll(func() (bool, error) {
		return !slices.ContainsFunc(pids[1:], running), nil
	})
}

// freeze stops all processes of the server and returns their ids, the first
// process first. That one is stopped before its children are looked for, so
// that it makes no more of them. The caller holds mu.
func (p *process) freeze() ([]int, error) {
	first := p.cmd.Process.Pid
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	err := poll(func() (bool, error) {
		stat, ok := readStat(first)
		return !ok || stat.state == 'T', nil
	})
	if err != nil {
		return nil, err
	}
	pids, err := children(first)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	return append([]int{first}, pids...), nil
}

func (p *process) pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return fmt.Errorf("pause %s: it is not running", p.name)
	}
	_, err := p.freeze()
	return err
}

func (p *process) resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.alive() {
		return fmt.Errorf("resume %s: it is not running", p.name)
	}
	pids, err := children(p.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, pid := range append(pids, p.cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	return nil
}

// close ends the server for good and removes what it had. It may be called again.
func (p *process) close() error {
	return errors.Join(p.guard.remove(), p.port.release())
}

func (p *process) logFile() string { return filepath.Join(p.dir, "log") }

func (p *process) log() string {
	text, _ := os.ReadFile(p.logFile())
	return string(text)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// poll asks until the answer is yes or an error, for as long as patience.
func poll(ask func() (bool, error)) error {
	for limit := time.Now().Add(patience); ; time.Sleep(pollEvery) {
		if yes, err := ask(); yes || err != nil {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("not after %s", patience)
		}
	}
}

// procStat is a little of /proc/PID/stat.
type procStat struct {
	state  byte // R, S, D, T (stopped), …
	parent int
}

// readStat returns nothing for a process that is not there, or a zombie.
func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	// PID (COMMAND) STATE PARENT …, where the command may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return procStat{}, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return procStat{fields[0][0], parent}, err == nil
}

// running reports whether a process is there and not a zombie.
func running(pid int) bool {
	_, ok := readStat(pid)
	return ok
}

// children returns the ids of the processes whose parent is pid.
func children(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // not a process
		}
		if stat, ok := readStat(child); ok && stat.parent == pid {
			out = append(out, child)
		}
	}
	return out, nil
}
