package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// flow is one call of the store. Whatever kills it, and wherever, it was done or
// it was not, and may be made again with the same words.
type flow struct {
	name string
	// prepare makes what the call finds.
	prepare func(ctx context.Context, s *Store) error
	run     func(ctx context.Context, s *Store) error
	// commits is how many transactions the call takes.
	commits int
}

func flows() []flow {
	nothing := func(context.Context, *Store) error { return nil }
	claimed := func(lease time.Duration) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error {
			_, err := tryClaim(ctx, s, claimOf("k", "a", lease))
			return err
		}
	}
	after := func(fs ...func(ctx context.Context, s *Store) error) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error {
			for _, f := range fs {
				if err := f(ctx, s); err != nil {
					return err
				}
			}
			return nil
		}
	}
	settled := func(status kakutei.Status) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error {
			x := success(refOf("k", "a", 1))
			x.Status = status
			return trySettle(ctx, s, x)
		}
	}
	another := func(ctx context.Context, s *Store) error { // makes the table of the day
		if _, err := tryClaim(ctx, s, claimOf("another", "x", long)); err != nil {
			return err
		}
		return trySettle(ctx, s, success(refOf("another", "x", 1)))
	}
	expired := after(claimed(time.Millisecond), func(context.Context, *Store) error { time.Sleep(3 * time.Millisecond); return nil })
	acquired := func(recovery kakutei.Recovery, want kakutei.Outcome, attempt int64) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error {
			c := claimOf("k", "b", long)
			c.Recovery = recovery
			d, err := tryClaim(ctx, s, c)
			if err == nil && (d.Outcome != want || d.Attempt != attempt) {
				err = fmt.Errorf("it came to %v, attempt %d", d.Outcome, d.Attempt)
			}
			return err
		}
	}
	transaction := func(end func(ctx context.Context, tx kakutei.Transaction) error) func(ctx context.Context, s *Store) error {
		return func(ctx context.Context, s *Store) error {
			if rec, err := s.Look(ctx, []kakutei.ID{idOf("k")}); err != nil || rec[0].Record.Status == kakutei.StatusSucceeded {
				return err // as the engine does: what is settled does not run again
			}
			tx, err := s.Begin(ctx, refOf("k", "a", 1))
			if err != nil {
				return err
			}
			if err := charge(tx.Context(ctx), "k"); err != nil {
				return err
			}
			return end(ctx, tx)
		}
	}
	old := func(ctx context.Context, s *Store) error {
		clock := s.now
		defer func() { s.now = clock }()
		for i := range 3 {
			at(s, time.Now().Add(-time.Duration(10+i)*day))
			key := fmt.Sprint("old ", i)
			if _, err := tryClaim(ctx, s, claimOf(key, "x", long)); err != nil {
				return err
			}
			x := success(refOf(key, "x", 1))
			if i == 2 {
				x.Status = kakutei.StatusFailed
			}
			if err := trySettle(ctx, s, x); err != nil {
				return err
			}
		}
		return nil
	}
	return []flow{
		{"claim", nothing, claimed(long), 1},
		{"claim a batch", nothing, func(ctx context.Context, s *Store) error {
			out, err := s.Claim(ctx, []kakutei.Claim{claimOf("k", "a", long), claimOf("k2", "a", long), claimOf("k", "b", long)})
			if err == nil && (out[0].Outcome != kakutei.Acquired || out[1].Outcome != kakutei.Acquired || out[2].Outcome != kakutei.InFlight) {
				err = fmt.Errorf("it came to %v", out)
			}
			return err
		}, 1},
		{"claim after a failure", after(claimed(long), settled(kakutei.StatusFailed)), acquired(kakutei.Rerun, kakutei.Acquired, 2), 1},
		{"take over", expired, acquired(kakutei.Rerun, kakutei.Acquired, 2), 1},
		{"hold", expired, acquired(kakutei.Hold, kakutei.Uncertain, 1), 1},
		{"renew", claimed(time.Minute), func(ctx context.Context, s *Store) error { return tryRenew(ctx, s, refOf("k", "a", 1), long) }, 1},
		{"succeed, first of the day", claimed(long), settled(kakutei.StatusSucceeded), 1},
		{"succeed", after(another, claimed(long)), settled(kakutei.StatusSucceeded), 1},
		{"fail", after(another, claimed(long)), settled(kakutei.StatusFailed), 1},
		{"settle as uncertain", claimed(long), settled(kakutei.StatusUncertain), 1},
		{"commit a transaction", after(another, claimed(long)), transaction(func(ctx context.Context, tx kakutei.Transaction) error {
			return tx.Commit(ctx, success(refOf("k", "a", 1)))
		}), 1},
		{"commit a transaction, first of the day", claimed(long), transaction(func(ctx context.Context, tx kakutei.Transaction) error {
			return tx.Commit(ctx, success(refOf("k", "a", 1)))
		}), 1},
		{"roll a transaction back", claimed(long), transaction(func(_ context.Context, tx kakutei.Transaction) error { return tx.Rollback() }), 0},
		{"retain", after(old, claimed(long)), func(ctx context.Context, s *Store) error {
			_, err := s.Retain(ctx, 3*day)
			return err
		}, 3},
	}
}

