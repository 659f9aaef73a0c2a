package sqlitestore

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// sizes of the file and of its log.
func sizes(t *testing.T, path string) (db, wal int64) {
	t.Helper()
	for suffix, n := range map[string]*int64{"": &db, "-wal": &wal} {
		info, err := os.Stat(path + suffix) // does not open it
		if err != nil {
			t.Fatal(err)
		}
		*n = info.Size()
	}
	return db, wal
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Many operations, with readers at work all the time: the log is checkpointed
// and used again, the file holds what is kept and no more, and nothing piles up
// in memory. A reader that sits on its snapshot lets the log grow; when it has
// gone that ends. What retention frees is used again.
func TestSoak_case_48(t *testing.T) {
	total := 200_000
	if raceDetector || testing.Short() {
		total = 4_000
	}
	s := open(t, newFile(t))
	const workers, batch = 16, 16
	ctx := context.Background()
	var looks atomic.Int64
	stop := make(chan struct{})
	var readersDone sync.WaitGroup
	for i := range 2 {
		readersDone.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.Look(ctx, []kakutei.ID{idOf(fmt.Sprintf("soak-%d-%d", n%total, i))}); err != nil {
					t.Error(err)
					return
				}
				looks.Add(1)
				time.Sleep(200 * time.Microsecond) // at work all the time, but not alone
			}
		})
	}
	body := bytes.Repeat([]byte("x"), 200)
	next := 0
	work := func(n int) {
		t.Helper()
		first := next
		next += n
		together(workers, func(w int) {
			for at := first + w*batch; at < first+n; at += workers * batch {
				var cs []kakutei.Claim
				var xs []kakutei.Settlement
				for i := at; i < min(at+batch, first+n); i++ {
					key := fmt.Sprint("soak-", i)
					cs = append(cs, claimOf(key, key, day))
					x := success(refOf(key, key, 1))
					x.Result.Body = body
					xs = append(xs, x)
				}
				if out, err := s.Claim(ctx, cs); err != nil || out[0].Outcome != kakutei.Acquired {
					t.Errorf("claim: %v", err)
					return
				}
				if errs, err := s.Settle(ctx, xs); err != nil || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
					t.Errorf("settle: %v %v", err, errs)
					return
				}
			}
		})
	}
	// Every second fifth of the time, look at what it costs.
	start := time.Now()
	work(total / 5)
	db0, wal0 := sizes(t, s.path)
	heap0, goroutines0 := heap(), runtime.NumGoroutine()
	work(2 * total / 5)
	db1, wal1 := sizes(t, s.path)
	perOperation := float64(db1-db0) / float64(2*total/5)
	const walLimit = 16 << 20 // four times where a checkpoint begins
	if max(wal0, wal1) > walLimit {
		t.Errorf("the log has %d, then %d bytes: it is not checkpointed", wal0, wal1)
	}
	// A reader that does not let go of its snapshot.
	snapshot, err := s.read.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.QueryRowContext(ctx, "SELECT count(*) FROM idempotency_keys").Scan(new(int)); err != nil {
		t.Fatal(err)
	}
	work(total / 5)
	_, walHeld := sizes(t, s.path)
	if err := snapshot.Rollback(); err != nil {
		t.Fatal(err)
	}
	work(total / 5)
	db2, wal2 := sizes(t, s.path)
	took := time.Since(start)
	close(stop)
	readersDone.Wait()
	heap1, goroutines1 := heap(), runtime.NumGoroutine()
	if wal2 > walHeld+walLimit {
		t.Errorf("the log had %d bytes while it was held, and has %d: it goes on growing", walHeld, wal2)
	}
	if heap1 > heap0+8<<20 {
		t.Errorf("the heap has grown from %d to %d bytes", heap0, heap1)
	}
	if goroutines1 > goroutines0+2 {
		t.Errorf("the goroutines have grown from %d to %d", goroutines0, goroutines1)
	}
	t.Logf("%d operations in %v, %.0f/s, beside %d looks; %.0f bytes of file for each; log %d, %d, held %d, then %d KiB; heap %d, then %d KiB",
		total, took.Round(time.Millisecond), float64(total)/took.Seconds(), looks.Load(), perOperation,
		wal0>>10, wal1>>10, walHeld>>10, wal2>>10, heap0>>10, heap1>>10)
	if got := value(t, s.read, "SELECT count(*) FROM idempotency_results"); got != fmt.Sprint(total) {
		t.Errorf("%s results", got)
	}
	if got := value(t, s.read, "SELECT count(*) FROM idempotency_keys"); got != "0" {
		t.Errorf("%s are live", got)
	}
	// Another day, of the same size, in the place of the first.
	at(s, time.Now().Add(10*day))
	dropping := time.Now()
	if done, err := s.Retain(ctx, 3*day); err != nil || len(done.Dropped) == 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	dropped := time.Since(dropping)
	work(total / 2)
	db3, _ := sizes(t, s.path)
	t.Logf("dropping the day took %v; the file has %d KiB, before it had %d", dropped.Round(time.Millisecond), db3>>10, db2>>10)
	if db3 > db2+walLimit {
		t.Errorf("what was freed is not used again: %d bytes, then %d", db2, db3)
	}
	if got := value(t, s.read, "PRAGMA quick_check"); got != "ok" {
		t.Error(got)
	}
}
