package dbtest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// victimTrace is a trace as TestVictim prints it.
type victimTrace struct {
	Dir, Shm string
	PIDs     []int
}

// TestVictim is the child process of the tests below, and nothing otherwise.
func TestVictim(t *testing.T) {
	kind := os.Getenv(victimKind)
	if kind == "" {
		t.Skip("only as a child process")
	}
	report := func(d daemon) {
		tr := traceOf(t, d)
		text, err := json.Marshal(victimTrace{tr.dir, tr.shm, tr.pids})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\ntrace %s\n", text)
	}
	shared := Shared(t)
	report(shared.daemon)
	if kind == "exit" {
		fmt.Print("\nvictim ready\n")
		return
	}
	primary := Postgres(t, PostgresOptions{})
	report(Standby(t, primary, StandbyOptions{}).daemon)
	report(primary.daemon)
	report(PgBouncer(t, shared, BouncerOptions{}).daemon)
	paused := Postgres(t, PostgresOptions{})
	report(paused.daemon)
	paused.Pause()
	crashed := Postgres(t, PostgresOptions{})
	report(crashed.daemon)
	crashed.Kill9()
	fmt.Print("\nvictim ready\n")
	select {}
}

func tracesOf(t *testing.T, lines []string, want int) []trace {
	t.Helper()
	var out []trace
	for _, line := range lines {
		text, ok := strings.CutPrefix(line, "trace ")
		if !ok {
			continue
		}
		var v victimTrace
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, trace{v.Dir, v.Shm, v.PIDs})
	}
	if len(out) != want {
		t.Fatalf("got %d servers, want %d:\n%s", len(out), want, strings.Join(lines, "\n"))
	}
	return out
}

func TestNothingIsLeftOfAKilledTestProcess(t *testing.T) {
	t.Parallel()
	findPostgres(t, "")
	cmd, lines := startVictim(t, "killed")
	traces := tracesOf(t, lines, 6)
	for _, tr := range traces {
		if tr.left() == "" {
			t.Errorf("nothing to be killed in %s", tr.dir)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, traces...)
}

// TestKilledAtAnyTime kills test processes that are still busy with making
// clusters, copying and starting them.
func TestKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	findPostgres(t, "")
	tmp, err := os.MkdirTemp("", "kakutei-dbtest-tmp-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		cmd := victim("killed")
		cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		delay := rand.N(time.Second)
		time.Sleep(delay)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		var left []os.DirEntry
		err := poll(func() (bool, error) {
			left, err = os.ReadDir(tmp)
			return len(left) == 0, err
		})
		if err != nil {
			t.Fatalf("killed after %v; left over: %v (%v)", delay, left, err)
		}
	}
}

func TestNothingIsLeftOfTheSharedServerAfterTheTests(t *testing.T) {
	t.Parallel()
	findPostgres(t, "")
	cmd, lines := startVictim(t, "exit")
	_ = cmd.Wait()
	gone(t, tracesOf(t, lines, 1)...)
}

func TestMissing(t *testing.T) {
	for _, c := range []struct{ ci, failed, skipped string }{
		{"true", "PostgreSQL 99 not found; install it with .ci/install", ""},
		{"", "", "PostgreSQL 99 not found; install it with .ci/install"},
	} {
		t.Setenv("CI", c.ci)
		tb := &fakeTB{TB: t}
		tb.run(func(tb testing.TB) { Postgres(tb, PostgresOptions{Version: "99"}) })
		if !strings.HasPrefix(tb.failed, c.failed) || (c.failed == "") != (tb.failed == "") {
			t.Errorf("CI=%q: failed with %q, want %q", c.ci, tb.failed, c.failed)
		}
		if !strings.HasPrefix(tb.skipped, c.skipped) || (c.skipped == "") != (tb.skipped == "") {
			t.Errorf("CI=%q: skipped with %q, want %q", c.ci, tb.skipped, c.skipped)
		}
	}
}
