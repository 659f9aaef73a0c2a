package kakutei_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

const eps = time.Millisecond

// Case 12: a process dies after its claim: in flight for at most the lease, with
// the time that is left, and recovered right after it.
func TestCase12AbandonedLease(t *testing.T) {
	for _, policy := range []kakutei.Policy{rerun, transactional} {
		t.Run(policy.Recovery.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				abandon(t, s.Store, operation("k"), lease)
				for left := lease; left > 0; left -= time.Second {
					_, err := e.Run(t.Context(), operation("k"), policy, never(t))
					wantInFlight(t, err, left)
					assert.Equal(t, retryAfter(err), left, "RetryAfter")
					time.Sleep(time.Second)
				}
				a, err := e.Run(t.Context(), operation("k"), policy, func(ctx context.Context) kakutei.Ending {
					assert.Equal(t, kakutei.FromContext(ctx).Number(), 2, "attempt number")
					return final("recovered")
				})
				wantAnswer(t, a, err, "recovered")
				assert.Equal(t, a.Attempt, 2, "attempt")
				assert.Equal(t, len(e.seen(kakutei.EventTakeover)), 1, "takeovers observed")
			})
		})
	}
}

// Case 13: the handler outlives its lease many times over; it is renewed, and
// duplicates in both processes see it in flight throughout.
func TestCase13HandlerOutlivesItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		first := a.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		for range 250 { // 25 leases, within the deadline of 5 minutes
			for _, e := range []*testEngine{a, b} {
				_, err := e.Run(t.Context(), operation("k"), rerun, never(t))
				wantInFlight(t, err, lease)
			}
			time.Sleep(time.Second)
		}
		assert.True(t, h.context().Err() == nil, "the handler's context has ended: %v", context.Cause(h.context()))
		open()
		got, err := first.result()
		wantAnswer(t, got, err, "done")
		assert.Equal(t, h.runs.Load(), 1, "n")
		assert.Equal(t, len(a.seen(kakutei.EventLeaseLost)), 0, "leases lost")
		assert.True(t, s.count(renew) >= 50, "only %d renewals", s.count(renew))
	})
}

// All leases of a process that are due are renewed in one call.
func TestRenewalsShareACall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		var calls []*call
		for i := range 100 {
			calls = append(calls, e.start(t.Context(), operation(fmt.Sprint(i)), rerun, h.run))
		}
		time.Sleep(10*lease + time.Second)
		open()
		for _, c := range calls {
			_, err := c.result()
			assert.NoError(t, err)
		}
		assert.True(t, s.itemCount(renew) >= 100*10, "%d renewals", s.itemCount(renew))
		assert.True(t, s.count(renew) <= 40, "%d calls for them", s.count(renew))
	})
}

// A store that is away for less than the lease costs nothing.
func TestRenewalFailsForAWhile(t *testing.T) {
	for _, how := range []string{"fails", "reply lost", "hangs"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				switch how {
				case "fails":
					s.fail(renew, 5)
				case "reply lost":
					s.lose(renew, 5)
				case "hangs":
					s.hang(renew, 1)
				}
				a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
				h, open := gated("done")
				first := a.start(t.Context(), operation("k"), rerun, h.run)
				for range 50 {
					time.Sleep(time.Second)
					_, err := b.Run(t.Context(), operation("k"), rerun, never(t))
					wantInFlight(t, err, lease)
				}
				assert.True(t, h.context().Err() == nil, "the handler's context has ended: %v", context.Cause(h.context()))
				open()
				got, err := first.result()
				wantAnswer(t, got, err, "done")
				a.wantEvents(kakutei.EventAcquired, kakutei.EventSucceeded)
			})
		})
	}
}

