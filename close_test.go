package kakutei_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// closing calls Close in a goroutine of its own.
func closing(ctx context.Context, e *testEngine) <-chan error {
	done := make(chan error, 1)
	go func() { done <- e.Close(ctx) }()
	return done
}

// Case 20: a graceful shutdown waits for what runs, which keeps being renewed,
// and refuses what is new.
func TestCase20CloseWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e, other := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		first := e.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		closed := closing(t.Context(), e)
		synctest.Wait()
		_, err := e.Run(t.Context(), operation("another"), rerun, never(t))
		assert.ErrorIs(t, err, kakutei.ErrClosed)
		assert.Equal(t, s.itemCount(claim), 1, "claims that reached the store")
		for range 10 {
			time.Sleep(lease)
			assert.Equal(t, len(closed), 0, "Close has returned while an operation runs")
			_, err := other.Run(t.Context(), operation("k"), rerun, never(t))
			wantInFlight(t, err, lease)
		}
		assert.True(t, h.context().Err() == nil, "the handler's context has ended: %v", context.Cause(h.context()))
		open()
		a, err := first.result()
		wantAnswer(t, a, err, "done")
		assert.NoError(t, <-closed)
		assert.NoError(t, e.Close(t.Context())) // again: nothing to do
		a, err = other.Run(t.Context(), operation("k"), rerun, never(t))
		wantReplay(t, a, err, "done")
	})
}

// Case 20: when the time for a graceful shutdown is over, handlers are told why,
// and what they then end with is still recorded.
func TestCase20CloseOutOfTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		var calls []*call
		for i := range 5 {
			calls = append(calls, e.start(t.Context(), operation(fmt.Sprint(i)), rerun, func(ctx context.Context) kakutei.Ending {
				<-ctx.Done()
				assert.Equal(t, context.Cause(ctx), kakutei.ErrClosed, "cause")
				time.Sleep(time.Second)
				return final("late")
			}))
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		assert.NoError(t, e.Close(ctx))
		assert.Equal(t, time.Since(start), 61*time.Second, "time that Close took")
		for i, c := range calls {
			a, err := c.result()
			wantAnswer(t, a, err, "late")
			wantStatus(t, s.Store, operation(fmt.Sprint(i)), kakutei.StatusSucceeded)
		}
	})
}

// Case 20: what does not end is counted, and its lease runs out by itself.
func TestCase20CloseLeavesSomeRunning(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e, other := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		h, open := gated("stubborn")
		calls := []*call{e.start(t.Context(), operation("a"), rerun, h.run), e.start(t.Context(), operation("b"), rerun, h.run)}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := e.Close(ctx)
		took := time.Since(start)
		assert.True(t, err != nil && strings.HasPrefix(err.Error(), "2 operations were still running"), "Close returned %v", err)
		assert.True(t, took <= 3*time.Second, "Close took %v", took)
		assert.Equal(t, context.Cause(h.context()), kakutei.ErrClosed, "cause")
		renewals := s.count(renew)
		time.Sleep(lease)
		assert.Equal(t, s.count(renew), renewals, "renewals: there are none after Close")
		a, err := other.Run(t.Context(), operation("a"), rerun, answering("taken over").run)
		wantAnswer(t, a, err, "taken over")
		open() // b nobody took over
		a, err = calls[0].result()
		wantReplay(t, a, err, "taken over")
		a, err = calls[1].result()
		wantAnswer(t, a, err, "stubborn")
		assert.NoError(t, e.Close(t.Context()))
	})
}

// Close with an answer that the store did not take yet waits for it to be taken.
func TestCloseWaitsForLateSettlement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		f := s.fail(settle, 0)
		e := newEngine(t, s, kakutei.Options{SettleTimeout: time.Second})
		a, err := e.Run(t.Context(), operation("k"), hold, answering("done").run)
		assert.NoError(t, err)
		assert.True(t, a.Unrecorded, "not marked as unrecorded")
		closed := closing(t.Context(), e)
		time.Sleep(time.Minute)
		assert.Equal(t, len(closed), 0, "Close has returned")
		s.repair(f)
		assert.NoError(t, <-closed)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusSucceeded)
	})
}

// A process that shuts down hands back what it holds: also what it acquires
// while it closes. When Close has returned the store may be closed.
func TestCloseWhileClaiming(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{Lease: time.Hour})
		blocked, release := s.block(claim, "k")
		c := e.start(t.Context(), operation("k"), hold, never(t))
		<-blocked
		closed := closing(t.Context(), e)
		synctest.Wait()
		early := len(closed) == 1
		release()
		_, err := c.result()
		assert.ErrorIs(t, err, kakutei.ErrClosed)
		assert.NoError(t, <-closed)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
		assert.True(t, !early, "Close returned while a claim was at the store")
	})
}

// The caller of a claim has left and the engine closes: what the claim acquired
// is handed back all the same.
func TestCloseWhileHandingBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{Lease: time.Hour})
		blocked, release := s.block(claim, "k")
		ctx, cancel := context.WithCancelCause(t.Context())
		c := e.start(ctx, operation("k"), hold, never(t))
		<-blocked
		cancel(errGone)
		_, err := c.result()
		assert.ErrorIs(t, err, errGone)
		closed := closing(t.Context(), e)
		synctest.Wait()
		assert.Equal(t, len(closed), 0, "Close has returned while a claim is at the store")
		release()
		assert.NoError(t, <-closed)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
	})
}

// Who waits when the engine closes is answered, and runs nothing.
func TestCloseWithWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		p := rerun
		p.Wait = time.Hour
		failing := func(context.Context) kakutei.Ending {
			time.Sleep(time.Minute)
			return kakutei.Ending{}
		}
		first := e.start(t.Context(), operation("k"), p, failing)
		synctest.Wait()
		waiter := e.start(t.Context(), operation("k"), p, never(t))
		synctest.Wait()
		assert.NoError(t, e.Close(t.Context()))
		_, err := first.result()
		assert.NoError(t, err)
		_, err = waiter.result()
		assert.ErrorIs(t, err, kakutei.ErrClosed)
		a, err := newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), p, answering("done").run)
		wantAnswer(t, a, err, "done")
	})
}

// Who waits for another process must not keep this one from closing.
func TestCloseWithWaitersForAnotherProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		abandon(t, s.Store, operation("k"), time.Hour)
		waiter := e.start(t.Context(), operation("k"), waiting(rerun, time.Hour), never(t))
		time.Sleep(time.Second)
		start := time.Now()
		assert.NoError(t, e.Close(t.Context()))
		assert.Equal(t, time.Since(start), 0, "time that Close took")
		_, err := waiter.result()
		assert.ErrorIs(t, err, kakutei.ErrClosed)
	})
}

// Close may be called by several at once, each with its own patience.
func TestCloseTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEngine(t, newFaultStore(t), kakutei.Options{})
		h, open := gated("done")
		first := e.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		patient, other := closing(t.Context(), e), closing(t.Context(), e)
		synctest.Wait()
		assert.Equal(t, len(patient)+len(other), 0, "Close has returned while an operation runs")
		open()
		_, err := first.result()
		assert.NoError(t, err)
		assert.NoError(t, <-patient)
		assert.NoError(t, <-other)
	})
}
