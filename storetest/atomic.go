package storetest

import (
	"fmt"
	"sync/atomic"

	"github.com/kakutei-go/kakutei"
)

// C12: Settle to SUCCEEDED removes the live record and records the result in one
// transaction: no moment shows both or neither.
func atomicCases() []testCase {
	return []testCase{
		{title: "never_without_a_record", production: cases(2), run: neverWithoutARecord},
		{title: "never_without_a_record_in_batches", production: cases(2), run: neverWithoutARecordInBatches},
	}
}

// watch looks at and claims the keys over and over until done is set and all
// are settled. Each must go from PROCESSING to SUCCEEDED, straight and for good.
func (h *harness) watch(s kakutei.Store, keys []string, owner string, done *atomic.Bool) {
	ids := h.idsOf(keys)
	settled := make([]bool, len(keys))
	saw := func(i int, what string, running, over bool) {
		if over {
			settled[i] = true
		} else if !running || settled[i] {
			h.Errorf("%s: %s; settled before: %v", keys[i], what, settled[i])
			done.Store(true)
		}
	}
	for last := false; !last && !h.Failed(); {
		last = done.Load()
		looked, err := h.tryLooks(s, ids)
		if err != nil {
			h.Error(err)
			return
		}
		for i, l := range looked {
			saw(i, fmt.Sprintf("looked at, it is %v (%v)", l.Record.Status, l.Err),
				l.Record.Status == kakutei.StatusProcessing,
				l.Record.Status == kakutei.StatusSucceeded && string(l.Record.Result.Body) == keys[i])
		}
		ds, err := h.tryClaims(s, h.claimsOf(keys, owner, long))
		if err != nil {
			h.Error(err)
			return
		}
		for i, d := range ds {
			saw(i, fmt.Sprintf("claimed, it is %v, attempt %d (%v)", d.Outcome, d.Attempt, d.Err),
				d.Outcome == kakutei.InFlight,
				d.Outcome == kakutei.Replay && string(d.Result.Body) == keys[i])
		}
	}
	for i, ok := range settled {
		if !ok && !h.Failed() {
			h.Errorf("%s was settled, and is not seen", keys[i])
		}
	}
}

func neverWithoutARecord(h *harness) { h.settleWatched(1) }

func neverWithoutARecordInBatches(h *harness) { h.settleWatched(10) }

// settleWatched settles so many keys at a time while others watch them.
func (h *harness) settleWatched(size int) {
	h.Helper()
	const watchers = 4
	h.repeat(10, func(round int) {
		keys := keysOf(fmt.Sprintf("key-%d", round), size)
		batch := make([]kakutei.Settlement, size)
		for i, ref := range h.acquireAll(h.store, keys, "a", long) {
			batch[i] = kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(ref.Key)}
		}
		var done atomic.Bool
		together(watchers+1, func(i int) {
			if i < watchers {
				h.watch(h.handle(i), keys, fmt.Sprintf("watcher-%d", i), &done)
				return
			}
			defer done.Store(true)
			errs, err := h.trySettles(h.store, batch)
			for _, err := range append(errs, err) {
				if err != nil {
					h.Errorf("settlement: %v", err)
				}
			}
		})
	})
}