// Case 14: renewals fail until the lease has run out. The handler is cancelled
// with the cause, not later than anybody may take over, and its completion is
// refused once somebody has.
func TestCase14RenewalFails(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				if how == "fails" {
					s.fail(renew, 0)
				} else {
					s.hang(renew, 0)
				}
				a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
				start := time.Now()
				h, open := gated("loser")
				first := a.start(t.Context(), operation("k"), rerun, h.run)
				<-h.started
				<-h.context().Done()
				assert.Equal(t, context.Cause(h.context()), kakutei.ErrLeaseLost, "cause")
				assert.Equal(t, time.Since(start), lease, "time of the cancellation")
				time.Sleep(eps)
				got, err := b.Run(t.Context(), operation("k"), rerun, answering("winner").run)
				wantAnswer(t, got, err, "winner")
				open()
				got, err = first.result()
				wantReplay(t, got, err, "winner")
				time.Sleep(10 * lease)
				a.wantEvents(kakutei.EventAcquired, kakutei.EventLeaseLost, kakutei.EventReplay)
			})
		})
	}
}

// Case 14: the renewal finds no row that is its own.
func TestCase14RenewalFindsNoRow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a := newEngine(t, s, kakutei.Options{})
		start := time.Now()
		h, open := gated("loser")
		first := a.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		// An operator settles it under the handler.
		rec := record(t, s.Store, operation("k"))
		errs, err := s.Store.Settle(t.Context(), []kakutei.Settlement{{
			Ref: kakutei.Ref{ID: operation("k").ID(), Owner: rec.Owner, Attempt: rec.Attempt}, Status: kakutei.StatusUncertain,
		}})
		assert.NoError(t, err)
		assert.NoError(t, errs[0])
		<-h.context().Done()
		assert.Equal(t, context.Cause(h.context()), kakutei.ErrLeaseLost, "cause")
		took := time.Since(start)
		assert.True(t, took < lease/2, "cancelled after %v: the next renewal should have noticed", took)
		open()
		_, err = first.result()
		assert.ErrorIs(t, err, kakutei.ErrUncertain)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusUncertain)
		a.wantEvents(kakutei.EventAcquired, kakutei.EventLeaseLost, kakutei.EventUncertain)
	})
}

// A handler that loses its lease for lack of renewals, and that nobody took
// over from, still completes: the store alone decides.
func TestExpiredLeaseNobodyTookCompletes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.fail(renew, 0)
		e := newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		first := e.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		<-h.context().Done()
		open()
		got, err := first.result()
		wantAnswer(t, got, err, "done")
		wantStatus(t, s.Store, operation("k"), kakutei.StatusSucceeded)
	})
}

// stalled is an attempt of engine a whose renewals fail and whose handler does
// not look at its context.
func stalled(t *testing.T, s *faultStore, p kakutei.Policy) (a *testEngine, first *call, end func()) {
	s.add(&fault{method: renew, before: func(context.Context) error { return errStore }})
	a = newEngine(t, s, kakutei.Options{})
	h, open := gated("A")
	first = a.start(t.Context(), operation("k"), p, h.run)
	<-h.started
	<-h.context().Done()
	return a, first, open
}

// Case 15: A outlives its lease and B takes over. Whatever A does then is
// refused, C is told that B's is in flight, and what is recorded is B's.
func TestCase15LoserIsFenced(t *testing.T) {
	for _, bEnds := range []string{"before A", "after A"} {
		t.Run("B ends "+bEnds, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				_, first, endA := stalled(t, s, rerun)
				s.repair(s.faults[0])
				b, c := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
				hb, endB := gated("B")
				time.Sleep(eps)
				second := b.start(t.Context(), operation("k"), rerun, hb.run)
				<-hb.started
				_, err := c.Run(t.Context(), operation("k"), rerun, never(t))
				wantInFlight(t, err, lease)
				if bEnds == "before A" {
					endB()
					a, err := second.result()
					wantAnswer(t, a, err, "B")
				}
				endA()
				a, err := first.result()
				if bEnds == "before A" {
					wantReplay(t, a, err, "B")
				} else {
					assert.ErrorIs(t, err, kakutei.ErrLeaseLost)
					left := retryAfter(err)
					assert.True(t, left > 0 && left <= lease, "RetryAfter is %v", left)
					_, err := c.Run(t.Context(), operation("k"), rerun, never(t))
					wantInFlight(t, err, lease)
					time.Sleep(3 * lease) // B is renewed, A's loss does not touch it
					assert.True(t, hb.context().Err() == nil, "B's context has ended: %v", context.Cause(hb.context()))
					endB()
					a, err := second.result()
					wantAnswer(t, a, err, "B")
				}
				a, err = c.Run(t.Context(), operation("k"), rerun, never(t))
				wantReplay(t, a, err, "B")
				assert.Equal(t, a.Attempt, 2, "attempt recorded")
			})
		})
	}
}

