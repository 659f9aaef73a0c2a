package sqlitestore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// benchmark runs one operation after the other from the given number of callers.
func benchmark(b *testing.B, callers int, one func(n int64)) {
	b.Helper()
	b.ReportAllocs()
	var next atomic.Int64
	b.ResetTimer()
	together(callers, func(int) {
		for {
			n := next.Add(1)
			if n > int64(b.N) {
				return
			}
			one(n)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "operations/s")
}

// What a new operation costs: a claim and a settlement, each durable.
func BenchmarkClaimAndSettle(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := open(b, newFile(b))
			ctx := context.Background()
			benchmark(b, callers, func(n int64) {
				key := fmt.Sprint("k", n)
				if _, err := tryClaim(ctx, s, claimOf(key, key, day)); err != nil {
					b.Error(err)
				}
				if err := trySettle(ctx, s, success(refOf(key, key, 1))); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// The same through an engine, which batches once more.
func BenchmarkEngine(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			e, err := kakutei.New(open(b, newFile(b)), kakutei.Options{ReplayMemoryBytes: kakutei.NoReplayMemory})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close(context.Background())
			benchmark(b, callers, func(n int64) {
				p := kakutei.Policy{Recovery: kakutei.Rerun}
				if _, err := e.Run(context.Background(), opOf(fmt.Sprint("k", n)), p, func(context.Context) kakutei.Ending { return final("answer") }); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// A transactional operation: a claim, and one transaction with a business row.
func BenchmarkTransaction(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s := open(b, newFile(b))
			exec1(b, s.DB(), "CREATE TABLE charges (name TEXT PRIMARY KEY) WITHOUT ROWID")
			e, err := kakutei.New(s, kakutei.Options{ReplayMemoryBytes: kakutei.NoReplayMemory})
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close(context.Background())
			benchmark(b, callers, func(n int64) {
				p := kakutei.Policy{Recovery: kakutei.Transactional}
				if _, err := e.Run(context.Background(), opOf(fmt.Sprint("k", n)), p, func(ctx context.Context) kakutei.Ending {
					if err := charge(ctx, fmt.Sprint(n)); err != nil {
						b.Error(err)
					}
					return final("answer")
				}); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// What a duplicate of a settled operation costs, with today and with the four
// days of the default retention.
func BenchmarkReplay(b *testing.B) {
	for _, days := range []int{1, 4} {
		for _, callers := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("days=%d/callers=%d", days, callers), func(b *testing.B) {
				s := open(b, newFile(b))
				now := midnight()
				for i := range days {
					fixed(s, now.Add(-day*time.Duration(days-i)))
					key := fmt.Sprint("k", i)
					if _, err := tryClaim(context.Background(), s, claimOf(key, key, day)); err != nil {
						b.Fatal(err)
					}
					x := success(refOf(key, key, 1))
					x.Result.Body = []byte(strings.Repeat("x", 500))
					settle(b, s, x)
				}
				benchmark(b, callers, func(n int64) {
					if d, err := tryClaim(context.Background(), s, claimOf(fmt.Sprint("k", n%int64(days)), "other", day)); err != nil || d.Outcome != kakutei.Replay {
						b.Error(d.Outcome, err)
					}
				})
			})
		}
	}
}
