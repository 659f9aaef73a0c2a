package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// demoBinary builds the program: the demo starts copies of itself.
func demoBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kakutei-under-test")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

// demoRun is a demo under way, with a directory of its own for temporary files.
type demoRun struct {
	cmd            *exec.Cmd
	tmp            string
	stdout, stderr demoOutput
}

func startDemo(ctx context.Context, t *testing.T, binary string, args ...string) *demoRun {
	t.Helper()
	d := &demoRun{cmd: exec.CommandContext(ctx, binary, append([]string{"demo"}, args...)...), tmp: t.TempDir()}
	d.cmd.Stdout, d.cmd.Stderr = &d.stdout, &d.stderr
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// wait returns the exit code.
func (d *demoRun) wait(t *testing.T) int {
	t.Helper()
	err := d.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return d.cmd.ProcessState.ExitCode()
}

// left returns what is left of temporary files.
func (d *demoRun) left(t *testing.T) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(d.tmp)
	assert.NoError(t, err)
	return entries
}

// demoOutput may be read while it is written.
type demoOutput struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *demoOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *demoOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestDemoCommand(t *testing.T) {
	t.Parallel()
	binary := demoBinary(t)
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t.Context(), t, binary, "--json", "--lease=1s", "--only=concurrent,panic")
		assert.Equal(t, d.wait(t), exitDone, "exit code")
		var report struct {
			OK        bool
			Scenarios []struct{ Layers []struct{ Charges int } }
		}
		assert.NoError(t, json.Unmarshal([]byte(d.stdout.String()), &report))
		assert.True(t, report.OK, "the report is not OK: %s", d.stdout.String())
		assert.Equal(t, len(report.Scenarios), 2, "scenarios")
		assert.Equal(t, d.stderr.String(), "", "stderr")
		assert.Equal(t, len(d.left(t)), 0, "files left behind")
	})
	t.Run("text", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t.Context(), t, binary, "--lease=1s", "--only=retry")
		assert.Equal(t, d.wait(t), exitDone, "exit code")
		for _, want := range []string{"1 retry after the answer", "docs/guarantees.md"} {
			assert.True(t, strings.Contains(d.stdout.String(), want), "stdout lacks %q: %s", want, d.stdout.String())
		}
		assert.True(t, !strings.Contains(d.stdout.String()+d.stderr.String(), "\x1b"), "colour where there is no terminal")
		assert.True(t, strings.HasPrefix(d.stderr.String(), " 1/3 naive: retry after the answer: 1\n"), "progress: %q", d.stderr.String())
	})
	t.Run("sabotage", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t.Context(), t, binary, "--sabotage", "--only=panic")
		assert.Equal(t, d.wait(t), exitNo, "exit code")
		assert.True(t, strings.Contains(d.stdout.String(), "PROBLEM panic after the charge (Kakutei, hold): the ledger has 2 charges"), "stdout: %s", d.stdout.String())
	})
	t.Run("usage", func(t *testing.T) {
		t.Parallel()
		d := startDemo(t.Context(), t, binary, "--jsno")
		assert.Equal(t, d.wait(t), exitUsage, "exit code")
	})
}

// TestDemoLeavesNothing: however the demo is ended, its processes end, too.
func TestDemoLeavesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("looks for processes in /proc")
	}
	binary := demoBinary(t)
	for name, test := range map[string]struct {
		signal os.Signal
		files  bool // may be left
	}{
		"interrupt": {os.Interrupt, false},
		"kill":      {os.Kill, true},
	} {
		d := startDemo(t.Context(), t, binary, "--only=retry,outlive")
		eventually(t, name+": the demo is under way", func() bool { return strings.Contains(d.stderr.String(), " 1/6") })
		assert.True(t, len(processesOf(t, binary)) >= 3, "%s: not three processes: the check below shows nothing", name)
		assert.NoError(t, d.cmd.Process.Signal(test.signal))
		code := d.wait(t)
		eventually(t, name+": all processes have ended", func() bool { return len(processesOf(t, binary)) == 0 })
		if !test.files {
			assert.Equal(t, code, exitNo, name+": exit code")
			assert.Equal(t, len(d.left(t)), 0, name+": files left behind")
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// processesOf returns the processes that run a binary.
func processesOf(t *testing.T, binary string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	assert.NoError(t, err)
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == binary {
			pids = append(pids, filepath.Base(filepath.Dir(link)))
		}
	}
	return pids
}
