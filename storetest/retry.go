package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C16: every method may be called from many goroutines, and again after a
// failure whose outcome is not known. The first half is in all the races. For
// the second, calls are cancelled before and while they run: each then did or
// did not happen, and sending it again must come to the same.
func retryCases() []testCase {
	return []testCase{
		{title: "cancelled_claim", production: cases(11, 25), run: cancelledClaim},
		{title: "cancelled_settlement", production: cases(25, 27), run: cancelledSettlement},
		{title: "cancelled_renewal", run: cancelledRenewal},
		{title: "cancelled_look", run: cancelledLook},
		{title: "cancelled_takeover", production: cases(16, 25), run: cancelledTakeover},
	}
}

// doomed returns a context that ends at another moment from round to round:
// before the call, or at some time while it runs.
func (h *harness) doomed(round int, roll func(int64) int64) (context.Context, context.CancelFunc) {
	switch round % 4 {
	case 0:
		ctx, cancel := context.WithCancel(h.Context())
		cancel()
		return ctx, cancel
	case 1:
		return context.WithDeadline(h.Context(), time.Now().Add(-time.Second))
	default:
		return context.WithTimeout(h.Context(), time.Duration(roll(int64(2*time.Millisecond))))
	}
}

// definite sends again what had no answer, as long as the item itself says that
// nothing is known.
func (h *harness) definite(send func(s kakutei.Store) error) error {
	h.Helper()
	var err error
	for i := range 50 {
		if err = send(h.handle(i)); !errors.Is(err, kakutei.ErrUnavailable) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// some is a batch of a few keys of one round.
func some(round int) []string { return keysOf(fmt.Sprintf("key-%d", round), 1+round%5) }

func cancelledClaim(h *harness) {
	random := h.random()
	answers := 0
	h.repeat(40, func(round int) {
		keys := some(round)
		ctx, cancel := h.doomed(round, random.Int64N)
		ds, err := h.handle(round/4).Claim(ctx, h.claimsOf(keys, "a", long))
		cancel()
		if err == nil {
			answers++
			for _, d := range ds { // an answer binds, however late it is
				if d.Err == nil {
					h.wantDecision("answered in spite of it", d, kakutei.Acquired, 1)
				}
			}
		}
		for _, key := range keys {
			rec := h.look(h.other, h.id(key))
			if rec.Status != kakutei.StatusNone && (rec.Status != kakutei.StatusProcessing || rec.Owner != "a" || rec.Attempt != 1) {
				h.Errorf("after a cancelled claim the record is %v by %q, attempt %d", rec.Status, rec.Owner, rec.Attempt)
			}
			var d kakutei.Decision
			err := h.definite(func(s kakutei.Store) (err error) {
				d, err = h.tryClaim(s, h.claimOf(key, "a", long))
				return err
			})
			if err != nil {
				h.Errorf("sent again: %v", err)
			}
			h.wantDecision("sent again", d, kakutei.Acquired, 1)
			// No lock is left behind either.
			h.wantDecision("somebody else", h.claim(h.store, h.claimOf(key, "b", long)), kakutei.InFlight, 1)
		}
	})
	h.Logf("%d calls were answered", answers)
}

func cancelledSettlement(h *harness) {
	random := h.random()
	h.repeat(40, func(round int) {
		keys := some(round)
		status := endings()[round%3]
		refs := h.acquireAll(h.store, keys, "a", long)
		batch := make([]kakutei.Settlement, len(refs))
		for i, ref := range refs {
			batch[i] = kakutei.Settlement{Ref: ref, Status: status, Result: answer(ref.Key)}
		}
		ctx, cancel := h.doomed(round/3, random.Int64N)
		errs, err := h.handle(round/12).Settle(ctx, batch)
		cancel()
		for i, ref := range refs {
			rec := h.look(h.other, ref.ID)
			if rec.Owner != "a" || rec.Attempt != 1 || (rec.Status != kakutei.StatusProcessing && rec.Status != status) {
				h.Errorf("after a cancelled settlement as %v the record is %v by %q, attempt %d", status, rec.Status, rec.Owner, rec.Attempt)
			}
			if err == nil && errs[i] == nil && rec.Status != status {
				h.Errorf("settled as %v in spite of it, but the record is %v", status, rec.Status)
			}
			if err := h.definite(func(s kakutei.Store) error { return h.trySettle(s, ref, status, answer(ref.Key)) }); err != nil {
				h.Errorf("sent again: %v", err)
			}
			h.wantRecord("sent again", ref, status)
			if status == kakutei.StatusSucceeded {
				h.wantReplay("sent again", h.claim(h.other, h.claimOf(ref.Key, "b", long)), answer(ref.Key))
			}
		}
	})
}

func cancelledRenewal(h *harness) {
	random := h.random()
	h.repeat(40, func(round int) {
		refs := h.acquireAll(h.store, some(round), "a", long)
		batch := make([]kakutei.Renewal, len(refs))
		for i, ref := range refs {
			batch[i] = kakutei.Renewal{Ref: ref, Lease: 2 * long}
		}
		ctx, cancel := h.doomed(round, random.Int64N)
		_, _ = h.handle(round/4).Renew(ctx, batch) // whatever it was
		cancel()
		for _, ref := range refs {
			h.wantRecord("after a cancelled renewal", ref, kakutei.StatusProcessing)
			if err := h.definite(func(s kakutei.Store) error { return h.tryRenew(s, ref, 2*long) }); err != nil {
				h.Errorf("sent again: %v", err)
			}
			if left := h.look(h.other, ref.ID).Left; left <= long || left > 2*long {
				h.Errorf("sent again: %v left of %v", left, 2*long)
			}
		}
	})
}

func cancelledLook(h *harness) {
	random := h.random()
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.keeps("a cancelled look", ref.ID, func() {
		h.repeat(40, func(round int) {
			ctx, cancel := h.doomed(round, random.Int64N)
			looked, err := h.handle(round/4).Look(ctx, []kakutei.ID{ref.ID, h.id("none")})
			cancel()
			if err != nil || looked[0].Err != nil || looked[1].Err != nil {
				return // nothing is known
			}
			if looked[0].Record.Owner != "a" || looked[1].Record.Status != kakutei.StatusNone {
				h.Errorf("answered in spite of it, but %+v", looked)
			}
		})
	})
}

// cancelledTakeover: sent again, the claim finds itself as the owner, or takes
// over only then. It is never two attempts, and the zombie is never let in.
func cancelledTakeover(h *harness) {
	random := h.random()
	h.repeat(20, func(round int) {
		keys := some(round)
		zombies := h.acquireAll(h.store, keys, "zombie", 1)
		for _, ref := range zombies {
			h.expire(ref.ID)
		}
		ctx, cancel := h.doomed(round, random.Int64N)
		_, _ = h.handle(round/4).Claim(ctx, h.claimsOf(keys, "a", long)) // whatever it was
		cancel()
		for i, key := range keys {
			var d kakutei.Decision
			err := h.definite(func(s kakutei.Store) (err error) {
				d, err = h.tryClaim(s, h.claimOf(key, "a", long))
				return err
			})
			if err != nil {
				h.Errorf("sent again: %v", err)
			}
			h.wantDecision("sent again", d, kakutei.Acquired, 2)
			h.zombie(zombies[i])
		}
	})
}