// Case 15, C being in A's process: that A's handler still runs there must not
// hide what the store knows, for who asks now and for who waits already.
func TestCase15DuplicatesInTheLosersProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a := newEngine(t, s, kakutei.Options{})
		h, endA := gated("A")
		defer endA()
		a.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		waiter := a.start(t.Context(), operation("k"), waiting(rerun, time.Hour), never(t))
		synctest.Wait()
		settleAs := func(owner string, attempt int64, status kakutei.Status, body string) {
			t.Helper()
			errs, err := s.Store.Settle(t.Context(), []kakutei.Settlement{{
				Ref: kakutei.Ref{ID: operation("k").ID(), Owner: owner, Attempt: attempt}, Status: status, Result: kakutei.Result{Body: []byte(body)},
			}})
			assert.NoError(t, err)
			assert.NoError(t, errs[0])
		}
		// The row is taken from A, and B owns it; A learns it at its next renewal.
		settleAs(record(t, s.Store, operation("k")).Owner, 1, kakutei.StatusFailed, "")
		ds, err := s.Store.Claim(t.Context(), []kakutei.Claim{{Operation: operation("k"), Owner: "B", Lease: time.Hour, Recovery: kakutei.Rerun}})
		assert.NoError(t, err)
		assert.Equal(t, ds[0].Attempt, 2, "attempt of B")
		<-h.context().Done()
		synctest.Wait()
		_, err = a.Run(t.Context(), operation("k"), rerun, never(t))
		wantInFlight(t, err, time.Hour)
		settleAs("B", 2, kakutei.StatusSucceeded, "B")
		got, err := a.Run(t.Context(), operation("k"), rerun, never(t))
		wantReplay(t, got, err, "B")
		time.Sleep(lease)
		if assert.True(t, waiter.ended(), "the waiter still waits for the handler that lost") {
			got, err = waiter.result()
			wantReplay(t, got, err, "B")
		}
	})
}

// Case 16: the process whose attempt lost its lease wins again: a new attempt,
// although the handler of the old one still runs.
func TestCase16SameProcessWinsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a, first, endA := stalled(t, s, rerun)
		s.repair(s.faults[0])
		time.Sleep(eps)
		got, err := a.Run(t.Context(), operation("k"), rerun, answering("again").run)
		wantAnswer(t, got, err, "again")
		assert.Equal(t, got.Attempt, 2, "attempt")
		endA()
		got, err = first.result()
		wantReplay(t, got, err, "again")
	})
}

// Case 15, with every way for A to end: none of them changes B's record.
func TestCase15LoserEndsInAnyWay(t *testing.T) {
	for _, f := range []kakutei.Finality{kakutei.FinalityFinal, kakutei.FinalityUnknown, kakutei.FinalityNoEffect} {
		for _, p := range []kakutei.Policy{rerun, transactional} {
			t.Run(fmt.Sprint(f, " ", p.Recovery), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newFaultStore(t)
					s.fail(renew, 0)
					a := newEngine(t, s, kakutei.Options{})
					gate := make(chan struct{})
					first := a.start(t.Context(), operation("k"), p, func(context.Context) kakutei.Ending {
						<-gate
						return kakutei.Ending{Finality: f, Result: kakutei.Result{Body: []byte("A")}}
					})
					time.Sleep(lease + eps)
					abandon2 := kakutei.Claim{Operation: operation("k"), Owner: "B", Lease: time.Hour, Recovery: p.Recovery}
					ds, err := s.Store.Claim(t.Context(), []kakutei.Claim{abandon2})
					assert.NoError(t, err)
					assert.Equal(t, ds[0].Attempt, 2, "attempt of B")
					close(gate)
					_, err = first.result()
					assert.ErrorIs(t, err, kakutei.ErrLeaseLost)
					rec := record(t, s.Store, operation("k"))
					assert.Equal(t, rec.Status, kakutei.StatusProcessing, "status")
					assert.Equal(t, rec.Owner, "B", "owner")
					assert.Equal(t, len(a.seen(kakutei.EventLeaseLost)), 1, "lost leases observed")
					assert.Equal(t, len(a.seen(kakutei.EventSucceeded, kakutei.EventFailed)), 0, "endings observed")
				})
			})
		}
	}
}

