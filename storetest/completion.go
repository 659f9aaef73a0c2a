package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C4: a settlement is seen by every claim after it, and by every claim that it
// overtakes. This is what keeps an operation from running twice.
func completionCases() []testCase {
	return []testCase{
		{title: "settled_before_is_seen", production: cases(2, 29), run: settledBeforeIsSeen},
		{title: "runs_once_around_completion", production: cases(2, 3), run: runsOnceAroundCompletion},
		{title: "batches_around_completion", production: cases(2, 3), run: batchesAroundCompletion},
		{title: "overtaken_while_waiting", production: cases(2), needs: needUncommitted, run: overtakenWhileWaiting},
		{title: "completion_against_takeover", production: cases(16), run: completionAgainstTakeover},
	}
}

// settledBeforeIsSeen: the claim is sent through the other handle as soon as the
// settlement is answered.
func settledBeforeIsSeen(h *harness) {
	h.repeat(20, func(round int) {
		here, there := h.handle(round), h.handle(round+1)
		for _, status := range []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain} {
			key := fmt.Sprintf("%v-%d", status, round)
			ref := h.acquire(here, h.claimOf(key, "a", long))
			h.settle(here, ref, status, answer(key))
			d := h.claim(there, h.claimOf(key, "b", long))
			switch status {
			case kakutei.StatusSucceeded:
				h.wantReplay("after SUCCEEDED", d, answer(key))
			case kakutei.StatusFailed:
				h.wantDecision("after FAILED", d, kakutei.Acquired, 2)
				if d.Takeover {
					h.Error("an attempt after a failed one is no takeover")
				}
			default:
				h.wantDecision("after UNCERTAIN", d, kakutei.Uncertain, 1)
			}
		}
	})
}

// runsOnceAroundCompletion: racers claim a key over and over; who acquires it
// settles at once. Those that had looked before the completion, and insert after
// it, must find the result. In every third round the first attempt fails.
func runsOnceAroundCompletion(h *harness) {
	const racers = 6
	h.repeat(20, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		failing := round%3 == 2
		var first, later atomic.Int64
		together(racers, func(i int) {
			s := h.handle(i)
			for try, start := 0, time.Now(); time.Since(start) < patience; try++ {
				owner := fmt.Sprintf("racer-%d-%d", i, try)
				d, err := h.tryClaim(s, h.claimOf(key, owner, long))
				if err != nil {
					h.Errorf("racer %d: %v", i, err)
					return
				}
				switch d.Outcome {
				case kakutei.InFlight:
				case kakutei.Replay:
					if diff := resultDiff(d.Result, answer(key)); diff != "" {
						h.Errorf("racer %d: %s", i, diff)
					}
					return
				case kakutei.Acquired:
					status := kakutei.StatusSucceeded
					if d.Attempt == 1 {
						first.Add(1)
					} else {
						later.Add(1)
					}
					if failing && d.Attempt == 1 {
						status = kakutei.StatusFailed
					}
					ref := kakutei.Ref{ID: h.id(key), Owner: owner, Attempt: d.Attempt}
					if err := h.trySettle(s, ref, status, answer(key)); err != nil {
						h.Errorf("racer %d, attempt %d: settlement: %v", i, d.Attempt, err)
						return
					}
				default:
					h.Errorf("racer %d: %v", i, d.Outcome)
					return
				}
			}
			h.Errorf("racer %d got no answer", i)
		})
		var wantLater int64
		if failing {
			wantLater = 1
		}
		if first.Load() != 1 || later.Load() != wantLater {
			h.Errorf("%s: attempt 1 was acquired %d times, later ones %d times; want 1 and %d", key, first.Load(), later.Load(), wantLater)
		}
	})
}

// batchesAroundCompletion is the same with batches, whose items are at different
// points of their lives.
func batchesAroundCompletion(h *harness) {
	const racers, size = 6, 8
	random := h.random()
	h.repeat(5, func(round int) {
		keys := keysOf(fmt.Sprintf("key-%d", round), size)
		orders := make([][]string, racers)
		for i := range orders {
			orders[i] = shuffled(random, keys)
		}
		var mu sync.Mutex
		runs := make(map[string]int)
		together(racers, func(i int) {
			s := h.handle(i)
			for try, start := 0, time.Now(); time.Since(start) < patience; try++ {
				owner := fmt.Sprintf("racer-%d-%d", i, try)
				ds, err := h.tryClaims(s, h.claimsOf(orders[i], owner, long))
				if err != nil {
					h.Errorf("racer %d: %v", i, err)
					return
				}
				var own []kakutei.Settlement
				replays := 0
				for j, d := range ds {
					key := orders[i][j]
					switch {
					case d.Err != nil:
						h.Errorf("racer %d, %s: %v", i, key, d.Err)
						return
					case d.Outcome == kakutei.Replay && string(d.Result.Body) == key:
						replays++
					case d.Outcome == kakutei.Acquired:
						ref := kakutei.Ref{ID: h.id(key), Owner: owner, Attempt: d.Attempt}
						own = append(own, kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(key)})
						mu.Lock()
						runs[key]++
						mu.Unlock()
					case d.Outcome != kakutei.InFlight:
						h.Errorf("racer %d, %s: %+v", i, key, d)
						return
					}
				}
				if replays == size {
					return
				}
				errs, err := h.trySettles(s, own)
				for _, itemErr := range append(errs, err) {
					if itemErr != nil {
						h.Errorf("racer %d: settlement: %v", i, itemErr)
						return
					}
				}
			}
			h.Errorf("racer %d got no answer", i)
		})
		for _, key := range keys {
			if runs[key] != 1 {
				h.Errorf("%s was acquired %d times", key, runs[key])
			}
		}
	})
}

