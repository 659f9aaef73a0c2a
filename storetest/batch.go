package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C6: items are independent. One that fails, or two of the same ID, change
// nothing for the others.
func batchCases() []testCase {
	return []testCase{
		{title: "one_unusable_claim", production: cases(9, 37), run: oneUnusableClaim},
		{title: "same_key_twice_in_claims", production: cases(9), run: sameKeyTwiceInClaims},
		{title: "same_key_twice_in_writes", production: cases(9), run: sameKeyTwiceInWrites},
		{title: "one_unusable_write", production: cases(9), run: oneUnusableWrite},
		{title: "one_unusable_look", production: cases(9), run: oneUnusableLook},
		{title: "any_audit_text", production: cases(9), run: anyAuditText},
	}
}

// unusable returns claims that can never work, by what is wrong with them.
func (h *harness) unusable() map[string]kakutei.Claim {
	out := make(map[string]kakutei.Claim)
	add := func(what string, spoil func(c *kakutei.Claim)) {
		c := h.claimOf("unusable "+what, "a", long)
		spoil(&c)
		out[what] = c
	}
	add("empty scope", func(c *kakutei.Claim) { c.Scope = "" })
	add("scope too long", func(c *kakutei.Claim) { c.Scope = strings.Repeat("s", kakutei.MaxScopeBytes+1) })
	add("scope with NUL", func(c *kakutei.Claim) { c.Scope += "\x00" })
	add("scope not UTF-8", func(c *kakutei.Claim) { c.Scope += "\xff" })
	add("empty key", func(c *kakutei.Claim) { c.Key = "" })
	add("key of 256 bytes", func(c *kakutei.Claim) { c.Key = strings.Repeat("k", kakutei.MaxKeyBytes+1) })
	add("key with newline", func(c *kakutei.Claim) { c.Key = "a\nb" })
	add("key with NUL", func(c *kakutei.Claim) { c.Key = "a\x00b" })
	add("key not ASCII", func(c *kakutei.Claim) { c.Key = "ключ" })
	add("no fingerprint", func(c *kakutei.Claim) { c.Fingerprint = kakutei.Fingerprint{} })
	add("empty owner", func(c *kakutei.Claim) { c.Owner = "" })
	add("zero lease", func(c *kakutei.Claim) { c.Lease = 0 })
	add("negative lease", func(c *kakutei.Claim) { c.Lease = -time.Second })
	return out
}

// oneUnusableClaim: each kind alone between two good claims, then all at once.
// An unusable claim has an error of its own and leaves no record.
func oneUnusableClaim(h *harness) {
	var all []kakutei.Claim
	i := 0
	for what, bad := range h.unusable() {
		i++
		before, after := fmt.Sprintf("before-%d", i), fmt.Sprintf("after-%d", i)
		ds := h.claims(h.store, []kakutei.Claim{h.claimOf(before, "a", long), bad, h.claimOf(after, "a", long)})
		h.wantDecision("before the claim with "+what, ds[0], kakutei.Acquired, 1)
		h.wantDecision("after the claim with "+what, ds[2], kakutei.Acquired, 1)
		if !errors.Is(ds[1].Err, kakutei.ErrInvalid) || ds[1].Outcome != 0 {
			h.Errorf("%s: %v, error %v; want ErrInvalid and nothing else", what, ds[1].Outcome, ds[1].Err)
		}
		all = append(all, bad)
		if alone, err := h.tryClaim(h.store, bad); !errors.Is(err, kakutei.ErrInvalid) {
			h.Errorf("%s, alone: %v, %v; want ErrInvalid", what, alone.Outcome, err)
		}
		usable := h.claimOf("unusable "+what, "b", long)
		h.wantDecision("the claim mended: "+what, h.claim(h.other, usable), kakutei.Acquired, 1)
	}
	for j, d := range h.claims(h.store, append(all, h.claimOf("last", "a", long))) {
		if j == len(all) {
			h.wantDecision("after all unusable ones", d, kakutei.Acquired, 1)
		} else if !errors.Is(d.Err, kakutei.ErrInvalid) {
			h.Errorf("unusable claim %d: error %v, want ErrInvalid", j, d.Err)
		}
	}
}

