package kakutei_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// Case 1: of 50 callers in each of one or two processes, one runs; the others
// are told that it is in flight, or get its answer.
func TestCase01OneOfManyRuns(t *testing.T) {
	for _, tc := range []struct {
		name    string
		engines int
		wait    time.Duration
	}{{"one process", 1, 0}, {"two processes", 2, 0}, {"one process, waiting", 1, time.Minute}, {"two processes, waiting", 2, time.Minute}} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				var engines []*testEngine
				for range tc.engines {
					engines = append(engines, newEngine(t, s, kakutei.Options{}))
				}
				const keys, callers = 20, 50
				p := rerun
				p.Wait = tc.wait
				handlers := make([]*handler, keys)
				var calls [keys][]*call
				for k := range keys {
					handlers[k] = answering(fmt.Sprintf("answer %d", k))
					fn := func(ctx context.Context) kakutei.Ending {
						time.Sleep(20 * time.Millisecond)
						return handlers[k].run(ctx)
					}
					for c := range callers * tc.engines {
						calls[k] = append(calls[k], engines[c%tc.engines].start(t.Context(), operation(fmt.Sprintf("k%d", k)), p, fn))
					}
				}
				for k := range keys {
					assert.Equal(t, countRuns(t, calls[k], handlers[k].body, tc.wait == 0), 1, "callers that ran")
					assert.Equal(t, handlers[k].runs.Load(), 1, "n")
				}
			})
		})
	}
}

// countRuns returns how many calls have an answer of their own, and checks that
// each of the others is a replay of body or, if allowed, in flight.
func countRuns(t *testing.T, calls []*call, body string, inFlight bool) (ran int) {
	t.Helper()
	for _, c := range calls {
		a, err := c.result()
		switch {
		case err == nil && !a.Replayed:
			ran++
			assert.Equal(t, string(a.Result.Body), body, "body")
		case err == nil || !inFlight:
			wantReplay(t, a, err, body)
		default:
			wantInFlight(t, err, lease)
		}
	}
	return ran
}

// Case 2: B is about to claim while A claims and completes.
func TestCase02CompletedWhileClaiming(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(claim, "k")
		second := b.start(t.Context(), operation("k"), rerun, never(t))
		<-blocked
		first, err := a.Run(t.Context(), operation("k"), rerun, answering("A").run)
		wantAnswer(t, first, err, "A")
		release()
		got, err := second.result()
		wantReplay(t, got, err, "A")
	})
}

// Case 6: one key with two requests at once: one runs, the other is refused.
func TestCase06TwoRequestsAtOnce(t *testing.T) {
	for _, engines := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d engines", engines), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := []*testEngine{newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})}
				for round := range 50 {
					key := fmt.Sprintf("k%d", round)
					h := answering("done")
					fn := func(ctx context.Context) kakutei.Ending {
						time.Sleep(time.Millisecond)
						return h.run(ctx)
					}
					calls := []*call{
						e[0].start(t.Context(), operation(key, "B"), rerun, fn),
						e[engines-1].start(t.Context(), operation(key, "B'"), rerun, fn),
					}
					refused := 0
					for _, c := range calls {
						if a, err := c.result(); err != nil {
							assert.ErrorIs(t, err, kakutei.ErrMismatch)
							assert.Equal(t, retryAfter(err), 0, "RetryAfter of a mismatch")
							refused++
						} else {
							wantAnswer(t, a, err, "done")
						}
					}
					assert.Equal(t, refused, 1, "refused")
					assert.Equal(t, h.runs.Load(), 1, "n")
				}
			})
		})
	}
}

