package dbtest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// copyTree copies a directory of plain files, readable by its owner alone, which
// is the servers' user if give is set. skip is asked with each path below src. A
// file that goes away meanwhile is left out: a running server's files do.
func copyTree(src, dst string, give bool, skip func(rel string) bool) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != src {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		if skip != nil && skip(rel) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		to := filepath.Join(dst, rel)
		switch {
		case d.IsDir():
			err = os.Mkdir(to, 0o700)
		case d.Type().IsRegular():
			err = copyFile(path, to)
		default:
			err = fmt.Errorf("%s is neither a file nor a directory", path)
		}
		if errors.Is(err, errVanished) {
			return nil
		}
		// At once, not in the end: the guard is the servers' user, too, and could not
		// remove what a killed test process had not given away yet.
		if err == nil && give {
			err = giveAway(to)
		}
		return err
	})
}

var errVanished = errors.New("the file is not there any more")

func copyFile(src, dst string) error {
	// It may have become a link since it was looked at.
	in, err := os.OpenFile(src, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return errVanished
	}
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// writeFile makes a file that belongs to the servers' user.
func writeFile(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return giveAway(path)
}
