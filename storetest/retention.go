package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
)

// C17: nothing in PROCESSING or UNCERTAIN is ever removed by retention.
func retainCases() []testCase {
	return []testCase{
		{title: "unsettled_is_kept", production: cases(47), needs: needRetainer, run: unsettledIsKept},
		{title: "unsettled_is_kept_however_old", production: cases(47), needs: needRetainer | needBackdate, run: unsettledIsKeptHoweverOld},
		{title: "results_are_kept_as_long_as_asked", production: cases(47), needs: needRetainer | needBackdate, run: resultsAreKept},
		{title: "claims_go_on", production: cases(45, 47), needs: needRetainer, run: claimsGoOn},
		{title: "failed_may_go", needs: needRetainer, run: failedMayGo},
	}
}

// retain runs one pass. A store may refuse a time that makes no sense to it.
func (h *harness) retain(s kakutei.Store, keep time.Duration) (kakutei.Retained, error) {
	ctx, cancel := h.callContext()
	defer cancel()
	return s.(kakutei.Retainer).Retain(ctx, keep)
}

// retainAll runs passes with every short time there is.
func (h *harness) retainAll() {
	h.Helper()
	for _, keep := range []time.Duration{0, 1, time.Millisecond, time.Hour, 24 * time.Hour} {
		for _, s := range h.handles() {
			done, err := h.retain(s, keep)
			switch {
			case errors.Is(err, kakutei.ErrInvalid):
				h.Logf("keeping %v is refused: %v", keep, err)
			case err != nil:
				h.Errorf("keeping %v: %v", keep, err)
			default:
				h.Logf("keeping %v: %+v", keep, done)
			}
		}
	}
}

// unsettled makes a record of each state that retention has no say in, and
// returns what checks that they are all as they were.
func (h *harness) unsettled() (keys []string, check func()) {
	h.Helper()
	for _, state := range []string{"live", "expired", "uncertain", "held"} {
		h.make(state, []string{state})
		keys = append(keys, state)
	}
	return keys, func() {
		h.Helper()
		for _, key := range keys {
			status := kakutei.StatusProcessing
			if key == "uncertain" || key == "held" {
				status = kakutei.StatusUncertain
			}
			h.wantRecord(key+", after retention", kakutei.Ref{ID: h.id(key), Owner: "a", Attempt: 1}, status)
		}
		h.wantDecision("live", h.claim(h.other, h.claimOf("live", "b", long)), kakutei.InFlight, 1)
		h.wantDecision("uncertain", h.claim(h.other, h.claimOf("uncertain", "b", long)), kakutei.Uncertain, 1)
		h.wantDecision("held", h.claim(h.other, h.claimOf("held", "b", long)), kakutei.Uncertain, 1)
		// Its number must go on growing: it fences the attempt before it.
		h.wantDecision("expired", h.claim(h.other, h.claimOf("expired", "b", long)), kakutei.Acquired, 2)
	}
}

func unsettledIsKept(h *harness) {
	_, check := h.unsettled()
	h.retainAll()
	check()
}

func unsettledIsKeptHoweverOld(h *harness) {
	keys, check := h.unsettled()
	for _, key := range keys {
		h.factory.Backdate(h.T, h.store, h.id(key), 400*24*time.Hour)
	}
	h.retainAll()
	check()
}

// resultsAreKept: with a retention of three days, a result of two days and 23
// hours is replayed, and one of more than four is gone: its key is free.
func resultsAreKept(h *harness) {
	const keep = 72 * time.Hour
	ages := map[string]time.Duration{"new": 0, "kept": 71 * time.Hour, "gone": keep + 25*time.Hour, "long gone": 300 * 24 * time.Hour}
	for key, age := range ages {
		ref := h.acquire(h.store, h.claimOf(key, "a", long))
		h.settle(h.store, ref, kakutei.StatusSucceeded, answer(key))
		if age > 0 {
			h.factory.Backdate(h.T, h.store, ref.ID, age)
		}
	}
	for key := range ages { // until retention has run, the oldest is an answer
		h.wantReplay(key+", before retention", h.claim(h.other, h.claimOf(key, "b", long)), answer(key))
	}
	for pass := range 10 { // one pass may do a part, or leave it to another process
		done, err := h.retain(h.handle(pass), keep)
		if err != nil {
			h.Fatal(err)
		}
		for _, day := range done.Dropped {
			if _, err := time.Parse(time.DateOnly, day); err != nil {
				h.Errorf("day %q was dropped; want a form of 2006-01-02", day)
			}
		}
		h.Logf("%+v", done)
	}
	for _, key := range []string{"new", "kept"} {
		h.wantReplay(key+", after retention", h.claim(h.other, h.claimOf(key, "b", long)), answer(key))
	}
	for _, key := range []string{"gone", "long gone"} {
		h.wantDecision(key+", after retention", h.claim(h.other, h.claimOf(key, "b", long)), kakutei.Acquired, 1)
	}
}

// claimsGoOn: retention runs in every process, at any time, and disturbs nobody.
func claimsGoOn(h *harness) {
	var done atomic.Bool
	together(3, func(i int) {
		if i < 2 {
			for !done.Load() {
				if _, err := h.retain(h.handle(i), 72*time.Hour); err != nil {
					h.Errorf("retention: %v", err)
					return
				}
			}
			return
		}
		defer done.Store(true)
		for n, start := 0, time.Now(); n < 30 || time.Since(start) < h.factory.Soak; n++ {
			key := fmt.Sprintf("key-%d", n)
			d, err := h.tryClaim(h.store, h.claimOf(key, "a", long))
			if err == nil {
				err = h.trySettle(h.store, kakutei.Ref{ID: h.id(key), Owner: "a", Attempt: d.Attempt}, kakutei.StatusSucceeded, answer(key))
			}
			if err == nil {
				d, err = h.tryClaim(h.other, h.claimOf(key, "b", long))
			}
			if err != nil || d.Outcome != kakutei.Replay {
				h.Errorf("%s: %v (%v)", key, d.Outcome, err)
				return
			}
		}
	})
}

// failedMayGo: nobody holds what has failed. With the record or without it, the
// operation runs again, and what still believes in the failed attempt is refused.
func failedMayGo(h *harness) {
	h.make("failed", []string{"failed"})
	h.retainAll()
	b := h.acquire(h.other, h.claimOf("failed", "b", long))
	if b.Attempt != 1 && b.Attempt != 2 {
		h.Errorf("attempt %d, want 2, or 1 if the record was removed", b.Attempt)
	}
	first := kakutei.Ref{ID: b.ID, Owner: "a", Attempt: 1}
	h.keeps("the failed attempt", b.ID, func() {
		h.wantLost("its renewal", h.tryRenew(h.store, first, 2*long))
		h.wantLost("its completion", h.trySettle(h.store, first, kakutei.StatusSucceeded, answer("a")))
	})
}