// childKill runs a flow and dies at the given step of it.
func childKill(ctx context.Context, args []string) error {
	var step int
	if _, err := fmt.Sscan(args[2], &step); err != nil {
		return err
	}
	flow := flows()[slices.IndexFunc(flows(), func(f flow) bool { return f.name == args[1] })]
	armed, n, commits := false, 0, 0
	s, err := openFaulty(args[0], func(when, what string) error {
		if !armed {
			return nil
		}
		n++
		if when == "after" && what == "COMMIT" {
			commits++
		}
		if n != step {
			return nil
		}
		say("%d commits, killed %s %s", commits, when, what)
		me, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = me.Kill()
		}
		for err == nil {
			time.Sleep(time.Hour) // the signal is on its way
		}
		return err
	})
	if err != nil {
		return err
	}
	armed = true
	if err := flow.run(ctx, s); err != nil {
		return err
	}
	armed = false
	say("%d commits, done after %d steps", commits, n)
	return s.Close()
}

// stateOf is all that the file says, but for times.
func stateOf(t *testing.T, s *Store) string {
	t.Helper()
	return strings.Join(slices.Concat(
		column(t, s.write, `SELECT idempotency_key || ' ' || status || ' ' || attempt || ' ' || owner || ' ' || (ifnull(locked_until, 0) - updated_at > 1000000) FROM idempotency_keys ORDER BY 1`),
		column(t, s.write, `SELECT idempotency_key || ' ' || status || ' ' || attempt || ' ' || owner || ' ' || ifnull(CAST(response_body AS TEXT), '') FROM idempotency_results ORDER BY 1`),
		column(t, s.write, "SELECT 'charged ' || name FROM charges"), column(t, s.write, queryDays)), "\n")
}

// A process dies before and after each statement and each COMMIT of each call.
// Until the COMMIT is done nothing of the call is there, from then on all of it;
// and the call can be made again.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	steps, kills := 0, 0
	var mu sync.Mutex
	t.Cleanup(func() { t.Logf("%d processes were killed, at %d steps of %d calls", kills, steps, len(flows())) })
	for _, f := range flows() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			start := newFile(t)
			s, err := Open(ctx, start, Options{})
			if err != nil {
				t.Fatal(err)
			}
			exec1(t, s.DB(), "CREATE TABLE charges (name TEXT PRIMARY KEY) WITHOUT ROWID")
			if err := f.prepare(ctx, s); err != nil {
				t.Fatal(err)
			}
			states := []string{stateOf(t, s)} // by the number of commits
			s.Close()                         // all of it is in one file now
			file, err := os.ReadFile(start)
			if err != nil {
				t.Fatal(err)
			}
			// killedAt lets a process die at a step, or live, and returns the file as it
			// left it.
			killedAt := func(step int) (s *Store, commits int, said string, died bool) {
				path := newFile(t)
				if err := os.WriteFile(path, file, 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(os.Args[0], path, f.name, fmt.Sprint(step))
				cmd.Env = append(os.Environ(), childRole+"=kill")
				out, err := cmd.CombinedOutput()
				if died = killed(err); err != nil && !died {
					t.Fatalf("step %d: %v: %s", step, err, out)
				}
				said = strings.TrimSpace(string(out))
				if _, err := fmt.Sscan(said, &commits); err != nil || died != strings.Contains(said, "killed") {
					t.Fatalf("step %d: %q, %v", step, said, err)
				}
				if s, err = Open(ctx, path, Options{}); err != nil {
					t.Fatalf("%s: %v", said, err)
				}
				return s, commits, said, died
			}
			s, commits, said, died := killedAt(0)
			if died || commits != f.commits {
				t.Fatalf("unharmed: %s; want %d commits", said, f.commits)
			}
			end := stateOf(t, s)
			if (end == states[0]) != (f.commits == 0) {
				t.Fatalf("the call changes nothing: the test is void\n%s", end)
			}
			s.Close()
			if f.commits == 1 {
				states = append(states, end)
			}
			for step := 1; ; step++ {
				s, commits, said, died := killedAt(step)
				if !died {
					s.Close()
					break
				}
				mu.Lock()
				kills++
				steps++
				mu.Unlock()
				if got := stateOf(t, s); commits < len(states) && f.commits < 2 && got != states[commits] {
					t.Errorf("%s: the state is\n%s\nwant\n%s", said, got, states[commits])
				}
				if got := value(t, s.write, "PRAGMA integrity_check"); got != "ok" {
					t.Errorf("%s: %s", said, got)
				}
				if err := f.run(ctx, s); err != nil {
					t.Errorf("%s: the same call again: %v", said, err)
				}
				if got := stateOf(t, s); got != end {
					t.Errorf("%s, then again: the state is\n%s\nwant\n%s", said, got, end)
				}
				if err := f.run(ctx, s); err != nil && !errors.Is(err, kakutei.ErrLeaseLost) {
					t.Errorf("%s: the same call a third time: %v", said, err)
				}
				s.Close()
			}
		})
	}
}
