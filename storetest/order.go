package storetest

import (
	"errors"

	"github.com/kakutei-go/kakutei"
)

// C1: answers come in the order of the items, one for each.
func orderCases() []testCase {
	return []testCase{
		{title: "empty_batches", run: emptyBatches},
		{title: "claims_in_order", run: claimsInOrder},
		{title: "looks_in_order", run: looksInOrder},
		{title: "renewals_in_order", run: renewalsInOrder},
		{title: "settlements_in_order", run: settlementsInOrder},
		{title: "large_batch", run: largeBatch},
	}
}

// emptyBatches: no items are no answers, and no statement that a database refuses.
func emptyBatches(h *harness) {
	for _, s := range h.handles() {
		if _, err := h.tryClaims(s, nil); err != nil {
			h.Error(err)
		}
		if _, err := h.tryLooks(s, nil); err != nil {
			h.Error(err)
		}
		if _, err := h.tryRenews(s, nil); err != nil {
			h.Error(err)
		}
		if _, err := h.trySettles(s, []kakutei.Settlement{}); err != nil {
			h.Error(err)
		}
	}
}

// settledKeys makes n operations, each with a result of its own.
func (h *harness) settledKeys(n int) []string {
	h.Helper()
	keys := keysOf("settled", n)
	settlements := make([]kakutei.Settlement, n)
	for i, ref := range h.acquireAll(h.store, keys, "a", long) {
		settlements[i] = kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(ref.Key)}
	}
	h.settleAll(h.store, settlements)
	return keys
}

// claimsInOrder: the items differ in their outcome, and the settled ones in
// their result, so that an answer in the wrong place is seen. A store that
// sorts its batch, to be free of deadlocks, must put the answers back.
func claimsInOrder(h *harness) {
	settled := h.settledKeys(20)
	live := keysOf("live", 20)
	h.acquireAll(h.store, live, "a", long)
	order := shuffled(h.random(), append(append(keysOf("fresh", 20), settled...), live...))
	for i, d := range h.claims(h.other, h.claimsOf(order, "b", long)) {
		switch key := order[i]; key[:4] {
		case "sett":
			h.wantReplay(key, d, answer(key))
		case "live":
			h.wantDecision(key, d, kakutei.InFlight, 1)
		default:
			h.wantDecision(key, d, kakutei.Acquired, 1)
		}
	}
}

func looksInOrder(h *harness) {
	settled := h.settledKeys(20)
	live := keysOf("live", 20)
	h.acquireAll(h.store, live, "a", long)
	order := shuffled(h.random(), append(append(keysOf("none", 20), settled...), live...))
	ids := make([]kakutei.ID, len(order))
	for i, key := range order {
		ids[i] = h.id(key)
	}
	looked, err := h.tryLooks(h.other, ids)
	if err != nil {
		h.Fatal(err)
	}
	want := map[string]kakutei.Status{
		"none": kakutei.StatusNone, "live": kakutei.StatusProcessing, "sett": kakutei.StatusSucceeded,
	}
	for i, key := range order {
		got := looked[i].Record
		if looked[i].Err != nil || got.Status != want[key[:4]] {
			h.Errorf("%s is %v (%v), want %v", key, got.Status, looked[i].Err, want[key[:4]])
		}
		if got.Status == kakutei.StatusSucceeded {
			if diff := resultDiff(got.Result, answer(key)); diff != "" {
				h.Errorf("%s: %s", key, diff)
			}
		}
	}
}

// halfHeld returns references in random order; held tells which of them hold
// their operation.
func (h *harness) halfHeld() (refs []kakutei.Ref, held func(kakutei.Ref) bool) {
	h.Helper()
	refs = h.acquireAll(h.store, keysOf("held", 20), "a", long)
	for _, ref := range h.acquireAll(h.store, keysOf("not", 20), "b", long) {
		ref.Owner = "a"
		refs = append(refs, ref)
	}
	return shuffled(h.random(), refs), func(r kakutei.Ref) bool { return r.Key[:4] == "held" }
}

// wantHeld checks a batch of writes of halfHeld.
func (h *harness) wantHeld(refs []kakutei.Ref, held func(kakutei.Ref) bool, answers []error) {
	h.Helper()
	for i, err := range answers {
		if held(refs[i]) && err != nil {
			h.Errorf("%s: %v", refs[i].Key, err)
		}
		if !held(refs[i]) && !errors.Is(err, kakutei.ErrLeaseLost) {
			h.Errorf("%s: error %v, want ErrLeaseLost", refs[i].Key, err)
		}
	}
}

func renewalsInOrder(h *harness) {
	refs, held := h.halfHeld()
	renewals := make([]kakutei.Renewal, len(refs))
	for i, ref := range refs {
		renewals[i] = kakutei.Renewal{Ref: ref, Lease: 2 * long}
	}
	answers, err := h.tryRenews(h.other, renewals)
	if err != nil {
		h.Fatal(err)
	}
	h.wantHeld(refs, held, answers)
	for _, ref := range refs {
		if left := h.look(h.store, ref.ID).Left; held(ref) != (left > long) {
			h.Errorf("%s has %v left of its lease", ref.Key, left)
		}
	}
}

func settlementsInOrder(h *harness) {
	refs, held := h.halfHeld()
	settlements := make([]kakutei.Settlement, len(refs))
	for i, ref := range refs {
		settlements[i] = kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(ref.Key)}
	}
	answers, err := h.trySettles(h.other, settlements)
	if err != nil {
		h.Fatal(err)
	}
	h.wantHeld(refs, held, answers)
	for _, ref := range refs {
		rec := h.look(h.store, ref.ID)
		if !held(ref) {
			if rec.Status != kakutei.StatusProcessing {
				h.Errorf("%s is %v, want PROCESSING", ref.Key, rec.Status)
			}
			continue
		}
		if diff := resultDiff(rec.Result, answer(ref.Key)); rec.Status != kakutei.StatusSucceeded || diff != "" {
			h.Errorf("%s is %v: %s", ref.Key, rec.Status, diff)
		}
	}
}

// largeBatch: a thousand items are over the parameters that some drivers can
// send in one statement.
func largeBatch(h *harness) {
	const n = 1000
	keys := keysOf("key", n)
	refs := h.acquireAll(h.store, keys, "a", long)
	renewals := make([]kakutei.Renewal, n)
	settlements := make([]kakutei.Settlement, n)
	ids := make([]kakutei.ID, n)
	for i, ref := range refs {
		renewals[i] = kakutei.Renewal{Ref: ref, Lease: long}
		settlements[i] = kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(ref.Key)}
		ids[i] = ref.ID
	}
	renewed, err := h.tryRenews(h.store, renewals)
	if err := errors.Join(append(renewed, err)...); err != nil {
		h.Fatal(err)
	}
	h.settleAll(h.store, settlements)
	looked, err := h.tryLooks(h.store, ids)
	if err != nil {
		h.Fatal(err)
	}
	for i, d := range h.claims(h.other, h.claimsOf(keys, "b", long)) {
		h.wantReplay(keys[i], d, answer(keys[i]))
		if looked[i].Err != nil || looked[i].Record.Status != kakutei.StatusSucceeded {
			h.Fatalf("%s: looked at, it is %v (%v)", keys[i], looked[i].Record.Status, looked[i].Err)
		}
	}
}
