package sqlitestore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// paused lets the call come to where it is about to write: it has looked, has
// decided, and waits for its transaction. Then it runs meanwhile, and lets the
// call go on.
func paused(t *testing.T, s *Store, call, meanwhile func()) {
	t.Helper()
	// The writer has one connection. Who holds it keeps every write waiting.
	conn, err := s.write.Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	before := s.write.Stats().WaitCount
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	for start := time.Now(); s.write.Stats().WaitCount == before; time.Sleep(100 * time.Microsecond) {
		if time.Since(start) > patience {
			t.Fatal("the call does not want to write")
		}
	}
	meanwhile()
	conn.Close()
	<-done
}

// Cases 2, 3, 16: what a claim found when it looked is not true any more when it
// writes. It decides by what is true then.
func TestPausedBeforeItsWrite_cases_2_3_16(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	a, b := open(t, path), open(t, path)
	ctx := within(t)
	hold := func(c kakutei.Claim) kakutei.Claim {
		c.Recovery = kakutei.Hold
		return c
	}
	expired := func(key string) {
		claims(t, a, claimOf(key, "a", time.Millisecond), kakutei.Acquired, 1)
		for look(t, b, key).Left > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	failed := func(key string) {
		claims(t, a, claimOf(key, "a", long), kakutei.Acquired, 1)
		settle(t, a, kakutei.Settlement{Ref: refOf(key, "a", 1), Status: kakutei.StatusFailed})
	}
	nothing := func(string) {}
	for _, x := range []struct {
		name      string
		before    func(key string)
		meanwhile func(key string)
		claim     func(c kakutei.Claim) kakutei.Claim
		want      kakutei.Outcome
		attempt   int64
	}{
		{"new, then completed by another (case 2)", nothing, func(key string) { done(t, a, key) }, nil, kakutei.Replay, 1},
		{"new, then claimed by another", nothing, func(key string) {
			claims(t, a, claimOf(key, "a", long), kakutei.Acquired, 1)
		}, nil, kakutei.InFlight, 1},
		{"new, then claimed for another request", nothing, func(key string) {
			c := claimOf(key, "a", long)
			c.Fingerprint = kakutei.FingerprintOf([]byte("another request"))
			claims(t, a, c, kakutei.Acquired, 1)
		}, nil, kakutei.Mismatch, 1},
		{"failed, then forgotten (case 3)", failed, func(key string) {
			exec1(t, a.DB(), "DELETE FROM idempotency_keys WHERE idempotency_key = ?", key)
		}, nil, kakutei.Acquired, 1},
		{"failed, then run by another", failed, func(key string) {
			claims(t, a, claimOf(key, "a2", long), kakutei.Acquired, 2)
		}, nil, kakutei.InFlight, 2},
		{"expired, then completed all the same (case 16)", expired, func(key string) {
			settle(t, a, success(refOf(key, "a", 1)))
		}, nil, kakutei.Replay, 1},
		{"expired, then renewed", expired, func(key string) {
			if err := tryRenew(ctx, a, refOf(key, "a", 1), long); err != nil {
				t.Error(err)
			}
		}, nil, kakutei.InFlight, 1},
		{"expired, then taken over by another (case 16)", expired, func(key string) {
			claims(t, a, claimOf(key, "a2", long), kakutei.Acquired, 2)
		}, nil, kakutei.InFlight, 2},
		{"expired, then held by another", expired, func(key string) {
			claims(t, a, hold(claimOf(key, "a2", long)), kakutei.Uncertain, 1)
		}, nil, kakutei.Uncertain, 1},
		{"to be held, then completed all the same", expired, func(key string) {
			settle(t, a, success(refOf(key, "a", 1)))
		}, hold, kakutei.Replay, 1},
		{"to be held, then renewed", expired, func(key string) {
			if err := tryRenew(ctx, a, refOf(key, "a", 1), long); err != nil {
				t.Error(err)
			}
		}, hold, kakutei.InFlight, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			x.before(x.name)
			var d kakutei.Decision
			paused(t, b, func() {
				c := claimOf(x.name, "b", long)
				if x.claim != nil {
					c = x.claim(c)
				}
				var err error
				if d, err = tryClaim(ctx, b, c); err != nil {
					t.Error(err)
				}
			}, func() { x.meanwhile(x.name) })
			if d.Outcome != x.want || d.Attempt != x.attempt {
				t.Errorf("the claim came to %v, attempt %d; want %v, attempt %d", d.Outcome, d.Attempt, x.want, x.attempt)
			}
		})
	}
}