// Case 7: duplicates of an operation in flight: the same request is in flight,
// another one a mismatch, and none of them touches the record. Asked in the same
// process and in another one, which knows nothing but the store.
func TestCase07DuplicatesInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		first := a.start(t.Context(), operation("k", "B"), rerun, h.run)
		<-h.started
		before := record(t, s.Store, operation("k"))
		for _, e := range []*testEngine{a, b} {
			for _, parts := range []string{"B", "B", "B'", "B"} {
				_, err := e.Run(t.Context(), operation("k", parts), rerun, never(t))
				if parts == "B" {
					wantInFlight(t, err, lease)
				} else {
					assert.ErrorIs(t, err, kakutei.ErrMismatch)
				}
			}
			e.wantEvents(map[*testEngine][]kakutei.EventKind{
				a: {kakutei.EventAcquired, kakutei.EventInFlight, kakutei.EventInFlight, kakutei.EventMismatch, kakutei.EventInFlight},
				b: {kakutei.EventInFlight, kakutei.EventInFlight, kakutei.EventMismatch, kakutei.EventInFlight},
			}[e]...)
		}
		after := record(t, s.Store, operation("k"))
		assert.Equal(t, after.Owner, before.Owner, "owner")
		assert.Equal(t, after.Attempt, before.Attempt, "attempt")
		assert.Equal(t, after.Left, before.Left, "lease")
		open()
		got, err := first.result()
		wantAnswer(t, got, err, "done")
		for _, e := range []*testEngine{a, b} { // the same holds when it is settled
			got, err := e.Run(t.Context(), operation("k", "B"), rerun, never(t))
			wantReplay(t, got, err, "done")
			_, err = e.Run(t.Context(), operation("k", "B'"), rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrMismatch)
		}
	})
}

// Case 9: one operation that cannot be decided does not disturb its batch.
func TestCase09OneBadItemInABatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.decided = func(c kakutei.Claim, d kakutei.Decision) kakutei.Decision {
			if c.Key == "bad" {
				return kakutei.Decision{Err: fmt.Errorf("%w: injected", kakutei.ErrCorrupt)}
			}
			return d
		}
		e := newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(claim, "first")
		first := e.start(t.Context(), operation("first"), rerun, answering("first").run)
		<-blocked
		bad := e.start(t.Context(), operation("bad"), rerun, never(t))
		good := e.start(t.Context(), operation("good"), rerun, answering("good").run)
		synctest.Wait()
		release()
		a, err := first.result()
		wantAnswer(t, a, err, "first")
		a, err = good.result()
		wantAnswer(t, a, err, "good")
		_, err = bad.result()
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
		assert.Equal(t, s.count(claim), 2, "claim calls (the second with both)")
	})
}

// Case 11: the claim is committed, its reply is lost, and it is sent again.
func TestCase11ReplyOfClaimLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.lose(claim, 2)
		e := newEngine(t, s, kakutei.Options{})
		h := answering("done")
		a, err := e.Run(t.Context(), operation("k"), rerun, h.run)
		wantAnswer(t, a, err, "done")
		assert.Equal(t, a.Attempt, 1, "attempt")
		assert.Equal(t, h.runs.Load(), 1, "n")
		assert.Equal(t, s.count(claim), 3, "claims sent")
		e.wantEvents(kakutei.EventAcquired, kakutei.EventSucceeded)
	})
}

// The same, when the store answers for this operation that it could not.
func TestClaimItemUnavailableIsSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		tries := 0
		s.decided = func(_ kakutei.Claim, d kakutei.Decision) kakutei.Decision {
			if tries++; tries < 3 {
				return kakutei.Decision{Err: kakutei.ErrUnavailable}
			}
			return d
		}
		e := newEngine(t, s, kakutei.Options{})
		a, err := e.Run(t.Context(), operation("k"), rerun, answering("done").run)
		wantAnswer(t, a, err, "done")
		assert.Equal(t, tries, 3, "tries")
	})
}

