package storetest

import (
	"fmt"
	"sync"

	"github.com/kakutei-go/kakutei"
)

// C8: an expired lease is taken over by comparing owner and attempt: one claim
// wins, and the attempt number grows by one.
func takeoverCases() []testCase {
	return []testCase{
		{title: "takeover_one_winner", production: cases(16), run: takeoverOneWinner},
		{title: "zombie_changes_nothing", production: cases(15), run: zombieChangesNothing},
		{title: "old_owner_wins_again", production: cases(16), run: oldOwnerWinsAgain},
		{title: "attempts_only_grow", production: cases(16), run: attemptsOnlyGrow},
		{title: "live_lease_is_not_taken", production: cases(7), run: liveLeaseIsNotTaken},
		{title: "renewal_against_takeover", production: cases(13, 14), run: renewalAgainstTakeover},
	}
}

// takeoverOneWinner: racers claim the same expired keys in batches, each in an
// order of its own; then the first owner comes back.
func takeoverOneWinner(h *harness) {
	const racers, size = 8, 20
	random := h.random()
	h.repeat(3, func(round int) {
		keys := keysOf(fmt.Sprintf("key-%d", round), size)
		zombies := h.acquireAll(h.store, keys, "zombie", short)
		for _, ref := range zombies {
			h.expire(ref.ID)
		}
		orders := make([][]string, racers)
		for i := range orders {
			orders[i] = shuffled(random, keys)
		}
		var mu sync.Mutex
		winners := make(map[string][]string)
		together(racers, func(i int) {
			owner := fmt.Sprintf("racer-%d", i)
			ds, err := h.tryClaims(h.handle(i), h.claimsOf(orders[i], owner, long))
			if err != nil {
				h.Errorf("%s: %v", owner, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for j, d := range ds {
				if d.Outcome == kakutei.Acquired {
					winners[orders[i][j]] = append(winners[orders[i][j]], owner)
					h.wantDecision(owner, d, kakutei.Acquired, 2)
					if !d.Takeover {
						h.Errorf("%s: acquired from an expired lease, but not marked as a takeover", owner)
					}
				} else {
					h.wantDecision(owner, d, kakutei.InFlight, 2)
				}
			}
		})
		for i, key := range keys {
			if len(winners[key]) != 1 {
				h.Errorf("%s was taken over by %v", key, winners[key])
				continue
			}
			winner := kakutei.Ref{ID: h.id(key), Owner: winners[key][0], Attempt: 2}
			h.wantRecord("after the takeover", winner, kakutei.StatusProcessing)
			h.zombie(zombies[i])
			h.settle(h.handle(i), winner, kakutei.StatusSucceeded, answer(winner.Owner))
		}
	})
}

// zombie lets an attempt that has lost its lease try everything.
func (h *harness) zombie(ref kakutei.Ref) {
	h.Helper()
	h.keeps("an attempt that has lost its lease", ref.ID, func() {
		for _, s := range h.handles() {
			h.wantLost("its renewal", h.tryRenew(s, ref, 2*long))
			for _, status := range []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain} {
				h.wantLost("its settlement as "+status.String(), h.trySettle(s, ref, status, answer("zombie")))
			}
		}
	})
}

// zombieChangesNothing: A outlives its lease and B takes over. What A does then
// is refused while B runs, and after B has ended, however it ended.
func zombieChangesNothing(h *harness) {
	for _, status := range []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain} {
		key := status.String()
		a := h.expired(key, "a")
		b := h.acquire(h.other, h.claimOf(key, "b", long))
		h.zombie(a)
		h.wantDecision("C, while B runs", h.claim(h.store, h.claimOf(key, "c", long)), kakutei.InFlight, 2)
		h.settle(h.other, b, status, answer("b"))
		h.zombie(a)
		h.wantRecord("B has ended", b, status)
		if status == kakutei.StatusSucceeded {
			h.wantReplay("C, after B", h.claim(h.store, h.claimOf(key, "c", long)), answer("b"))
		}
	}
}

// oldOwnerWinsAgain: A loses to B and then takes over from B, with the token
// that it had before. It is a new attempt; its first one stays lost.
func oldOwnerWinsAgain(h *harness) {
	first := h.expired("key", "a")
	h.acquire(h.other, h.claimOf("key", "b", short))
	h.expire(first.ID)
	again := h.acquire(h.store, h.claimOf("key", "a", long))
	if again.Attempt != 3 {
		h.Errorf("attempt %d, want 3", again.Attempt)
	}
	h.zombie(first)
	h.settle(h.store, again, kakutei.StatusSucceeded, answer("third"))
	h.zombie(first)
	h.wantReplay("at the end", h.claim(h.other, h.claimOf("key", "c", long)), answer("third"))
}

// attemptsOnlyGrow, by one each time, over takeovers and failures.
func attemptsOnlyGrow(h *harness) {
	for n := int64(1); n <= 8; n++ {
		d := h.claim(h.handle(int(n)), h.claimOf("key", fmt.Sprintf("owner-%d", n), short))
		h.wantDecision("next attempt", d, kakutei.Acquired, n)
		ref := kakutei.Ref{ID: h.id("key"), Owner: fmt.Sprintf("owner-%d", n), Attempt: n}
		h.wantRecord("next attempt", ref, kakutei.StatusProcessing)
		if failed := n%2 == 0; failed {
			h.settle(h.store, ref, kakutei.StatusFailed, kakutei.Result{Code: 503})
		} else {
			h.expire(ref.ID)
		}
		if after := n%2 == 0; d.Takeover != after {
			h.Errorf("attempt %d: takeover is %v, want %v", n, d.Takeover, after)
		}
	}
}

// liveLeaseIsNotTaken, by no recovery, and asking changes nothing.
func liveLeaseIsNotTaken(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.keeps("a conflict", ref.ID, func() {
		for i := range 10 {
			c := h.claimOf("key", "b", long)
			c.Recovery = []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional}[i%3]
			h.wantDecision("B", h.claim(h.handle(i), c), kakutei.InFlight, 1)
		}
	})
}

// renewalAgainstTakeover: the lease of A has run out; A renews while B claims.
// One of the two gets it, and the other is told.
func renewalAgainstTakeover(h *harness) {
	h.repeat(10, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		ref := h.acquire(h.store, h.claimOf(key, "a", 1))
		h.expire(ref.ID)
		var renewed error
		var d kakutei.Decision
		together(2, func(who int) {
			if (who+round)%2 == 0 {
				renewed = h.tryRenew(h.store, ref, long)
				return
			}
			var err error
			if d, err = h.tryClaim(h.other, h.claimOf(key, "b", long)); err != nil {
				h.Errorf("claim: %v", err)
			}
		})
		if renewed == nil {
			h.wantDecision("A has renewed; B", d, kakutei.InFlight, 1)
			h.wantRecord("A has renewed", ref, kakutei.StatusProcessing)
			return
		}
		h.wantLost("A's renewal", renewed)
		h.wantDecision("A was refused; B", d, kakutei.Acquired, 2)
		h.wantRecord("A was refused", kakutei.Ref{ID: ref.ID, Owner: "b", Attempt: 2}, kakutei.StatusProcessing)
	})
}
