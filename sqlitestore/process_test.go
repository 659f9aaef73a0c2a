package sqlitestore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// childRace runs callers that all want every key, and settle what they got.
func childRace(ctx context.Context, args []string) error {
	var keys, callers int
	if _, err := fmt.Sscan(args[2]+" "+args[3], &keys, &callers); err != nil {
		return err
	}
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	say("ready")
	untilTold()
	var longest atomic.Int64
	errs := make(chan error, callers)
	var mu sync.Mutex
	together(callers, func(i int) {
		for n := range keys {
			key := fmt.Sprint("k", n)
			start := time.Now()
			owner := fmt.Sprintf("%s/%d/%d", args[1], i, n)
			d, err := tryClaim(ctx, s, claimOf(key, owner, long))
			if took := int64(time.Since(start)); took > longest.Load() {
				longest.Store(took) // nearly the longest is good enough
			}
			switch {
			case err != nil:
			case d.Outcome == kakutei.Acquired:
				mu.Lock()
				say("ran %s attempt %d", key, d.Attempt)
				mu.Unlock()
				err = trySettle(ctx, s, success(refOf(key, owner, d.Attempt)))
			case d.Outcome == kakutei.Replay && string(d.Result.Body) != key:
				err = fmt.Errorf("%s was answered with %q", key, d.Result.Body)
			case d.Outcome != kakutei.Replay && d.Outcome != kakutei.InFlight:
				err = fmt.Errorf("the claim of %s came to %v", key, d.Outcome)
			}
			if err != nil {
				errs <- err
				return
			}
		}
	})
	say("longest %v", time.Duration(longest.Load()))
	select {
	case err := <-errs:
		return err
	default:
		return s.Close()
	}
}

// Case 1: two processes, 50 callers in each, one key after the other: it runs
// once, and nobody gets an error.
func TestTwoProcesses_case_1(t *testing.T) {
	keys, callers := 1000, 50
	if raceDetector || testing.Short() {
		keys = 100
	}
	path := newFile(t)
	open(t, path)
	var both []*child
	for _, name := range []string{"a", "b"} {
		c := spawn(t, "race", path, name, fmt.Sprint(keys), fmt.Sprint(callers))
		c.expect("ready")
		both = append(both, c)
	}
	start := time.Now()
	for _, c := range both {
		c.tell()
	}
	ran := map[string]int{}
	var share []int
	for _, c := range both {
		mine := 0
		for _, l := range c.wait() {
			var key string
			if n, _ := fmt.Sscanf(l, "ran %s attempt 1", &key); n == 1 {
				ran[key]++
				mine++
			} else {
				t.Log(l)
			}
		}
		share = append(share, mine)
	}
	took := time.Since(start)
	t.Logf("%d keys, 2 processes × %d callers, %v: %.0f claims/s; the processes ran %v of them",
		keys, callers, took.Round(time.Millisecond), float64(2*keys*callers)/took.Seconds(), share)
	if len(ran) != keys {
		t.Errorf("%d of %d keys ran", len(ran), keys)
	}
	for key, n := range ran {
		if n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
	db := raw(t, path)
	if got := value(t, db, "SELECT count(*) || ' ' || count(DISTINCT idempotency_key) FROM idempotency_results WHERE status = 'SUCCEEDED'"); got != fmt.Sprintf("%d %d", keys, keys) {
		t.Errorf("results and keys: %s", got)
	}
	if got := value(t, db, "SELECT count(*) FROM idempotency_keys"); got != "0" {
		t.Errorf("%s keys are left over", got)
	}
}

// childHog writes without a pause.
func childHog(ctx context.Context, args []string) error {
	var callers int
	if _, err := fmt.Sscan(args[1], &callers); err != nil {
		return err
	}
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	say("ready")
	var count atomic.Int64
	stop, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := 0; stop.Err() == nil; n++ {
				key := fmt.Sprintf("hog-%d-%d", i, n)
				if _, err := tryClaim(ctx, s, claimOf(key, key, long)); err != nil {
					say("error %v", err)
					return
				}
				if err := trySettle(ctx, s, success(refOf(key, key, 1))); err != nil {
					say("error %v", err)
					return
				}
				count.Add(1)
			}
		})
	}
	start := time.Now()
	untilTold()
	took := time.Since(start)
	cancel()
	wg.Wait()
	say("%.0f operations/s", float64(count.Load())/took.Seconds())
	return s.Close()
}

// Case 1, fairness: a lone claim beside another process that writes without a
// pause gets its turn, every time, well before anybody's patience ends.
func TestFairness_case_1(t *testing.T) {
	n := 300
	if raceDetector || testing.Short() {
		n = 60
	}
	for _, callers := range []int{1, 16, 64} {
		t.Run(fmt.Sprint(callers, " callers"), func(t *testing.T) {
			path := newFile(t)
			s := open(t, path)
			hog := spawn(t, "hog", path, fmt.Sprint(callers))
			hog.expect("ready")
			time.Sleep(50 * time.Millisecond) // into its stride
			var waits []time.Duration
			start := time.Now()
			for i := range n {
				claimed := time.Now()
				claims(t, s, claimOf(fmt.Sprint("single", i), "me", long), kakutei.Acquired, 1)
				waits = append(waits, time.Since(claimed))
			}
			took := time.Since(start)
			hog.tell()
			said := hog.wait()
			slices.Sort(waits)
			t.Logf("a single claim beside %d callers of another process (%v): median %v, 99%% %v, longest %v; %.0f/s",
				callers, said, waits[n/2], waits[n*99/100], waits[n-1], float64(n)/took.Seconds())
			if longest := waits[n-1]; longest > 3*time.Second { // the engine gives up after five
				t.Errorf("a claim waited %v", longest)
			}
		})
	}
}
