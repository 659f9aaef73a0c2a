package kakutei_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// endingCase is one way for a handler to end, and what it must leave.
type endingCase struct {
	name string
	// end ends the handler.
	end func(ctx context.Context) kakutei.Ending
	// left is what it leaves under each recovery.
	left map[kakutei.Recovery]kakutei.Status
}

var (
	settledAlways = map[kakutei.Recovery]kakutei.Status{kakutei.Transactional: kakutei.StatusSucceeded, kakutei.Rerun: kakutei.StatusSucceeded, kakutei.Hold: kakutei.StatusSucceeded}
	failedAlways  = map[kakutei.Recovery]kakutei.Status{kakutei.Transactional: kakutei.StatusFailed, kakutei.Rerun: kakutei.StatusFailed, kakutei.Hold: kakutei.StatusFailed}
	byRecovery    = map[kakutei.Recovery]kakutei.Status{kakutei.Transactional: kakutei.StatusFailed, kakutei.Rerun: kakutei.StatusFailed, kakutei.Hold: kakutei.StatusUncertain}
)

var errPanic = errors.New("a panic of the handler")

var endings = []endingCase{
	{"final", func(context.Context) kakutei.Ending { return final("done") }, settledAlways},
	{"unknown", func(context.Context) kakutei.Ending { return kakutei.Ending{Result: kakutei.Result{Code: 503}} }, byRecovery},
	{"no effect", func(context.Context) kakutei.Ending { return kakutei.Ending{Finality: kakutei.FinalityNoEffect} }, failedAlways},
	{"no effect said by the attempt", func(ctx context.Context) kakutei.Ending {
		kakutei.FromContext(ctx).NoEffect()
		return kakutei.Ending{Result: kakutei.Result{Code: 500}}
	}, failedAlways},
	{"no effect said by the attempt, answer final", func(ctx context.Context) kakutei.Ending {
		kakutei.FromContext(ctx).NoEffect()
		return final("not done")
	}, failedAlways},
	{"panic", func(context.Context) kakutei.Ending { panic(errPanic) }, byRecovery},
	{"panic after no effect", func(ctx context.Context) kakutei.Ending {
		kakutei.FromContext(ctx).NoEffect()
		panic(errPanic)
	}, failedAlways},
	{"Goexit", func(context.Context) kakutei.Ending { runtime.Goexit(); panic("not reached") }, byRecovery},
}

// Case 21 in the engine, and case 29: every way to end leaves a defined state,
// and the next claim comes to what that state says.
func TestCase21EveryEnding(t *testing.T) {
	for _, tc := range endings {
		for _, p := range []kakutei.Policy{transactional, rerun, hold} {
			t.Run(tc.name+"/"+p.Recovery.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) { testEnding(t, tc, p) })
			})
		}
	}
}

func testEnding(t *testing.T, tc endingCase, p kakutei.Policy) {
	s := newFaultStore(t)
	e := newEngine(t, s, kakutei.Options{})
	var recovered any
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { recovered = recover() }()
		_, err := e.Run(t.Context(), operation("k"), p, tc.end)
		returned = true
		assert.NoError(t, err)
	}()
	<-done
	switch tc.name {
	case "panic", "panic after no effect":
		assert.True(t, recovered == errPanic, "recovered %v: the panic did not pass through", recovered) //nolint:errorlint // the very value
	case "Goexit":
		assert.True(t, !returned && recovered == nil, "Goexit did not pass through (returned: %v, recovered: %v)", returned, recovered)
	default:
		assert.True(t, returned && recovered == nil, "returned: %v, recovered: %v", returned, recovered)
	}
	want := tc.left[p.Recovery]
	wantStatus(t, s.Store, operation("k"), want)
	e.wantEvents(kakutei.EventAcquired, map[kakutei.Status]kakutei.EventKind{
		kakutei.StatusSucceeded: kakutei.EventSucceeded, kakutei.StatusFailed: kakutei.EventFailed, kakutei.StatusUncertain: kakutei.EventHeld,
	}[want])
	assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine")

	for _, next := range []*testEngine{newEngine(t, s, kakutei.Options{}), e} {
		switch want {
		case kakutei.StatusFailed:
			a, err := next.Run(t.Context(), operation("k"), p, answering("second").run)
			wantAnswer(t, a, err, "second")
			assert.Equal(t, a.Attempt, 2, "attempt")
			want = kakutei.StatusNone // settled now
		case kakutei.StatusUncertain:
			_, err := next.Run(t.Context(), operation("k"), p, never(t))
			assert.ErrorIs(t, err, kakutei.ErrUncertain)
		case kakutei.StatusSucceeded:
			a, err := next.Run(t.Context(), operation("k"), p, never(t))
			wantReplay(t, a, err, "done")
			assert.Equal(t, a.Result.Code, 201, "code")
			assert.Equal(t, a.Attempt, 1, "attempt")
		}
	}
}

