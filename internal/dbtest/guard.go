package dbtest

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed guard.sh
var guardScript string

// guard makes and owns a directory, and all processes that work in it. It is a
// shell that waits for the end of its input, a pipe from the test process: closed
// by remove, or by the kernel when the test process is gone, killed or not.
type guard struct {
	dir    string
	cmd    *exec.Cmd
	stdin  io.Closer
	remove func() error
}

// newGuard starts a guard and returns when it has made its directory.
func newGuard() (*guard, error) {
	// Short, because the path of a Unix socket has at most 107 bytes. TMPDIR may
	// be closed to the servers' user; /tmp is not.
	name := fmt.Sprintf("kakutei-dbtest-%08x", rand.Uint32())
	cmd := exec.Command("/bin/sh", "-c", guardScript, "dbtest-guard", name, os.TempDir(), "/tmp")
	// As the servers' user: even root may not look into the processes of others
	// (in a container without CAP_SYS_PTRACE). In a session of its own, so that
	// what ends the test process (Ctrl-C in a terminal, a closed one) does not
	// end its guard.
	cmd.SysProcAttr = asServer()
	cmd.SysProcAttr.Setsid = true
	cmd.Dir = "/"
	cmd.Env = environ()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	dir, err := io.ReadAll(stdout)
	if err != nil || len(dir) == 0 {
		_ = stdin.Close()
		return nil, fmt.Errorf("no directory for a server in %s or /tmp: %w", os.TempDir(), errors.Join(err, cmd.Wait()))
	}
	g := &guard{dir: strings.TrimSuffix(string(dir), "\n"), cmd: cmd, stdin: stdin}
	g.remove = sync.OnceValue(g.end)
	return g, nil
}

// end has everything in the directory killed and removed.
func (g *guard) end() error {
	if err := g.stdin.Close(); err != nil {
		return err
	}
	late := time.AfterFunc(patience, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("guard of %s: %w", g.dir, err)
	}
	if _, err := os.Stat(g.dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("guard of %s: could not remove it", g.dir)
	}
	return nil
}

// asServer makes the attributes that start a program as the servers' user:
// nobody for root, because servers refuse to run as root, and otherwise oneself.
func asServer() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		uid, gid := serverUser()
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}

// serverUser is the user that servers run as when the test runs as root.
var serverUser = sync.OnceValues(func() (uid, gid int) {
	const overflow = 65534 // nobody, where it has no name
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return overflow, overflow
	}
	uid, errUID := strconv.Atoi(nobody.Uid)
	gid, errGID := strconv.Atoi(nobody.Gid)
	if errUID != nil || errGID != nil || uid == 0 {
		return overflow, overflow
	}
	return uid, gid
})

// giveAway makes the servers' user the owner of a file or directory.
func giveAway(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid := serverUser()
	return os.Lchown(path, uid, gid)
}

// environ is all that a server sees of the environment: PGPORT, LC_ALL and the
// like of a developer must not change it.
func environ() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "TZ=UTC"}
}
