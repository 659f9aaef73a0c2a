package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kakutei-go/kakutei"
)

// The calls whose name begins with try may be used from every goroutine and
// return what went wrong. The others end the test, and so belong to its own.

func (h *harness) callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(h.Context(), patience)
}

// answered checks what every method owes: one answer for each item (C1).
func answered[E any](method string, items int, answers []E, err error) ([]E, error) {
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s of %d items: %w", method, items, err)
	case len(answers) != items:
		return nil, fmt.Errorf("%s of %d items has %d answers", method, items, len(answers))
	}
	return answers, nil
}

func (h *harness) tryClaims(s kakutei.Store, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	ctx, cancel := h.callContext()
	defer cancel()
	out, err := s.Claim(ctx, claims)
	return answered("Claim", len(claims), out, err)
}

// tryClaim claims one operation. The error is that of the call or of the item.
func (h *harness) tryClaim(s kakutei.Store, c kakutei.Claim) (kakutei.Decision, error) {
	out, err := h.tryClaims(s, []kakutei.Claim{c})
	if err != nil {
		return kakutei.Decision{}, err
	}
	return out[0], out[0].Err
}

func (h *harness) tryLooks(s kakutei.Store, ids []kakutei.ID) ([]kakutei.Looked, error) {
	ctx, cancel := h.callContext()
	defer cancel()
	out, err := s.Look(ctx, ids)
	return answered("Look", len(ids), out, err)
}

func (h *harness) tryLook(s kakutei.Store, id kakutei.ID) (kakutei.Record, error) {
	out, err := h.tryLooks(s, []kakutei.ID{id})
	if err != nil {
		return kakutei.Record{}, err
	}
	return out[0].Record, out[0].Err
}

func (h *harness) tryRenews(s kakutei.Store, renewals []kakutei.Renewal) ([]error, error) {
	ctx, cancel := h.callContext()
	defer cancel()
	out, err := s.Renew(ctx, renewals)
	return answered("Renew", len(renewals), out, err)
}

func (h *harness) tryRenew(s kakutei.Store, ref kakutei.Ref, lease time.Duration) error {
	out, err := h.tryRenews(s, []kakutei.Renewal{{Ref: ref, Lease: lease}})
	if err != nil {
		return err
	}
	return out[0]
}

func (h *harness) trySettles(s kakutei.Store, settlements []kakutei.Settlement) ([]error, error) {
	ctx, cancel := h.callContext()
	defer cancel()
	out, err := s.Settle(ctx, settlements)
	return answered("Settle", len(settlements), out, err)
}

func (h *harness) trySettle(s kakutei.Store, ref kakutei.Ref, status kakutei.Status, res kakutei.Result) error {
	out, err := h.trySettles(s, []kakutei.Settlement{{Ref: ref, Status: status, Result: res}})
	if err != nil {
		return err
	}
	return out[0]
}

func (h *harness) claims(s kakutei.Store, claims []kakutei.Claim) []kakutei.Decision {
	h.Helper()
	out, err := h.tryClaims(s, claims)
	if err != nil {
		h.Fatal(err)
	}
	return out
}

func (h *harness) claim(s kakutei.Store, c kakutei.Claim) kakutei.Decision {
	h.Helper()
	d, err := h.tryClaim(s, c)
	if err != nil {
		h.Fatalf("claim by %s: %v", c.Owner, err)
	}
	return d
}

// acquire claims, and must get, an operation.
func (h *harness) acquire(s kakutei.Store, c kakutei.Claim) kakutei.Ref {
	h.Helper()
	d := h.claim(s, c)
	if d.Outcome != kakutei.Acquired {
		h.Fatalf("claim by %s is %v, want acquired", c.Owner, d.Outcome)
	}
	return kakutei.Ref{ID: c.ID(), Owner: c.Owner, Attempt: d.Attempt}
}

// acquireAll claims, and must get, all of the keys.
func (h *harness) acquireAll(s kakutei.Store, keys []string, owner string, lease time.Duration) []kakutei.Ref {
	h.Helper()
	out := make([]kakutei.Ref, len(keys))
	for i, d := range h.claims(s, h.claimsOf(keys, owner, lease)) {
		if d.Err != nil || d.Outcome != kakutei.Acquired {
			h.Fatalf("claim %d of %d is %v (%v), want acquired", i, len(keys), d.Outcome, d.Err)
		}
		out[i] = kakutei.Ref{ID: h.id(keys[i]), Owner: owner, Attempt: d.Attempt}
	}
	return out
}

