package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C15: Look only reads; it takes no lock that a claim would wait for.
func lookCases() []testCase {
	return []testCase{
		{title: "look_changes_nothing", run: lookChangesNothing},
		{title: "look_shows_every_state", run: lookShowsEveryState},
		{title: "claims_pass_lookers", production: cases(49), run: claimsPassLookers},
		{title: "look_passes_an_open_claim", production: cases(4), needs: needUncommitted, run: lookPassesAnOpenClaim},
	}
}

// lookChangesNothing: in particular it neither takes over nor holds what has
// expired, nor makes what is not there.
func lookChangesNothing(h *harness) {
	for _, state := range states() {
		h.make(state, []string{state})
		h.keeps("looking at a record that is "+state, h.id(state), func() {
			for i := range 10 {
				h.look(h.handle(i), h.id(state))
			}
		})
	}
	ref := kakutei.Ref{ID: h.id("expired"), Owner: "a", Attempt: 1}
	h.renew(h.store, ref, long)
	h.wantDecision("what was not there", h.claim(h.store, h.claimOf("none", "b", long)), kakutei.Acquired, 1)
}

// lookShowsEveryState: status, owner, attempt, fingerprint and lease, which the
// engine reads a doubtful commit and a handed back claim by.
func lookShowsEveryState(h *harness) {
	want := map[string]kakutei.Status{
		"none": kakutei.StatusNone, "live": kakutei.StatusProcessing, "expired": kakutei.StatusProcessing, "failed": kakutei.StatusFailed,
		"uncertain": kakutei.StatusUncertain, "held": kakutei.StatusUncertain, "succeeded": kakutei.StatusSucceeded,
	}
	for _, state := range states() {
		h.make(state, []string{state})
		if state == "none" {
			for _, s := range h.handles() {
				if rec := h.look(s, h.id(state)); rec.Status != kakutei.StatusNone || rec.Attempt != 0 || rec.Owner != "" {
					h.Errorf("what is not there is %+v", rec)
				}
			}
			continue
		}
		h.wantRecord(state, kakutei.Ref{ID: h.id(state), Owner: "a", Attempt: 1}, want[state])
		for _, s := range h.handles() {
			rec := h.look(s, h.id(state))
			if rec.Fingerprint != h.op(state).Fingerprint {
				h.Errorf("%s: the fingerprint is another", state)
			}
			if live := rec.Status == kakutei.StatusProcessing && rec.Left > 0; live != (state == "live") {
				h.Errorf("%s: %v left", state, rec.Left)
			}
			result := kakutei.Result{}
			if state == "succeeded" {
				result = answer(state)
			}
			if diff := resultDiff(rec.Result, result); diff != "" {
				h.Errorf("%s: %s", state, diff)
			}
		}
	}
}

// claimsPassLookers: whole lives of operations go by while others look at them
// without pause.
func claimsPassLookers(h *harness) {
	const lookers = 4
	keys := keysOf("key", 20)
	ids := h.idsOf(keys)
	var done atomic.Bool
	together(lookers+1, func(i int) {
		if i < lookers {
			for !done.Load() {
				if _, err := h.tryLooks(h.handle(i), ids); err != nil {
					h.Error(err)
					return
				}
			}
			return
		}
		defer done.Store(true)
		start := time.Now()
		for _, key := range keys {
			d, err := h.tryClaim(h.store, h.claimOf(key, "a", long))
			ref := kakutei.Ref{ID: h.id(key), Owner: "a", Attempt: d.Attempt}
			if err == nil {
				err = h.tryRenew(h.store, ref, long)
			}
			if err == nil {
				err = h.trySettle(h.store, ref, kakutei.StatusSucceeded, answer(key))
			}
			if err != nil {
				h.Errorf("%s: %v", key, err)
				return
			}
		}
		h.Logf("%d operations in %v", len(keys), time.Since(start))
	})
}

// lookPassesAnOpenClaim: what is not committed is not there, and is not waited for.
func lookPassesAnOpenClaim(h *harness) {
	for i, s := range h.handles() {
		c := h.claimOf(fmt.Sprintf("key-%d", i), "a", long)
		rollback := h.factory.ClaimUncommitted(h.T, h.store, c)
		rec, err := h.tryLook(s, c.ID())
		rollback()
		if err != nil || rec.Status != kakutei.StatusNone {
			h.Errorf("beside an open transaction: %v (%v), want nothing", rec.Status, err)
		}
	}
}
