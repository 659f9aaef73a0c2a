package kakutei_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

func waiting(p kakutei.Policy, d time.Duration) kakutei.Policy {
	p.Wait = d
	return p
}

// where runs a test of waiting in the process of the running attempt, and from
// another process.
func where(t *testing.T, f func(t *testing.T, s *faultStore, runner, waiter *testEngine)) {
	for _, engines := range []int{1, 2} {
		t.Run(map[int]string{1: "same process", 2: "another process"}[engines], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				runner := newEngine(t, s, kakutei.Options{})
				waiter := runner
				if engines == 2 {
					waiter = newEngine(t, s, kakutei.Options{})
				}
				f(t, s, runner, waiter)
			})
		})
	}
}

func TestWaiterGetsTheAnswer(t *testing.T) {
	where(t, func(t *testing.T, _ *faultStore, runner, waiter *testEngine) {
		h, open := gated("done")
		runner.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		var calls []*call
		for range 20 {
			calls = append(calls, waiter.start(t.Context(), operation("k"), waiting(rerun, time.Hour), never(t)))
		}
		other := waiter.start(t.Context(), operation("k", "another"), waiting(rerun, time.Hour), never(t))
		_, err := other.result() // at once: waiting does not help it
		assert.ErrorIs(t, err, kakutei.ErrMismatch)
		time.Sleep(20 * time.Second)
		open()
		ended := time.Now()
		for _, c := range calls {
			a, err := c.result()
			wantReplay(t, a, err, "done")
			assert.Equal(t, a.Attempt, 1, "attempt")
		}
		took := time.Since(ended)
		assert.True(t, took <= 2*kakutei.WaitInterval, "the answers came %v after the end", took)
		assert.Equal(t, len(waiter.seen(kakutei.EventReplay)), 20, "replays observed")
	})
}

func TestWaitRunsOut(t *testing.T) {
	where(t, func(t *testing.T, _ *faultStore, runner, waiter *testEngine) {
		h, open := gated("done")
		defer open()
		runner.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		start := time.Now()
		_, err := waiter.Run(t.Context(), operation("k"), waiting(rerun, 7*time.Second), never(t))
		wantInFlight(t, err, lease)
		assert.Equal(t, time.Since(start), 7*time.Second, "time waited")
		assert.Equal(t, len(waiter.seen(kakutei.EventInFlight)), 1, "refusals observed")
	})
}

// The attempt that is waited for fails: one of those who wait runs next, and the
// others wait for that one.
func TestWaiterBecomesTheRunner(t *testing.T) {
	where(t, func(t *testing.T, _ *faultStore, runner, waiter *testEngine) {
		gate := make(chan struct{})
		first := runner.start(t.Context(), operation("k"), rerun, func(context.Context) kakutei.Ending {
			<-gate
			return kakutei.Ending{Result: kakutei.Result{Code: 500}}
		})
		synctest.Wait()
		h := answering("second")
		fn := func(ctx context.Context) kakutei.Ending {
			time.Sleep(time.Second)
			return h.run(ctx)
		}
		var calls []*call
		for range 10 {
			calls = append(calls, waiter.start(t.Context(), operation("k"), waiting(rerun, time.Minute), fn))
		}
		time.Sleep(time.Second)
		close(gate)
		a, err := first.result()
		assert.NoError(t, err)
		assert.Equal(t, a.Result.Code, 500, "code of the first")
		assert.Equal(t, countRuns(t, calls, "second", false), 1, "waiters that ran")
		assert.Equal(t, h.runs.Load(), 1, "n")
	})
}

