package sqlitestore

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// childRole names, in the environment, what a copy of the test binary is to do
// instead of running tests: real processes share a file, and really die.
const childRole = "KAKUTEI_SQLITESTORE_CHILD"

// childRoles are what a child can be. A child reports on stdout, one line for
// each thing, fails by an error, and ends when its parent does.
func childRoles() map[string]func(ctx context.Context, args []string) error {
	return map[string]func(ctx context.Context, args []string) error{
		"open":      childOpen,
		"read-only": childReadOnly,
		"race":      childRace,
		"hog":       childHog,
		"hold":      childHold,
		"day":       childDay,
		"load":      childLoad,
		"kill":      childKill,
		"full":      childFull,
		"copy":      childCopy,
	}
}

func TestMain(m *testing.M) {
	role := os.Getenv(childRole)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := childRoles()[role](context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// say reports a line to the parent. The pipe has taken it when say returns, so
// what was said before a kill is known.
func say(format string, args ...any) {
	if _, err := fmt.Fprintf(os.Stdout, format+"\n", args...); err != nil {
		panic(err)
	}
}

// untilTold waits for a line of the parent, or ends the process with it.
func untilTold() {
	if _, err := stdin().ReadString('\n'); err != nil {
		os.Exit(3)
	}
}

// dieWithParent ends the process when the parent goes away or closes the pipe.
func dieWithParent() {
	in := stdin()
	go func() {
		io.Copy(io.Discard, in) //nolint:errcheck // either way the parent has gone
		os.Exit(3)
	}()
}

var stdin = sync.OnceValue(func() *bufio.Reader { return bufio.NewReader(os.Stdin) })

// child is a running copy of the test binary.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed at the end of its output
	err   strings.Builder
	ended bool
}

// spawn starts a child in the given role. It is killed at the end of the test.
func spawn(t testing.TB, role string, args ...string) *child { return spawnEnv(t, nil, role, args...) }

func spawnEnv(t testing.TB, env []string, role string, args ...string) *child {
	t.Helper()
	if childRoles()[role] == nil {
		t.Fatalf("there is no child role %q", role)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0], args...), lines: make(chan string, 1<<16)}
	c.cmd.Env = append(append(os.Environ(), childRole+"="+role), env...)
	c.cmd.Stderr = &c.err
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			c.lines <- sc.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(func() {
		if !c.ended {
			c.kill()
		}
	})
	return c
}

// line returns the next line that the child says.
func (c *child) line() string {
	c.t.Helper()
	select {
	case l, ok := <-c.lines:
		if !ok {
			c.ended = true
			c.t.Fatalf("the child has ended: %v, stderr: %s", c.cmd.Wait(), c.err.String())
		}
		return l
	case <-time.After(patience):
		c.t.Fatal("the child says nothing")
	}
	return ""
}

// expect reads the next line, which must be want.
func (c *child) expect(want string) {
	c.t.Helper()
	if got := c.line(); got != want {
		c.t.Fatalf("the child says %q, not %q", got, want)
	}
}

// tell sends the child a line.
func (c *child) tell() {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "go\n"); err != nil {
		c.t.Fatal(err)
	}
}

// kill ends the child by SIGKILL and returns what it had said until then.
func (c *child) kill() []string {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Error(err)
	}
	lines, err := c.rest()
	if err == nil || !killed(err) {
		c.t.Errorf("the child was to be killed, but it ended by itself: %v, stderr: %s", err, c.err.String())
	}
	return lines
}

// wait returns what the child says until it ends well.
func (c *child) wait() []string {
	c.t.Helper()
	lines, err := c.rest()
	if err != nil {
		c.t.Fatalf("the child failed: %v, stderr: %s", err, c.err.String())
	}
	return lines
}

func (c *child) rest() (lines []string, err error) {
	for l := range c.lines {
		lines = append(lines, l)
	}
	c.ended = true
	return lines, c.cmd.Wait()
}

// killed reports whether a process ended by a signal, and not by its own doing.
func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == -1
}

const (
	// long is a lease that does not run out during a test.
	long = time.Hour
	// short is one that is meant to.
	short = 50 * time.Millisecond
	// patience ends what hangs. No test passes by waiting for it.
	patience = 30 * time.Second
)

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// open opens the file, and closes it with the test.
func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(within(t), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func newFile(t testing.TB) string { return filepath.Join(t.TempDir(), "kakutei.db") }

// raw opens the file without the store: what a person with a client would do.
func raw(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(path, "immediate", "synchronous(FULL)"))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	if err := retryBusy(within(t), func() error {
		return db.QueryRow("PRAGMA busy_timeout = 60000").Scan(new(int))
	}); err != nil {
		t.Fatal(err)
	}
	return db
}

