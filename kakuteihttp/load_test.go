package kakuteihttp_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// forgetful is a store that acquires everything and keeps nothing, so that what
// is left in memory is left by the middleware and the engine.
type forgetful struct{ claimed atomic.Int64 }

func (f *forgetful) Claim(_ context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	f.claimed.Add(int64(len(claims)))
	out := make([]kakutei.Decision, len(claims))
	for i := range out {
		out[i] = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
	}
	return out, nil
}

func (f *forgetful) Look(_ context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	return make([]kakutei.Looked, len(ids)), nil
}

func (f *forgetful) Renew(_ context.Context, renewals []kakutei.Renewal) ([]error, error) {
	return make([]error, len(renewals)), nil
}

func (f *forgetful) Settle(_ context.Context, settlements []kakutei.Settlement) ([]error, error) {
	return make([]error, len(settlements)), nil
}

// TestManyKeys is case 48: after 100,000 different keys, goroutines and heap are
// back to where they were, but for what may be remembered of answers.
func TestManyKeys(t *testing.T) {
	const workers, remembered = 50, 1 << 20
	keys := 100_000
	if raceEnabled {
		keys /= 5 // everything costs ten times as much
	}
	st := &forgetful{}
	engine, err := kakutei.New(st, kakutei.Options{ReplayMemoryBytes: remembered, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(context.Background()) //nolint:errcheck // nothing runs
	protect, err := kakuteihttp.Middleware(engine, byAccount, kakuteihttp.Options{Recovery: kakutei.Rerun})
	if err != nil {
		t.Fatal(err)
	}
	h := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		io.Copy(w, r.Body)
	}))
	body := strings.Repeat("x", 100)
	run := func(n int) {
		var next atomic.Int64
		var done sync.WaitGroup
		for range workers {
			done.Go(func() {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					w := &discard{header: make(http.Header)}
					h.ServeHTTP(w, directRequest(fmt.Sprintf("%d-%d", n, i), body))
					if w.status != 201 || w.n != 100 {
						t.Errorf("key %d: %d, %d bytes", i, w.status, w.n)
					}
				}
			})
		}
		done.Wait()
	}
	run(2 * workers) // what is made once
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	run(keys)
	if got := st.claimed.Load(); got != int64(keys+2*workers) {
		t.Fatalf("%d claims for %d keys", got, keys)
	}
	until(t, fmt.Sprintf("that there are %d goroutines again", goroutines), func() bool { return runtime.NumGoroutine() <= goroutines })
	var grown int64
	for range 20 {
		if grown = heapInUse() - heap; grown < 3*remembered {
			return
		}
		time.Sleep(10 * time.Millisecond) // what is freed by finalizers takes more than one collection
	}
	t.Errorf("the heap has grown by %d KiB, of which %d KiB may be remembered answers", grown>>10, remembered>>10)
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestManyAtOnce is case 48 through a server: many keys, many duplicates of
// each, all at the same time. Each runs once; nothing is left.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const keys, duplicates = 25, 8
	both(t, func(t *testing.T, http2 bool) {
		var perKey [keys]atomic.Int32
		warm := kakutei.ID{Scope: "acme", Key: "warm-up"}
		s := &site{http2: http2, opts: kakuteihttp.Options{Wait: patience}}
		s.handler = func(w http.ResponseWriter, r *http.Request) {
			if kakutei.FromContext(r.Context()).ID() == warm {
				return
			}
			var i int
			fmt.Sscanf(kakutei.FromContext(r.Context()).ID().Key, "k%d", &i)
			perKey[i].Add(1)
			w.WriteHeader(201)
			fmt.Fprint(w, "answer ", i)
		}
		s.start(t)
		s.post("warm-up", "") // a server of HTTP/2 waits only two seconds for a client's settings
		var done sync.WaitGroup
		var first [keys]atomic.Int32
		for i := range keys * duplicates {
			done.Go(func() {
				k := i % keys
				r := s.post(fmt.Sprintf("k%d", k), "body")
				if r.err != nil || r.status != 201 || r.body != fmt.Sprint("answer ", k) {
					t.Errorf("key %d: %d %s %v", k, r.status, r.body, r.err)
				}
				if !r.replayed() {
					first[k].Add(1)
				}
			})
		}
		done.Wait()
		for k := range keys {
			if perKey[k].Load() != 1 || first[k].Load() != 1 {
				t.Errorf("key %d ran %d times, %d answers are not marked as replayed", k, perKey[k].Load(), first[k].Load())
			}
		}
		if live, results := s.store.Len(); live != 0 || results != keys+1 {
			t.Errorf("%d live records, %d results", live, results)
		}
	})
}
