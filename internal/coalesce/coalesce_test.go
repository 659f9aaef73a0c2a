package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/internal/coalesce"
)

var (
	errBatch = errors.New("the batch failed")
	errGone  = errors.New("the caller is gone")
)

// batches is a run function that answers n with "n", can be held up, and keeps
// what it was given.
type batches struct {
	mu   sync.Mutex
	got  [][]int
	busy int
	most int
	err  error
	gate chan struct{} // nil: does not wait; else each batch takes one value
}

func (b *batches) run(in []int) ([]string, error) {
	b.mu.Lock()
	b.got = append(b.got, slices.Clone(in))
	b.busy++
	b.most = max(b.most, b.busy)
	gate, err := b.gate, b.err
	b.mu.Unlock()
	if gate != nil {
		<-gate
	}
	b.mu.Lock()
	b.busy--
	b.mu.Unlock()
	out := make([]string, len(in))
	for i, n := range in {
		out[i] = fmt.Sprint(n)
	}
	return out, err
}

func (b *batches) sizes() (sizes []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, batch := range b.got {
		sizes = append(sizes, len(batch))
	}
	return sizes
}

func (b *batches) items() (items []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Concat(b.got...)
}

func wantSizes(t *testing.T, b *batches, want ...int) {
	t.Helper()
	got := b.sizes()
	assert.True(t, slices.Equal(got, want), "batches of %v, want %v", got, want)
}

// do calls Do in a goroutine of its own.
func do(ctx context.Context, g *coalesce.Group[int, string], n int, gone func(string, error)) <-chan error {
	done := make(chan error, 1)
	go func() {
		out, err := g.Do(ctx, n, gone)
		if err == nil && out != fmt.Sprint(n) {
			err = fmt.Errorf("%d was answered with %q", n, out)
		}
		done <- err
	}()
	return done
}

// Alone, an item goes out at once, by itself: nothing waits for company.
func TestAloneGoesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{}
		g := coalesce.New(10, b.run)
		start := time.Now()
		for n := range 3 {
			assert.NoError(t, <-do(t.Context(), g, n, nil))
		}
		assert.Equal(t, time.Since(start), 0, "time waited")
		wantSizes(t, b, 1, 1, 1)
	})
}

// What arrives while a batch is under way goes out together, in order.
func TestNextBatchTakesAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{gate: make(chan struct{})}
		g := coalesce.New(1000, b.run)
		var calls []<-chan error
		for n := range 100 {
			calls = append(calls, do(t.Context(), g, n, nil))
			synctest.Wait()
		}
		wantSizes(t, b, 1)
		b.gate <- struct{}{}
		b.gate <- struct{}{}
		for _, c := range calls {
			assert.NoError(t, <-c)
		}
		wantSizes(t, b, 1, 99)
		assert.True(t, slices.IsSorted(b.items()), "sent out of order: %v", b.items())
		assert.Equal(t, b.most, 1, "batches under way at once")
	})
}

func TestMaxBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{gate: make(chan struct{})}
		g := coalesce.New(10, b.run)
		var calls []<-chan error
		for n := range 36 {
			calls = append(calls, do(t.Context(), g, n, nil))
			synctest.Wait()
		}
		for range 5 {
			b.gate <- struct{}{}
		}
		for _, c := range calls {
			assert.NoError(t, <-c)
		}
		wantSizes(t, b, 1, 10, 10, 10, 5)
		assert.True(t, slices.IsSorted(b.items()), "sent out of order: %v", b.items())
	})
}

// The error of a batch is that of all its items, and of no others.
func TestBatchError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{gate: make(chan struct{})}
		g := coalesce.New(10, b.run)
		var calls []<-chan error
		for n := range 21 {
			calls = append(calls, do(t.Context(), g, n, nil))
			synctest.Wait()
		}
		for batch := range 3 {
			b.mu.Lock()
			b.err = nil
			if batch == 0 {
				b.err = errBatch // for the next one, which reads it when it starts
			}
			b.mu.Unlock()
			b.gate <- struct{}{}
			synctest.Wait()
		}
		for n, c := range calls {
			err := <-c
			if n >= 1 && n <= 10 {
				assert.Equal(t, err, errBatch, fmt.Sprintf("error of %d", n))
			} else {
				assert.NoError(t, err)
			}
		}
	})
}

