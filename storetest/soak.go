package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
)

// story is what the workers of a soak have been told about one key.
type story struct {
	key string

	mu        sync.Mutex
	owners    map[int64]string // by attempt
	succeeded kakutei.Ref
	known     time.Time // when the success was known to be durable
}

// soak lets workers claim, renew, outlive their leases, fail and settle on a few
// keys, all at once, and checks what must hold for every order of events: no
// attempt number was acquired twice, none was left out, nothing was acquired by
// a claim that was sent after the success was known, and at most one settlement
// as SUCCEEDED was accepted, which is the one on record.
func soak(h *harness) {
	const workers = 8
	stories := make([]*story, 4)
	for i := range stories {
		stories[i] = &story{key: fmt.Sprintf("key-%d", i), owners: make(map[int64]string)}
	}
	dice := make([]func(int) int, workers)
	for i := range dice {
		dice[i] = h.random().IntN
	}
	var serial atomic.Int64
	end := time.Now().Add(h.factory.Soak)
	together(workers, func(w int) {
		for time.Now().Before(end) && !h.Failed() {
			owner := fmt.Sprintf("worker-%d-%d", w, serial.Add(1))
			h.live(h.handle(w), stories[dice[w](len(stories))], owner, dice[w])
		}
	})
	for _, x := range stories {
		h.Logf("%s: %d attempts, succeeded: %d", x.key, len(x.owners), x.succeeded.Attempt)
		for n := int64(1); n <= int64(len(x.owners)); n++ {
			if x.owners[n] == "" {
				h.Errorf("%s: attempt %d was left out of %d", x.key, n, len(x.owners))
			}
		}
		if x.succeeded.Owner != "" {
			h.wantRecord("after the soak", x.succeeded, kakutei.StatusSucceeded)
			h.wantReplay("after the soak", h.claim(h.store, h.claimOf(x.key, "last", long)), answer(x.succeeded.Owner))
		}
	}
}

// live claims once and, if that is acquired, lives through an attempt: it may
// renew, outlive its lease, and succeed, fail or die.
func (h *harness) live(s kakutei.Store, x *story, owner string, dice func(int) int) {
	moment := func() time.Duration { return time.Duration(1+dice(20)) * time.Millisecond }
	sent := time.Now()
	d, err := h.tryClaim(s, h.claimOf(x.key, owner, moment()))
	switch {
	case err != nil:
		h.Errorf("%s: claim: %v", x.key, err)
		return
	case d.Outcome == kakutei.InFlight || d.Outcome == kakutei.Replay:
		return
	case d.Outcome != kakutei.Acquired:
		h.Errorf("%s: claim is %v", x.key, d.Outcome)
		return
	}
	x.acquired(h, owner, d.Attempt, sent)
	ref := kakutei.Ref{ID: h.id(x.key), Owner: owner, Attempt: d.Attempt}
	if dice(3) == 0 {
		_ = h.tryRenew(s, ref, moment()) // too late or not, as it happens
	}
	if dice(2) == 0 {
		time.Sleep(moment())
	}
	switch fate := dice(30); {
	case fate == 0:
		if h.trySettle(s, ref, kakutei.StatusSucceeded, answer(owner)) == nil {
			x.success(h, ref)
		}
	case fate < 15:
		_ = h.trySettle(s, ref, kakutei.StatusFailed, kakutei.Result{}) // refused if it comes too late
	} // else the process has died
}

func (x *story) acquired(h *harness, owner string, attempt int64, sent time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if earlier, ok := x.owners[attempt]; ok {
		h.Errorf("%s: attempt %d was acquired by %s and by %s", x.key, attempt, earlier, owner)
	}
	if !x.known.IsZero() && sent.After(x.known) {
		h.Errorf("%s: attempt %d was acquired by a claim sent after the success", x.key, attempt)
	}
	x.owners[attempt] = owner
}

func (x *story) success(h *harness, ref kakutei.Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.succeeded.Owner != "" {
		h.Errorf("%s: attempts %d and %d have both succeeded", x.key, x.succeeded.Attempt, ref.Attempt)
	}
	x.succeeded, x.known = ref, time.Now()
}
