package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

func TestOpenNewThenExisting(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s, err := Open(within(t), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	done(t, s, "k")
	claims(t, s, claimOf("running", "me", long), kakutei.Acquired, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(path + suffix); !os.IsNotExist(err) {
			t.Errorf("after the last Close there is still a %s file: %v", suffix, err)
		}
	}
	s = open(t, path)
	if d := claims(t, s, claimOf("k", "other", long), kakutei.Replay, 1); string(d.Result.Body) != "k" {
		t.Errorf("the result is %q", d.Result.Body)
	}
	claims(t, s, claimOf("running", "other", long), kakutei.InFlight, 1)
}

// Every connection is durable, waits little inside SQLite, and those that look
// cannot write. The settings are read back from all of them at once.
func TestOpenSettings(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	ctx := within(t)
	check := func(name string, conn *sql.Conn, pragma, want string) {
		t.Helper()
		var got string
		if err := conn.QueryRowContext(ctx, "PRAGMA "+pragma).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s: %s is %s, want %s", name, pragma, got, want)
		}
	}
	const full = "2"
	busy := fmt.Sprint(busyMillis)
	w, err := s.write.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	check("writer", w, "journal_mode", "wal")
	check("writer", w, "synchronous", full)
	check("writer", w, "busy_timeout", busy)
	check("writer", w, "query_only", "0")
	w.Close()
	if n := s.write.Stats().MaxOpenConnections; n != 1 {
		t.Errorf("the writer has %d connections", n)
	}
	var all []*sql.Conn
	for i := range readers {
		r, err := s.read.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		check(fmt.Sprint("reader ", i), r, "journal_mode", "wal")
		check(fmt.Sprint("reader ", i), r, "busy_timeout", busy)
		check(fmt.Sprint("reader ", i), r, "query_only", "1")
		if _, err := r.ExecContext(ctx, "DELETE FROM idempotency_keys"); err == nil {
			t.Error("a reader may write")
		}
	}
	for _, r := range all {
		r.Close()
	}
}

func childOpen(ctx context.Context, args []string) error {
	say("ready")
	untilTold()
	start := time.Now()
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	took := time.Since(start)
	d, err := tryClaim(ctx, s, claimOf("same", args[1], long))
	if err != nil {
		return err
	}
	say("%v %v", d.Outcome, took.Round(time.Millisecond))
	return s.Close()
}

// Eight processes start at once on a file that is not there yet.
func TestOpenEightProcesses(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	const n = 8
	var all []*child
	for i := range n {
		c := spawn(t, "open", path, fmt.Sprint("process-", i))
		c.expect("ready")
		all = append(all, c)
	}
	for _, c := range all {
		c.tell()
	}
	acquired := 0
	var took []string
	for _, c := range all {
		outcome, ms, _ := strings.Cut(c.line(), " ")
		took = append(took, ms)
		if outcome == "acquired" {
			acquired++
		}
		c.wait()
	}
	t.Logf("opened after %v", took)
	if acquired != 1 {
		t.Errorf("%d of %d processes acquired one key", acquired, n)
	}
	db := raw(t, path)
	if got := column(t, db, "SELECT version_id FROM idempotency_schema ORDER BY id"); !slices.Equal(got, []string{"0", "1"}) {
		t.Errorf("the schema's history is %v: it was made more than once", got)
	}
}

// A start does not wait for whoever is writing.
func TestOpenBesideAWriter(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := open(t, path)
	tx, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	exec1(t, tx, "CREATE TABLE business (name TEXT)")
	start := time.Now()
	open(t, path)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("opening a file in use took %v", took)
	}
}

func TestOpenNewerSchema(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s, err := Open(within(t), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	done(t, s, "k")
	exec1(t, s.DB(), "INSERT INTO idempotency_schema (version_id, is_applied) VALUES (999, 1)")
	s.Close()
	unchanged(t, path, func() {
		refused(t, path, "schema version 999", "newer version")
	})
}

// unchanged runs f, which is to leave every byte of the file as it is.
func unchanged(t *testing.T, path string, f func()) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f()
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Errorf("the file has changed: %d bytes before, %d now", len(before), len(after))
	}
}