// Case 4: A claims in an open transaction, B claims, A rolls back: B runs.
func TestUncommittedClaim_case_4(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := open(t, path)
	tx, err := raw(t, path).Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	const key = "k"
	exec1(t, tx, queryInsert, "tenant", key, "POST", "/", opOf(key).Fingerprint.Bytes(), "a", "", "", "", 1, 60000)
	answer := make(chan kakutei.Decision, 1)
	go func() {
		d, err := tryClaim(within(t), s, claimOf(key, "b", long))
		if err != nil {
			t.Error(err)
		}
		answer <- d
	}()
	select {
	case d := <-answer:
		t.Fatalf("while another's claim was not committed, a claim came to %v", d.Outcome)
	case <-time.After(100 * time.Millisecond):
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if d := <-answer; d.Outcome != kakutei.Acquired || d.Attempt != 1 {
		t.Errorf("after the rollback the claim came to %v, attempt %d", d.Outcome, d.Attempt)
	}
}

// Case 9: one batch with the same key twice, other requests, and items that
// cannot be used: each gets its own answer.
func TestBatch_case_9(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	done(t, s, "settled")
	noLease, noOwner, noScope, tooLong := claimOf("no-lease", "me", 0), claimOf("no-owner", "", long), claimOf("no-scope", "me", long), claimOf("too-long", "me", 25*time.Hour)
	noScope.Scope = ""
	other := claimOf("twice", "me-too", long)
	other.Fingerprint = kakutei.FingerprintOf([]byte("another request"))
	out, err := s.Claim(within(t), []kakutei.Claim{
		claimOf("a", "me", long), claimOf("twice", "me", long), noLease, claimOf("twice", "me-too", long), noOwner, other,
		noScope, claimOf("settled", "me", long), tooLong, claimOf("twice", "me", long), claimOf("b", "me", long),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range out {
		if d.Err != nil {
			if !errors.Is(d.Err, kakutei.ErrInvalid) {
				t.Error(d.Err)
			}
			got = append(got, "invalid")
			continue
		}
		got = append(got, fmt.Sprintf("%v%d", d.Outcome, d.Attempt))
	}
	want := []string{"acquired1", "acquired1", "invalid", "in_flight1", "invalid", "mismatch1", "invalid", "replay1", "invalid", "acquired1", "acquired1"}
	if !slices.Equal(got, want) {
		t.Errorf("the answers are\n%v, want\n%v", got, want)
	}
	refused := func(errs []error, err error, want ...error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if !errors.Is(errs[i], w) && (w != nil || errs[i] != nil) {
				t.Errorf("answer %d is %v, want %v", i, errs[i], w)
			}
		}
	}
	errs, err := s.Renew(within(t), []kakutei.Renewal{
		{Ref: refOf("a", "me", 1), Lease: long}, {Ref: refOf("a", "me", 1)}, {Ref: refOf("b", "you", 1), Lease: long},
		{Ref: refOf("b", "me", 1), Lease: 25 * time.Hour}, {Ref: refOf("twice", "me", 1), Lease: long},
	})
	refused(errs, err, nil, kakutei.ErrInvalid, kakutei.ErrLeaseLost, kakutei.ErrInvalid, nil)
	errs, err = s.Settle(within(t), []kakutei.Settlement{
		success(refOf("a", "me", 1)), success(refOf("a", "me", 1)), success(refOf("b", "me", 2)), {Ref: refOf("b", "me", 1)},
		{Ref: refOf("b", "me", 1), Status: kakutei.StatusProcessing}, success(refOf("twice", "me", 1)), success(refOf("nothing", "me", 1)),
	})
	refused(errs, err, nil, nil, kakutei.ErrLeaseLost, kakutei.ErrInvalid, kakutei.ErrInvalid, nil, kakutei.ErrLeaseLost)
	claims(t, s, claimOf("b", "me", long), kakutei.Acquired, 1)
}

// Case 10: identities are compared byte for byte.
func TestIdentities_case_10(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	ids := []kakutei.ID{
		{Scope: "a", Key: "b:c"}, {Scope: "a:b", Key: "c"}, {Scope: "Ab", Key: "k"}, {Scope: "aB", Key: "k"}, {Scope: "s", Key: "Ab"}, {Scope: "s", Key: "aB"},
		{Scope: "s", Key: "a"}, {Scope: "s", Key: "a "}, {Scope: "s ", Key: "a"}, {Scope: "s", Key: " a"}, {Scope: "s", Key: "1"}, {Scope: "s", Key: "1.0"},
		{Scope: "s", Key: "0x1"}, {Scope: "s", Key: "NULL"}, {Scope: "s", Key: "'"}, {Scope: "s", Key: "''"}, {Scope: "s", Key: "%"}, {Scope: "s", Key: "?1"},
		{Scope: "1", Key: "1"}, {Scope: "01", Key: "1"}, {Scope: "\u00e9", Key: "1"}, {Scope: "e\u0301", Key: "1"}, {Scope: "確定", Key: "1"},
		{Scope: "s", Key: strings.Repeat("k", 255)}, {Scope: "s", Key: strings.Repeat("k", 254)}, {Scope: strings.Repeat("s", 255), Key: "k"},
	}
	of := func(id kakutei.ID) kakutei.Claim {
		c := claimOf(id.Key, "owner of "+id.Scope+"/"+id.Key, long)
		c.Scope, c.Fingerprint = id.Scope, kakutei.FingerprintOf([]byte(id.Scope), []byte(id.Key))
		return c
	}
	for _, id := range ids {
		claims(t, s, of(id), kakutei.Acquired, 1)
	}
	for i, id := range ids {
		x := success(kakutei.Ref{ID: id, Owner: of(id).Owner, Attempt: 1})
		x.Result.Body = []byte{byte(i)}
		settle(t, s, x)
	}
	for i, id := range ids {
		if d := claims(t, s, of(id), kakutei.Replay, 1); !bytes.Equal(d.Result.Body, []byte{byte(i)}) {
			t.Errorf("%q has the result of %q", id, ids[d.Result.Body[0]])
		}
	}
}

// A context that has ended claims nothing, and what is on its way is undisturbed.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Claim(ended, []kakutei.Claim{claimOf("k", "me", long)}); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim: %v", err)
	}
	if _, err := s.Look(ended, []kakutei.ID{idOf("k")}); !errors.Is(err, context.Canceled) {
		t.Errorf("Look: %v", err)
	}
	claims(t, s, claimOf("k", "other", long), kakutei.Acquired, 1)
	if _, err := s.Renew(ended, []kakutei.Renewal{{Ref: refOf("k", "other", 1), Lease: long}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Renew: %v", err)
	}
	if _, err := s.Settle(ended, []kakutei.Settlement{success(refOf("k", "other", 1))}); !errors.Is(err, context.Canceled) {
		t.Errorf("Settle: %v", err)
	}
	var none *sql.Tx
	if tx, err := Tx(ended); tx != none || err == nil {
		t.Errorf("Tx: %v", err)
	}
	claims(t, s, claimOf("k", "third", long), kakutei.InFlight, 1)
}