// Under Hold the same attempt leaves an uncertain operation, and nobody runs it.
func TestWaiterLearnsOfAHold(t *testing.T) {
	where(t, func(t *testing.T, _ *faultStore, runner, waiter *testEngine) {
		gate := make(chan struct{})
		runner.start(t.Context(), operation("k"), hold, func(context.Context) kakutei.Ending {
			<-gate
			return kakutei.Ending{}
		})
		synctest.Wait()
		c := waiter.start(t.Context(), operation("k"), waiting(hold, time.Minute), never(t))
		time.Sleep(time.Second)
		close(gate)
		_, err := c.result()
		assert.ErrorIs(t, err, kakutei.ErrUncertain)
	})
}

// The process of the attempt that is waited for is dead: who waits takes over
// when the lease has run out.
func TestWaiterTakesOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		abandon(t, s.Store, operation("k"), lease)
		start := time.Now()
		a, err := e.Run(t.Context(), operation("k"), waiting(rerun, time.Minute), answering("recovered").run)
		wantAnswer(t, a, err, "recovered")
		took := time.Since(start)
		assert.True(t, took >= lease && took <= lease+2*kakutei.WaitInterval, "taken over after %v", took)
		assert.Equal(t, a.Attempt, 2, "attempt")
	})
}

func TestWaiterLeaves(t *testing.T) {
	where(t, func(t *testing.T, _ *faultStore, runner, waiter *testEngine) {
		h, open := gated("done")
		first := runner.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := waiter.start(ctx, operation("k"), waiting(kakutei.Policy{Recovery: kakutei.Rerun, Detach: true}, time.Hour), never(t))
		stays := waiter.start(t.Context(), operation("k"), waiting(rerun, time.Hour), never(t))
		time.Sleep(time.Second)
		cancel(errGone)
		synctest.Wait()
		if assert.True(t, gone.ended(), "the waiter did not leave at once") {
			_, err := gone.result()
			assert.Equal(t, err, errGone, "error")
		}
		assert.True(t, !stays.ended(), "the other waiter left with it")
		open()
		a, err := stays.result()
		wantReplay(t, a, err, "done")
		a, err = first.result()
		wantAnswer(t, a, err, "done")
	})
}

// Cases 48 and 49 in the engine: however many wait, for however many operations,
// one call of the store at a time asks for all, and nothing is left of them.
func TestCase49WaitersHoldNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		runner, waiter := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		const ops, each = 50, 20
		h, open := gated("done")
		for i := range ops {
			runner.start(t.Context(), operation(fmt.Sprint(i)), rerun, h.run)
		}
		synctest.Wait()
		var calls []*call
		for i := range ops * each {
			calls = append(calls, waiter.start(t.Context(), operation(fmt.Sprint(i%ops)), waiting(rerun, time.Hour), never(t)))
		}
		time.Sleep(time.Second)
		assert.Equal(t, waiter.Inside().Waits, ops, "operations waited for")
		s.add(&fault{method: look, before: func(context.Context) error { time.Sleep(5 * time.Millisecond); return nil }})
		s.forget()
		time.Sleep(10 * time.Second)
		// One Look at a time, and at most the renewal of the leases beside it.
		peak, looks := s.most(), s.count(look)
		assert.True(t, peak <= 2, "%d calls of the store at once", peak)
		assert.True(t, looks > 0 && looks <= int(10*time.Second/kakutei.WaitInterval)+1, "%d looks in 10 s", looks)
		assert.Equal(t, s.itemCount(look), looks*ops, "records looked at: each operation once a look")
		assert.Equal(t, s.count(claim), 0, "claims while waiting")
		open()
		for _, c := range calls {
			a, err := c.result()
			wantReplay(t, a, err, "done")
		}
		time.Sleep(time.Second)
		assert.Equal(t, waiter.Inside(), kakutei.Inside{}, "left in the engine")
		assert.True(t, !waiter.WaitersLooking(), "the goroutine that looks is left")
		looks = s.count(look)
		time.Sleep(time.Minute)
		assert.Equal(t, s.count(look), looks, "looks while nobody waits")
	})
}

