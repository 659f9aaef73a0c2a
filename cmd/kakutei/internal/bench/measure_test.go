package bench

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// Every duration is in a bucket whose end is at most one part in 32 above it,
// and the buckets are in order.
func TestBuckets(t *testing.T) {
	t.Parallel()
	last := -1
	for d := time.Duration(0); d < 5000; d++ {
		i := bucketOf(d)
		assert.True(t, i == last || i == last+1, "bucket %d comes after %d", i, last)
		last = i
	}
	for d := time.Duration(1); d > 0; d *= 3 {
		for _, d := range []time.Duration{d - 1, d, d + 1} {
			i := bucketOf(d)
			end := bucketEnd(i)
			if i >= len(histogram{}.buckets) || end < d || end-d > d/32 || bucketOf(end) != i || (end+1 > 0 && bucketOf(end+1) != i+1) {
				t.Errorf("%d is in bucket %d, which ends at %d", d, i, end)
			}
		}
	}
	assert.Equal(t, bucketOf(-1), 0, "bucket of a clock that went back")
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var empty histogram
	assert.Equal(t, empty.quantile(0.5), 0, "quantile of nothing")
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var a, b histogram
	var all []time.Duration
	for i := range 10_000 {
		d := time.Duration(r.ExpFloat64() * float64(time.Millisecond))
		all = append(all, d)
		if i%2 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	a.merge(&b)
	slices.Sort(all)
	for _, q := range []float64{0, 0.5, 0.99, 0.999} {
		exact := all[int(q*float64(len(all)))]
		got := a.quantile(q)
		assert.True(t, got >= exact && got-exact <= exact/32+1, "quantile %v is %v, exactly %v", q, got, exact)
	}
	assert.Equal(t, a.quantile(1), all[len(all)-1], "longest")
	assert.Equal(t, a.max, all[len(all)-1], "longest")
}

// The rate leaves out what ended late; the latencies keep it.
func TestMeasure(t *testing.T) {
	t.Parallel()
	const d = 100 * time.Millisecond
	var late atomic.Bool
	got := measure(t.Context(), func(ctx context.Context, caller, n int) error {
		if caller == 0 { // begins in time and ends after
			late.Store(true)
			<-time.After(2 * d)
			return nil
		}
		<-time.After(time.Millisecond)
		if n%2 == 1 {
			return errBroken
		}
		return nil
	}, 2, d)
	assert.True(t, late.Load(), "the late one did not run")
	assert.True(t, got.latency.max >= 2*d, "the late one is missing in the latencies: the longest is %v", got.latency.max)
	assert.True(t, got.errors > 0 && got.total > 1, "%d errors, %d successes", got.errors, got.total)
	assert.ErrorIs(t, got.firstError, errBroken)
	counted := got.perSecond * (d - d/10).Seconds()
	assert.True(t, counted > 0 && counted <= float64(got.total-1)+0.001, "the rate counts %v of %d, one of them late", counted, got.total)
}

func TestEach(t *testing.T) {
	t.Parallel()
	var sum atomic.Int64
	assert.NoError(t, each([]int64{1, 2, 3, 4}, 3, func(n int64) error { sum.Add(n); return nil }))
	assert.Equal(t, sum.Load(), 10, "sum")
	assert.NoError(t, each(nil, 3, func(int) error { return errBroken }))
	assert.ErrorIs(t, each([]int{1, 2, 3}, 1, func(n int) error {
		if n == 2 {
			return errBroken
		}
		assert.True(t, n != 3, "it went on after an error")
		return nil
	}), errBroken)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for caller := range 100 {
		for n := range 100 {
			key := keyOf(caller, n)
			assert.True(t, !seen[key], "key %q comes twice", key)
			assert.NoError(t, kakutei.ValidateKey(key))
			assert.Equal(t, len(key), 36, "length")
			seen[key] = true
		}
	}
	assert.Equal(t, len(replayKeys(3)), 3*keysEach, "keys to replay")
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	assert.Equal(t, median(nil), 0, "median of nothing")
	assert.Equal(t, median([]float64{3, 1, 2}), 2, "median of three")
	assert.Equal(t, median([]float64{4, 1, 2, 3}), 2.5, "median of four")
	for x, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567.4: "1,234,567"} {
		assert.Equal(t, thousands(x), want, "thousands")
	}
	for us, want := range map[float64]string{0: "–", 0.25: "0.25 µs", 12.34: "12.3 µs", 1234: "1.23 ms", 2_500_000: "2.5 s", 999_700: "1 s"} {
		assert.Equal(t, duration(us), want, "duration")
	}
	assert.Equal(t, count(1, "caller"), "1 caller", "count")
	assert.Equal(t, count(2, "caller"), "2 callers", "count")
}

