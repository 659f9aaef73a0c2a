package storetest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kakutei-go/kakutei"
)

// The cases of C18 that watch from outside while transactions end.

// visibleTogether: whoever sees the result sees the row, and the other way
// round, at every moment around the commit.
func visibleTogether(h *harness) {
	const watchers = 3
	h.repeat(10, func(round int) {
		ref := h.acquire(h.store, h.claimOf(fmt.Sprintf("key-%d", round), "a", long))
		r := h.mustBegin(h.handle(round), ref, ref.Key)
		r.write()
		var done atomic.Bool
		together(watchers+1, func(i int) {
			if i == watchers {
				defer done.Store(true)
				if err := r.commit(); err != nil {
					h.Errorf("commit: %v", err)
				}
				return
			}
			s := h.handle(i)
			for last := false; !last && !h.Failed(); {
				last = done.Load()
				// What is seen second is seen later: if the first is there, the
				// second must be.
				rec, err1 := h.tryLook(s, ref.ID)
				row, err2 := h.exists(r.row)
				if err := errors.Join(err1, err2); err != nil {
					h.Error(err)
				}
				if rec.Status == kakutei.StatusSucceeded && !row {
					h.Error("the result is there, but the business row is not")
				}
				row, err2 = h.exists(r.row)
				rec, err1 = h.tryLook(s, ref.ID)
				if err := errors.Join(err1, err2); err != nil {
					h.Error(err)
				}
				if row && rec.Status != kakutei.StatusSucceeded {
					h.Errorf("the business row is there, but the record is %v", rec.Status)
				}
			}
		})
		r.wantCommitted("after the race")
	})
}

// manyAtOnce: transactions of different operations, on all handles; every third
// is rolled back.
func manyAtOnce(h *harness) {
	keys := keysOf("key", 24)
	refs := h.acquireAll(h.store, keys, "a", long)
	runs := make([]*run, len(keys))
	together(len(keys), func(i int) {
		r, err := h.begin(h.handle(i), refs[i], keys[i])
		if err != nil {
			h.Errorf("begin: %v", err)
			return
		}
		runs[i] = r
		defer func() { _ = r.Rollback() }() // as the engine does
		if err := h.business.Write(r.ctx, r.row); err != nil {
			h.Errorf("business write: %v", err)
			return
		}
		if i%3 == 2 {
			return
		}
		if err := r.commit(); err != nil {
			h.Errorf("commit: %v", err)
		}
	})
	if h.Failed() {
		return
	}
	for i, r := range runs {
		if i%3 == 2 {
			r.wantRow("rolled back", false)
			h.wantRecord("rolled back", refs[i], kakutei.StatusProcessing)
			continue
		}
		r.wantCommitted("committed beside others")
	}
}

// blocksNobody: a handler may take minutes. Meanwhile its record is looked at
// without waiting; and unless the store says that its transactions keep others
// waiting, duplicates are refused and other operations run their whole lives.
func blocksNobody(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	r := h.mustBegin(h.store, ref, "row")
	r.write()
	for _, s := range h.handles() {
		if rec := h.look(s, ref.ID); rec.Status != kakutei.StatusProcessing {
			h.Errorf("beside the open transaction the record is %v", rec.Status)
		}
	}
	if r.Exclusive() {
		h.Log("the store says that its transactions keep others waiting; only looking is tested")
	} else {
		for i, s := range h.handles() {
			h.wantDecision("a duplicate", h.claim(s, h.claimOf("key", "b", long)), kakutei.InFlight, 1)
			other := h.acquire(s, h.claimOf(fmt.Sprintf("other-%d", i), "b", long))
			h.renew(s, other, long)
			h.settle(s, other, kakutei.StatusSucceeded, answer("other"))
		}
		h.renew(h.other, ref, long) // its own lease, above all
	}
	if err := r.commit(); err != nil {
		h.Fatalf("commit: %v", err)
	}
	r.wantCommitted("at the end")
}

// cancelledCommit did or did not happen, as a whole. It may even happen after
// the caller has gone, and after the record was looked at; then the second run
// finds the operation settled. In the end one of the two runs has both its row
// and its result there, and the other has neither.
func cancelledCommit(h *harness) {
	random := h.random()
	committed := 0
	h.repeat(20, func(round int) {
		key := fmt.Sprintf("key-%d", round)
		ref := h.acquire(h.store, h.claimOf(key, "a", long))
		first := h.mustBegin(h.handle(round/4), ref, key+", first run")
		first.write()
		ctx, cancel := h.doomed(round, random.Int64N)
		err := first.Commit(ctx, kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: first.result()})
		cancel()
		_ = first.Rollback() // as the engine does
		switch rec := h.look(h.other, ref.ID); {
		case errors.Is(err, kakutei.ErrLeaseLost):
			h.Errorf("nobody has taken over, but the commit answers %v", err)
		case err == nil && rec.Status != kakutei.StatusSucceeded:
			h.Errorf("committed in spite of it, but the record is %v", rec.Status)
		case rec.Status == kakutei.StatusSucceeded:
			committed++
			first.wantCommitted("a cancelled commit that happened")
			return
		}
		second := h.mustBegin(h.other, ref, key+", second run")
		second.write()
		if err := second.commit(); err != nil {
			h.wantLost("commit of the second run", err)
		}
		winner, loser := first, second
		if string(h.look(h.store, ref.ID).Result.Body) == second.row {
			winner, loser = second, first
		}
		winner.wantCommitted("after two runs")
		loser.wantRow("after two runs, the other one", false)
	})
	h.Logf("%d of them were committed when they were cancelled", committed)
}
