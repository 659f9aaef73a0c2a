package storetest

import (
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// C9: under Hold an expired lease turns the record UNCERTAIN, durably.
func holdCases() []testCase {
	return []testCase{
		{title: "held_for_ever", production: cases(17), run: heldForEver},
		{title: "live_lease_is_not_held", production: cases(17), run: liveLeaseIsNotHeld},
		{title: "settled_as_uncertain", production: cases(17), run: settledAsUncertain},
		{title: "completion_against_hold", production: cases(16, 17), run: completionAgainstHold},
		{title: "hold_against_takeover", production: cases(16, 17), run: holdAgainstTakeover},
	}
}

// wantHeldForEver checks that an UNCERTAIN record is not moved by anybody who
// claims, whatever the recovery, nor by the attempt that left it behind.
func (h *harness) wantHeldForEver(ref kakutei.Ref) {
	h.Helper()
	h.wantRecord("held", ref, kakutei.StatusUncertain)
	h.keeps("a claim on an UNCERTAIN record", ref.ID, func() {
		for _, s := range h.handles() {
			for _, recovery := range []kakutei.Recovery{kakutei.Hold, kakutei.Rerun, kakutei.Transactional} {
				for _, owner := range []string{"b", "c", ref.Owner} {
					c := h.claimOf(ref.Key, owner, long)
					c.Recovery = recovery
					h.wantDecision(fmt.Sprintf("%s under %v", owner, recovery), h.claim(s, c), kakutei.Uncertain, ref.Attempt)
				}
			}
			h.wantLost("renewal by the old owner", h.tryRenew(s, ref, long))
			h.wantLost("completion by the old owner", h.trySettle(s, ref, kakutei.StatusSucceeded, answer("a")))
			h.wantLost("failure by the old owner", h.trySettle(s, ref, kakutei.StatusFailed, answer("a")))
			// Settling as what it is already may be a success or not; it is to
			// change nothing.
			if err := h.trySettle(s, ref, kakutei.StatusUncertain, answer("a")); err != nil {
				h.wantLost("UNCERTAIN again by the old owner", err)
			}
		}
	})
}

// heldForEver: the claim that finds the expired lease is itself told Uncertain,
// and has made it durable by then.
func heldForEver(h *harness) {
	ref := h.expired("key", "a")
	d := h.claim(h.store, holding(h.claimOf("key", "b", long)))
	h.wantDecision("under Hold", d, kakutei.Uncertain, 1)
	h.wantHeldForEver(ref)
}

// liveLeaseIsNotHeld: Hold concerns what has expired. An owner that renews is
// never held, and one that has expired may settle until somebody looks.
func liveLeaseIsNotHeld(h *harness) {
	ref := h.expired("key", "a")
	h.renew(h.store, ref, long)
	c := holding(h.claimOf("key", "b", long))
	h.wantDecision("renewed in time", h.claim(h.other, c), kakutei.InFlight, 1)
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("a"))
	h.wantReplay("completed", h.claim(h.other, c), answer("a"))

	failed := h.acquire(h.store, h.claimOf("failed", "a", long))
	h.settle(h.store, failed, kakutei.StatusFailed, kakutei.Result{})
	d := h.claim(h.other, holding(h.claimOf("failed", "b", long)))
	h.wantDecision("FAILED, under Hold", d, kakutei.Acquired, 2)
}

// settledAsUncertain: an attempt that says itself that it does not know.
func settledAsUncertain(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.settle(h.other, ref, kakutei.StatusUncertain, kakutei.Result{Code: 504})
	h.settle(h.store, ref, kakutei.StatusUncertain, kakutei.Result{Code: 504})
	h.wantHeldForEver(ref)
}

// completionAgainstHold: A completes late while B claims under Hold. Either A is
// in time, or it is refused and the record is held; never both.
func completionAgainstHold(h *harness) {
	h.repeat(10, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		ref := h.acquire(h.store, h.claimOf(key, "a", 1))
		h.expire(ref.ID)
		var settled error
		var d kakutei.Decision
		together(2, func(who int) {
			if (who+round)%2 == 0 {
				settled = h.trySettle(h.store, ref, kakutei.StatusSucceeded, answer("a"))
				return
			}
			var err error
			if d, err = h.tryClaim(h.other, holding(h.claimOf(key, "b", long))); err != nil {
				h.Errorf("claim: %v", err)
			}
		})
		if settled == nil {
			h.wantReplay("A has completed; B", d, answer("a"))
			h.wantRecord("A has completed", ref, kakutei.StatusSucceeded)
			return
		}
		h.wantLost("A's completion", settled)
		h.wantDecision("A was refused; B", d, kakutei.Uncertain, 1)
		h.wantRecord("A was refused", ref, kakutei.StatusUncertain)
	})
}

// holdAgainstTakeover: B claims under Hold and C under Rerun. Routes differ, but
// what happens to the record is one thing: it is held and C is told, or C runs
// and B finds it in flight.
func holdAgainstTakeover(h *harness) {
	h.repeat(10, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		ref := h.acquire(h.store, h.claimOf(key, "a", 1))
		h.expire(ref.ID)
		claims := []kakutei.Claim{holding(h.claimOf(key, "b", long)), h.claimOf(key, "c", long)}
		var ds [2]kakutei.Decision
		together(2, func(who int) {
			who = (who + round) % 2
			var err error
			if ds[who], err = h.tryClaim(h.handle(who), claims[who]); err != nil {
				h.Errorf("claim: %v", err)
			}
		})
		if ds[1].Outcome == kakutei.Acquired {
			h.wantDecision("C runs; B", ds[0], kakutei.InFlight, 2)
			h.wantRecord("C runs", kakutei.Ref{ID: ref.ID, Owner: "c", Attempt: 2}, kakutei.StatusProcessing)
			return
		}
		h.wantDecision("B holds; C", ds[1], kakutei.Uncertain, 1)
		h.wantDecision("B holds", ds[0], kakutei.Uncertain, 1)
		h.wantRecord("B holds", ref, kakutei.StatusUncertain)
	})
}
