package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kakutei-go/kakutei"
)

// model is what a store is to be like: the record of one operation, decided by
// kakutei.Decide, and written to by whoever holds it. Time is a flag: a lease is
// live for ever or has run out already.
type model struct {
	rec kakutei.Record
	// accepted are the settlements of earlier attempts; to hear one of them again
	// is either a success or a lost lease, and no change.
	accepted map[kakutei.Ref]kakutei.Status
}

// claim decides and writes as a store does.
func (m *model) claim(c kakutei.Claim) kakutei.Decision {
	d, change := kakutei.Decide(m.rec, c)
	switch change {
	case kakutei.ChangeInsert, kakutei.ChangeTake:
		m.rec = kakutei.Record{Status: kakutei.StatusProcessing, Fingerprint: c.Fingerprint, Attempt: d.Attempt, Owner: c.Owner, Left: c.Lease}
	case kakutei.ChangeHold:
		m.rec.Status, m.rec.Left = kakutei.StatusUncertain, 0
	}
	return d
}

func (m *model) holds(ref kakutei.Ref) bool {
	return m.rec.Status == kakutei.StatusProcessing && m.rec.Owner == ref.Owner && m.rec.Attempt == ref.Attempt
}

// settle reports what the answer must be: accepted, refused, or either of them.
func (m *model) settle(ref kakutei.Ref, status kakutei.Status, res kakutei.Result) (accept, either bool) {
	if m.holds(ref) {
		m.rec.Status, m.rec.Left = status, 0
		if status == kakutei.StatusSucceeded {
			m.rec.Result = res
		}
		m.accepted[ref] = status
		return true, false
	}
	current := m.rec.Owner == ref.Owner && m.rec.Attempt == ref.Attempt
	if earlier, ok := m.accepted[ref]; ok && earlier == status {
		return current, !current
	}
	// A record that a claim has held answers its old owner's UNCERTAIN as it likes.
	return false, current && m.rec.Status == status
}

// randomSequences lets three owners do anything to one operation, in an order
// that chance decides, and compares every answer and every record with the
// model. Leases are an hour, or so short that the next step waits for their end.
func randomSequences(h *harness) {
	random := h.random()
	steps := 0
	h.repeat(20, func(round int) {
		m := &model{accepted: make(map[kakutei.Ref]kakutei.Status)}
		key := fmt.Sprintf("key-%d", round)
		refs := []kakutei.Ref{{ID: h.id(key), Owner: "a", Attempt: 1}}
		var history []string
		for range 25 {
			ref, what := h.step(m, random, key, refs)
			if ref.Owner != "" {
				refs = append(refs, ref)
			}
			history = append(history, what)
			steps++
			h.compare(m, key)
			if h.Failed() {
				for i, what := range history {
					h.Logf("step %d: %s", i+1, what)
				}
				return
			}
		}
	})
	h.Logf("%d steps", steps)
}

// step does one random thing to the store and to the model. It returns the
// reference of a claim that was acquired.
func (h *harness) step(m *model, random *rand.Rand, key string, refs []kakutei.Ref) (kakutei.Ref, string) {
	h.Helper()
	s := h.handle(random.IntN(2))
	// Mostly one of the last references, which may be the one that holds.
	ref := refs[max(0, len(refs)-1-random.IntN(3))]
	switch random.IntN(8) {
	case 0, 1, 2:
		lease := []time.Duration{long, 1}[random.IntN(2)] // 1 ns runs out at once
		c := h.claimOf(key, []string{"a", "b", "c"}[random.IntN(3)], lease)
		c.Recovery = []kakutei.Recovery{kakutei.Rerun, kakutei.Rerun, kakutei.Transactional, kakutei.Hold}[random.IntN(4)]
		if random.IntN(6) == 0 {
			c = otherRequest(c)
		}
		want, got := m.claim(c), h.claim(s, c)
		what := fmt.Sprintf("claim by %s for %v under %v: %v, attempt %d", c.Owner, c.Lease, c.Recovery, got.Outcome, got.Attempt)
		h.wantDecision(what, got, want.Outcome, want.Attempt)
		if got.Takeover != want.Takeover {
			h.Errorf("%s: takeover is %v", what, got.Takeover)
		}
		if diff := resultDiff(got.Result, want.Result); diff != "" {
			h.Errorf("%s: %s", what, diff)
		}
		h.runOut(m, key)
		if got.Outcome != kakutei.Acquired {
			return kakutei.Ref{}, what
		}
		return kakutei.Ref{ID: h.id(key), Owner: c.Owner, Attempt: got.Attempt}, what
	case 3, 4:
		err := h.tryRenew(s, ref, long)
		what := fmt.Sprintf("renewal by %s, attempt %d: %v", ref.Owner, ref.Attempt, err)
		if m.holds(ref) {
			m.rec.Left = long
			if err != nil {
				h.Errorf("%s; it holds the operation", what)
			}
		} else {
			h.wantLost(what, err)
		}
		return kakutei.Ref{}, what
	default:
		// A success ends the sequence, so it is the rarest.
		status := []kakutei.Status{kakutei.StatusFailed, kakutei.StatusFailed, kakutei.StatusFailed, kakutei.StatusFailed, kakutei.StatusSucceeded, kakutei.StatusUncertain}[random.IntN(6)]
		res := answer(fmt.Sprintf("%s %d", ref.Owner, ref.Attempt))
		accept, either := m.settle(ref, status, res)
		err := h.trySettle(s, ref, status, res)
		what := fmt.Sprintf("%v by %s, attempt %d: %v", status, ref.Owner, ref.Attempt, err)
		if lost := errors.Is(err, kakutei.ErrLeaseLost); (err != nil && !lost) || (!either && lost == accept) {
			h.Errorf("%s; want it accepted: %v", what, accept)
		}
		return kakutei.Ref{}, what
	}
}

// runOut waits for the end of a lease that is to run out.
func (h *harness) runOut(m *model, key string) {
	h.Helper()
	if m.rec.Status == kakutei.StatusProcessing && m.rec.Left < long {
		h.expire(h.id(key))
		m.rec.Left = 0
	}
}

// compare looks at the record and holds it against the model.
func (h *harness) compare(m *model, key string) {
	h.Helper()
	if m.rec.Status == kakutei.StatusNone {
		if rec := h.look(h.other, h.id(key)); rec.Status != kakutei.StatusNone {
			h.Errorf("the record is %v, but nothing was acquired", rec.Status)
		}
		return
	}
	h.wantRecord("compared with the model", kakutei.Ref{ID: h.id(key), Owner: m.rec.Owner, Attempt: m.rec.Attempt}, m.rec.Status)
	rec := h.look(h.store, h.id(key))
	if diff := resultDiff(rec.Result, m.rec.Result); diff != "" {
		h.Errorf("compared with the model: %s", diff)
	}
	if live := rec.Left > 0; m.rec.Status == kakutei.StatusProcessing && live != (m.rec.Left > 0) {
		h.Errorf("compared with the model: %v are left of the lease", rec.Left)
	}
}
