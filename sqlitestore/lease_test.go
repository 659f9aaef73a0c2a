package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// childHold claims a key and does nothing more.
func childHold(ctx context.Context, args []string) error {
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	lease, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	d, err := tryClaim(ctx, s, claimOf(args[1], "the dead", lease))
	if err != nil {
		return err
	}
	say("%v", d.Outcome)
	untilTold()
	return nil
}

// Case 12: a process is killed after its claim. The key is in flight until the
// lease is over, and is taken over right then.
func TestKilledAfterClaim_case_12(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := open(t, path)
	const lease = 1500 * time.Millisecond
	start := time.Now()
	c := spawn(t, "hold", path, "k", lease.String())
	c.expect("acquired")
	claimed := time.Now()
	c.kill()
	inFlight := 0
	for {
		d := claim(t, s, claimOf("k", "heir", long))
		if d.Outcome == kakutei.Acquired {
			if d.Attempt != 2 || !d.Takeover {
				t.Errorf("taken over as attempt %d, takeover %v", d.Attempt, d.Takeover)
			}
			break
		}
		if d.Outcome != kakutei.InFlight || d.Attempt != 1 {
			t.Fatalf("the claim came to %v, attempt %d", d.Outcome, d.Attempt)
		}
		if d.Left <= 0 || d.Left > lease {
			t.Errorf("%v are left of a lease of %v", d.Left, lease)
		}
		inFlight++
		time.Sleep(min(d.Left, 20*time.Millisecond)) // what Retry-After says
	}
	if took := time.Since(start); took < lease || time.Since(claimed) > lease+10*time.Second {
		t.Errorf("taken over %v after the claim; the lease was %v", time.Since(claimed), lease)
	}
	if inFlight == 0 {
		t.Error("the key was never seen in flight: the test is void")
	}
	settle(t, s, success(refOf("k", "heir", 2)))
	claims(t, s, claimOf("k", "late", long), kakutei.Replay, 2)
}

// Case 15: A outlives its lease, B takes over. Nothing that A does counts any
// more, under any combination of owner and attempt but B's own.
func TestFence_case_15(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	a, b := open(t, path), open(t, path)
	ctx := within(t)
	claims(t, a, claimOf("k", "a", time.Millisecond), kakutei.Acquired, 1)
	time.Sleep(5 * time.Millisecond)
	claims(t, b, claimOf("k", "b", long), kakutei.Acquired, 2)
	before := dump(t, b, "k")
	for _, ref := range []kakutei.Ref{
		refOf("k", "a", 1), refOf("k", "a", 2), refOf("k", "b", 1), refOf("k", "b", 3), refOf("k", "", 2), refOf("k", "B", 2), refOf("K", "b", 2),
		{ID: kakutei.ID{Scope: "Tenant", Key: "k"}, Owner: "b", Attempt: 2},
	} {
		if err := tryRenew(ctx, a, ref, long); !errors.Is(err, kakutei.ErrLeaseLost) {
			t.Errorf("%v renews: %v", ref, err)
		}
		for _, status := range []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain} {
			if err := trySettle(ctx, a, kakutei.Settlement{Ref: ref, Status: status, Result: answerOf("the zombie")}); !errors.Is(err, kakutei.ErrLeaseLost) {
				t.Errorf("%v settles as %v: %v", ref, status, err)
			}
		}
	}
	if after := dump(t, b, "k"); after != before {
		t.Errorf("the record was\n%s\nand is\n%s", before, after)
	}
	if got := value(t, b.read, "SELECT count(*) FROM idempotency_results"); got != "0" {
		t.Errorf("the zombie left %s results", got)
	}
	claims(t, a, claimOf("k", "c", long), kakutei.InFlight, 2)
	x := success(refOf("k", "b", 2))
	x.Result = answerOf("b")
	settle(t, b, x)
	if d := claims(t, a, claimOf("k", "c", long), kakutei.Replay, 2); string(d.Result.Body) != "b" {
		t.Errorf("the recorded result is %q", d.Result.Body)
	}
	// B settles once more, its reply was lost; A cannot, although it succeeded too.
	settle(t, b, x)
	if err := trySettle(ctx, a, success(refOf("k", "a", 1))); !errors.Is(err, kakutei.ErrLeaseLost) {
		t.Errorf("the zombie settles after the success: %v", err)
	}
}

