package kakutei_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// Case 48: after many different operations, ended in every way, the engine holds
// nothing but the results it may remember, and heap and goroutines are back to
// where they were. Not parallel: others would be counted too.
func TestCase48NothingIsLeft(t *testing.T) {
	n := 100_000
	if raceDetector || testing.Short() {
		n = 20_000
	}
	synctest.Test(t, func(t *testing.T) {
		const memory = 1 << 20
		e := newEngine(t, forgetful{}, kakutei.Options{ReplayMemoryBytes: memory, ObserveFunc: func(context.Context, kakutei.Event) {}})
		synctest.Wait()
		goroutines, heap := runtime.NumGoroutine(), heapBytes()
		body := make([]byte, 100)
		var wg sync.WaitGroup
		const callers = 16
		for c := range callers {
			wg.Go(func() {
				for i := c; i < n; i += callers {
					op := operation(fmt.Sprint(i))
					_, err := e.Run(t.Context(), op, waiting(hold, time.Second), func(ctx context.Context) kakutei.Ending {
						return kakutei.Ending{Finality: kakutei.Finality(i % 3), Result: kakutei.Result{Body: body}}
					})
					assert.NoError(t, err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine")
		results, bytes := e.Remembered()
		assert.True(t, results > 0 && bytes <= memory, "%d results of %d bytes are remembered", results, bytes)
		// The runtime may have started one or two of its own.
		assert.True(t, runtime.NumGoroutine() <= goroutines+3, "%d goroutines before, %d after", goroutines, runtime.NumGoroutine())
		grown := heapBytes() - heap
		assert.True(t, grown <= 2*memory, "the heap has grown by %d bytes for %d operations", grown, n)
	})
}

// heapBytes returns what is in use once the garbage is gone.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// forgetful is a store that acquires everything and keeps nothing, so that what
// a test measures is the engine's own.
type forgetful struct{}

func (forgetful) Claim(_ context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	out := make([]kakutei.Decision, len(claims))
	for i := range out {
		out[i] = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
	}
	return out, nil
}

func (forgetful) Look(_ context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	return make([]kakutei.Looked, len(ids)), nil
}

func (forgetful) Renew(_ context.Context, renewals []kakutei.Renewal) ([]error, error) {
	return make([]error, len(renewals)), nil
}

func (forgetful) Settle(_ context.Context, xs []kakutei.Settlement) ([]error, error) {
	return make([]error, len(xs)), nil
}

// Case 48: K is in flight while the memory for replays fills up many times over:
// it is still in flight, for the leaving of results has nothing to do with it.
func TestCase48MemoryFullWhileInFlight(t *testing.T) {
	for _, memory := range []int64{16 << 10, kakutei.NoReplayMemory} {
		t.Run(fmt.Sprint(memory), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{ReplayMemoryBytes: memory})
				h, open := gated("done")
				first := e.start(t.Context(), operation("K"), rerun, h.run)
				<-h.started
				for i := range 1000 {
					_, err := e.Run(t.Context(), operation(fmt.Sprint(i)), rerun, answering("x").run)
					assert.NoError(t, err)
				}
				_, err := e.Run(t.Context(), operation("K"), rerun, never(t))
				wantInFlight(t, err, lease)
				_, err = e.Run(t.Context(), operation("K", "another"), rerun, never(t))
				assert.ErrorIs(t, err, kakutei.ErrMismatch)
				for i := range 1000 { // forgotten or not, each is answered from its record
					a, err := e.Run(t.Context(), operation(fmt.Sprint(i)), rerun, never(t))
					wantReplay(t, a, err, "x")
				}
				open()
				a, err := first.result()
				wantAnswer(t, a, err, "done")
				results, bytes := e.Remembered()
				if memory > 0 {
					assert.True(t, results > 0 && bytes <= memory, "%d results of %d bytes are remembered", results, bytes)
				} else {
					assert.Equal(t, results, 0, "results remembered")
				}
			})
		})
	}
}

// A replay from memory asks nothing of the store; with another request it is a
// mismatch; what is not settled is never remembered.
func TestReplayFromMemory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e, other := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		_, err := e.Run(t.Context(), operation("k"), rerun, answering("done").run)
		assert.NoError(t, err)
		_, err = other.Run(t.Context(), operation("k"), rerun, never(t)) // from the store
		assert.NoError(t, err)
		s.fail(claim, 0)
		for _, x := range []*testEngine{e, other} {
			a, err := x.Run(t.Context(), operation("k"), rerun, never(t))
			wantReplay(t, a, err, "done")
			_, err = x.Run(t.Context(), operation("k", "another"), rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrMismatch)
			_, err = x.Run(t.Context(), operation("unknown"), rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrUnavailable)
		}
	})
}

func TestOnlySettledResultsAreRemembered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{SettleTimeout: time.Second})
		for _, f := range []kakutei.Finality{kakutei.FinalityUnknown, kakutei.FinalityNoEffect} {
			_, err := e.Run(t.Context(), operation(f.String()), hold, func(context.Context) kakutei.Ending { return kakutei.Ending{Finality: f} })
			assert.NoError(t, err)
		}
		f := s.fail(settle, 0)
		a, err := e.Run(t.Context(), operation("unrecorded"), hold, answering("x").run)
		assert.NoError(t, err)
		assert.True(t, a.Unrecorded, "not marked as unrecorded")
		abandon(t, s.Store, operation("in flight"), time.Hour)
		_, err = e.Run(t.Context(), operation("in flight"), hold, never(t))
		assert.ErrorIs(t, err, kakutei.ErrInFlight)
		results, _ := e.Remembered()
		assert.Equal(t, results, 0, "results remembered")
		s.repair(f)
	})
}

// A handler may use its buffers again when Run has returned: the answer that is
// remembered, or that is still to be recorded, is the one that was given.
func TestHandlerReusesItsBuffer(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("recorded late %v", late), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{SettleTimeout: time.Second})
				var f *fault
				if late {
					f = s.fail(settle, 0)
				}
				buf := []byte("paid 100")
				_, err := e.Run(t.Context(), operation("k"), rerun, func(context.Context) kakutei.Ending {
					return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Body: buf, Header: buf}}
				})
				assert.NoError(t, err)
				copy(buf, "paid 999")
				if late {
					s.repair(f)
					time.Sleep(time.Minute)
				}
				for _, x := range []*testEngine{e, newEngine(t, s, kakutei.Options{})} {
					a, err := x.Run(t.Context(), operation("k"), rerun, never(t))
					wantReplay(t, a, err, "paid 100")
					assert.Equal(t, string(a.Result.Header), "paid 100", "header")
				}
			})
		})
	}
}