// Only the code of an ending that is not final goes to the record.
func TestFailedEndingRecordsItsCodeAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var got []kakutei.Settlement
		s := recorder{Store: newFaultStore(t), settled: &got}
		e := newEngine(t, s, kakutei.Options{})
		a, err := e.Run(t.Context(), operation("k"), rerun, func(context.Context) kakutei.Ending {
			return kakutei.Ending{Result: kakutei.Result{Code: 500, Header: []byte("h"), Body: []byte("secret stack")}}
		})
		assert.NoError(t, err)
		assert.Equal(t, a.Result.Code, 500, "code answered")
		if assert.Equal(t, len(got), 1, "settlements") {
			r := got[0].Result
			assert.True(t, r.Code == 500 && r.Header == nil && r.Body == nil, "recorded %+v", r)
		}
	})
}

// recorder keeps what is settled.
type recorder struct {
	kakutei.Store
	settled *[]kakutei.Settlement
}

func (r recorder) Settle(ctx context.Context, xs []kakutei.Settlement) ([]error, error) {
	*r.settled = append(*r.settled, xs...)
	return r.Store.Settle(ctx, xs)
}

// A result whose body was not kept is settled all the same, with an answer of its own.
func TestOmittedResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		a, err := e.Run(t.Context(), operation("k"), rerun, func(context.Context) kakutei.Ending {
			return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Code: 200, Omitted: "too-large"}}
		})
		assert.NoError(t, err)
		assert.True(t, !a.Replayed, "marked as replayed")
		for _, next := range []*testEngine{e, newEngine(t, s, kakutei.Options{})} {
			_, err = next.Run(t.Context(), operation("k"), rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrNotRetained)
			assert.Equal(t, retryAfter(err), 0, "RetryAfter")
		}
	})
}

// Case 27: the completion fails, or its reply is lost, and then works.
func TestCase27CompletionFailsThenWorks(t *testing.T) {
	for _, how := range []string{"fails", "reply lost", "hangs"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				switch how {
				case "fails":
					s.fail(settle, 2)
				case "reply lost":
					s.lose(settle, 2)
				case "hangs":
					s.hang(settle, 1)
				}
				e := newEngine(t, s, kakutei.Options{})
				h := answering("done")
				a, err := e.Run(t.Context(), operation("k"), hold, h.run)
				wantAnswer(t, a, err, "done")
				e.wantEvents(kakutei.EventAcquired, kakutei.EventSucceeded)
				for _, next := range []*testEngine{e, newEngine(t, s, kakutei.Options{})} {
					a, err := next.Run(t.Context(), operation("k"), hold, never(t))
					wantReplay(t, a, err, "done")
				}
				assert.Equal(t, h.runs.Load(), 1, "n")
			})
		})
	}
}

