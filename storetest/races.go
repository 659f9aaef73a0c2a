package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C3, second half: of all claims of one ID at most one is acquired for an
// attempt number.
func raceCases() []testCase {
	return []testCase{
		{title: "one_key_many_callers", production: cases(1), run: oneKeyManyCallers},
		{title: "many_keys_several_racers", production: cases(1), run: manyKeysSeveralRacers},
		{title: "soak", production: cases(1, 2, 15, 16), run: soak},
	}
}

// oneKeyManyCallers: 50 callers of each of two processes claim one key.
func oneKeyManyCallers(h *harness) {
	h.repeat(3, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		var acquired atomic.Int64
		together(100, func(i int) {
			d, err := h.tryClaim(h.handle(i), h.claimOf(key, fmt.Sprintf("caller-%d", i), long))
			switch {
			case err != nil:
				h.Errorf("caller %d: %v", i, err)
			case d.Outcome == kakutei.Acquired && d.Attempt == 1 && !d.Takeover:
				acquired.Add(1)
			case d.Outcome != kakutei.InFlight || d.Attempt != 1 || d.Left <= 0 || d.Left > long:
				h.Errorf("caller %d: %+v", i, d)
			}
		})
		if n := acquired.Load(); n != 1 {
			h.Errorf("%d callers have acquired %s", n, key)
		}
	})
}

// manyKeysSeveralRacers: a thousand keys, which all racers claim in batches and
// each in an order of its own. A store that writes a batch in the order in which
// it came deadlocks here.
func manyKeysSeveralRacers(h *harness) {
	const batch = 50
	keys := keysOf("key", 1000)
	random := h.random()
	orders := make([][]string, 6)
	for i := range orders {
		orders[i] = shuffled(random, keys)
	}
	var mu sync.Mutex
	acquired := make(map[string]int)
	together(len(orders), func(i int) {
		for todo := orders[i]; len(todo) > 0; todo = todo[batch:] {
			ds, err := h.tryClaims(h.handle(i), h.claimsOf(todo[:batch], fmt.Sprintf("racer-%d", i), long))
			if err != nil {
				h.Errorf("racer %d: %v", i, err)
				return
			}
			mu.Lock()
			for j, d := range ds {
				switch {
				case d.Err != nil, d.Outcome != kakutei.Acquired && d.Outcome != kakutei.InFlight, d.Attempt != 1:
					h.Errorf("racer %d, %s: %+v", i, todo[j], d)
				case d.Outcome == kakutei.Acquired:
					acquired[todo[j]]++
				}
			}
			mu.Unlock()
		}
	})
	for _, key := range keys {
		if acquired[key] != 1 {
			h.Errorf("%s was acquired %d times", key, acquired[key])
		}
	}
}

// soak lets workers claim, renew, outlive their leases, fail and settle on a few
// keys, all at once, and checks afterwards what must hold for every order of
// events: no attempt number was acquired twice, none was left out, nothing was
// acquired by a claim sent after the success was known, and at most one
// settlement as SUCCEEDED was accepted, which is the one on record.
func soak(h *harness) {
	const workers, keyCount = 8, 4
	type history struct {
		mu        sync.Mutex
		owners    map[int64]string // by attempt
		succeeded kakutei.Ref
		at        time.Time // when the success was known to be durable
	}
	histories := make([]*history, keyCount)
	for i := range histories {
		histories[i] = &history{owners: make(map[int64]string)}
	}
	sources := make([]func(int) int, workers)
	for i := range sources {
		sources[i] = h.random().IntN
	}
	end := time.Now().Add(h.factory.Soak)
	var serial atomic.Int64
	together(workers, func(w int) {
		s, roll := h.handle(w), sources[w]
		for time.Now().Before(end) && !h.Failed() {
			k := roll(keyCount)
			x := histories[k]
			c := h.claimOf(fmt.Sprintf("key-%d", k), fmt.Sprintf("worker-%d-%d", w, serial.Add(1)), time.Duration(1+roll(20))*time.Millisecond)
			sent := time.Now()
			d, err := h.tryClaim(s, c)
			if err != nil {
				h.Errorf("claim: %v", err)
				return
			}
			if d.Outcome == kakutei.InFlight {
				continue
			}
			x.mu.Lock()
			late := !x.at.IsZero() && sent.After(x.at)
			earlier, twice := x.owners[d.Attempt]
			if d.Outcome == kakutei.Acquired {
				x.owners[d.Attempt] = c.Owner
			}
			x.mu.Unlock()
			switch {
			case d.Outcome == kakutei.Replay && d.Attempt > 0:
				continue
			case d.Outcome != kakutei.Acquired:
				h.Errorf("claim is %v", d.Outcome)
				return
			case twice:
				h.Errorf("key-%d: attempt %d was acquired by %s and by %s", k, d.Attempt, earlier, c.Owner)
			case late:
				h.Errorf("key-%d: attempt %d was acquired after the success", k, d.Attempt)
			}
			ref := kakutei.Ref{ID: c.ID(), Owner: c.Owner, Attempt: d.Attempt}
			if roll(3) == 0 { // in time or not, as it happens
				_ = h.tryRenew(s, ref, time.Duration(1+roll(20))*time.Millisecond) //nolint:errcheck // a lost lease shows below
			}
			if roll(2) == 0 {
				time.Sleep(time.Duration(roll(25)) * time.Millisecond)
			}
			switch action := roll(30); {
			case action == 0:
				if h.trySettle(s, ref, kakutei.StatusSucceeded, answer(c.Owner)) == nil {
					x.mu.Lock()
					if x.succeeded.Owner != "" {
						h.Errorf("key-%d: %v and %v have both succeeded", k, x.succeeded, ref)
					}
					x.succeeded, x.at = ref, time.Now()
					x.mu.Unlock()
				}
			case action < 15:
				_ = h.trySettle(s, ref, kakutei.StatusFailed, kakutei.Result{}) //nolint:errcheck // refused if it comes too late
			} // else the process has died
		}
	})
	for k, x := range histories {
		for n := int64(1); n <= int64(len(x.owners)); n++ {
			if x.owners[n] == "" {
				h.Errorf("key-%d: attempt %d was left out of %d", k, n, len(x.owners))
			}
		}
		h.Logf("key-%d: %d attempts, succeeded: %d", k, len(x.owners), x.succeeded.Attempt)
		if x.succeeded.Owner != "" {
			h.wantRecord("after the soak", x.succeeded, kakutei.StatusSucceeded)
			d := h.claim(h.store, h.claimOf(x.succeeded.Key, "last", long))
			h.wantReplay("after the soak", d, answer(x.succeeded.Owner))
		}
	}
}