// Case 42 in the engine: the store is down before the claim.
func TestCase42StoreDownBeforeTheClaim(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				var f *fault
				if how == "fails" {
					f = s.fail(claim, 0)
				} else {
					f = s.hang(claim, 0)
				}
				e := newEngine(t, s, kakutei.Options{StoreTimeout: 3 * time.Second})
				start := time.Now()
				calls := []*call{e.start(t.Context(), operation("k"), rerun, never(t)), e.start(t.Context(), operation("k"), rerun, never(t))}
				for _, c := range calls {
					_, err := c.result()
					assert.ErrorIs(t, err, kakutei.ErrUnavailable)
					assert.True(t, retryAfter(err) > 0, "RetryAfter is missing")
				}
				took := time.Since(start)
				assert.True(t, took <= 4*time.Second, "the refusal took %v", took)
				e.wantEvents(kakutei.EventUnavailable, kakutei.EventUnavailable)

				s.repair(f)
				a, err := e.Run(t.Context(), operation("k"), rerun, answering("done").run)
				wantAnswer(t, a, err, "done")
			})
		})
	}
}

// The claim is committed and no reply ever arrives: the caller is refused, and
// the key must not be blocked for the whole lease.
func TestClaimRepliesAllLostFreesTheKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		f := s.lose(claim, 0)
		e := newEngine(t, s, kakutei.Options{Lease: time.Hour})
		_, err := e.Run(t.Context(), operation("k"), hold, never(t))
		assert.ErrorIs(t, err, kakutei.ErrUnavailable)
		s.repair(f)
		synctest.Wait()
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
		a, err := e.Run(t.Context(), operation("k"), hold, answering("done").run)
		wantAnswer(t, a, err, "done")
	})
}

var errGone = errors.New("the caller is gone")

// A caller that leaves while its claim is at the store gets its cause at once;
// what was acquired for it is handed back.
func TestCallerLeavesWhileClaiming(t *testing.T) {
	for _, reply := range []string{"arrives", "lost"} {
		t.Run("reply "+reply, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				blocked, gate := make(chan struct{}), make(chan struct{})
				s.add(&fault{method: claim, times: 1, after: func(context.Context) error {
					close(blocked)
					<-gate
					if reply == "lost" {
						return errStore
					}
					return nil
				}})
				e := newEngine(t, s, kakutei.Options{Lease: time.Hour})
				ctx, cancel := context.WithCancelCause(t.Context())
				c := e.start(ctx, operation("k"), hold, never(t))
				<-blocked
				cancel(errGone)
				_, err := c.result()
				assert.ErrorIs(t, err, errGone)
				wantStatus(t, s.Store, operation("k"), kakutei.StatusProcessing)
				close(gate)
				synctest.Wait()
				wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
				a, err := newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), hold, answering("done").run)
				wantAnswer(t, a, err, "done")
				assert.Equal(t, a.Attempt, 2, "attempt")
			})
		})
	}
}

// The caller leaves at the very moment at which the reply is lost or arrives:
// whatever of the two Run notices first, no key stays blocked.
func TestCallerLeavesAsTheReplyComes(t *testing.T) {
	for _, reply := range []string{"arrives", "lost"} {
		t.Run("reply "+reply, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{Lease: time.Hour})
				for i := range 500 {
					key := fmt.Sprint(i)
					ctx, cancel := context.WithCancelCause(t.Context())
					s.add(&fault{method: claim, key: key, times: 1, after: func(context.Context) error {
						cancel(errGone)
						if reply == "lost" {
							return errStore
						}
						return nil
					}})
					a, err := e.Run(ctx, operation(key), hold, func(context.Context) kakutei.Ending {
						return kakutei.Ending{Finality: kakutei.FinalityNoEffect}
					})
					if err != nil {
						assert.ErrorIs(t, err, errGone)
					} else {
						assert.Equal(t, a.Attempt, 1, "attempt")
					}
					synctest.Wait()
					if got := record(t, s.Store, operation(key)).Status; got != kakutei.StatusFailed {
						t.Fatalf("key %d of 500 is left %v", i, got)
					}
				}
			})
		})
	}
}