// Case 27: the completion fails for good. The caller has its answer, marked; the
// key stays held as long as the engine lives; and when the store is back, the
// answer is recorded and replayed.
func TestCase27CompletionFailsForGood(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		for _, p := range []kakutei.Policy{rerun, hold} {
			t.Run(how+"/"+p.Recovery.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newFaultStore(t)
					var f *fault
					if how == "fails" {
						f = s.fail(settle, 0)
					} else {
						f = s.hang(settle, 0)
					}
					e, b := newEngine(t, s, kakutei.Options{SettleTimeout: 2 * time.Second}), newEngine(t, s, kakutei.Options{})
					start := time.Now()
					a, err := e.Run(t.Context(), operation("k"), p, answering("done").run)
					assert.NoError(t, err)
					assert.Equal(t, string(a.Result.Body), "done", "body")
					assert.True(t, a.Unrecorded && !a.Replayed, "answer: %+v", a)
					took := time.Since(start)
					assert.True(t, took <= 6*time.Second, "the answer was held back for %v", took)
					e.wantEvents(kakutei.EventAcquired, kakutei.EventUnrecorded)
					wantStatus(t, s.Store, operation("k"), kakutei.StatusProcessing)

					// Only settling is broken: renewals keep the others out meanwhile.
					for range 20 {
						time.Sleep(5 * time.Second)
						for _, x := range []*testEngine{e, b} {
							_, err := x.Run(t.Context(), operation("k"), p, never(t))
							wantInFlight(t, err, lease)
						}
					}
					s.repair(f)
					time.Sleep(10 * time.Second)
					wantStatus(t, s.Store, operation("k"), kakutei.StatusSucceeded)
					e.mu.Lock()
					e.events = nil
					e.mu.Unlock()
					for _, x := range []*testEngine{e, b} {
						a, err := x.Run(t.Context(), operation("k"), p, never(t))
						wantReplay(t, a, err, "done")
					}
				})
			})
		}
	}
}

// Case 27: the whole store is away for longer than the lease. When it is back,
// either the late completion comes first, or a claim decides by the recovery;
// the late completion is then refused.
func TestCase27StoreAwayForLongerThanTheLease(t *testing.T) {
	for _, p := range []kakutei.Policy{rerun, hold} {
		t.Run(p.Recovery.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				faults := []*fault{s.fail(settle, 0), s.fail(renew, 0)}
				e, b := newEngine(t, s, kakutei.Options{SettleTimeout: time.Second}), newEngine(t, s, kakutei.Options{})
				a, err := e.Run(t.Context(), operation("k"), p, answering("unrecorded").run)
				assert.NoError(t, err)
				assert.True(t, a.Unrecorded, "not marked as unrecorded")
				time.Sleep(lease)
				if p.Recovery == kakutei.Hold {
					_, err = b.Run(t.Context(), operation("k"), p, never(t))
					assert.ErrorIs(t, err, kakutei.ErrUncertain)
				} else {
					a, err = b.Run(t.Context(), operation("k"), p, func(context.Context) kakutei.Ending {
						for _, f := range faults {
							s.repair(f)
						}
						time.Sleep(5 * time.Second) // the late completion comes, and is refused
						return final("second")
					})
					wantAnswer(t, a, err, "second")
				}
				for _, f := range faults {
					s.repair(f)
				}
				time.Sleep(time.Minute)
				assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine")
				if p.Recovery == kakutei.Hold {
					wantStatus(t, s.Store, operation("k"), kakutei.StatusUncertain)
				} else {
					a, err = e.Run(t.Context(), operation("k"), p, never(t))
					wantReplay(t, a, err, "second")
				}
			})
		})
	}
}

// The deadline bounds the handler, not the record of what it answered: the key
// is not run again while its answer is known.
func TestLateSettlementIsRenewedPastTheDeadline(t *testing.T) {
	for _, took := range []time.Duration{59 * time.Second, 65 * time.Second} {
		t.Run(fmt.Sprintf("handler ends after %v", took), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				f := s.fail(settle, 0)
				e, b := newEngine(t, s, kakutei.Options{SettleTimeout: time.Second}), newEngine(t, s, kakutei.Options{})
				p := rerun
				p.Deadline = time.Minute
				a, err := e.Run(t.Context(), operation("k"), p, func(context.Context) kakutei.Ending {
					time.Sleep(took)
					return final("done")
				})
				assert.NoError(t, err)
				assert.True(t, a.Unrecorded, "not marked as unrecorded")
				for range 6 {
					time.Sleep(5 * time.Second)
					_, err := b.Run(t.Context(), operation("k"), p, never(t))
					wantInFlight(t, err, lease)
				}
				s.repair(f)
				time.Sleep(5 * time.Second)
				a, err = b.Run(t.Context(), operation("k"), p, never(t))
				wantReplay(t, a, err, "done")
			})
		})
	}
}

// The background tries end, and leave nothing behind.
func TestLateSettlementGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.fail(settle, 0)
		e := newEngine(t, s, kakutei.Options{})
		a, err := e.Run(t.Context(), operation("k"), hold, answering("done").run)
		assert.NoError(t, err)
		assert.True(t, a.Unrecorded, "not marked as unrecorded")
		assert.Equal(t, e.Inside().Running, 1, "attempts running")
		time.Sleep(kakutei.LateLimit + time.Minute)
		assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine")
		_, err = e.Run(t.Context(), operation("k"), hold, never(t))
		assert.ErrorIs(t, err, kakutei.ErrUncertain)
	})
}