func (h *harness) look(s kakutei.Store, id kakutei.ID) kakutei.Record {
	h.Helper()
	rec, err := h.tryLook(s, id)
	if err != nil {
		h.Fatal(err)
	}
	return rec
}

func (h *harness) renew(s kakutei.Store, ref kakutei.Ref, lease time.Duration) {
	h.Helper()
	if err := h.tryRenew(s, ref, lease); err != nil {
		h.Fatalf("renewal by %s, attempt %d: %v", ref.Owner, ref.Attempt, err)
	}
}

func (h *harness) settle(s kakutei.Store, ref kakutei.Ref, status kakutei.Status, res kakutei.Result) {
	h.Helper()
	if err := h.trySettle(s, ref, status, res); err != nil {
		h.Fatalf("settlement as %v by %s, attempt %d: %v", status, ref.Owner, ref.Attempt, err)
	}
}

func (h *harness) settleAll(s kakutei.Store, settlements []kakutei.Settlement) {
	h.Helper()
	out, err := h.trySettles(s, settlements)
	if err != nil {
		h.Fatal(err)
	}
	for i, err := range out {
		if err != nil {
			h.Fatalf("settlement %d of %d: %v", i, len(out), err)
		}
	}
}

// expire waits until the lease of id has run out, by the store's own clock.
func (h *harness) expire(id kakutei.ID) {
	h.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(2 * time.Millisecond) {
		rec := h.look(h.store, id)
		if rec.Status != kakutei.StatusProcessing {
			h.Fatalf("waiting for a lease to run out: the record is %v", rec.Status)
		}
		if rec.Left <= 0 {
			return
		}
	}
	h.Fatalf("the lease has not run out after %v", patience)
}

// expired makes an attempt whose lease has run out.
func (h *harness) expired(key, owner string) kakutei.Ref {
	h.Helper()
	ref := h.acquire(h.store, h.claimOf(key, owner, short))
	h.expire(ref.ID)
	return ref
}

// wantDecision compares a decision; attempt 0 means any.
func (h *harness) wantDecision(what string, d kakutei.Decision, want kakutei.Outcome, attempt int64) {
	h.Helper()
	switch {
	case d.Err != nil:
		h.Errorf("%s: %v, want %v", what, d.Err, want)
	case d.Outcome != want || (attempt != 0 && d.Attempt != attempt):
		h.Errorf("%s: %v, attempt %d; want %v, attempt %d", what, d.Outcome, d.Attempt, want, attempt)
	}
}

// wantReplay checks that a claim is answered by the given result.
func (h *harness) wantReplay(what string, d kakutei.Decision, want kakutei.Result) {
	h.Helper()
	h.wantDecision(what, d, kakutei.Replay, 0)
	if diff := resultDiff(d.Result, want); diff != "" {
		h.Errorf("%s: %s", what, diff)
	}
}

// wantRecord checks what every handle says about the holder of an operation.
func (h *harness) wantRecord(what string, ref kakutei.Ref, status kakutei.Status) {
	h.Helper()
	for i, s := range h.handles() {
		rec := h.look(s, ref.ID)
		if rec.Status != status || rec.Owner != ref.Owner || rec.Attempt != ref.Attempt {
			h.Errorf("%s: handle %d sees %v, owner %q, attempt %d; want %v, %q, %d",
				what, i, rec.Status, rec.Owner, rec.Attempt, status, ref.Owner, ref.Attempt)
		}
	}
}

// wantLost checks that a write of somebody who holds nothing was refused.
func (h *harness) wantLost(what string, err error) {
	h.Helper()
	if !errors.Is(err, kakutei.ErrLeaseLost) {
		h.Errorf("%s: error %v, want ErrLeaseLost", what, err)
	}
}

// resultDiff says how two results differ. Whether nothing is nil or empty makes
// no difference (C13).
func resultDiff(got, want kakutei.Result) string {
	switch {
	case got.Code != want.Code:
		return fmt.Sprintf("the code is %d, want %d", got.Code, want.Code)
	case !bytes.Equal(got.Header, want.Header):
		return fmt.Sprintf("the header is %s, want %s", clip(got.Header), clip(want.Header))
	case !bytes.Equal(got.Body, want.Body):
		return fmt.Sprintf("the body is %s, want %s", clip(got.Body), clip(want.Body))
	case got.Omitted != want.Omitted:
		return fmt.Sprintf("what was omitted is %q, want %q", got.Omitted, want.Omitted)
	}
	return ""
}

func clip(b []byte) string {
	if len(b) > 60 {
		return fmt.Sprintf("%q… (%d bytes)", b[:60], len(b))
	}
	return fmt.Sprintf("%q", b)
}
