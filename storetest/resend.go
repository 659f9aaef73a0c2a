package storetest

import (
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// C5: a claim sent again with the same owner, while that owner holds the
// operation, is acquired with the same attempt number. It is what lets a claim
// whose reply was lost be sent again.
func resendCases() []testCase {
	return []testCase{
		{title: "same_owner_same_attempt", production: cases(11), run: sameOwnerSameAttempt},
		{title: "resent_at_once", production: cases(11), run: resentAtOnce},
		{title: "resent_after_expiry", production: cases(11), run: resentAfterExpiry},
		{title: "resent_after_takeover", production: cases(11, 15), run: resentAfterTakeover},
		{title: "resent_after_settlement", production: cases(11), run: resentAfterSettlement},
	}
}

func sameOwnerSameAttempt(h *harness) {
	c := h.claimOf("key", "a", long)
	ref := h.acquire(h.store, c)
	for i, s := range append(h.handles(), h.handles()...) {
		h.wantDecision(fmt.Sprintf("sent again, %d", i), h.claim(s, c), kakutei.Acquired, 1)
		// The recovery is about the attempts of others.
		h.wantDecision("sent again under Hold", h.claim(s, holding(c)), kakutei.Acquired, 1)
		h.wantDecision("sent again with another request", h.claim(s, otherRequest(c)), kakutei.Mismatch, 1)
	}
	ds := h.claims(h.other, []kakutei.Claim{c, h.claimOf("neighbour", "a", long), c})
	h.wantDecision("first of two in a batch", ds[0], kakutei.Acquired, 1)
	h.wantDecision("second of two in a batch", ds[2], kakutei.Acquired, 1)
	h.wantRecord("after all of this", ref, kakutei.StatusProcessing)
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("a"))
}

// resentAtOnce: a sender that gave up may overtake its own first sending.
func resentAtOnce(h *harness) {
	h.repeat(5, func(round int) {
		c := h.claimOf(fmt.Sprintf("key-%d", round), "a", long)
		together(8, func(i int) {
			if d, err := h.tryClaim(h.handle(i), c); err != nil || d.Outcome != kakutei.Acquired || d.Attempt != 1 {
				h.Errorf("sending %d: %v, attempt %d (%v); want acquired, attempt 1", i, d.Outcome, d.Attempt, err)
			}
		})
		h.wantRecord("after eight sendings", kakutei.Ref{ID: c.ID(), Owner: "a", Attempt: 1}, kakutei.StatusProcessing)
	})
}

// resentAfterExpiry: nobody took it over, so it is held still.
func resentAfterExpiry(h *harness) {
	ref := h.expired("key", "a")
	d := h.claim(h.other, h.claimOf("key", "a", long))
	h.wantDecision("sent again after expiry", d, kakutei.Acquired, 1)
	if d.Takeover {
		h.Error("an owner that finds itself has taken nothing over")
	}
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("a"))
}

// resentAfterTakeover: once another owner has it, the first is one of the others.
func resentAfterTakeover(h *harness) {
	h.expired("key", "a")
	b := h.acquire(h.other, h.claimOf("key", "b", long))
	again := h.claimOf("key", "a", long)
	h.keeps("a claim sent too late", b.ID, func() {
		h.wantDecision("while B holds it", h.claim(h.store, again), kakutei.InFlight, 2)
	})
	h.wantDecision("B sends again", h.claim(h.store, h.claimOf("key", "b", long)), kakutei.Acquired, 2)
	h.settle(h.store, b, kakutei.StatusSucceeded, answer("b"))
	h.wantReplay("after B's completion", h.claim(h.store, again), answer("b"))
}

// resentAfterSettlement: an attempt that has ended is not held any more, even by
// its own owner.
func resentAfterSettlement(h *harness) {
	for _, status := range []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain} {
		c := h.claimOf(status.String(), "a", long)
		ref := h.acquire(h.store, c)
		h.settle(h.store, ref, status, answer("a"))
		d := h.claim(h.other, c)
		switch status {
		case kakutei.StatusSucceeded:
			h.wantReplay("sent again after completion", d, answer("a"))
		case kakutei.StatusUncertain:
			h.wantDecision("sent again after UNCERTAIN", d, kakutei.Uncertain, 1)
		default:
			h.wantDecision("sent again after FAILED", d, kakutei.Acquired, 2)
			second := ref
			second.Attempt = 2
			h.wantRecord("sent again after FAILED", second, kakutei.StatusProcessing)
			// The second attempt has the owner of the first: the number alone
			// tells them apart.
			h.keeps("the first attempt", ref.ID, func() {
				h.wantLost("renewal of the first attempt", h.tryRenew(h.store, ref, 2*long))
				h.wantLost("completion of the first attempt", h.trySettle(h.store, ref, kakutei.StatusSucceeded, answer("first")))
			})
		}
	}
}
