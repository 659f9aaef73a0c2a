package storetest

import (
	"fmt"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C7: leases are measured by the database's clock alone. A suite in one process
// has one clock to offer; what it can show is that durations are durations: not
// moved by a time zone, not rounded to nothing, the same for every handle.
func clockCases() []testCase {
	return []testCase{
		{title: "lease_lasts_as_asked", run: leaseLastsAsAsked},
		{title: "long_lease", production: cases(46), run: longLease},
		{title: "tiny_lease", run: tinyLease},
		{title: "renewal_counts_from_now", run: renewalCountsFromNow},
	}
}

// leaseLastsAsAsked: nobody gets in before the lease has run out, and everybody
// soon after. What is left is told to the others, for Retry-After (case 12).
func leaseLastsAsAsked(h *harness) {
	const lease, rounding = 100 * time.Millisecond, 5 * time.Millisecond
	before := time.Now()
	ref := h.acquire(h.store, h.claimOf("key", "a", lease))
	granted := time.Now()
	for try := 0; ; try++ {
		asked := time.Now()
		d := h.claim(h.handle(try), h.claimOf("key", "b", lease))
		now := time.Now()
		if d.Outcome == kakutei.Acquired {
			if held := now.Sub(before); held < lease-rounding {
				h.Errorf("taken over after %v, before the lease of %v had run out", held, lease)
			}
			h.wantDecision("after the lease", d, kakutei.Acquired, ref.Attempt+1)
			return
		}
		h.wantDecision("during the lease", d, kakutei.InFlight, 1)
		// At the moment of the decision, between asked and now, this was left:
		least, most := lease-now.Sub(before), lease-asked.Sub(granted)
		if d.Left <= 0 || d.Left < least-rounding || d.Left > most+rounding {
			h.Errorf("in flight with %v left; between %v and %v must be", d.Left, least, most)
		}
		if asked.Sub(granted) > patience {
			h.Fatalf("not taken over %v after a lease of %v", asked.Sub(granted), lease)
		}
		time.Sleep(time.Millisecond)
	}
}

// longLease: a time zone that is applied on one way only shows in hours.
func longLease(h *harness) {
	for i, lease := range []time.Duration{time.Minute, kakutei.MaxLease} {
		key := fmt.Sprintf("key-%d", i)
		ref := h.acquire(h.store, h.claimOf(key, "a", lease))
		for _, s := range h.handles() {
			d := h.claim(s, h.claimOf(key, "b", lease))
			h.wantDecision("a long lease", d, kakutei.InFlight, 1)
			for _, left := range []time.Duration{d.Left, h.look(s, ref.ID).Left} {
				if left <= lease-patience || left > lease {
					h.Errorf("%v left of a lease of %v", left, lease)
				}
			}
		}
	}
}

// tinyLease: what the database rounds to nothing is a lease all the same. It is
// granted, it runs out, and its owner can settle until somebody takes it over.
func tinyLease(h *harness) {
	for i, lease := range []time.Duration{1, time.Microsecond, time.Millisecond} {
		key := fmt.Sprintf("key-%d", i)
		ref := h.acquire(h.store, h.claimOf(key, "a", lease))
		h.expire(ref.ID)
		b := h.acquire(h.other, h.claimOf(key, "b", lease))
		if b.Attempt != 2 {
			h.Errorf("after a lease of %v: attempt %d, want 2", lease, b.Attempt)
		}
		h.expire(ref.ID)
		h.settle(h.store, b, kakutei.StatusSucceeded, answer("b"))
	}
}

// renewalCountsFromNow: a renewal neither adds to what is left nor counts from
// the claim.
func renewalCountsFromNow(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	for _, lease := range []time.Duration{2 * long, 2 * long, 3 * long} {
		h.renew(h.store, ref, lease)
		if left := h.look(h.other, ref.ID).Left; left <= lease-patience || left > lease {
			h.Errorf("renewed to %v, %v are left", lease, left)
		}
	}
	gone := h.expired("expired", "a")
	h.renew(h.store, gone, long)
	if left := h.look(h.other, gone.ID).Left; left <= long-patience || left > long {
		h.Errorf("renewed to %v after it had run out, %v are left", long, left)
	}
}