// Case 16: A's lease looks expired, A completes, then B arrives.
func TestCase16CompletedThenTakeover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		_, first, endA := stalled(t, s, rerun)
		b := newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(claim, "k")
		second := b.start(t.Context(), operation("k"), rerun, never(t))
		<-blocked
		time.Sleep(eps)
		endA()
		a, err := first.result()
		wantAnswer(t, a, err, "A")
		release()
		a, err = second.result()
		wantReplay(t, a, err, "A")
	})
}

// Case 16: B and C take over together, again and again: one wins, and the
// numbers grow, also when the same process loses and wins.
func TestCase16TakeoverRace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.fail(renew, 0)
		engines := []*testEngine{newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})}
		var last atomic.Int64
		p := rerun
		p.Deadline = kakutei.NoDeadline
		for round := range 20 {
			var calls []*call
			var ran atomic.Int32
			for _, e := range engines {
				calls = append(calls, e.start(t.Context(), operation("k"), p, func(ctx context.Context) kakutei.Ending {
					ran.Add(1)
					n := kakutei.FromContext(ctx).Number()
					assert.Equal(t, last.Swap(n), n-1, "the number before")
					<-ctx.Done() // the lease runs out
					time.Sleep(eps)
					return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Body: []byte("late")}, Sent: true}
				}))
			}
			synctest.Wait()
			assert.Equal(t, ran.Load(), 1, fmt.Sprintf("winners in round %d", round))
			time.Sleep(lease)
			// Its successor claims before it ends, so that it is refused.
			_, err := s.Store.Claim(t.Context(), []kakutei.Claim{{Operation: operation("k"), Owner: fmt.Sprint(round), Lease: kakutei.MinLease, Recovery: kakutei.Rerun}})
			assert.NoError(t, err)
			last.Add(1)
			refused := 0
			for _, c := range calls {
				if _, err := c.result(); err != nil {
					refused++
				}
			}
			assert.Equal(t, refused, len(engines), "calls refused")
			time.Sleep(kakutei.MinLease)
		}
	})
}

// Case 17: under Hold an attempt that died is never run again by itself.
func TestCase17Hold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		abandon(t, s.Store, operation("k"), lease)
		_, err := a.Run(t.Context(), operation("k"), hold, never(t))
		wantInFlight(t, err, lease)
		time.Sleep(lease)
		for range 100 {
			for _, e := range []*testEngine{a, b} {
				_, err := e.Run(t.Context(), operation("k"), hold, never(t))
				assert.ErrorIs(t, err, kakutei.ErrUncertain)
				assert.Equal(t, retryAfter(err), 0, "RetryAfter of an uncertain one: asking again is no use")
				// A route that was changed to Rerun in the meantime does not run it either.
				_, err = e.Run(t.Context(), operation("k"), rerun, never(t))
				assert.ErrorIs(t, err, kakutei.ErrUncertain)
				_, err = e.Run(t.Context(), operation("k", "another"), hold, never(t))
				assert.ErrorIs(t, err, kakutei.ErrMismatch)
			}
			time.Sleep(24 * time.Hour)
		}
		wantStatus(t, s.Store, operation("k"), kakutei.StatusUncertain)
	})
}

