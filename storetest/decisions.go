package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C2: every item is decided by kakutei.Decide on the committed record, and only
// after the change is itself committed.
func decisionCases() []testCase {
	return []testCase{
		{title: "decision_table", run: decisionTable},
		{title: "record_after_decision", run: recordAfterDecision},
		{title: "seen_elsewhere_at_once", run: seenElsewhereAtOnce},
		{title: "mismatch_in_every_state", production: cases(7), run: mismatchInEveryState},
		{title: "mismatch_at_once", production: cases(6), run: mismatchAtOnce},
		{title: "uncommitted_claim_is_none", production: cases(4), needs: needUncommitted, run: uncommittedClaim},
		{title: "older_fingerprint_version", production: cases(35), run: olderFingerprint},
		{title: "random_sequences", run: randomSequences},
	}
}

// states are the names of every state that a record can be in.
func states() []string {
	return []string{"none", "live", "expired", "failed", "uncertain", "held", "succeeded"}
}

// make brings the operations of the keys, one owner's, into a state.
func (h *harness) make(state string, keys []string) {
	h.Helper()
	if state == "none" {
		return
	}
	lease := long
	if state == "expired" || state == "held" {
		lease = short
	}
	refs := h.acquireAll(h.store, keys, "a", lease)
	status := map[string]kakutei.Status{
		"failed": kakutei.StatusFailed, "uncertain": kakutei.StatusUncertain, "succeeded": kakutei.StatusSucceeded,
	}[state]
	for _, ref := range refs {
		switch state {
		case "expired":
			h.expire(ref.ID)
		case "held":
			h.expire(ref.ID)
			d := h.claim(h.store, holding(h.claimOf(ref.Key, "h", long)))
			h.wantDecision("claim under Hold", d, kakutei.Uncertain, 1)
		case "failed", "uncertain", "succeeded":
			h.settle(h.store, ref, status, answer(ref.Key))
		}
	}
}

// variants are the claims that the decision table tells apart.
func (h *harness) variants(state string) map[string]kakutei.Claim {
	out := make(map[string]kakutei.Claim)
	for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional} {
		for _, owner := range []string{"a", "b"} {
			for _, request := range []string{"same", "other"} {
				name := fmt.Sprintf("%s-%v-%s-%s", state, recovery, owner, request)
				c := h.claimOf(name, owner, long)
				c.Recovery = recovery
				if request == "other" {
					c = otherRequest(c)
				}
				out[name] = c
			}
		}
	}
	return out
}

// eachVariant runs f on every line of the decision table.
func (h *harness) eachVariant(f func(name string, c kakutei.Claim)) {
	h.Helper()
	for _, state := range states() {
		variants := h.variants(state)
		keys := make([]string, 0, len(variants))
		for name := range variants {
			keys = append(keys, name)
		}
		h.make(state, keys)
		for name, c := range variants {
			f(name, c)
		}
	}
}

// decisionTable compares each answer with that of the one table, on the record
// that the store itself shows.
func decisionTable(h *harness) {
	h.eachVariant(func(name string, c kakutei.Claim) {
		want, _ := kakutei.Decide(h.look(h.other, c.ID()), c)
		got := h.claim(h.store, c)
		h.wantDecision(name, got, want.Outcome, want.Attempt)
		if got.Takeover != want.Takeover {
			h.Errorf("%s: takeover is %v, want %v", name, got.Takeover, want.Takeover)
		}
		if diff := resultDiff(got.Result, want.Result); diff != "" {
			h.Errorf("%s: %s", name, diff)
		}
		if got.Outcome == kakutei.InFlight && (got.Left <= 0 || got.Left > long) {
			h.Errorf("%s: %v left of a lease of %v", name, got.Left, long)
		}
	})
}

// recordAfterDecision checks what each decision has written.
func recordAfterDecision(h *harness) {
	h.eachVariant(func(name string, c kakutei.Claim) {
		before := h.snapshot(c.ID())
		d, change := kakutei.Decide(before.rec, c)
		h.claim(h.other, c)
		after := h.snapshot(c.ID())
		switch change {
		case kakutei.ChangeNone:
			if diff := before.diff(after); diff != "" {
				h.Errorf("%s changed the record: %s", name, diff)
			}
		case kakutei.ChangeInsert, kakutei.ChangeTake:
			h.wantRecord(name, kakutei.Ref{ID: c.ID(), Owner: c.Owner, Attempt: d.Attempt}, kakutei.StatusProcessing)
			if left := after.rec.Left; left <= long-time.Minute || left > long {
				h.Errorf("%s: %v left of a lease of %v", name, left, long)
			}
		case kakutei.ChangeHold:
			h.wantRecord(name, kakutei.Ref{ID: c.ID(), Owner: before.rec.Owner, Attempt: before.rec.Attempt}, kakutei.StatusUncertain)
		}
		if after.rec.Fingerprint != c.Fingerprint && change != kakutei.ChangeNone {
			h.Errorf("%s: the record has not kept the fingerprint", name)
		}
	})
}

// seenElsewhereAtOnce: an answer is given after the commit. The other handle is
// asked as soon as the answer is there.
func seenElsewhereAtOnce(h *harness) {
	h.repeat(20, func(round int) {
		here, there := h.handle(round), h.handle(round+1)
		key := fmt.Sprintf("key-%d", round)
		ref := h.acquire(here, h.claimOf(key, "a", short))
		if rec := h.look(there, ref.ID); rec.Status != kakutei.StatusProcessing || rec.Owner != "a" {
			h.Errorf("after a claim the other handle sees %v by %q", rec.Status, rec.Owner)
		}
		h.renew(here, ref, long)
		if rec := h.look(there, ref.ID); rec.Left < long-time.Minute {
			h.Errorf("after a renewal the other handle sees %v left", rec.Left)
		}
		status := []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain}[round%3]
		h.settle(here, ref, status, answer(key))
		if rec := h.look(there, ref.ID); rec.Status != status {
			h.Errorf("after a settlement as %v the other handle sees %v", status, rec.Status)
		}
	})
}

