package dbtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// missing ends the test because a server program is not there: as a failure in
// CI, where everything must run, and as a skip on a developer's machine.
func missing(tb testing.TB, what string) {
	tb.Helper()
	text := fmt.Sprintf("%s not found; install it with .ci/install, in the root of the repository", what)
	if os.Getenv("CI") == "true" {
		tb.Fatal(text)
	}
	fmt.Fprintf(os.Stderr, "\n*** SKIPPED: %s: %s\n\n", tb.Name(), text)
	tb.Skip(text)
}

// needLinux ends the test where there is no /proc to find a server's processes in.
func needLinux(tb testing.TB) {
	tb.Helper()
	if runtime.GOOS != "linux" {
		missing(tb, "a Linux system")
	}
}

// cacheDir is where .ci/install puts server programs and where the clusters are
// kept that others are copied from. Root's own cache would do for root alone,
// but the servers run as somebody else.
func cacheDir() (string, error) {
	if dir := os.Getenv("KAKUTEI_DBTEST_CACHE"); dir != "" {
		return dir, nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/kakutei-dbtest", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(dir, "kakutei-dbtest"), nil
}

// executable reports whether a program is there.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