// A caller that leaves before its claim was sent leaves nothing behind.
func TestCallerLeavesBeforeItsClaimIsSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(claim, "other")
		other := e.start(t.Context(), operation("other"), rerun, answering("other").run)
		<-blocked
		ctx, cancel := context.WithCancelCause(t.Context())
		c := e.start(ctx, operation("k"), rerun, never(t))
		synctest.Wait()
		cancel(errGone)
		_, err := c.result()
		assert.ErrorIs(t, err, errGone)
		release()
		a, err := other.result()
		wantAnswer(t, a, err, "other")
		assert.Equal(t, s.itemCount(claim), 1, "claims that reached the store")
		wantStatus(t, s.Store, operation("k"), kakutei.StatusNone)
	})
}

// The first reply is lost, and the caller leaves while the claim waits to be
// sent again: the first sending acquired the key all the same.
func TestCallerLeavesBetweenTwoSendings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.add(&fault{method: claim, key: "k", times: 1, after: func(context.Context) error { return errStore }})
		blocked, release := s.block(claim, "other")
		e := newEngine(t, s, kakutei.Options{Lease: time.Hour})
		ctx, cancel := context.WithCancelCause(t.Context())
		c := e.start(ctx, operation("k"), hold, never(t))
		synctest.Wait() // the claim's first sending is over, and it sleeps
		other := e.start(t.Context(), operation("other"), rerun, answering("other").run)
		<-blocked
		time.Sleep(100 * time.Millisecond) // by now it is queued behind the other one
		assert.True(t, !c.ended(), "the call has ended")
		cancel(errGone)
		_, err := c.result()
		assert.ErrorIs(t, err, errGone)
		release()
		_, err = other.result()
		assert.NoError(t, err)
		time.Sleep(time.Minute)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
	})
}

// The caller that asks for all others leaves: the others are not answered with
// its leaving.
func TestLeaderLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(claim, "k")
		ctx, cancel := context.WithCancelCause(t.Context())
		leader := e.start(ctx, operation("k"), rerun, never(t))
		<-blocked
		h := answering("done")
		var others []*call
		for range 10 {
			others = append(others, e.start(t.Context(), operation("k"), kakutei.Policy{Recovery: kakutei.Rerun, Wait: time.Minute}, h.run))
		}
		synctest.Wait()
		cancel(errGone)
		_, err := leader.result()
		assert.ErrorIs(t, err, errGone)
		synctest.Wait()
		release()
		// The abandoned claim went out first and is handed back, so an answer may
		// take a moment; but everybody gets it.
		assert.Equal(t, countRuns(t, others, "done", false), 1, "callers that ran")
		assert.Equal(t, h.runs.Load(), 1, "n")
	})
}

// A follower that leaves does not wait for the claim it joined.
func TestFollowerLeaves(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(claim, "k")
		leader := e.start(t.Context(), operation("k"), rerun, answering("done").run)
		<-blocked
		ctx, cancel := context.WithCancelCause(t.Context())
		follower := e.start(ctx, operation("k"), rerun, never(t))
		synctest.Wait()
		cancel(errGone)
		_, err := follower.result()
		assert.ErrorIs(t, err, errGone)
		assert.True(t, !leader.ended(), "the leader ended with its follower")
		release()
		a, err := leader.result()
		wantAnswer(t, a, err, "done")
	})
}