// refused opens a file that must be refused, soon, with a text that says this.
func refused(t *testing.T, path string, texts ...string) {
	t.Helper()
	start := time.Now()
	s, err := Open(within(t), path, Options{})
	if err == nil {
		s.Close()
		t.Fatalf("%q was opened", path)
	}
	t.Logf("%v", err)
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to refuse the file", took)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := func() []byte {
		path := newFile(t)
		s, err := Open(within(t), path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		done(t, s, "k")
		s.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}()
	const page = 4096

	t.Run("empty path", func(t *testing.T) { refused(t, "", "empty") })
	t.Run("memory", func(t *testing.T) { refused(t, ":memory:", "lost with the process", "memstore") })
	t.Run("memory with options", func(t *testing.T) { refused(t, ":memory:?cache=shared", "lost with the process") })
	t.Run("folder", func(t *testing.T) { refused(t, dir, "must not be a folder") })
	t.Run("missing folder", func(t *testing.T) { refused(t, filepath.Join(dir, "no", "such", "x.db"), "folder must exist") })
	t.Run("folder is a file", func(t *testing.T) { refused(t, filepath.Join(write("file", nil), "x.db"), "folder must exist") })
	t.Run("NUL in the path", func(t *testing.T) {
		refused(t, filepath.Join(dir, "nul\x00.db"), "NUL")
		if _, err := os.Stat(filepath.Join(dir, "nul")); err == nil {
			t.Error("a file of the name before the NUL was made")
		}
	})
	t.Run("text", func(t *testing.T) {
		path := write("text.db", bytes.Repeat([]byte("these are the accounts of 1998\n"), 400))
		unchanged(t, path, func() { refused(t, path, "not a SQLite database") })
	})
	t.Run("header alone", func(t *testing.T) {
		path := write("header.db", good[:100])
		unchanged(t, path, func() { refused(t, path, "damaged") })
	})
	t.Run("truncated in the first page", func(t *testing.T) {
		path := write("truncated1.db", good[:page/2])
		unchanged(t, path, func() { refused(t, path, "damaged") })
	})
	t.Run("truncated", func(t *testing.T) {
		path := write("truncated.db", good[:2*page])
		unchanged(t, path, func() { refused(t, path, "damaged") })
	})
	t.Run("damaged schema page", func(t *testing.T) {
		damaged := bytes.Clone(good)
		for i := 100; i < 200; i++ {
			damaged[i] ^= 0xff
		}
		path := write("schema.db", damaged)
		unchanged(t, path, func() { refused(t, path, "damaged") })
	})
	t.Run("damaged header", func(t *testing.T) {
		damaged := bytes.Clone(good)
		damaged[3] ^= 0xff
		path := write("magic.db", damaged)
		unchanged(t, path, func() { refused(t, path, "not a SQLite database") })
	})
	// A service may well have a table of this name from before.
	t.Run("somebody else's table", func(t *testing.T) {
		path := filepath.Join(dir, "foreign.db")
		db := raw(t, path)
		exec1(t, db, "CREATE TABLE idempotency_keys (key TEXT PRIMARY KEY, response TEXT)")
		exec1(t, db, "INSERT INTO idempotency_keys VALUES ('a', 'b')")
		refused(t, path, "idempotency_keys already exists")
		if got := value(t, db, "SELECT response FROM idempotency_keys"); got != "b" {
			t.Errorf("the table now holds %q", got)
		}
	})
}