// Case 16: many take over together, from two handles: one wins, each time, and
// the attempt number grows by one.
func TestTakeoverRace_case_16(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	both := []*Store{open(t, path), open(t, path)}
	rounds := 30
	if raceDetector {
		rounds = 8
	}
	claims(t, both[0], claimOf("k", "first", long), kakutei.Acquired, 1)
	for round := range rounds {
		expire(t, both[0], "k")
		var won atomic.Int32
		together(16, func(i int) {
			d, err := tryClaim(within(t), both[i%2], claimOf("k", fmt.Sprintf("%d/%d", round, i), long))
			switch {
			case err != nil:
				t.Error(err)
			case d.Outcome == kakutei.Acquired && (d.Attempt != int64(round+2) || !d.Takeover):
				t.Errorf("round %d: taken over as attempt %d", round, d.Attempt)
			case d.Outcome == kakutei.Acquired:
				won.Add(1)
			}
		})
		if n := won.Load(); n != 1 {
			t.Fatalf("round %d: %d took over", round, n)
		}
	}
}

// Case 18: many expired operations, one of them unreadable: all the others are
// recovered, by one batch, and that one delays nobody.
func TestManyExpired_case_18(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	var first, again []kakutei.Claim
	for i := range 100 {
		first = append(first, claimOf(fmt.Sprint("k", i), "dead", time.Millisecond))
		again = append(again, claimOf(fmt.Sprint("k", i), "heir", long))
	}
	if _, err := s.Claim(within(t), first); err != nil {
		t.Fatal(err)
	}
	forced(t, s, "UPDATE idempotency_keys SET status = 'SUSPENDED' WHERE idempotency_key = 'k42'")
	time.Sleep(5 * time.Millisecond)
	out, err := s.Claim(within(t), again)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range out {
		switch {
		case i == 42:
			if !errors.Is(d.Err, kakutei.ErrCorrupt) {
				t.Errorf("the unreadable one came to %v, %v", d.Outcome, d.Err)
			}
		case d.Err != nil || d.Outcome != kakutei.Acquired || !d.Takeover || d.Attempt != 2:
			t.Errorf("k%d came to %v, attempt %d, %v", i, d.Outcome, d.Attempt, d.Err)
		}
	}
}

// Case 19: a lease that never ends, or ended before it began, cannot be written.
// One that is missing all the same, put there by force, is treated as held.
func TestAbsurdLease_case_19(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	claims(t, s, claimOf("k", "me", long), kakutei.Acquired, 1)
	for _, set := range []string{
		"locked_until = NULL", "locked_until = updated_at", "locked_until = updated_at - 1", "locked_until = 0", "locked_until = -1",
		"locked_until = updated_at + 86400001", "locked_until = 9223372036854775807", "locked_until = 'soon'", "locked_until = 1.5e300",
		"status = 'SUSPENDED'", "status = 'SUCCEEDED'", "status = ''", "status = NULL", "status = 'processing'", "attempt = 0", "attempt = -1",
		"request_hash = NULL", "owner = NULL", "scope = NULL", "updated_at = locked_until",
	} {
		if _, err := s.DB().Exec("UPDATE idempotency_keys SET " + set); err == nil {
			t.Errorf("%s can be written", set)
		} else if c := code(err); c != 19 && c != 20 { // SQLITE_CONSTRAINT, SQLITE_MISMATCH
			t.Errorf("%s: %v", set, err)
		}
	}
	for _, lease := range []time.Duration{0, -1, -1 << 63, kakutei.MaxLease + 1, 1 << 62} {
		if d, err := s.Claim(within(t), []kakutei.Claim{claimOf("other", "me", lease)}); err != nil || !errors.Is(d[0].Err, kakutei.ErrInvalid) {
			t.Errorf("a lease of %v: %v, %v", lease, d, err)
		}
	}
	claims(t, s, claimOf("shortest", "me", 1), kakutei.Acquired, 1)
	claims(t, s, claimOf("longest", "me", kakutei.MaxLease), kakutei.Acquired, 1)

	for _, set := range []string{"locked_until = NULL", "locked_until = 9223372036854775807"} {
		forced(t, s, "UPDATE idempotency_keys SET "+set+" WHERE idempotency_key = 'k'")
		for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional} {
			c := claimOf("k", "other", long)
			c.Recovery = recovery
			if d := claims(t, s, c, kakutei.InFlight, 1); d.Left <= 0 {
				t.Errorf("%s, %v: %v are left", set, recovery, d.Left)
			}
		}
	}
	// Its holder can renew it, which repairs it, and settle it.
	forced(t, s, "UPDATE idempotency_keys SET locked_until = NULL WHERE idempotency_key = 'k'")
	if err := tryRenew(within(t), s, refOf("k", "me", 1), long); err != nil {
		t.Error(err)
	}
	if left := look(t, s, "k").Left; left < long-time.Minute || left > long {
		t.Errorf("after the renewal %v are left", left)
	}
	forced(t, s, "UPDATE idempotency_keys SET locked_until = NULL WHERE idempotency_key = 'k'")
	settle(t, s, success(refOf("k", "me", 1)))
}

