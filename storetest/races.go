package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"

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