// A caller that leaves before its item was sent takes it with it.
func TestLeavesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{gate: make(chan struct{})}
		g := coalesce.New(10, b.run)
		ctx, cancel := context.WithCancelCause(t.Context())
		leaving := map[int]bool{1: true, 5: true, 9: true}
		calls := map[int]<-chan error{}
		for n := range 10 {
			c := t.Context()
			if leaving[n] {
				c = ctx
			}
			calls[n] = do(c, g, n, func(string, error) { t.Errorf("%d was never sent, and gone was called", n) })
			synctest.Wait()
		}
		cancel(errGone)
		for n := range leaving {
			assert.Equal(t, <-calls[n], errGone, "error")
		}
		b.gate <- struct{}{}
		b.gate <- struct{}{}
		for n, c := range calls {
			if !leaving[n] {
				assert.NoError(t, <-c)
			}
		}
		assert.True(t, slices.Equal(b.items(), []int{0, 2, 3, 4, 6, 7, 8}), "sent: %v", b.items())
	})
}

// A caller that leaves after its item was sent does not wait; the answer goes to
// gone, once, and the batch is undisturbed.
func TestLeavesAfterSending(t *testing.T) {
	for _, batchErr := range []error{nil, errBatch} {
		t.Run(fmt.Sprint(batchErr), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &batches{gate: make(chan struct{})}
				g := coalesce.New(10, b.run)
				first := do(t.Context(), g, 0, nil)
				synctest.Wait()
				ctx, cancel := context.WithCancelCause(t.Context())
				var told atomic.Int32
				leaver := do(ctx, g, 1, func(out string, err error) {
					told.Add(1)
					assert.Equal(t, err, batchErr, "error given to gone")
					if batchErr == nil {
						assert.Equal(t, out, "1", "answer given to gone")
					}
					// It may use the group itself.
					b.mu.Lock()
					b.gate, b.err = nil, nil
					b.mu.Unlock()
					go func() { assert.NoError(t, <-do(context.Background(), g, 7, nil)) }()
				})
				unheard := do(ctx, g, 2, nil)
				stays := do(t.Context(), g, 3, func(string, error) { t.Error("gone was called for a caller that stayed") })
				synctest.Wait()
				b.mu.Lock()
				b.err = batchErr
				b.mu.Unlock()
				b.gate <- struct{}{}
				assert.NoError(t, <-first)
				synctest.Wait() // the second batch is under way
				cancel(errGone)
				assert.Equal(t, <-leaver, errGone, "error")
				assert.Equal(t, <-unheard, errGone, "error")
				assert.Equal(t, told.Load(), 0, "gone was called before the answer was there")
				b.gate <- struct{}{}
				assert.Equal(t, <-stays, batchErr, "error of who stayed")
				synctest.Wait()
				assert.Equal(t, told.Load(), 1, "calls of gone")
				wantSizes(t, b, 1, 3, 1)
			})
		})
	}
}

// A caller whose context is dead from the start gets its cause, and never a hang.
func TestDeadContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{}
		g := coalesce.New(10, b.run)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errGone)
		for n := range 100 {
			if err := <-do(ctx, g, n, nil); err != nil { // the answer may be quicker
				assert.Equal(t, err, errGone, "error")
			}
		}
	})
}

// When nothing is left to do, nothing runs: synctest.Test panics if a goroutine
// of the group is left when the test ends. And the group works on after a pause.
func TestIdleHasNoGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{}
		g := coalesce.New(10, b.run)
		for range 3 {
			var calls []<-chan error
			for n := range 1000 {
				calls = append(calls, do(t.Context(), g, n, nil))
			}
			for _, c := range calls {
				assert.NoError(t, <-c)
			}
			time.Sleep(time.Hour)
		}
		assert.Equal(t, len(b.items()), 3000, "items sent")
	})
}

