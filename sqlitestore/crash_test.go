package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// crashLease is short, so that what a killed process held is soon free.
const crashLease = 100 * time.Millisecond

// What becomes of an operation of the load is written in its key.
var loadKinds = []string{"plain", "tx", "undone", "held"}

// childLoad works without a pause until it is killed. What the store has
// acknowledged, and nothing else, it says.
func childLoad(ctx context.Context, args []string) error {
	var first, seed uint64
	if _, err := fmt.Sscan(args[1]+" "+args[2], &first, &seed); err != nil {
		return err
	}
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	dieWithParent()
	errs := make(chan error)
	for worker := range 8 {
		go func() {
			r := rand.New(rand.NewPCG(seed, uint64(worker)))
			for n := first; ; n++ {
				// Each key is wanted by all workers, and some of them are old.
				at := n
				if r.IntN(4) == 0 && n > 40 {
					at = n - r.Uint64N(40)
				}
				key := fmt.Sprintf("%s-%d", loadKinds[at%uint64(len(loadKinds))], at)
				if err := loadOne(ctx, s, key, fmt.Sprintf("%d/%d/%d", os.Getpid(), worker, n), r); err != nil {
					errs <- fmt.Errorf("%s: %w", key, err)
				}
			}
		}()
	}
	return <-errs
}

// loadOne claims one operation and, if it gets it, sees it through.
func loadOne(ctx context.Context, s *Store, key, owner string, r *rand.Rand) error {
	d, err := tryClaim(ctx, s, claimOf(key, owner, crashLease))
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	ref := refOf(key, owner, d.Attempt)
	kind, _, _ := strings.Cut(key, "-")
	switch {
	case d.Outcome == kakutei.Replay && string(d.Result.Body) != key:
		return fmt.Errorf("replayed as %q", d.Result.Body)
	case d.Outcome != kakutei.Acquired:
		return nil
	case kind == "held":
		err = trySettle(ctx, s, kakutei.Settlement{Ref: ref, Status: kakutei.StatusUncertain})
	case kind == "plain":
		if r.IntN(4) == 0 {
			if err := tryRenew(ctx, s, ref, crashLease); err != nil && !errors.Is(err, kakutei.ErrLeaseLost) {
				return fmt.Errorf("renew: %w", err)
			}
		}
		err = trySettle(ctx, s, success(ref))
	default:
		tx, beginErr := s.Begin(ctx, ref)
		if beginErr != nil {
			return beginErr
		}
		if err := charge(tx.Context(ctx), key); err != nil {
			tx.Rollback() //nolint:errcheck // the error before it is told
			// A row of that name is there already: then somebody has taken over,
			// and this attempt has nothing to say any more.
			if lost := trySettle(ctx, s, kakutei.Settlement{Ref: ref, Status: kakutei.StatusFailed}); code(err) != 19 || !errors.Is(lost, kakutei.ErrLeaseLost) {
				return fmt.Errorf("charge: %w, settle: %w", err, lost)
			}
			return nil
		}
		if kind == "undone" && d.Attempt == 1 {
			if err := tx.Rollback(); err != nil {
				return err
			}
			err = trySettle(ctx, s, kakutei.Settlement{Ref: ref, Status: kakutei.StatusFailed})
			break
		}
		err = tx.Commit(ctx, success(ref))
	}
	if errors.Is(err, kakutei.ErrLeaseLost) { // the machine stood still for longer than a lease
		return nil
	}
	if err == nil {
		say("%s attempt %d", key, d.Attempt)
	}
	return err
}

