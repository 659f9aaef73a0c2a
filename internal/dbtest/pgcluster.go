package dbtest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// confFile is the part of a cluster's configuration that this package writes.
const confFile = "kakutei.conf"

// initdbArgs make the cluster that all others are copies of. C.UTF-8 is not "C":
// a store that needs byte order must say so.
var initdbArgs = []string{"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"}

// newCluster puts a fresh cluster into dir, which must not be there yet.
func (in install) newCluster(dir string) error {
	template, err := in.template()
	if err != nil {
		return fmt.Errorf("make a template of PostgreSQL %s: %w", in.major, err)
	}
	if err := copyTree(template, dir, true, nil); err != nil {
		return fmt.Errorf("copy %s: %w", template, err)
	}
	return nil
}

// template returns a cluster that initdb has made and nobody has started. initdb
// takes about a second, so the result is kept, one for each build, from one test
// run to the next. It belongs to the user who runs the tests, so that a server
// cannot change what the next ones start with.
func (in install) template() (string, error) {
	build, err := in.build()
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(in.bin + "\x00" + build + "\x00" + strings.Join(initdbArgs, "\x00")))
	dir := filepath.Join(cache, "clusters", "postgres-"+in.major+"-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another test process was faster
	}
	fresh := dir + ".new" // complete or not there
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	if err := in.initdb(fresh); err != nil {
		return "", err
	}
	return dir, os.Rename(fresh, dir)
}

// initdb makes a cluster in a directory of its own and copies it to dst.
func (in install) initdb(dst string) (err error) {
	g, err := newGuard()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.remove()) }()
	data := filepath.Join(g.dir, "data")
	cmd := exec.Command(filepath.Join(in.bin, "initdb"), append([]string{"--pgdata=" + data, "--no-sync"}, initdbArgs...)...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = g.dir, environ(), asServer()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w:\n%s", err, out)
	}
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = conf.WriteString("\ninclude_if_exists = '" + confFile + "'\n")
	if err := errors.Join(err, conf.Close()); err != nil {
		return err
	}
	if err := copyTree(data, dst, false, nil); err != nil {
		return err
	}
	// It is kept, so it must survive a crash of the machine.
	return exec.Command("sync", "--file-system", dst).Run()
}

// lockFile waits for an exclusive lock, which ends with the process at the latest.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