// Wait returns when every batch is over and who had to be told has been told.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &batches{gate: make(chan struct{})}
		g := coalesce.New(10, b.run)
		g.Wait() // nothing was ever sent
		ctx, cancel := context.WithCancelCause(t.Context())
		told := false
		leaver := do(ctx, g, 0, func(string, error) { told = true })
		synctest.Wait()
		cancel(errGone)
		assert.Equal(t, <-leaver, errGone, "error")
		queued := do(t.Context(), g, 1, nil)
		synctest.Wait()
		waited := make(chan bool, 1)
		go func() {
			g.Wait()
			waited <- told
		}()
		for range 2 {
			synctest.Wait()
			assert.Equal(t, len(waited), 0, "Wait has returned while a batch is under way")
			b.gate <- struct{}{}
		}
		assert.NoError(t, <-queued)
		assert.True(t, <-waited, "Wait returned before gone was called")
		g.Wait()
	})
}

// Many callers, some of whom leave at some time: each gets its own answer or its
// cause; an item is sent at most once; gone is called exactly for those that
// were sent and whose caller left.
func TestRace(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const callers, each, maxBatch = 64, 300, 7
	sent := make([]atomic.Int32, callers*each)
	gone := make([]atomic.Int32, callers*each)
	left := make([]atomic.Bool, callers*each)
	failing := func(in []int) bool { return in[0]%10 == 3 }
	var busy, over atomic.Int32
	g := coalesce.New(maxBatch, func(in []int) ([]string, error) {
		if busy.Add(1) > 1 || len(in) == 0 || len(in) > maxBatch {
			over.Add(1)
		}
		defer busy.Add(-1)
		out := make([]string, len(in))
		for i, n := range in {
			sent[n].Add(1)
			out[i] = fmt.Sprint(n)
		}
		if in[0]%3 == 0 {
			runtime.Gosched()
		}
		if failing(in) {
			return nil, errBatch
		}
		return out, nil
	})
	var wg, leaving sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(c)))
			for i := range each {
				n := c*each + i
				ctx, cancel := context.WithCancelCause(context.Background())
				switch rng.IntN(4) {
				case 0:
					cancel(errGone)
				case 1:
					leaving.Go(func() { runtime.Gosched(); cancel(errGone) })
				}
				out, err := g.Do(ctx, n, func(out string, err error) {
					gone[n].Add(1)
					if err == nil && out != fmt.Sprint(n) {
						t.Errorf("gone of %d was given %q", n, out)
					}
				})
				switch {
				case err == nil:
					assert.Equal(t, out, fmt.Sprint(n), "answer")
				case errors.Is(err, errGone):
					left[n].Store(true)
				default:
					assert.Equal(t, err, errBatch, "error")
				}
				cancel(nil)
			}
		})
	}
	wg.Wait()
	leaving.Wait()
	// One more round: when it is answered, the batches before it are over.
	_, err := g.Do(context.Background(), 0, nil)
	sent[0].Add(-1)
	assert.True(t, err == nil || errors.Is(err, errBatch), "error: %v", err)

	assert.Equal(t, over.Load(), 0, "batches that were too long, empty or not alone")
	leavers := 0
	for n := range sent {
		s, x, l := sent[n].Load(), gone[n].Load(), left[n].Load()
		want := int32(0)
		if l && s == 1 {
			want = 1
		}
		if l {
			leavers++
		}
		if s > 1 || !l && s != 1 || x != want {
			t.Errorf("item %d: sent %d times, its caller left: %v, gone called %d times", n, s, l, x)
		}
	}
	assert.True(t, leavers > 0 && leavers < len(sent), "%d of %d callers left: the test proves nothing", leavers, len(sent))
}

func BenchmarkDo(b *testing.B) {
	run := func(in []int) ([]string, error) { return make([]string, len(in)), nil }
	b.Run("alone", func(b *testing.B) {
		g := coalesce.New(256, run)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.Do(b.Context(), 1, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("64 callers", func(b *testing.B) {
		g := coalesce.New(256, run)
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := g.Do(b.Context(), 1, nil); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