// A process under load is killed, again and again. Every time the file opens and
// is sound, nothing that was acknowledged is lost, no business row stands
// without its result nor a result without its row, nothing was acknowledged
// twice, and what was in flight is free when its lease is over.
func TestKilledUnderLoad_case_12(t *testing.T) {
	t.Parallel()
	rounds := 36
	if raceDetector || testing.Short() {
		rounds = 30
	}
	path := newFile(t)
	// This process has no connection open while others are killed, but for the
	// moments between: so the last one out is always a killed one.
	setUp, err := Open(within(t), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	exec1(t, setUp.DB(), "CREATE TABLE charges (name TEXT PRIMARY KEY) WITHOUT ROWID")
	if err := setUp.Close(); err != nil {
		t.Fatal(err)
	}
	r := random(t)
	acknowledged := map[string]string{} // key: what was said of it
	var left, acks, recovered int
	for round := range rounds {
		first := fmt.Sprint(round * 100)
		cs := []*child{spawn(t, "load", path, first, fmt.Sprint(r.Uint64()))}
		if round%3 == 2 { // one is killed while the other goes on
			cs = append(cs, spawn(t, "load", path, first, fmt.Sprint(r.Uint64())))
		}
		for _, c := range cs {
			lines := []string{c.line()}
			for range r.IntN(80) {
				lines = append(lines, c.line())
			}
			time.Sleep(time.Duration(r.Int64N(int64(3 * time.Millisecond))))
			lines = append(lines, c.kill()...)
			acks += len(lines)
			for _, l := range lines {
				key, attempt, _ := strings.Cut(l, " ")
				undone := strings.HasPrefix(key, "undone") && attempt == "attempt 1"
				if before, again := acknowledged[key]; again && !undone && before != "undone" {
					t.Fatalf("%s was acknowledged as %q and as %q", key, before, attempt)
				}
				acknowledged[key] = attempt
				if undone {
					acknowledged[key] = "undone"
				}
			}
		}
		if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
			recovered++
		}
		left += checkAfterKill(t, path, acknowledged)
		if t.Failed() {
			t.Fatalf("after kill %d", round+1)
		}
	}
	t.Logf("%d kills, %d acknowledgements, %d logs to recover from, %d operations were in flight", rounds, acks, recovered, left)
	if left == 0 || recovered == 0 {
		t.Error("every kill met an idle process: the test is void")
	}
}

// checkAfterKill checks all that must be true of the file, and frees what was in
// flight. It returns how many operations that were.
func checkAfterKill(t *testing.T, path string, acknowledged map[string]string) (left int) {
	t.Helper()
	s, err := Open(within(t), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := value(t, s.write, "PRAGMA integrity_check"); got != "ok" {
		t.Error(got)
	}
	succeeded := column(t, s.read, "SELECT idempotency_key FROM idempotency_results WHERE status = 'SUCCEEDED' ORDER BY 1")
	if len(slices.Compact(slices.Clone(succeeded))) != len(succeeded) {
		t.Error("an operation has succeeded twice")
	}
	attempts := column(t, s.read, "SELECT idempotency_key || ' attempt ' || attempt FROM idempotency_results WHERE status = 'SUCCEEDED'")
	live := column(t, s.read, "SELECT idempotency_key || ' ' || status FROM idempotency_keys")
	for key, said := range acknowledged {
		kind, _, _ := strings.Cut(key, "-")
		switch {
		case said == "undone": // it may have run again since
		case kind == "held":
			if !slices.Contains(live, key+" UNCERTAIN") {
				t.Errorf("%s was acknowledged as held, and is not", key)
			}
		case !slices.Contains(attempts, key+" "+said):
			t.Errorf("%s was acknowledged as %s, and is lost", key, said)
		}
	}
	for _, l := range live {
		if key, _, _ := strings.Cut(l, " "); slices.Contains(succeeded, key) {
			t.Errorf("%s has succeeded and is live", key)
		}
	}
	charged := column(t, s.read, "SELECT name FROM charges ORDER BY 1")
	with := slices.DeleteFunc(slices.Clone(succeeded), func(key string) bool { return strings.HasPrefix(key, "plain") })
	if !slices.Equal(charged, with) {
		t.Errorf("business rows: %v\nresults: %v", charged, with)
	}
	// What was in flight is free as soon as its lease is over.
	var stuck []kakutei.Claim
	for _, l := range live {
		if key, status, _ := strings.Cut(l, " "); status == "PROCESSING" {
			stuck = append(stuck, claimOf(key, "the heir", long))
		}
	}
	left = len(stuck)
	for start := time.Now(); len(stuck) > 0; time.Sleep(5 * time.Millisecond) {
		out, err := s.Claim(within(t), stuck)
		if err != nil {
			t.Fatal(err)
		}
		var still []kakutei.Claim
		var xs []kakutei.Settlement
		for i, d := range out {
			if d.Err != nil || d.Outcome != kakutei.Acquired {
				still = append(still, stuck[i])
				continue
			}
			if !d.Takeover {
				t.Errorf("%s was not taken over", stuck[i].Key)
			}
			xs = append(xs, kakutei.Settlement{Ref: refOf(stuck[i].Key, "the heir", d.Attempt), Status: kakutei.StatusFailed})
		}
		if errs, err := s.Settle(within(t), xs); err != nil || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
			t.Fatal(err, errs)
		}
		if stuck = still; len(stuck) > 0 && time.Since(start) > crashLease+3*time.Second {
			t.Fatalf("%d operations are stuck: %s", len(stuck), stuck[0].Key)
		}
	}
	return left
}