// mismatchInEveryState: the other request is refused whatever became of the
// first, and leaves no trace.
func mismatchInEveryState(h *harness) {
	for _, state := range states()[1:] {
		h.make(state, []string{state})
		c := h.claimOf(state, "b", long)
		id := c.ID()
		for range 2 {
			for _, other := range []kakutei.Claim{otherRequest(c), holding(otherRequest(c))} {
				h.keeps("a mismatch with a record that is "+state, id, func() {
					h.wantDecision(state, h.claim(h.other, other), kakutei.Mismatch, 1)
				})
			}
			if state == "live" { // conflicts leave no trace either
				h.keeps("a conflict", id, func() {
					h.wantDecision("the same request", h.claim(h.store, c), kakutei.InFlight, 1)
				})
			}
		}
	}
}

// mismatchAtOnce: two requests race for one key. One of them gets it; of its
// own kind the others find it in flight, and all of the other kind mismatch.
func mismatchAtOnce(h *harness) {
	h.repeat(10, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		var got [2][5]atomic.Int64 // by request and outcome
		together(12, func(i int) {
			c := h.claimOf(key, fmt.Sprintf("racer-%d", i), long)
			if i%2 == 1 {
				c = otherRequest(c)
			}
			d, err := h.tryClaim(h.handle(i/2), c)
			if err != nil || d.Outcome > kakutei.InFlight {
				h.Errorf("racer %d: %v, %v", i, d.Outcome, err)
				return
			}
			got[i%2][d.Outcome].Add(1)
		})
		if h.Failed() {
			return
		}
		won := 0
		if got[1][kakutei.Acquired].Load() == 1 {
			won = 1
		}
		if got[won][kakutei.Acquired].Load() != 1 || got[won][kakutei.InFlight].Load() != 5 || got[1-won][kakutei.Mismatch].Load() != 6 {
			h.Errorf("outcomes of the two requests: %v and %v; want one acquired, 5 in flight, 6 mismatches", counts(&got[0]), counts(&got[1]))
		}
	})
}

func counts(n *[5]atomic.Int64) string {
	out := ""
	for o := kakutei.Acquired; o <= kakutei.InFlight; o++ {
		out += fmt.Sprintf("%v %d ", o, n[o].Load())
	}
	return out
}

// uncommittedClaim: a claim in a transaction that is rolled back never was. Who
// claims meanwhile may wait, or be told that somebody is about to run; after the
// rollback the operation is free.
func uncommittedClaim(h *harness) {
	c := h.claimOf("key", "b", long)
	rollback := h.factory.ClaimUncommitted(h.T, h.store, h.claimOf("key", "a", long))
	var rolledBack atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for start := time.Now(); time.Since(start) < patience; time.Sleep(time.Millisecond) {
			late := rolledBack.Load()
			d, err := h.tryClaim(h.other, c)
			switch {
			case err == nil && d.Outcome == kakutei.Acquired && d.Attempt == 1:
				return
			case late || (err == nil && d.Outcome != kakutei.InFlight):
				h.Errorf("claim is %v, attempt %d (%v); rolled back before it: %v; want acquired, attempt 1", d.Outcome, d.Attempt, err, late)
				return
			}
			// A store with one writer may give up: nothing is known then.
			h.Logf("claim against an open transaction: %v (%v)", d.Outcome, err)
		}
		h.Error("the claim never came through")
	}()
	select {
	case <-done: // also right: what is not committed need not be waited for
	case <-time.After(50 * time.Millisecond):
	}
	rollback()
	rolledBack.Store(true)
	<-done
	h.wantRecord("after the rollback", kakutei.Ref{ID: c.ID(), Owner: "b", Attempt: 1}, kakutei.StatusProcessing)
}

// olderFingerprint: a record written before an upgrade is matched by the rule
// that it was written by.
func olderFingerprint(h *harness) {
	const older, newer = 100, 101
	sum := func(version uint8, request string) kakutei.Fingerprint {
		fp := kakutei.FingerprintOf([]byte(request), []byte{version})
		fp.Version = version
		return fp
	}
	upgraded := func(c kakutei.Claim, request string) kakutei.Claim {
		c.Fingerprint = sum(newer, request)
		c.FingerprintFunc = func(version uint8) (kakutei.Fingerprint, bool) {
			return sum(version, request), version == older
		}
		return c
	}
	first := h.claimOf("key", "a", long)
	first.Fingerprint = sum(older, "request")
	ref := h.acquire(h.store, first)
	second := h.claimOf("key", "b", long)
	for _, s := range h.handles() {
		h.wantDecision("in flight", h.claim(s, upgraded(second, "request")), kakutei.InFlight, 1)
		h.wantDecision("in flight, other request", h.claim(s, upgraded(second, "other")), kakutei.Mismatch, 1)
	}
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("first"))
	for _, s := range h.handles() {
		h.wantReplay("settled", h.claim(s, upgraded(second, "request")), answer("first"))
		h.wantDecision("settled, other request", h.claim(s, upgraded(second, "other")), kakutei.Mismatch, 1)
	}
}
