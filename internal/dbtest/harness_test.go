package dbtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// trace is what a server leaves in the machine while it is there.
type trace struct {
	dir, shm string
	pids     []int
}

func traceOf(t *testing.T, d daemon) trace {
	t.Helper()
	tr := trace{dir: d.dir}
	if pid := d.PID(); pid != 0 {
		pids, err := children(pid)
		if err != nil {
			t.Fatal(err)
		}
		tr.pids = append([]int{pid}, pids...)
	}
	if text, err := os.ReadFile(filepath.Join(d.dir, "data", "postmaster.pid")); err == nil {
		tr.shm = strings.TrimSpace(strings.Split(string(text), "\n")[6])
	}
	return tr
}

// left says what is still there of it.
func (tr trace) left() string {
	if _, err := os.Stat(tr.dir); !errors.Is(err, fs.ErrNotExist) {
		return "directory " + tr.dir
	}
	for _, pid := range tr.pids {
		if running(pid) {
			return fmt.Sprintf("process %d", pid)
		}
	}
	if tr.shm != "" && hasSegment(tr.shm) {
		return "shared memory " + tr.shm
	}
	return ""
}

func hasSegment(keyAndID string) bool {
	text, _ := os.ReadFile("/proc/sysvipc/shm")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && strings.Join(f[:2], " ") == strings.Join(strings.Fields(keyAndID), " ") {
			return true
		}
	}
	return false
}

// gone fails the test unless nothing is left, now or soon.
func gone(t *testing.T, traces ...trace) {
	t.Helper()
	for _, tr := range traces {
		limit := time.Now().Add(10 * time.Second)
		for tr.left() != "" && time.Now().Before(limit) {
			time.Sleep(pollEvery)
		}
		if what := tr.left(); what != "" {
			t.Errorf("left over: %s", what)
		}
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// answers reports whether a query over TCP is answered soon.
func answers(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return conn.Ping(ctx)
}

// fakeTB takes what a function under test says to its test.
type fakeTB struct {
	testing.TB
	failed, skipped string
	cleanups        []func()
}

type endOfTest struct{}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Failed() bool      { return f.failed != "" }
func (f *fakeTB) Skipped() bool     { return f.skipped != "" }
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Errorf(format string, args ...any) {
	f.failed = fmt.Sprintf(format, args...)
}
func (f *fakeTB) Fatal(args ...any) { f.failed = fmt.Sprint(args...); panic(endOfTest{}) }
func (f *fakeTB) Skip(args ...any)  { f.skipped = fmt.Sprint(args...); panic(endOfTest{}) }
func (f *fakeTB) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(endOfTest{})
}

// run runs fn as the body of the test, with its cleanups.
func (f *fakeTB) run(fn func(testing.TB)) {
	defer func() {
		for i := len(f.cleanups) - 1; i >= 0; i-- {
			f.cleanups[i]()
		}
	}()
	defer func() {
		if r := recover(); r != nil && r != (endOfTest{}) {
			panic(r)
		}
	}()
	fn(f)
}

// victimKind tells a child process of these tests what to start.
const victimKind = "KAKUTEI_DBTEST_VICTIM"

// victim is TestVictim as a process of its own.
func victim(kind string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$", "-test.v")
	cmd.Env = append(os.Environ(), victimKind+"="+kind)
	return cmd
}

// startVictim starts a victim and returns the lines that
// it prints, up to the one that says it is ready.
func startVictim(t *testing.T, kind string) (*exec.Cmd, []string) {
	t.Helper()
	cmd := victim(kind)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	var lines []string
	for scan := bufio.NewScanner(out); scan.Scan(); {
		if scan.Text() == "victim ready" {
			return cmd, lines
		}
		lines = append(lines, scan.Text())
	}
	t.Fatalf("the child process ended early:\n%s", strings.Join(lines, "\n"))
	return nil, nil
}