// A look that fails costs time and nothing else.
func TestWaiterLookFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.fail(look, 5)
		runner, waiter := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		runner.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		c := waiter.start(t.Context(), operation("k"), waiting(rerun, time.Minute), never(t))
		time.Sleep(100 * time.Millisecond)
		open()
		a, err := c.result()
		wantReplay(t, a, err, "done")
	})
}

// A look that hangs once, until the store's time is over, must not stop the
// looking for minutes: the store is well again.
func TestWaiterLookHangsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.hang(look, 1)
		runner, waiter := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{StoreTimeout: 5 * time.Second})
		h, open := gated("done")
		runner.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		start := time.Now()
		c := waiter.start(t.Context(), operation("k"), waiting(rerun, time.Hour), never(t))
		time.Sleep(6 * time.Second)
		open()
		a, err := c.result()
		wantReplay(t, a, err, "done")
		took := time.Since(start)
		assert.True(t, took <= 10*time.Second, "the answer came after %v; it was there after 6 s", took)
	})
}

// A slow store is not asked all the time: looking takes a small part of it.
func TestWaiterLooksLessOnASlowStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.add(&fault{method: look, before: func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }})
		runner, waiter := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		h, open := gated("done")
		runner.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		c := waiter.start(t.Context(), operation("k"), waiting(rerun, time.Minute), never(t))
		time.Sleep(20 * time.Second)
		assert.True(t, s.count(look) >= 5 && s.count(look) <= 21, "%d looks of 100 ms in 20 s", s.count(look))
		open()
		a, err := c.result()
		wantReplay(t, a, err, "done")
	})
}

// A record that becomes unreadable while it is waited for is refused, not waited
// for until the end.
func TestCase24WaiterMeetsACorruptRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &corruptStore{faultStore: newFaultStore(t)}
		e := newEngine(t, s, kakutei.Options{})
		abandon(t, s.Store, operation("k"), time.Hour)
		c := e.start(t.Context(), operation("k"), waiting(rerun, time.Hour), never(t))
		time.Sleep(time.Second)
		s.mu.Lock()
		s.corrupt = true
		s.mu.Unlock()
		time.Sleep(time.Second)
		if assert.True(t, c.ended(), "the waiter still waits") {
			_, err := c.result()
			assert.ErrorIs(t, err, kakutei.ErrCorrupt)
		}
	})
}

// corruptStore answers that records cannot be read.
type corruptStore struct {
	*faultStore
	corrupt bool
}

func (s *corruptStore) isCorrupt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.corrupt
}

func (s *corruptStore) Claim(ctx context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	if s.isCorrupt() {
		out := make([]kakutei.Decision, len(claims))
		for i := range out {
			out[i].Err = kakutei.ErrCorrupt
		}
		return out, nil
	}
	return s.faultStore.Claim(ctx, claims)
}

func (s *corruptStore) Look(ctx context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	if s.isCorrupt() {
		out := make([]kakutei.Looked, len(ids))
		for i := range out {
			out[i].Err = kakutei.ErrCorrupt
		}
		return out, nil
	}
	return s.faultStore.Look(ctx, ids)
}

// Case 24: what cannot be read is no answer for the loser of a lease, and no
// reason to run a transaction again.
func TestCase24CorruptAfterTheRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &corruptStore{faultStore: newFaultStore(t)}
		s.fail(renew, 0)
		e := newEngine(t, s, kakutei.Options{})
		h, open := gated("loser")
		c := e.start(t.Context(), operation("k"), rerun, h.run)
		<-h.started
		time.Sleep(lease + eps)
		_, err := s.Store.Claim(t.Context(), []kakutei.Claim{{Operation: operation("k"), Owner: "B", Lease: lease, Recovery: kakutei.Rerun}})
		assert.NoError(t, err)
		s.mu.Lock()
		s.corrupt = true
		s.mu.Unlock()
		open()
		_, err = c.result()
		assert.ErrorIs(t, err, kakutei.ErrLeaseLost)
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
	})
}