// Every statement that writes is safe by itself: it changes nothing for who does
// not hold the row as it says, whatever the code around it has looked at before.
func TestStatementsAreFenced_case_15(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	done(t, s, "settled") // makes the day
	result := fmt.Sprintf(queryRecordResult, column(t, s.read, queryDays)[0])
	for _, status := range []string{"PROCESSING", "FAILED", "UNCERTAIN"} {
		for _, x := range []struct {
			name string
			run  func(key, owner string, attempt int64) (query string, args []any)
			// on lists the states that the statement starts from.
			on []string
		}{
			{"take", func(key, owner string, attempt int64) (string, []any) {
				return queryTake, []any{"tenant", key, attempt + 1, "heir", "", "", "", 1, 1000, owner, attempt}
			}, []string{"PROCESSING", "FAILED"}},
			{"hold", func(key, owner string, attempt int64) (string, []any) {
				return queryHold, []any{"tenant", key, owner, attempt, 1}
			}, []string{"PROCESSING"}},
			{"renew", func(key, owner string, attempt int64) (string, []any) {
				return queryRenew, []any{"tenant", key, owner, attempt, 1, 1000}
			}, []string{"PROCESSING"}},
			{"result", func(key, owner string, attempt int64) (string, []any) {
				return result, []any{"tenant", key, owner, attempt, "SUCCEEDED", 200, nil, nil, "", 1}
			}, []string{"PROCESSING"}},
			{"remove", func(key, owner string, attempt int64) (string, []any) {
				return queryRemove, []any{"tenant", key, owner, attempt}
			}, []string{"PROCESSING"}},
			{"end", func(key, owner string, attempt int64) (string, []any) {
				return queryEnd, []any{"tenant", key, owner, attempt, 1, "FAILED"}
			}, []string{"PROCESSING"}},
		} {
			key := x.name + " " + status
			claims(t, s, claimOf(key, "me", long), kakutei.Acquired, 1)
			claims(t, s, claimOf(key+"'s neighbour", "me", long), kakutei.Acquired, 1)
			exec1(t, s.DB(), "UPDATE idempotency_keys SET status = ?, attempt = 2 WHERE idempotency_key = ?", status, key)
			for _, holder := range []struct {
				owner   string
				attempt int64
			}{{"you", 2}, {"me", 1}, {"me", 3}, {"ME", 2}, {"", 2}} {
				query, args := x.run(key, holder.owner, holder.attempt)
				if n := exec1(t, s.DB(), query, args...); n != 0 {
					t.Errorf("%s of a row in %s: %s, attempt %d, has changed %d rows", x.name, status, holder.owner, holder.attempt, n)
				}
			}
			var want int64
			if slices.Contains(x.on, status) {
				want = 1
			}
			query, args := x.run(key, "me", 2)
			if n := exec1(t, s.DB(), query, args...); n != want {
				t.Errorf("%s of a row in %s: its holder has changed %d rows, want %d", x.name, status, n, want)
			}
		}
	}
}