// Callers that join a flight share what its leader learns, each by its own request.
func TestFollowersShareTheDecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		other := newEngine(t, s, kakutei.Options{})
		_, err := other.Run(t.Context(), operation("done", "B"), rerun, answering("recorded").run)
		assert.NoError(t, err)
		abandon(t, s.Store, operation("held", "B"), lease)
		for _, tc := range []struct {
			name, key, leader, follower string
			leaderErr, followerErr      error
		}{
			{"the leader replays", "done", "B", "B", nil, nil},
			{"the leader replays, the follower asks something else", "done", "B", "B'", nil, kakutei.ErrMismatch},
			{"the leader is refused, the follower's request is the recorded one", "done", "B'", "B", kakutei.ErrMismatch, nil},
			{"both are refused", "done", "B'", "B'", kakutei.ErrMismatch, kakutei.ErrMismatch},
			{"two different ones are refused", "done", "B'", "B''", kakutei.ErrMismatch, kakutei.ErrMismatch},
			{"in flight elsewhere", "held", "B", "B", kakutei.ErrInFlight, kakutei.ErrInFlight},
			{"in flight elsewhere, the follower asks something else", "held", "B", "B'", kakutei.ErrInFlight, kakutei.ErrMismatch},
		} {
			e := newEngine(t, s, kakutei.Options{})
			blocked, release := s.block(claim, tc.key)
			leader := e.start(t.Context(), operation(tc.key, tc.leader), rerun, never(t))
			<-blocked
			follower := e.start(t.Context(), operation(tc.key, tc.follower), rerun, never(t))
			synctest.Wait()
			release()
			for _, x := range []struct {
				who  string
				call *call
				want error
			}{{"leader", leader, tc.leaderErr}, {"follower", follower, tc.followerErr}} {
				a, err := x.call.result()
				if x.want == nil {
					wantReplay(t, a, err, "recorded")
				} else if !errors.Is(err, x.want) {
					t.Errorf("%s: the %s got %v, want %v", tc.name, x.who, err, x.want)
				}
			}
		}
	})
}

// Case 24: a record that cannot be read is never run over, by whatever path.
func TestCase24CorruptRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.decided = func(kakutei.Claim, kakutei.Decision) kakutei.Decision {
			return kakutei.Decision{Err: fmt.Errorf("%w: status %q is unknown", kakutei.ErrCorrupt, "PAUSED")}
		}
		e := newEngine(t, s, kakutei.Options{})
		_, err := e.Run(t.Context(), operation("k"), rerun, never(t))
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
		assert.Equal(t, retryAfter(err), 0, "RetryAfter of a corrupt record")
		assert.Equal(t, s.count(claim), 1, "claims sent: a corrupt record does not get better")
		e.wantEvents(kakutei.EventCorrupt)

		err = e.Unreadable(t.Context(), operation("k").ID(), errGone)
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
		assert.ErrorIs(t, err, errGone)
		e.wantEvents(kakutei.EventCorrupt, kakutei.EventCorrupt)
	})
}

// Case 28: the identity is the one at the claim, whatever the handler does to
// the variables it was made from.
func TestCase28HandlerChangesItsOperation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		body := []byte("amount=100")
		op := kakutei.Operation{Scope: "acme", Key: "k", Fingerprint: kakutei.FingerprintOf(body)}
		same := op
		a, err := e.Run(t.Context(), op, rerun, func(ctx context.Context) kakutei.Ending {
			copy(body, "XXXXXXXXXX")
			op.Scope, op.Key, op.Fingerprint = "other", "other", kakutei.FingerprintOf(body)
			assert.Equal(t, kakutei.FromContext(ctx).ID(), same.ID(), "ID of the attempt")
			return final("done")
		})
		wantAnswer(t, a, err, "done")
		for _, x := range []*testEngine{e, newEngine(t, s, kakutei.Options{})} {
			a, err = x.Run(t.Context(), same, rerun, never(t))
			wantReplay(t, a, err, "done")
		}
		live, results := s.Len()
		assert.True(t, live == 0 && results == 1, "%d live records and %d results", live, results)
	})
}