// The bar moves in place, and what is said stays above it.
func TestProgressOnTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out, 4)
	assert.True(t, !p.terminal, "a buffer is taken for a terminal")
	p.terminal = true
	p.step("one")
	p.step("two")
	p.say("done")
	p.end()
	want := clearLine + "[........................]   0%  one" +
		clearLine + "[######..................]  25%  two  0s left" + clearLine + "done\n" + clearLine
	assert.Equal(t, out.String(), want, "progress")
}

// The plain way is right by itself: it runs once, replays, and refuses.
func TestPlainOnSQLite(t *testing.T) {
	t.Parallel()
	db := sqliteIn(t)
	ctx := t.Context()
	for _, way := range db.PlainWays() {
		p, err := way.Open(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		hash, other := []byte{1}, []byte{2}
		ran := 0
		fn := func() ([]byte, error) { ran++; return []byte("r"), nil }
		for caller, wantReplay := range []bool{false, true} {
			result, replayed, err := p.Once(ctx, caller, "k", hash, fn)
			assert.NoError(t, err)
			assert.Equal(t, replayed, wantReplay, "replayed")
			assert.Equal(t, string(result), "r", "result")
		}
		assert.Equal(t, ran, 1, "runs")
		_, _, err = p.Once(ctx, 0, "k", other, fn)
		assert.True(t, err != nil, "another request is accepted")
		_, _, err = p.Once(ctx, 0, "fails", hash, func() ([]byte, error) { return nil, errBroken })
		assert.ErrorIs(t, err, errBroken)
		_, _, err = p.Once(ctx, 1, "fails", hash, fn)
		assert.True(t, err != nil && !errors.Is(err, errBroken), "a key in flight is accepted: %v", err)
		assert.NoError(t, p.Business(ctx, 0, "k", 7))
		c, err := p.Counts(ctx)
		assert.NoError(t, err)
		assert.Equal(t, c, Counts{Live: 1, Settled: 1, Transfers: 1, Spent: 1}, "counts")
		assert.NoError(t, p.Close())
	}
}

func TestDistinct(t *testing.T) {
	t.Parallel()
	db := sqliteIn(t)
	var progress, text bytes.Buffer
	r, err := Distinct(t.Context(), db, 505, 8, &progress)
	if err != nil {
		t.Fatal(err)
	}
	assert.NoError(t, r.WriteText(&text))
	t.Logf("%s%s", progress.String(), text.String())
	assert.Equal(t, len(r.Samples), 11, "samples")
	assert.Equal(t, r.Samples[10].Keys, 505, "keys")
	// Flat is not looked at: other tests share the process.
	assert.True(t, r.Samples[10].HeapBytes > 0 && r.Samples[10].Goroutines > 0, "the last sample is empty: %+v", r.Samples[10])
	for _, bad := range [][2]int{{9, 1}, {100, 0}, {100, maxCallers + 1}} {
		_, err := Distinct(t.Context(), db, bad[0], bad[1], new(bytes.Buffer))
		assert.True(t, err != nil, "%v is accepted", bad)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBroken)
	_, err = Distinct(ctx, db, 100, 2, new(bytes.Buffer))
	assert.True(t, err != nil, "it ran although it was cancelled")
}