// A caller that waits for an attempt that dies under Hold learns that it is uncertain.
func TestCase17WaiterUnderHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		abandon(t, s.Store, operation("k"), lease)
		p := hold
		p.Wait = time.Hour
		start := time.Now()
		_, err := newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), p, never(t))
		assert.ErrorIs(t, err, kakutei.ErrUncertain)
		took := time.Since(start)
		assert.True(t, took >= lease && took <= lease+2*kakutei.WaitInterval, "answered after %v", took)
	})
}

// At its deadline the handler is cancelled; if it does not end, the lease is not
// renewed any more, and when it has run out another process takes over.
func TestDeadline(t *testing.T) {
	for _, by := range []string{"policy", "options", "none"} {
		t.Run(by, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				const deadline = 95 * time.Second
				p, opts := rerun, kakutei.Options{}
				switch by {
				case "policy":
					p.Deadline, opts.Deadline = deadline, time.Hour
				case "options":
					opts.Deadline = deadline
				case "none":
					p.Deadline, opts.Deadline = kakutei.NoDeadline, deadline
				}
				a, b := newEngine(t, s, opts), newEngine(t, s, opts)
				start := time.Now()
				h, open := gated("A")
				first := a.start(t.Context(), operation("k"), p, h.run)
				<-h.started
				until, bounded := h.context().Deadline()
				assert.Equal(t, bounded, by != "none", "the handler's context has a deadline")
				if by == "none" {
					time.Sleep(100 * lease)
					assert.True(t, h.context().Err() == nil, "the handler's context has ended: %v", context.Cause(h.context()))
					_, err := b.Run(t.Context(), operation("k"), p, never(t))
					wantInFlight(t, err, lease)
					open()
					got, err := first.result()
					wantAnswer(t, got, err, "A")
					return
				}
				assert.Equal(t, until.Sub(start), deadline, "deadline")
				<-h.context().Done()
				assert.ErrorIs(t, context.Cause(h.context()), context.DeadlineExceeded)
				_, err := b.Run(t.Context(), operation("k"), p, never(t))
				wantInFlight(t, err, lease)
				time.Sleep(lease)
				got, err := b.Run(t.Context(), operation("k"), p, answering("B").run)
				wantAnswer(t, got, err, "B")
				open()
				got, err = first.result()
				wantReplay(t, got, err, "B")
				assert.Equal(t, len(a.seen(kakutei.EventLeaseLost)), 1, "lost leases observed")
			})
		})
	}
}

// A handler that ends at its deadline, as it should, is recorded as it says.
func TestDeadlineHonoured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		p := hold
		p.Deadline = time.Minute
		_, err := e.Run(t.Context(), operation("k"), p, func(ctx context.Context) kakutei.Ending {
			<-ctx.Done()
			return kakutei.Ending{}
		})
		assert.NoError(t, err)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusUncertain)
	})
}

// The lease of a policy goes to the store and bounds what a crash blocks.
func TestLeaseOfThePolicy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		for _, d := range []time.Duration{kakutei.MinLease, time.Minute, kakutei.MaxLease} {
			op := operation(d.String())
			p := rerun
			p.Lease = d
			_, err := e.Run(t.Context(), op, p, func(context.Context) kakutei.Ending {
				assert.Equal(t, record(t, s.Store, op).Left, d, "lease")
				time.Sleep(4 * time.Minute)
				left := record(t, s.Store, op).Left
				assert.True(t, left > 0 && left <= d, "after four minutes %v of the lease of %v are left", left, d)
				return final("done")
			})
			assert.NoError(t, err)
		}
	})
}

