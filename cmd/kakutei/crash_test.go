package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// Case 1: two processes on one file, 50 callers each, one key: it runs once, one
// caller gets the first answer, and the others a replay or 409.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	store := sqliteIn(t)
	const keys, callers = 20, 50
	args := []string{"--upstream", up.URL, "--store", store, "--scope", "header:X-Account-Id"}
	proxies := []*served{launch(t, args...), launch(t, args...)}
	for k := range keys {
		key := fmt.Sprintf("k%d", k)
		var firsts, replays, conflicts atomic.Int32
		var body sync.Map
		var wg sync.WaitGroup
		for i := range 2 * callers {
			wg.Go(func() {
				r, err := proxies[i%2].ask("/charges", key, "B")
				switch {
				case err != nil:
					t.Errorf("no answer: %v", err)
				case r.status == 200 && r.replayed():
					replays.Add(1)
					body.Store(r.body, true)
				case r.status == 200:
					firsts.Add(1)
					body.Store(r.body, true)
				case r.status == 409 && r.problem() == "in-flight":
					conflicts.Add(1)
				default:
					t.Errorf("status %d: %s", r.status, r.body)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, firsts.Load(), 1, "first answers for "+key)
		assert.Equal(t, firsts.Load()+replays.Load()+conflicts.Load(), 2*callers, "answers for "+key)
		assert.Equal(t, up.runsOf(key), 1, "runs of "+key)
		bodies := 0
		body.Range(func(any, any) bool { bodies++; return true })
		assert.Equal(t, bodies, 1, "different answers for "+key)
		for _, s := range proxies {
			r := s.post("/charges", key, "B")
			assert.True(t, r.replayed(), "%s is not replayed", key)
		}
	}
}

// Case 12: kill -9 in the middle of a request. Until the lease is over the key
// answers 409, with a Retry-After that is not longer than what is left; then the
// next one runs, as a new attempt.
func TestKilledInMidRequest(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	for _, recovery := range []string{"rerun", "hold"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			up := newAPI(t)
			args := []string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "header:X-Account-Id", "--lease", lease.String(), "--recovery", recovery}
			s := launch(t, args...)
			wantReply(t, s.post("/charges", "before", "B"), 200, "run 1 of B", false)
			cut := make(chan error, 1)
			claimed := time.Now() // at the earliest; the lease ends no sooner than a lease later
			go func() {
				_, err := s.ask("/slow", "k", "B")
				cut <- err
			}()
			up.awaitStart(t)
			s.kill()
			assert.True(t, <-cut != nil, "the client of a killed proxy got an answer")
			renewed := time.Now() // at the latest

			s = launch(t, args...)
			wantReply(t, s.post("/charges", "before", "B"), 200, "run 1 of B", true)
			up.open() // whoever comes now is answered at once
			var r reply
			for conflicts := 0; ; conflicts++ {
				before := time.Now()
				r = s.post("/slow", "k", "B")
				if r.status != 409 || r.problem() != "in-flight" {
					assert.True(t, conflicts > 0, "no request met the lease: the restart took %v", time.Since(claimed))
					assert.True(t, time.Since(claimed) >= lease, "recovered after %v, the lease is %v", time.Since(claimed), lease)
					break
				}
				wantRefusal(t, s.post("/slow", "k", "other"), 422, "key-reused")
				after, err := strconv.Atoi(r.header.Get("Retry-After"))
				left := renewed.Add(lease).Sub(before)
				assert.True(t, err == nil && after >= 1 && (time.Duration(after)*time.Second <= left || after == 1), "Retry-After is %q, at most %v is left", r.header.Get("Retry-After"), left)
				if before.After(renewed.Add(lease + 5*time.Second)) {
					t.Fatalf("still 409 %v after the lease", time.Since(renewed.Add(lease)))
				}
				time.Sleep(100 * time.Millisecond)
			}
			if recovery == "rerun" {
				wantReply(t, r, 200, "run 3 of B", false)
				assert.Equal(t, up.attemptOf("k"), "2", "attempt that the upstream was told")
				wantReply(t, s.post("/slow", "k", "B"), 200, "run 3 of B", true)
				assert.Equal(t, up.runsOf("k"), 2, "runs")
				return
			}
			// Case 17: never again by itself.
			for range 3 {
				wantRefusal(t, r, 409, "uncertain")
				assert.Equal(t, r.header.Get("Retry-After"), "", "Retry-After where waiting is no use")
				r = s.post("/slow", "k", "B")
			}
			s.kill()
			s = launch(t, args...)
			wantRefusal(t, s.post("/slow", "k", "B"), 409, "uncertain")
			assert.Equal(t, up.runsOf("k"), 1, "runs")
		})
	}
}

// A surviving proxy on the same file recovers what the killed one held.
func TestSurvivorRecovers(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	args := []string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "header:X-Account-Id", "--lease", "1s", "--wait", "30s"}
	a, b := launch(t, args...), launch(t, append(args, "--admin", "127.0.0.1:0")...)
	go a.ask("/slow", "k", "B") //nolint:errcheck // it is cut off
	up.awaitStart(t)
	done := make(chan reply, 1)
	go func() { done <- b.post("/slow", "k", "B") }() // waits for the other's attempt
	time.Sleep(100 * time.Millisecond)
	a.kill()
	up.open()
	wantReply(t, <-done, 200, "run 2 of B", false)
	assert.Equal(t, up.attemptOf("k"), "2", "attempt that the upstream was told")
	assert.Equal(t, counters(t, b.adminURL())[counter("takeover")], 1, "takeovers that were counted")
}

// Killed again and again at random moments, with many keys under way: no key
// gets stuck, and an answer that a client has got is the answer for ever.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	effects := map[string]int{}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		effects[key]++ // the answer tells which run it is from
		n := effects[key]
		mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		fmt.Fprintf(w, "run %d of %s", n, key)
	}))
	defer up.Close()
	args := []string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "header:X-Account-Id", "--lease", "500ms"}
	answers := map[string]string{} // by key, the first one that any client got
	const kills, keys = 5, 60
	cutOff := 0
	for round := range kills {
		s := launch(t, args...)
		var wg sync.WaitGroup
		for i := range keys {
			key := fmt.Sprintf("k%d", i)
			if round%2 == 0 {
				key = fmt.Sprintf("r%d-%d", round, i)
			}
			wg.Go(func() {
				r, err := s.ask("/charges", key, "B")
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					cutOff++
				case r.status == 200 && answers[key] == "":
					answers[key] = r.body
				case r.status == 200:
					assert.Equal(t, r.body, answers[key], "answer for "+key)
				case r.status != 409:
					t.Errorf("status %d: %s", r.status, r.body)
				}
			})
			if i%10 == 0 {
				time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
			}
		}
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		s.kill()
		wg.Wait()
	}
	assert.True(t, cutOff > 0, "no request was cut off: the kills came too late")
	s := launch(t, args...)
	recovered := 0
	for _, key := range slices.Sorted(maps.Keys(effects)) {
		var r reply
		soon(t, "the key "+key+" recovers", func() bool {
			r = s.post("/charges", key, "B")
			return r.status == 200
		})
		mu.Lock()
		if answers[key] == "" {
			recovered++
			answers[key] = r.body
		}
		assert.Equal(t, r.body, answers[key], "answer for "+key)
		mu.Unlock()
	}
	t.Logf("%d requests cut off, %d keys recovered, %d answered before", cutOff, recovered, len(answers)-recovered)
}
