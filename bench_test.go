package kakutei_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
)

// BenchmarkRun is what the engine itself costs: the store is memory.
func BenchmarkRun(b *testing.B) {
	fn := func(context.Context) kakutei.Ending { return final("done") }
	newBench := func(b *testing.B, memory int64) *kakutei.Engine {
		e, err := kakutei.New(memstore.New(), kakutei.Options{ReplayMemoryBytes: memory, Node: "bench", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := e.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
		return e
	}
	run := func(b *testing.B, e *kakutei.Engine, op kakutei.Operation, replayed bool) {
		a, err := e.Run(b.Context(), op, rerun, fn)
		if err != nil || a.Replayed != replayed {
			b.Fatalf("replayed %v, want %v: %v", a.Replayed, replayed, err)
		}
	}
	for _, how := range []struct {
		name     string
		memory   int64
		replayed bool
	}{{"first", 0, false}, {"replay/memory", 0, true}, {"replay/store", kakutei.NoReplayMemory, true}} {
		b.Run(how.name, func(b *testing.B) {
			e := newBench(b, how.memory)
			b.ReportAllocs()
			op := operation("k")
			run(b, e, op, false)
			for i := 0; b.Loop(); i++ {
				if !how.replayed {
					op.Key = strconv.Itoa(i)
				}
				run(b, e, op, how.replayed)
			}
		})
		b.Run(how.name+"/parallel", func(b *testing.B) {
			e := newBench(b, how.memory)
			b.ReportAllocs()
			for i := range 64 {
				run(b, e, operation(strconv.Itoa(-i)), false)
			}
			var next atomic.Int64
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				op := operation("k")
				for pb.Next() {
					i := next.Add(1)
					if how.replayed {
						op.Key = strconv.Itoa(int(-(i % 64)))
						op.Fingerprint = kakutei.FingerprintOf([]byte(op.Key))
					} else {
						op.Key = strconv.Itoa(int(i))
					}
					if a, err := e.Run(b.Context(), op, rerun, fn); err != nil || a.Replayed != how.replayed {
						b.Errorf("replayed %v, want %v: %v", a.Replayed, how.replayed, err)
						return
					}
				}
			})
		})
	}
	// Beside many operations that run, all of whose leases are kept.
	b.Run("first/10000 held", func(b *testing.B) {
		e := newBench(b, 0)
		b.ReportAllocs()
		gate := make(chan struct{})
		var started, ended sync.WaitGroup
		for i := range 10_000 {
			started.Add(1)
			ended.Go(func() {
				_, err := e.Run(b.Context(), operation("held"+strconv.Itoa(i)), rerun, func(context.Context) kakutei.Ending {
					started.Done()
					<-gate
					return final("done")
				})
				if err != nil {
					b.Error(err)
				}
			})
		}
		started.Wait()
		op := operation("k")
		for i := 0; b.Loop(); i++ {
			op.Key = strconv.Itoa(i)
			run(b, e, op, false)
		}
		close(gate)
		ended.Wait()
	})
}
