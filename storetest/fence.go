package storetest

import (
	"fmt"
	"strings"

	"github.com/kakutei-go/kakutei"
)

// C10: Renew and Settle act only for the owner and attempt that hold the
// operation in PROCESSING; else the answer is ErrLeaseLost and nothing changes.
func fenceCases() []testCase {
	return []testCase{
		{title: "strangers_are_refused", production: cases(15), run: strangersAreRefused},
		{title: "only_processing_is_held", production: cases(14), run: onlyProcessingIsHeld},
		{title: "expired_is_still_held", production: cases(13), run: expiredIsStillHeld},
		{title: "failed_runs_again", production: cases(29), run: failedRunsAgain},
		{title: "other_status_is_refused", run: otherStatusIsRefused},
		{title: "nothing_is_not_settled", run: nothingIsNotSettled},
	}
}

// endings are the ways in which an attempt can be settled.
func endings() []kakutei.Status {
	return []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain}
}

// strangersAreRefused: each reference is wrong in one thing.
func strangersAreRefused(h *harness) {
	const owner = "Owner-1"
	ref := h.acquire(h.store, h.claimOf("Key", owner, long))
	strangers := map[string]kakutei.Ref{
		"no owner":  {ID: ref.ID, Attempt: 1},
		"attempt 0": {ID: ref.ID, Owner: owner}, "attempt 2": {ID: ref.ID, Owner: owner, Attempt: 2},
		"attempt -1": {ID: ref.ID, Owner: owner, Attempt: -1}, "attempt 2^32+1": {ID: ref.ID, Owner: owner, Attempt: 1<<32 + 1},
		"other key": {ID: h.id("none"), Owner: owner, Attempt: 1}, "other scope": {ID: kakutei.ID{Scope: h.scope + "2", Key: "Key"}, Owner: owner, Attempt: 1},
		"other case of key": {ID: h.id("KEY"), Owner: owner, Attempt: 1},
	}
	for _, other := range []string{"b", strings.ToLower(owner), owner + " ", " " + owner, owner[:6], owner + "0", "%"} {
		strangers[fmt.Sprintf("owner %q", other)] = kakutei.Ref{ID: ref.ID, Owner: other, Attempt: 1}
	}
	h.keeps("strangers", ref.ID, func() {
		for what, stranger := range strangers {
			for _, s := range h.handles() {
				h.wantLost("renewal with "+what, h.tryRenew(s, stranger, 2*long))
				for _, status := range endings() {
					h.wantLost(fmt.Sprintf("%v with %s", status, what), h.trySettle(s, stranger, status, answer(what)))
				}
			}
		}
	})
	if rec := h.look(h.store, h.id("none")); rec.Status != kakutei.StatusNone {
		h.Errorf("a write to an operation that is not there has made one: %v", rec.Status)
	}
	h.renew(h.store, ref, long)
	h.settle(h.other, ref, kakutei.StatusSucceeded, answer("own"))
	h.wantReplay("after the strangers", h.claim(h.store, h.claimOf("Key", "c", long)), answer("own"))
}

// onlyProcessingIsHeld: an attempt that has ended cannot renew.
func onlyProcessingIsHeld(h *harness) {
	for _, status := range endings() {
		ref := h.acquire(h.store, h.claimOf(status.String(), "a", long))
		h.settle(h.store, ref, status, answer("a"))
		h.keeps("a renewal after "+status.String(), ref.ID, func() {
			for _, s := range h.handles() {
				h.wantLost("renewal after "+status.String(), h.tryRenew(s, ref, 2*long))
			}
		})
	}
}

// expiredIsStillHeld: a lease that has run out, and that nobody took over, is
// renewed and settled as if it had not.
func expiredIsStillHeld(h *harness) {
	for _, status := range endings() {
		ref := h.expired(status.String(), "a")
		h.settle(h.other, ref, status, answer("late"))
		h.wantRecord("settled late", ref, status)
	}
	ref := h.expired("renewed", "a")
	h.renew(h.other, ref, long)
	h.wantDecision("after a late renewal", h.claim(h.store, h.claimOf("renewed", "b", long)), kakutei.InFlight, 1)
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("a"))
}

// failedRunsAgain at once: the lease of an attempt that failed blocks nobody.
func failedRunsAgain(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.settle(h.store, ref, kakutei.StatusFailed, kakutei.Result{Code: 500})
	b := h.acquire(h.other, h.claimOf("key", "b", long))
	if b.Attempt != 2 {
		h.Errorf("attempt %d, want 2", b.Attempt)
	}
	h.keeps("the failed attempt", b.ID, func() {
		h.wantLost("its renewal", h.tryRenew(h.store, ref, 2*long))
		h.wantLost("its completion", h.trySettle(h.store, ref, kakutei.StatusSucceeded, answer("a")))
		h.wantLost("its hold", h.trySettle(h.store, ref, kakutei.StatusUncertain, answer("a")))
		// That it failed was accepted once; to hear so again, or that there is
		// somebody else now, are both right.
		if err := h.trySettle(h.store, ref, kakutei.StatusFailed, answer("a")); err != nil {
			h.wantLost("its failure, again", err)
		}
	})
	h.settle(h.other, b, kakutei.StatusSucceeded, answer("b"))
	h.wantReplay("at the end", h.claim(h.store, h.claimOf("key", "c", long)), answer("b"))
}

// otherStatusIsRefused: an attempt cannot end as something that is no end, nor
// can one that has ended.
func otherStatusIsRefused(h *harness) {
	for _, status := range []kakutei.Status{kakutei.StatusNone, kakutei.StatusProcessing, 99} {
		ref := h.acquire(h.store, h.claimOf(status.String(), "a", long))
		h.keeps("a settlement as "+status.String(), ref.ID, func() {
			if err := h.trySettle(h.store, ref, status, answer("a")); err == nil {
				h.Errorf("settled as %v", status)
			}
		})
		h.settle(h.store, ref, kakutei.StatusFailed, kakutei.Result{})
		h.keeps("a settlement as "+status.String(), ref.ID, func() {
			if err := h.trySettle(h.store, ref, status, answer("a")); err == nil {
				h.Errorf("FAILED, then settled as %v", status)
			}
		})
	}
}

// nothingIsNotSettled: an operation without a record has no owner, attempt 0 and
// no status. A settlement that says just that is not one that was accepted before.
func nothingIsNotSettled(h *harness) {
	for _, s := range h.handles() {
		for _, id := range []kakutei.ID{h.id("none"), {}} {
			if err := h.trySettle(s, kakutei.Ref{ID: id}, kakutei.StatusNone, kakutei.Result{}); err == nil {
				h.Errorf("the empty settlement of %q was accepted", id)
			}
			if err := h.tryRenew(s, kakutei.Ref{ID: id}, long); err == nil {
				h.Errorf("the empty renewal of %q was accepted", id)
			}
		}
	}
	if rec := h.look(h.store, h.id("none")); rec.Status != kakutei.StatusNone {
		h.Errorf("it has made a record: %v", rec.Status)
	}
}
