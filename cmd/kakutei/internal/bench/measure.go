package bench

import (
	"context"
	"math/bits"
	"sync"
	"time"
)

// turn is what one side did in its time.
type turn struct {
	perSecond     float64
	latency       histogram
	total, errors int64 // with the part that is not counted
	firstError    error
	wrong         string // what verification found
}

// measure has callers do operations for d, the first tenth of it to warm up.
// The rate counts what ended after that and within d. The latencies are of all
// that were under way then, also of those that ended late or failed: their
// callers waited too.
func measure(ctx context.Context, do func(ctx context.Context, caller, n int) error, callers int, d time.Duration) turn {
	// As in a server, every operation has a context that may be cancelled.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	turns := make([]turn, callers)
	done := make([]int64, callers)
	begin := time.Now()
	counted, end := begin.Add(d/10), begin.Add(d)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			t := &turns[caller]
			for n := 0; ctx.Err() == nil; n++ {
				start := time.Now()
				if !start.Before(end) {
					return
				}
				err := do(ctx, caller, n)
				stop := time.Now()
				if err != nil {
					if t.errors++; t.firstError == nil {
						t.firstError = err
					}
				} else if t.total++; !stop.Before(counted) && stop.Before(end) {
					done[caller]++
				}
				if !stop.Before(counted) {
					t.latency.add(stop.Sub(start))
				}
			}
		})
	}
	wg.Wait()
	var sum turn
	var ended int64
	for i := range turns {
		t := &turns[i]
		ended += done[i]
		sum.total += t.total
		sum.errors += t.errors
		if sum.firstError == nil {
			sum.firstError = t.firstError
		}
		sum.latency.merge(&t.latency)
	}
	sum.perSecond = float64(ended) / (d - d/10).Seconds()
	return sum
}

// subBits is how finely a histogram tells durations apart: one part in 32.
const subBits = 5

// histogram counts durations in buckets that grow with them, so that it costs
// the same however many there are. The zero value is empty.
type histogram struct {
	buckets [64 << subBits]uint32
	n       int64
	max     time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucketOf(d)]++
	h.n++
	h.max = max(h.max, d)
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

// quantile returns the duration that a share q of all do not exceed, to within
// a thirtieth; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := int64(q * float64(h.n))
	for i, n := range h.buckets {
		if rank -= int64(n); rank < 0 {
			return min(bucketEnd(i), h.max)
		}
	}
	return h.max
}

func bucketOf(d time.Duration) int {
	x := uint64(max(d, 0))
	shift := max(bits.Len64(x)-1-subBits, 0)
	return shift<<subBits + int(x>>shift)
}

// bucketEnd is the longest duration in bucket i.
func bucketEnd(i int) time.Duration {
	shift := max(i>>subBits-1, 0)
	return time.Duration(uint64(i-shift<<subBits+1)<<shift - 1)
}

// each calls f for every item, by so many goroutines, and returns the first error.
func each[T any](items []T, workers int, f func(T) error) error {
	var mu sync.Mutex
	var first error
	next := 0
	take := func() (item T, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if first != nil || next == len(items) {
			return item, false
		}
		next++
		return items[next-1], true
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for item, ok := take(); ok; item, ok = take() {
				if err := f(item); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}