// A process is killed while it makes the schema, at any moment. The next start
// finishes it.
func TestKilledWhileOpening(t *testing.T) {
	t.Parallel()
	r := random(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	early := 0
	rounds := 24
	if raceDetector {
		rounds = 8
	}
	for range 2 {
		wg.Go(func() {
			for range rounds / 2 {
				mu.Lock()
				path := newFile(t)
				pause := time.Duration(r.Int64N(int64(40 * time.Millisecond)))
				mu.Unlock()
				c := spawn(t, "open", path, "me")
				if l := <-c.lines; l != "ready" {
					t.Errorf("the child says %q", l)
					return
				}
				io.WriteString(c.in, "go\n") //nolint:errcheck // it is killed in a moment
				time.Sleep(pause)
				c.cmd.Process.Kill() //nolint:errcheck // it may have ended
				lines, _ := c.rest() // killed, or not
				s, err := Open(context.Background(), path, Options{})
				if err != nil {
					t.Errorf("after a kill at %v: %v", pause, err)
					return
				}
				mu.Lock()
				if len(lines) == 0 {
					early++
				}
				if got := column(t, s.read, "SELECT version_id FROM idempotency_schema ORDER BY id"); !slices.Equal(got, []string{"0", "1"}) {
					t.Errorf("after a kill at %v the schema's history is %v", pause, got)
				}
				mu.Unlock()
				if err := trySettle(context.Background(), s, success(refOf("same", "me", 1))); len(lines) > 0 && err != nil {
					t.Errorf("after a kill at %v: %v", pause, err)
				}
				s.Close()
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d processes were killed before they were done", early, rounds)
	if early == 0 {
		t.Error("none was killed in time: the test is void")
	}
}

// The power fails: the end of the log is lost, at any byte. What is left is the
// state after one of the commits, never half of one.
func TestTornLog(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	b := businessOn(t, open(t, path), kakutei.Options{})
	const n = 12
	for i := range n {
		key := fmt.Sprint("k", i)
		claims(t, b.Store, claimOf(key, "me", long), kakutei.Acquired, 1)
		tx, err := b.Begin(within(t), refOf(key, "me", 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := charge(tx.Context(within(t)), key); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(within(t), success(refOf(key, "me", 1))); err != nil {
			t.Fatal(err)
		}
	}
	// A copy by another process, since this one would lose its locks by closing
	// the file: through the file system of /proc it is not opened again.
	db, wal := copyOf(t, path), copyOf(t, path+"-wal")
	r := random(t)
	seen := map[int]bool{}
	cuts := 150
	if raceDetector {
		cuts = 40
	}
	for range cuts {
		cut := r.IntN(len(wal) + 1)
		torn := newFile(t)
		if err := errors.Join(os.WriteFile(torn, db, 0o600), os.WriteFile(torn+"-wal", wal[:cut], 0o600)); err != nil {
			t.Fatal(err)
		}
		raw := raw(t, torn)
		if got := value(t, raw, "PRAGMA integrity_check"); got != "ok" {
			t.Fatalf("cut at %d: %s", cut, got)
		}
		if got := value(t, raw, "SELECT count(*) FROM sqlite_schema WHERE name IN ('idempotency_results', 'charges')"); got != "2" {
			raw.Close()
			continue // before the tables were made
		}
		charged := column(t, raw, "SELECT name FROM charges ORDER BY name")
		results := column(t, raw, "SELECT idempotency_key FROM idempotency_results ORDER BY 1")
		if !slices.Equal(charged, results) {
			t.Errorf("cut at %d: rows %v, results %v", cut, charged, results)
		}
		live := value(t, raw, "SELECT count(*) FROM idempotency_keys")
		if live != "0" && live != "1" {
			t.Errorf("cut at %d: %s are live", cut, live)
		}
		seen[len(results)] = true
		raw.Close()
	}
	t.Logf("after %d cuts in %d bytes, %d different numbers of results were found", cuts, len(wal), len(seen))
	if len(seen) < n/2 {
		t.Error("the log was not cut in enough places: the test is void")
	}
}