// sameKeyTwiceInClaims: each of the two gets the outcome that it would get alone.
func sameKeyTwiceInClaims(h *harness) {
	check := func(what string, attempt int64, twin kakutei.Claim, wantTwin kakutei.Outcome) {
		h.Helper()
		first := h.claimOf(twin.Key, "first", long)
		ds := h.claims(h.store, []kakutei.Claim{h.claimOf(what+" before", "a", long), first, h.claimOf(what+" between", "a", long), twin, h.claimOf(what+" after", "a", long)})
		for _, i := range []int{0, 2, 4} {
			h.wantDecision(what+": neighbour", ds[i], kakutei.Acquired, 1)
		}
		won, lost, owner := ds[1], ds[3], first.Owner
		if won.Outcome != kakutei.Acquired { // which of the two goes first is open
			won, lost, owner = lost, won, twin.Owner
		}
		h.wantDecision(what+": the one", won, kakutei.Acquired, attempt)
		h.wantDecision(what+": the other", lost, wantTwin, attempt)
		h.wantRecord(what, kakutei.Ref{ID: twin.ID(), Owner: owner, Attempt: attempt}, kakutei.StatusProcessing)
	}
	check("fresh", 1, h.claimOf("fresh", "second", long), kakutei.InFlight)
	check("other request", 1, otherRequest(h.claimOf("other request", "second", long)), kakutei.Mismatch)
	h.expired("expired", "gone")
	check("expired", 2, h.claimOf("expired", "second", long), kakutei.InFlight)
	failed := h.acquire(h.store, h.claimOf("failed", "gone", long))
	h.settle(h.store, failed, kakutei.StatusFailed, kakutei.Result{})
	check("failed", 2, h.claimOf("failed", "second", long), kakutei.InFlight)

	h.expired("hold", "gone")
	twin := holding(h.claimOf("hold", "b", long))
	for _, d := range h.claims(h.store, []kakutei.Claim{twin, twin}) {
		h.wantDecision("expired, under Hold, twice", d, kakutei.Uncertain, 1)
	}
	h.settledKeys(1)
	twin = h.claimOf("settled-0", "b", long)
	for _, d := range h.claims(h.store, []kakutei.Claim{twin, twin}) {
		h.wantReplay("settled, twice", d, answer("settled-0"))
	}
}

// sameKeyTwiceInWrites: alike, both succeed; not alike, one of them does, and
// the record is as that one says.
func sameKeyTwiceInWrites(h *harness) {
	refs := h.acquireAll(h.store, []string{"before", "key", "after"}, "a", long)
	before, ref, after := refs[0], refs[1], refs[2]
	errs, err := h.tryRenews(h.store, []kakutei.Renewal{{Ref: before, Lease: long}, {Ref: ref, Lease: long}, {Ref: ref, Lease: long}, {Ref: after, Lease: long}})
	if err := errors.Join(append(errs, err)...); err != nil {
		h.Errorf("two renewals of one lease: %v", err)
	}
	good := func(ref kakutei.Ref) kakutei.Settlement {
		return kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(ref.Key)}
	}
	h.settleAll(h.store, []kakutei.Settlement{good(before), good(ref), good(ref), good(after)})
	for _, ref := range refs {
		h.wantReplay("settled twice", h.claim(h.other, h.claimOf(ref.Key, "b", long)), answer(ref.Key))
	}

	refs = h.acquireAll(h.store, []string{"before 2", "key 2", "after 2"}, "a", long)
	failed := good(refs[1])
	failed.Status = kakutei.StatusFailed
	errs, err = h.trySettles(h.store, []kakutei.Settlement{good(refs[0]), good(refs[1]), failed, good(refs[2])})
	if err != nil {
		h.Fatal(err)
	}
	if errs[0] != nil || errs[3] != nil {
		h.Errorf("neighbours of a contradiction: %v, %v", errs[0], errs[3])
	}
	status, lost := kakutei.StatusSucceeded, errs[2]
	if errs[1] != nil {
		status, lost = kakutei.StatusFailed, errs[1]
		if errs[2] != nil {
			h.Errorf("of two settlements that contradict each other none was accepted: %v, %v", errs[1], errs[2])
		}
	}
	h.wantLost("the other of two settlements that contradict each other", lost)
	h.wantRecord("the accepted one", refs[1], status)
}

