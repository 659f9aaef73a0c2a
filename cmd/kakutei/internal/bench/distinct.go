package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kakutei-go/kakutei"
)

// DistinctReport tells what so many keys, each used once, leave in memory.
type DistinctReport struct {
	Machine Machine `json:"machine"`
	Keys    int     `json:"keys"`
	Callers int     `json:"callers"`
	// Samples are taken before the first key and after every tenth of them, with
	// the callers at rest and the garbage collected.
	Samples []MemorySample `json:"samples"`
	// GoroutinesAfterClose compares with the first sample's.
	GoroutinesAfterClose int `json:"goroutines_after_close"`
	// Flat tells that the second half of the keys left nothing behind.
	Flat bool `json:"flat"`
}

// MemorySample is the memory of the process at one moment.
type MemorySample struct {
	Keys       int     `json:"keys"`
	HeapBytes  uint64  `json:"heap_bytes"`
	Objects    uint64  `json:"objects"`
	Goroutines int     `json:"goroutines"`
	RSSBytes   uint64  `json:"rss_bytes,omitempty"` // where the system tells
	PerSecond  float64 `json:"per_second,omitempty"`
}

// flatBytes is how much the heap may differ between two moments.
const flatBytes = 4 << 20

// Distinct runs keys operations with a key each, and looks at the memory.
func Distinct(ctx context.Context, db Database, keys, callers int, out io.Writer) (_ *DistinctReport, err error) {
	if keys < 10 || callers < 1 || callers > maxCallers {
		return nil, fmt.Errorf("%d keys and %d callers; at least 10 keys are needed, and between 1 and %d callers", keys, callers, maxCallers)
	}
	machine, err := describe(ctx, db)
	if err != nil {
		return nil, err
	}
	r := &DistinctReport{Machine: machine, Keys: keys, Callers: callers}
	r.Samples = append(r.Samples, sample(0, 0))
	p, err := openProtected(ctx, db, 0)
	if err != nil {
		return nil, err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, p.close())
		}
	}()
	const parts = 10
	progress := newProgress(out, parts)
	defer progress.end()
	progress.say("%s\n%s keys by %s", machine, thousands(float64(keys)), count(callers, "caller"))
	for part := range parts {
		progress.step("%s of %s keys", thousands(float64(keys*part/parts)), thousands(float64(keys)))
		from, to := keys*part/parts, keys*(part+1)/parts
		start := time.Now()
		if err := p.runKeys(ctx, from, to, callers); err != nil {
			return nil, err
		}
		s := sample(to, float64(to-from)/time.Since(start).Seconds())
		r.Samples = append(r.Samples, s)
		progress.say("%s keys: %s/s, heap %s, %d goroutines", thousands(float64(to)), thousands(s.PerSecond), mebibytes(s.HeapBytes), s.Goroutines)
	}
	if err := checkFirst(ctx, p.Counts, int64(keys), 0); err != nil {
		return nil, err
	}
	closed = true
	if err := p.close(); err != nil {
		return nil, err
	}
	r.GoroutinesAfterClose = settledGoroutines(r.Samples[0].Goroutines)
	half, last := r.Samples[parts/2], r.Samples[parts]
	r.Flat = last.HeapBytes <= half.HeapBytes+flatBytes && last.Goroutines <= half.Goroutines+2 &&
		r.GoroutinesAfterClose <= r.Samples[0].Goroutines
	return r, nil
}

// runKeys runs the keys of the numbers from from to to, and returns the first error.
func (p *protected) runKeys(ctx context.Context, from, to, callers int) error {
	workers := make([]int, min(callers, to-from))
	for i := range workers {
		workers[i] = from + i
	}
	return each(workers, len(workers), func(first int) error {
		for n := first; n < to; n += len(workers) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := p.once(ctx, keyOf(0, n), kakutei.Rerun, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func sample(keys int, perSecond float64) MemorySample {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the second frees what the first found in finalizers and pools
	runtime.ReadMemStats(&m)
	return MemorySample{
		Keys: keys, HeapBytes: m.HeapAlloc, Objects: m.HeapObjects, Goroutines: runtime.NumGoroutine(),
		RSSBytes: residentBytes(), PerSecond: perSecond,
	}
}

// settledGoroutines counts goroutines when those that are ending have ended.
func settledGoroutines(want int) int {
	for range 100 {
		if runtime.NumGoroutine() <= want {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}

// residentBytes is the process's memory as Linux counts it, with that of SQLite,
// which is not in Go's heap; 0 elsewhere.
func residentBytes() uint64 {
	var pages, resident uint64
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(text), &pages, &resident); err != nil {
		return 0
	}
	return resident * uint64(os.Getpagesize())
}

func mebibytes(n uint64) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// WriteText writes the report for people.
func (r *DistinctReport) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s keys, each used once, by %s\n\n", r.Machine, thousands(float64(r.Keys)), count(r.Callers, "caller"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, strings.Join([]string{"keys", "per second", "heap", "objects", "goroutines", "resident", ""}, "\t"))
	for _, s := range r.Samples {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t\n", thousands(float64(s.Keys)), thousands(s.PerSecond), mebibytes(s.HeapBytes),
			thousands(float64(s.Objects)), s.Goroutines, mebibytes(s.RSSBytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "flat: the second half of the keys left nothing in the heap"
	if !r.Flat {
		verdict = "NOT FLAT: the second half of the keys left something behind"
	}
	_, err := fmt.Fprintf(w, "\n%s; %s after closing\n", verdict, count(r.GoroutinesAfterClose, "goroutine"))
	return err
}