// A page that was torn or overwritten is an error of the operations that need
// it. It is never a reason to run a settled operation again.
func TestDamagedPages(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s, err := Open(within(t), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var xs []kakutei.Settlement
	for i := range 200 {
		key := fmt.Sprint("k", i)
		claims(t, s, claimOf(key, "me", long), kakutei.Acquired, 1)
		x := success(refOf(key, "me", 1))
		x.Result.Body = bytes.Repeat([]byte{byte(i)}, 300)
		xs = append(xs, x)
	}
	if errs, err := s.Settle(within(t), xs); err != nil || errs[0] != nil {
		t.Fatal(err, errs)
	}
	s.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	refusals, errors := 0, 0
	every := 1
	if raceDetector {
		every = 5
	}
	for n := 0; n < len(good)/page; n += every {
		damaged := bytes.Clone(good)
		for i := n * page; i < (n+1)*page; i++ {
			damaged[i] ^= 0xff
		}
		path := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(within(t), path, Options{})
		if err != nil {
			refusals++
			continue
		}
		for i, x := range xs {
			d, err := tryClaim(within(t), s, claimOf(x.Key, "other", long))
			switch {
			case err != nil:
				errors++
			case d.Outcome != kakutei.Replay || !bytes.Equal(d.Result.Body, xs[i].Result.Body):
				t.Fatalf("page %d damaged: the settled key %s came to %v, %.20q", n+1, x.Key, d.Outcome, d.Result.Body)
			}
		}
		s.Close()
	}
	t.Logf("%d pages damaged, one at a time: %d refusals to open, %d errors of claims", len(good)/page/every, refusals, errors)
	if refusals == 0 || errors == 0 {
		t.Error("the damage was not noticed")
	}
}

// Every name that the file system takes is a name for the file.
func TestOpenPaths(t *testing.T) {
	// Not parallel: relative paths need the working directory.
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{
		"a space.db", "what?.db", "what?mode=memory&cache=shared", "hash#1.db", "100%.db", "%41.db", "%3f.db", "a+b&c=d;e.db",
		"確定 データ.db", "colon:a.db", "file:a.db", "quote'\".db", " ", "-x", "x\\y.db", "tab\t.db",
	} {
		for _, path := range []string{
			filepath.Join(dir, name), // absolute
			name, "./" + name,        // relative
			"/" + dir + "/" + name, // with two slashes in front
			"../" + filepath.Base(dir) + "//" + name,
		} {
			s, err := Open(within(t), path, Options{})
			if err != nil {
				t.Errorf("%q: %v", path, err)
				continue
			}
			done(t, s, "k")
			s.Close()
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) != 1 || entries[0].Name() != name {
				t.Errorf("opening %q made %v", path, entries)
			}
			for _, e := range entries {
				if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// A symbolic link and its target are one database.
func TestOpenSymlink(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	a, b := open(t, path), open(t, link)
	claims(t, a, claimOf("k", "a", long), kakutei.Acquired, 1)
	claims(t, b, claimOf("k", "b", long), kakutei.InFlight, 1)
}

// The file of a service: its own tables, its own migrations, its own journal mode.
func TestOpenSharedWithBusiness(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	db := raw(t, path)
	exec1(t, db, "PRAGMA journal_mode = DELETE")
	for _, q := range []string{
		"CREATE TABLE goose_db_version (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER, is_applied INTEGER, tstamp TIMESTAMP)",
		"INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1), (20240101000000, 1)",
		"CREATE TABLE schema_migrations (version uint64, dirty bool)",
		"INSERT INTO schema_migrations VALUES (42, false)",
		"CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
		"INSERT INTO accounts VALUES (1, 100)",
		"CREATE TABLE idempotency_results_archive (x TEXT)", // not of a day
	} {
		exec1(t, db, q)
	}
	s := open(t, path)
	x := done(t, s, "k")
	claims(t, s, claimOf("k", "other", long), kakutei.Replay, x.Attempt)
	if _, err := s.Retain(within(t), time.Hour); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"SELECT max(version_id) FROM goose_db_version":   "20240101000000",
		"SELECT version FROM schema_migrations":          "42",
		"SELECT balance FROM accounts":                   "100",
		"SELECT count(*) FROM idempotency_results":       "1",
		"SELECT max(version_id) FROM idempotency_schema": "1",
		"PRAGMA journal_mode":                            "wal",
	} {
		if got := value(t, s.read, query); got != want {
			t.Errorf("%s is %s, want %s", query, got, want)
		}
	}
}

// A version table that is there but empty, or half-made, is not taken for a
// schema that is up to date.
func TestOpenEmptyVersionTable(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	db := raw(t, path)
	exec1(t, db, "CREATE TABLE idempotency_schema (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL, is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')))")
	refused(t, path, "schema")
}

// Open gives up when its context does.
func TestOpenContext(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	db := raw(t, path)
	tx, err := db.Begin() // a writer that does not end, on a file that is to be migrated
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	exec1(t, tx, "CREATE TABLE business (name TEXT)")
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if s, err := Open(ctx, path, Options{}); err == nil {
		s.Close()
		t.Fatal("the file was opened beside a writer, although it had to be migrated")
	} else {
		t.Log(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Open gave up after %v", took)
	}
}