// oneUnusableWrite: a settlement that no attempt can end with is refused, by
// itself, and does not end the attempt.
func oneUnusableWrite(h *harness) {
	for i, status := range []kakutei.Status{kakutei.StatusNone, kakutei.StatusProcessing, 99} {
		refs := h.acquireAll(h.store, keysOf(fmt.Sprintf("key-%d", i), 3), "a", long)
		batch := make([]kakutei.Settlement, len(refs))
		for j, ref := range refs {
			batch[j] = kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: answer(ref.Key)}
		}
		batch[1].Status = status
		h.keeps("a settlement as "+status.String(), refs[1].ID, func() {
			errs, err := h.trySettles(h.store, batch)
			if err != nil {
				h.Fatalf("one settlement as %v fails the batch: %v", status, err)
			}
			if errs[0] != nil || errs[1] == nil || errs[2] != nil {
				h.Errorf("settlements, the second as %v: %v", status, errs)
			}
		})
		h.settle(h.other, refs[1], kakutei.StatusSucceeded, answer("mended"))
	}
	// References that can name no attempt.
	good := h.acquire(h.store, h.claimOf("good", "a", long))
	for _, bad := range []kakutei.Ref{{}, {ID: good.ID}, {ID: good.ID, Owner: "a", Attempt: -1}, {ID: h.id("bad\x00\xff"), Owner: "a\x00\xff", Attempt: 1}} {
		errs, err := h.tryRenews(h.store, []kakutei.Renewal{{Ref: bad, Lease: long}, {Ref: good, Lease: long}})
		if err != nil || errs[0] == nil || errs[1] != nil {
			h.Errorf("renewals, the first of %q: %v, %v", bad, errs, err)
		}
		errs, err = h.trySettles(h.store, []kakutei.Settlement{{Ref: bad, Status: kakutei.StatusFailed}})
		if err != nil || errs[0] == nil {
			h.Errorf("settlement of %q: %v, %v", bad, errs, err)
		}
	}
	h.wantRecord("after references to nothing", good, kakutei.StatusProcessing)
}

// oneUnusableLook: an ID that can have no record has none, or an error of its own.
func oneUnusableLook(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	bad := []kakutei.ID{{}, {Scope: h.scope}, {Scope: "\x00", Key: "\x00"}, {Scope: "\xff", Key: "\xff"}, h.id(strings.Repeat("k", 300))}
	ids := []kakutei.ID{ref.ID}
	for _, id := range bad {
		ids = append(ids, id, ref.ID)
	}
	looked, err := h.tryLooks(h.store, ids)
	if err != nil {
		h.Fatal(err)
	}
	for i, l := range looked {
		if i%2 == 1 {
			if l.Err == nil && l.Record.Status != kakutei.StatusNone {
				h.Errorf("%q is %v", ids[i], l.Record.Status)
			}
			continue
		}
		if l.Err != nil || l.Record.Status != kakutei.StatusProcessing || l.Record.Owner != "a" {
			h.Errorf("the neighbour of unusable IDs is %v (%v)", l.Record.Status, l.Err)
		}
	}
}

// anyAuditText: path, actor and trace come from whoever calls, and are only
// described, never checked. Whatever they hold, the neighbours are unaffected,
// and the claim itself works or has an error of its own.
func anyAuditText(h *harness) {
	for i, text := range []string{"a\x00b", "\xff\xfe", "界😀", strings.Repeat("long", 5000), "'; DROP TABLE idempotency_keys; --", "{}", "\\N"} {
		for j, spoil := range []func(c *kakutei.Claim){
			func(c *kakutei.Claim) { c.Method = text },
			func(c *kakutei.Claim) { c.Path = text },
			func(c *kakutei.Claim) { c.Actor = text },
			func(c *kakutei.Claim) { c.TraceID = text },
			func(c *kakutei.Claim) { c.Node = text },
		} {
			key := fmt.Sprintf("key-%d-%d", i, j)
			c := h.claimOf(key, "a", long)
			spoil(&c)
			ds := h.claims(h.store, []kakutei.Claim{h.claimOf(key+"-before", "a", long), c, h.claimOf(key+"-after", "a", long)})
			h.wantDecision(fmt.Sprintf("before %.20q", text), ds[0], kakutei.Acquired, 1)
			h.wantDecision(fmt.Sprintf("after %.20q", text), ds[2], kakutei.Acquired, 1)
			if ds[1].Err != nil {
				h.Logf("%.20q in field %d: %v", text, j, ds[1].Err)
				continue
			}
			h.wantDecision(fmt.Sprintf("with %.20q", text), ds[1], kakutei.Acquired, 1)
			h.settle(h.store, kakutei.Ref{ID: c.ID(), Owner: "a", Attempt: 1}, kakutei.StatusSucceeded, answer(key))
			h.wantReplay(fmt.Sprintf("with %.20q", text), h.claim(h.other, h.claimOf(key, "b", long)), answer(key))
		}
	}
}
