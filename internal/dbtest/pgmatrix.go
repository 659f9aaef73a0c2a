package dbtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// postgresVersions are the PostgreSQL majors that Kakutei is tested on, the
// first one being that of most tests. .ci/install installs them all.
var postgresVersions = []string{"15", "16", "17", "18"}

// Versions returns the PostgreSQL majors at hand, for tests that run on each:
//
//	for _, v := range dbtest.Versions(t) {
//		t.Run("postgres"+v, func(t *testing.T) { db := dbtest.SharedVersion(t, v).Database() … })
//	}
//
// Without a single one the test is skipped. Where CI=true none may be missing.
func Versions(tb testing.TB) []string {
	tb.Helper()
	needLinux(tb)
	var found, lacking []string
	for _, v := range postgresVersions {
		if postgresBin(v) != "" {
			found = append(found, v)
		} else {
			lacking = append(lacking, v)
		}
	}
	if len(lacking) > 0 {
		what := "PostgreSQL " + strings.Join(lacking, ", ")
		if len(found) == 0 || os.Getenv("CI") == "true" {
			missing(tb, what)
		}
		tb.Logf("*** NOT TESTED: %s not found; install it with .ci/install", what)
	}
	return found
}

// defaultVersion is KAKUTEI_DBTEST_POSTGRES, to run everything on one version,
// or else the first one at hand.
func defaultVersion(tb testing.TB) string {
	tb.Helper()
	if v := os.Getenv("KAKUTEI_DBTEST_POSTGRES"); v != "" {
		return v
	}
	i := slices.IndexFunc(postgresVersions, func(v string) bool { return postgresBin(v) != "" })
	if i < 0 {
		missing(tb, "PostgreSQL")
	}
	return postgresVersions[i]
}

// install is one PostgreSQL installation.
type install struct {
	major string
	bin   string // directory of postgres and initdb; other programs may be missing there
}

// findPostgres returns the installation of a major version, or ends the test.
func findPostgres(tb testing.TB, major string) install {
	tb.Helper()
	needLinux(tb)
	if major == "" {
		major = defaultVersion(tb)
	}
	bin := postgresBin(major)
	if bin == "" {
		missing(tb, "PostgreSQL "+major)
	}
	return install{major, bin}
}

// postgresBin looks where Debian and the PostgreSQL project's own packages put
// a major version, and where .ci/install does.
func postgresBin(major string) string {
	if _, err := strconv.Atoi(major); err != nil {
		return "" // it becomes part of a path
	}
	places := []string{"/usr/lib/postgresql/" + major + "/bin"}
	if cache, err := cacheDir(); err == nil {
		places = append(places, filepath.Join(cache, "postgres-"+major, "bin"))
	}
	for _, bin := range places {
		if executable(filepath.Join(bin, "postgres")) && executable(filepath.Join(bin, "initdb")) {
			return bin
		}
	}
	return ""
}

// build is the exact version, as in "postgres (PostgreSQL) 15.14 (Debian …)".
func (in install) build() (string, error) {
	out, err := exec.Command(filepath.Join(in.bin, "postgres"), "--version").Output()
	return strings.TrimSpace(string(out)), err
}