// The reply of the claim was lost and the claim sent again: the lease runs since
// the first sending, and the engine must reckon with that, or a handler works on
// after others were let in.
func TestCase11LeaseCountsFromTheFirstSending(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.add(&fault{method: claim, times: 1, after: func(context.Context) error {
			time.Sleep(lease * 8 / 10)
			return errStore
		}})
		opts := kakutei.Options{StoreTimeout: lease}
		a, b := newEngine(t, s, opts), newEngine(t, s, opts)
		start := time.Now()
		h, open := gated("A")
		first := a.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		time.Sleep(time.Until(start.Add(lease + eps)))
		if h.context().Err() == nil {
			_, err := b.Run(t.Context(), operation("k"), rerun, never(t))
			wantInFlight(t, err, lease)
		}
		open()
		_, err := first.result()
		assert.NoError(t, err)
	})
}

// The reply of a claim or of a renewal was slow: the lease runs since the store
// granted it, not since the engine heard of it.
func TestLeaseCountsFromTheSending(t *testing.T) {
	for _, method := range []string{claim, renew} {
		t.Run(method, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				s.add(&fault{method: method, times: 1, after: func(context.Context) error { time.Sleep(3 * time.Second); return nil }})
				s.fail(renew, 0)
				e := newEngine(t, s, kakutei.Options{})
				h, open := gated("done")
				first := e.start(t.Context(), operation("k"), rerun, h.run)
				time.Sleep(4 * time.Second)
				if method == renew {
					time.Sleep(3 * time.Second)
				}
				ends := time.Now().Add(record(t, s.Store, operation("k")).Left)
				<-h.context().Done()
				late := time.Since(ends)
				assert.True(t, late <= 0, "the handler was cancelled %v after others were let in", late)
				open()
				_, err := first.result()
				assert.NoError(t, err)
			})
		})
	}
}

// The store was away for longer than a lease before it took the claim. The lease
// that it granted then is a fresh one.
func TestClaimTakenAfterLongerThanALease(t *testing.T) {
	for _, how := range []string{"fails", "reply lost"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				f := &fault{method: claim}
				if how == "fails" {
					f.before = func(context.Context) error { return errStore }
				} else {
					f.after = func(context.Context) error { return errStore }
				}
				s.add(f)
				e := newEngine(t, s, kakutei.Options{Lease: time.Second})
				h, open := gated("done")
				first := e.start(t.Context(), operation("k"), rerun, h.run)
				time.Sleep(3 * time.Second)
				assert.Equal(t, h.runs.Load(), 0, "runs while the store is away")
				s.repair(f)
				time.Sleep(10 * time.Second)
				if assert.Equal(t, h.runs.Load(), 1, "n") {
					assert.True(t, h.context().Err() == nil, "the handler's context has ended: %v", context.Cause(h.context()))
				}
				open()
				a, err := first.result()
				wantAnswer(t, a, err, "done")
				e.wantEvents(kakutei.EventAcquired, kakutei.EventSucceeded)
			})
		})
	}
}

// A renewal that is under way while its attempt completes finds no row. That is
// not a lost lease.
func TestRenewalThatMeetsACompletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		blocked, release := s.block(renew, "k")
		h, open := gated("done")
		first := e.start(t.Context(), operation("k"), rerun, h.run)
		<-blocked
		open()
		a, err := first.result()
		wantAnswer(t, a, err, "done")
		release()
		synctest.Wait()
		e.wantEvents(kakutei.EventAcquired, kakutei.EventSucceeded)
	})
}

// The same while the completion is committed and its reply is on the way back.
func TestRenewalThatMeetsACompletionUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		gate := make(chan struct{})
		s.add(&fault{method: settle, times: 1, after: func(ctx context.Context) error { return wait(ctx, gate) }})
		e := newEngine(t, s, kakutei.Options{})
		first := e.start(t.Context(), operation("k"), rerun, answering("done").run)
		time.Sleep(lease/3 + eps) // the renewal finds no row
		assert.True(t, s.count(renew) == 1 && !first.ended(), "%d renewals; ended: %v", s.count(renew), first.ended())
		close(gate)
		a, err := first.result()
		wantAnswer(t, a, err, "done")
		synctest.Wait()
		e.wantEvents(kakutei.EventAcquired, kakutei.EventSucceeded)
	})
}