// overtakenWhileWaiting is the same on purpose, not by chance. B claims two keys
// in one batch, and the first of them is kept by somebody's open transaction: B
// has looked at both, and waits. A claims and completes the second one. When B
// goes on, what it saw is old. Where the open transaction keeps A waiting as
// well, whoever is first runs.
func overtakenWhileWaiting(h *harness) {
	for round := range 5 {
		kept, key := fmt.Sprintf("key-%d-1", round), fmt.Sprintf("key-%d-2", round)
		rollback := h.factory.ClaimUncommitted(h.T, h.store, h.claimOf(kept, "open", long))
		var waiting, running sync.WaitGroup
		var b []kakutei.Decision
		waiting.Go(func() {
			var err error
			if b, err = h.tryClaims(h.other, h.claimsOf([]string{kept, key}, "b", long)); err != nil {
				h.Errorf("B: %v", err)
			}
		})
		time.Sleep(short)
		var a kakutei.Decision
		running.Go(func() {
			var err error
			if a, err = h.tryClaim(h.store, h.claimOf(key, "a", long)); err != nil {
				h.Errorf("A: %v", err)
				return
			}
			ref := kakutei.Ref{ID: h.id(key), Owner: "a", Attempt: a.Attempt}
			if a.Outcome != kakutei.Acquired {
				return
			}
			if err := h.trySettle(h.store, ref, kakutei.StatusSucceeded, answer("a")); err != nil {
				h.Errorf("A has run, but: %v", err)
			}
		})
		overtaken := make(chan struct{})
		go func() { running.Wait(); close(overtaken) }()
		select {
		case <-overtaken:
		case <-time.After(5 * short):
			h.Log("A is kept waiting as well")
		}
		rollback()
		waiting.Wait()
		running.Wait()
		if h.Failed() {
			return
		}
		ran := 0
		for _, d := range []kakutei.Decision{a, b[1]} {
			if d.Outcome == kakutei.Acquired {
				ran++
			}
		}
		if ran != 1 {
			h.Errorf("A is %v, and B, which was overtaken, %v (%v); want one of them acquired", a.Outcome, b[1].Outcome, b[1].Err)
		}
		if a.Outcome == kakutei.Acquired {
			h.wantReplay("after all", h.claim(h.other, h.claimOf(key, "b", long)), answer("a"))
		}
	}
}

// completionAgainstTakeover: the lease of A has run out; A completes while B and
// C claim. Either A is in time, and both get its result; or one of them takes
// over, and A is refused.
func completionAgainstTakeover(h *harness) {
	h.repeat(10, func(round int) {
		keys := keysOf(fmt.Sprintf("key-%d", round), 10)
		refs := h.acquireAll(h.store, keys, "a", time.Millisecond)
		h.expire(refs[len(refs)-1].ID)
		for i, key := range keys {
			h.expire(refs[i].ID)
			var ds [2]kakutei.Decision
			var settled error
			together(3, func(who int) {
				// Who goes first in the queue of the scheduler changes from key to key.
				if who = (who + i) % 3; who == 2 {
					settled = h.trySettle(h.store, refs[i], kakutei.StatusSucceeded, answer("a"))
					return
				}
				d, err := h.tryClaim(h.handle(who), h.claimOf(key, []string{"b", "c"}[who], long))
				if err != nil {
					h.Errorf("claim: %v", err)
				}
				ds[who] = d
			})
			if h.Failed() {
				return
			}
			if settled == nil {
				h.wantReplay("A has completed; B", ds[0], answer("a"))
				h.wantReplay("A has completed; C", ds[1], answer("a"))
				h.wantRecord("A has completed", refs[i], kakutei.StatusSucceeded)
				continue
			}
			h.wantLost("A's completion", settled)
			winner, loser := 0, 1
			if ds[1].Outcome == kakutei.Acquired {
				winner, loser = 1, 0
			}
			h.wantDecision("A was refused; the winner", ds[winner], kakutei.Acquired, 2)
			h.wantDecision("A was refused; the loser", ds[loser], kakutei.InFlight, 2)
			h.wantRecord("after the takeover", kakutei.Ref{ID: refs[i].ID, Owner: []string{"b", "c"}[winner], Attempt: 2}, kakutei.StatusProcessing)
		}
	})
}
