//go:build unix

package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kakutei-go/kakutei"
)

// nobody is a user without rights.
const nobody = 65534

// childReadOnly opens a file as a user that may not write it. Root may write
// everything, so it becomes somebody else first.
func childReadOnly(ctx context.Context, args []string) error {
	if os.Geteuid() == 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
			return err
		}
	}
	if f, err := os.OpenFile(args[0], os.O_RDWR, 0); err == nil && args[1] == "file" {
		f.Close()
		return errors.New("the file can be written: the test is void")
	}
	s, err := Open(ctx, args[0], Options{})
	if err == nil {
		s.Close()
		say("opened")
		return nil
	}
	say("%v", err)
	return nil
}

// A file, or a folder, that this user cannot write is refused at start, and not
// at the first payment.
func TestOpenReadOnly(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		what      string
		migrated  bool
		file, dir os.FileMode
		text      string
	}{
		{"file", true, 0o444, 0o777, "cannot be written by this user"},
		{"file", false, 0o444, 0o777, "cannot be written by this user"},
		{"folder", true, 0o666, 0o555, ""},
		{"folder and file", true, 0o444, 0o555, ""},
		{"new file in folder", false, 0, 0o555, "writable"},
	} {
		t.Run(fmt.Sprintf("%s migrated=%v", x.what, x.migrated), func(t *testing.T) {
			t.Parallel()
			// t.TempDir is below folders that nobody else may enter.
			dir, err := os.MkdirTemp("", "kakutei-read-only-*")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				os.Chmod(dir, 0o700) //nolint:errcheck // RemoveAll tells
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			path := filepath.Join(dir, "x.db")
			switch {
			case x.migrated:
				s, err := Open(within(t), path, Options{})
				if err != nil {
					t.Fatal(err)
				}
				done(t, s, "k")
				s.Close()
			case x.file != 0:
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if x.file != 0 {
				if err := os.Chmod(path, x.file); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(dir, x.dir); err != nil {
				t.Fatal(err)
			}
			c := spawn(t, "read-only", path, x.what)
			got := c.line()
			c.wait()
			t.Log(got)
			if got == "opened" {
				t.Error("it was opened")
			} else if !strings.Contains(got, x.text) {
				t.Errorf("the error does not say %q", x.text)
			}
		})
	}
}

// childFull is not allowed to let a file grow beyond a size: what a full disk
// does to it. The write-ahead log is written by COMMIT, so that is what fails.
func childFull(ctx context.Context, args []string) error {
	signal.Ignore(syscall.SIGXFSZ)
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	for _, key := range []string{"a", "b", "c"} {
		if _, err := tryClaim(ctx, s, claimOf(key, "me", long)); err != nil {
			return err
		}
	}
	wal, err := os.Stat(args[0] + "-wal")
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	free := limit.Cur
	for _, room := range []uint64{0, 100, 4096, 10000} {
		limit.Cur = uint64(wal.Size()) + room
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			return err
		}
		x := success(refOf("a", "me", 1))
		x.Result.Body = make([]byte, 100<<10)
		err := trySettle(ctx, s, x)
		say("settle: %v", err)
		errs := grouped(s, settling(x), claiming(claimOf("d", "me", long)), failing())
		say("group: %v, %v, %v", errs[0] != nil, errs[1] != nil, errs[2] != nil)
		rec, err := s.Look(ctx, []kakutei.ID{idOf("a"), idOf("b")})
		if err != nil {
			return fmt.Errorf("look while the disk is full: %w", err)
		}
		say("look: %v %v", rec[0].Record.Status, rec[1].Record.Status)
		limit.Cur = free
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			return err
		}
	}
	x := success(refOf("a", "me", 1))
	if err := trySettle(ctx, s, x); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	say("settled")
	return s.Close()
}

// The disk is full, in the middle of COMMIT: callers are told so, readers go on,
// and when there is room again everything works, in the same process.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	open(t, path) // another process has it open too
	c := spawn(t, "full", path)
	lines := c.wait()
	failed := 0
	for _, l := range lines {
		t.Log(l)
		if strings.Contains(l, "settle: sqlite: settle: commit: ") {
			failed++
		}
		if strings.Contains(l, "settle: <nil>") || strings.Contains(l, "look: SUCCEEDED") {
			t.Error("something was settled without room")
		}
	}
	if failed == 0 {
		t.Error("no COMMIT failed: the fault did not fire")
	}
	if lines[len(lines)-1] != "settled" {
		t.Error("it did not work again")
	}
	s := open(t, path)
	claims(t, s, claimOf("a", "other", long), kakutei.Replay, 1)
	claims(t, s, claimOf("b", "other", long), kakutei.InFlight, 1)
	if got := value(t, s.read, "PRAGMA integrity_check"); got != "ok" {
		t.Error(got)
	}
}