func exec1(t testing.TB, db interface {
	Exec(query string, args ...any) (sql.Result, error)
}, query string, args ...any) int64 {
	t.Helper()
	res, err := db.Exec(query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// value returns the one value that a query yields, as text.
func value(t testing.TB, db interface {
	QueryRow(query string, args ...any) *sql.Row
}, query string, args ...any) string {
	t.Helper()
	var v sql.NullString
	if err := db.QueryRow(query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	if !v.Valid {
		return "NULL"
	}
	return v.String
}

// column returns the values of a query's only column.
func column(t testing.TB, db interface {
	Query(query string, args ...any) (*sql.Rows, error)
}, query string, args ...any) (out []string) {
	t.Helper()
	rows, err := db.Query(query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return out
}

// opOf is the operation of a key. Its fingerprint is the key's, so that a store
// that mixes up two records is found out by a mismatch as well.
func opOf(key string) kakutei.Operation {
	return kakutei.Operation{
		Scope: "tenant", Key: key, Fingerprint: kakutei.FingerprintOf([]byte(key)),
		Method: "POST", Path: "/charges", Actor: "somebody", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	}
}

func idOf(key string) kakutei.ID { return opOf(key).ID() }

// claimOf is a claim that takes over what has expired.
func claimOf(key, owner string, lease time.Duration) kakutei.Claim {
	return kakutei.Claim{Operation: opOf(key), Owner: owner, Lease: lease, Recovery: kakutei.Rerun, Node: "test"}
}

func refOf(key, owner string, attempt int64) kakutei.Ref {
	return kakutei.Ref{ID: idOf(key), Owner: owner, Attempt: attempt}
}

func answerOf(text string) kakutei.Result {
	return kakutei.Result{Code: 201, Header: []byte("header of " + text), Body: []byte(text)}
}

func success(ref kakutei.Ref) kakutei.Settlement {
	return kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answerOf(ref.Key)}
}

// The calls whose name begins with try may be used from every goroutine.

func tryClaim(ctx context.Context, s *Store, c kakutei.Claim) (kakutei.Decision, error) {
	out, err := s.Claim(ctx, []kakutei.Claim{c})
	if err != nil {
		return kakutei.Decision{}, err
	}
	return out[0], out[0].Err
}

func trySettle(ctx context.Context, s *Store, x kakutei.Settlement) error {
	out, err := s.Settle(ctx, []kakutei.Settlement{x})
	if err != nil {
		return err
	}
	return out[0]
}

func tryRenew(ctx context.Context, s *Store, ref kakutei.Ref, lease time.Duration) error {
	out, err := s.Renew(ctx, []kakutei.Renewal{{Ref: ref, Lease: lease}})
	if err != nil {
		return err
	}
	return out[0]
}

func claim(t testing.TB, s *Store, c kakutei.Claim) kakutei.Decision {
	t.Helper()
	d, err := tryClaim(within(t), s, c)
	if err != nil {
		t.Fatalf("claim %q: %v", c.Key, err)
	}
	return d
}

// claims makes a claim that must come to want.
func claims(t testing.TB, s *Store, c kakutei.Claim, want kakutei.Outcome, attempt int64) kakutei.Decision {
	t.Helper()
	d := claim(t, s, c)
	if d.Outcome != want || d.Attempt != attempt {
		t.Fatalf("the claim of %q came to %v, attempt %d; want %v, attempt %d", c.Key, d.Outcome, d.Attempt, want, attempt)
	}
	return d
}

func settle(t testing.TB, s *Store, x kakutei.Settlement) {
	t.Helper()
	if err := trySettle(within(t), s, x); err != nil {
		t.Fatalf("settle %q: %v", x.Key, err)
	}
}

func look(t testing.TB, s *Store, key string) kakutei.Record {
	t.Helper()
	out, err := s.Look(within(t), []kakutei.ID{idOf(key)})
	if err != nil {
		t.Fatal(err)
	}
	if out[0].Err != nil {
		t.Fatalf("look at %q: %v", key, out[0].Err)
	}
	return out[0].Record
}

// done claims and settles a key, and returns the settlement.
func done(t testing.TB, s *Store, key string) kakutei.Settlement {
	t.Helper()
	d := claims(t, s, claimOf(key, "owner of "+key, long), kakutei.Acquired, 1)
	x := success(refOf(key, "owner of "+key, d.Attempt))
	settle(t, s, x)
	return x
}

// expire ends the lease of a key, as if it had been claimed a day ago.
func expire(t testing.TB, s *Store, key string) {
	t.Helper()
	if exec1(t, s.DB(), `UPDATE idempotency_keys SET updated_at = updated_at - 86400000, locked_until = updated_at - 86399999
		WHERE scope = 'tenant' AND idempotency_key = ?`, key) != 1 {
		t.Fatalf("there is no %s to expire", key)
	}
}

// dump returns all that the file holds about a key.
func dump(t testing.TB, s *Store, key string) string {
	t.Helper()
	return dumpID(t, s, idOf(key))
}

func dumpID(t testing.TB, s *Store, id kakutei.ID) string {
	t.Helper()
	const query = `SELECT 'live ' || status || ' ' || hex(request_hash) || ' ' || attempt || ' ' || owner || ' ' ||
		ifnull(locked_until, 'NULL') || ' ' || created_at || ' ' || claimed_at || ' ' || updated_at
	FROM idempotency_keys WHERE scope = ?1 AND idempotency_key = ?2
	UNION ALL SELECT 'result ' || status || ' ' || hex(request_hash) || ' ' || attempt || ' ' || owner || ' ' || response_code || ' ' ||
		hex(ifnull(response_headers, '')) || ' ' || hex(ifnull(response_body, '')) || ' ' || completed_at
	FROM idempotency_results WHERE scope = ?1 AND idempotency_key = ?2`
	return strings.Join(column(t, s.read, query, id.Scope, id.Key), "\n")
}

// together runs f n times at once, and returns when all have.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// random returns a source of randomness whose seed is in the log.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// shifted makes the store's transactions believe that it is another time.
func shifted(s *Store, by func() time.Duration) {
	s.now = func(ctx context.Context, tx *sql.Tx) (int64, error) {
		ms, err := s.clock(ctx, tx)
		return ms + by().Milliseconds(), err
	}
}

// copyOf reads a file that this process has open as a database. To open and
// close it here would take SQLite's locks away: they belong to the process and
// the file, so another process reads it.
func copyOf(t testing.TB, path string) []byte {
	t.Helper()
	cmd := exec.Command(os.Args[0], path)
	cmd.Env = append(os.Environ(), childRole+"=copy")
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func childCopy(_ context.Context, args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, f)
	return err
}