// Case 35: a record of an older fingerprint version matches the same request,
// by every path that can reach it; case 30: and another request does not.
func TestCase35OlderFingerprintVersion(t *testing.T) {
	older := operation("k", "request")
	newer := func(text string) kakutei.Operation {
		op := operation("k", "v2", text)
		op.Fingerprint.Version = 2
		op.FingerprintFunc = func(version uint8) (kakutei.Fingerprint, bool) {
			return operation("k", text).Fingerprint, version == 1
		}
		return op
	}
	unable := newer("request")
	unable.FingerprintFunc = nil
	// ask asks for the same request and for another one; same is what the same
	// one comes to.
	ask := func(t *testing.T, e *testEngine, same error) {
		t.Helper()
		for _, x := range []struct {
			op   kakutei.Operation
			want error
		}{{newer("another"), kakutei.ErrMismatch}, {newer("request"), same}} {
			_, err := e.Run(t.Context(), x.op, rerun, never(t))
			if x.want == nil {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, x.want)
			}
		}
	}
	t.Run("conflict in another process", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newFaultStore(t)
			abandon(t, s.Store, older, lease)
			e := newEngine(t, s, kakutei.Options{})
			ask(t, e, kakutei.ErrInFlight)
			_, err := e.Run(t.Context(), unable, rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrCorrupt)
		})
	})
	t.Run("conflict in the same process", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			e := newEngine(t, newFaultStore(t), kakutei.Options{})
			h, open := gated("done")
			defer open()
			e.start(t.Context(), older, rerun, h.run)
			<-h.started
			ask(t, e, kakutei.ErrInFlight)
		})
	})
	t.Run("replay from the store and from memory", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newFaultStore(t)
			e := newEngine(t, s, kakutei.Options{})
			_, err := e.Run(t.Context(), older, rerun, answering("done").run)
			assert.NoError(t, err)
			ask(t, e, nil)
			_, err = e.Run(t.Context(), unable, rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrCorrupt)
			again := newEngine(t, s, kakutei.Options{})
			ask(t, again, nil) // from the store, which makes it remembered
			ask(t, again, nil)
			_, err = again.Run(t.Context(), older, rerun, never(t)) // the old process still asks its way
			assert.NoError(t, err)
		})
	})
	t.Run("takeover", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newFaultStore(t)
			abandon(t, s.Store, older, lease)
			time.Sleep(lease)
			e := newEngine(t, s, kakutei.Options{})
			h := answering("done")
			a, err := e.Run(t.Context(), newer("request"), rerun, h.run)
			wantAnswer(t, a, err, "done")
			assert.Equal(t, a.Attempt, 2, "attempt")
		})
	})
	t.Run("waiter", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newFaultStore(t)
			a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
			h, open := gated("done")
			a.start(t.Context(), older, rerun, h.run)
			<-h.started
			w := b.start(t.Context(), newer("request"), kakutei.Policy{Recovery: kakutei.Rerun, Wait: time.Minute}, never(t))
			time.Sleep(time.Second)
			open()
			got, err := w.result()
			wantReplay(t, got, err, "done")
		})
	})
}

// Case 37 in the engine: the scope is part of the identity.
func TestCase37ScopesAreApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEngine(t, newFaultStore(t), kakutei.Options{})
		var wg sync.WaitGroup
		ops := []kakutei.Operation{{Scope: "a", Key: "b:c"}, {Scope: "a:b", Key: "c"}, {Scope: "a", Key: "b"}, {Scope: "A", Key: "b"}, {Scope: "a", Key: "b "}, {Scope: "a", Key: "B"}}
		for i, op := range ops { // case 10
			op.Fingerprint = operation("same").Fingerprint
			wg.Go(func() {
				for range 3 {
					h := answering(fmt.Sprint(i))
					a, err := e.Run(t.Context(), op, kakutei.Policy{Recovery: kakutei.Rerun}, h.run)
					assert.NoError(t, err)
					assert.Equal(t, string(a.Result.Body), fmt.Sprint(i), "body")
				}
			})
		}
		wg.Wait()
		assert.Equal(t, len(e.seen(kakutei.EventAcquired)), len(ops), "operations that ran")
	})
}