// One settlement that fails does not hold up the others of its batch, and ends
// by the answer of its own.
func TestSettleBatchWithARefusedItem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		var calls []*call
		for i := range 20 {
			calls = append(calls, e.start(t.Context(), operation(fmt.Sprint(i)), rerun, h.run))
		}
		synctest.Wait()
		rec := record(t, s.Store, operation("7"))
		errs, err := s.Store.Settle(t.Context(), []kakutei.Settlement{{
			Ref: kakutei.Ref{ID: operation("7").ID(), Owner: rec.Owner, Attempt: rec.Attempt}, Status: kakutei.StatusFailed,
		}})
		assert.NoError(t, err)
		assert.NoError(t, errs[0])
		blocked, release := s.block(settle, "")
		open()
		<-blocked
		synctest.Wait() // the others queue behind the first
		release()
		for i, c := range calls {
			a, err := c.result()
			if i == 7 {
				assert.ErrorIs(t, err, kakutei.ErrLeaseLost)
			} else {
				wantAnswer(t, a, err, "done")
			}
		}
		assert.Equal(t, s.itemCount(settle), 20, "settlements: a refused one is not sent again")
		assert.True(t, s.count(settle) <= 2, "%d calls for 20 settlements", s.count(settle))
	})
}

// The loser's client is never answered with its own result when the record
// cannot be read either.
func TestLeaseLostAndTheStoreIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.fail(look, 0)
		_, first, endA := stalled(t, s, rerun)
		time.Sleep(eps)
		_, err := s.Store.Claim(t.Context(), []kakutei.Claim{{Operation: operation("k"), Owner: "B", Lease: lease, Recovery: kakutei.Rerun}})
		assert.NoError(t, err)
		endA()
		_, err = first.result()
		assert.ErrorIs(t, err, kakutei.ErrLeaseLost)
		assert.True(t, retryAfter(err) > 0, "RetryAfter is missing")
	})
}

// Case 20: the caller leaves in the middle. Detached, the function goes on and
// its answer is recorded; the retry gets it.
func TestCase20CallerLeavesInTheMiddle(t *testing.T) {
	for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional} {
		t.Run(recovery.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				p := kakutei.Policy{Recovery: recovery, Detach: true}
				type ctxKey struct{}
				ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), ctxKey{}, "kept"))
				h, open := gated("done")
				first := e.start(ctx, operation("k"), p, h.run)
				<-h.started
				time.Sleep(time.Second)
				cancel(errGone)
				time.Sleep(time.Second)
				assert.True(t, h.context().Err() == nil, "the handler was cancelled with its caller: %v", context.Cause(h.context()))
				assert.True(t, h.context().Value(ctxKey{}) == "kept", "the values of the caller's context are gone")
				_, bounded := h.context().Deadline()
				assert.True(t, bounded, "the handler has no deadline of its own")
				open()
				a, err := first.result()
				wantAnswer(t, a, err, "done")
				for _, next := range []*testEngine{e, newEngine(t, s, kakutei.Options{})} {
					a, err := next.Run(t.Context(), operation("k"), p, never(t))
					wantReplay(t, a, err, "done")
				}
			})
		})
	}
}

// Without Detach the function is told; what it then ends with is recorded all
// the same, although the caller's context is dead.
func TestCallerLeavesWithoutDetach(t *testing.T) {
	for _, p := range []kakutei.Policy{rerun, hold, transactional} {
		t.Run(p.Recovery.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				ctx, cancel := context.WithCancelCause(t.Context())
				first := e.start(ctx, operation("k"), p, func(ctx context.Context) kakutei.Ending {
					<-ctx.Done()
					assert.Equal(t, context.Cause(ctx), errGone, "cause")
					return final("done")
				})
				synctest.Wait()
				if p.Recovery != kakutei.Transactional {
					s.fail(settle, 3) // trying again does not end with the caller either
				}
				cancel(errGone)
				a, err := first.result()
				wantAnswer(t, a, err, "done")
				a, err = newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), p, never(t))
				wantReplay(t, a, err, "done")
			})
		})
	}
}
