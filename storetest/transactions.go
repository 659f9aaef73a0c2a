package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// C18: in a Transaction the business writes and the settlement become visible
// together, or not at all.
func transactionCases() []testCase {
	all := []testCase{
		{title: "commit_shows_both", run: commitShowsBoth},
		{title: "rollback_undoes_all", production: cases(4), run: rollbackUndoesAll},
		{title: "nothing_written", run: nothingWritten},
		{title: "expired_is_still_held", run: commitAfterExpiry},
		{title: "lost_before_writing", production: cases(15), run: lostBeforeWriting},
		{title: "lost_after_writing", production: cases(15), run: lostAfterWriting},
		{title: "held_or_ended_is_not_committed", production: cases(17), run: endedIsNotCommitted},
		{title: "settled_is_not_written_again", production: cases(25), run: settledIsNotWrittenAgain},
		{title: "rolled_back_is_not_committed", run: rolledBackIsNotCommitted},
		{title: "refused_by_the_database", production: cases(26), needs: needRefuse, run: refusedByTheDatabase},
		{title: "visible_together", run: visibleTogether},
		{title: "many_at_once", run: manyAtOnce},
		{title: "blocks_nobody", production: cases(49), run: blocksNobody},
		{title: "cancelled_commit", production: cases(25), run: cancelledCommit},
	}
	for i := range all {
		all[i].needs |= needBusiness
	}
	return all
}

// run is one run of a transactional attempt.
type run struct {
	kakutei.Transaction
	h   *harness
	ref kakutei.Ref
	ctx context.Context // what the handler gets
	row string          // what it writes
}

func (h *harness) begin(s kakutei.Store, ref kakutei.Ref, row string) (*run, error) {
	tx, err := s.(kakutei.Transactor).Begin(h.Context(), ref)
	if err != nil {
		return nil, err
	}
	return &run{tx, h, ref, tx.Context(h.Context()), h.scope + " " + row}, nil
}

// mustBegin is begin for the test's own goroutine. What is left open is rolled
// back, so that a failed case does not block the others.
func (h *harness) mustBegin(s kakutei.Store, ref kakutei.Ref, row string) *run {
	h.Helper()
	r, err := h.begin(s, ref, row)
	if err != nil {
		h.Fatalf("begin: %v", err)
	}
	h.Cleanup(func() { _ = r.Rollback() }) // there may be nothing to roll back any more
	return r
}

func (r *run) write() {
	r.h.Helper()
	if err := r.h.business.Write(r.ctx, r.row); err != nil {
		r.h.Fatalf("business write: %v", err)
	}
}

// result is what the run's commit records.
func (r *run) result() kakutei.Result { return answer(r.row) }

func (r *run) commit() error {
	ctx, cancel := r.h.callContext()
	defer cancel()
	return r.Commit(ctx, kakutei.Settlement{Ref: r.ref, Status: kakutei.StatusSucceeded, Result: r.result()})
}

func (r *run) rollback() {
	r.h.Helper()
	if err := r.Rollback(); err != nil {
		r.h.Errorf("rollback: %v", err)
	}
}

func (h *harness) exists(row string) (bool, error) {
	ctx, cancel := h.callContext()
	defer cancel()
	return h.business.Exists(ctx, row)
}

// wantRow checks whether the business row of a run is there.
func (r *run) wantRow(what string, want bool) {
	r.h.Helper()
	got, err := r.h.exists(r.row)
	if err != nil {
		r.h.Fatal(err)
	}
	if got != want {
		r.h.Errorf("%s: the business row is there: %v, want %v", what, got, want)
	}
}

// wantCommitted checks that both parts of a run are there.
func (r *run) wantCommitted(what string) {
	r.h.Helper()
	r.wantRow(what, true)
	r.h.wantRecord(what, r.ref, kakutei.StatusSucceeded)
	for _, s := range r.h.handles() {
		r.h.wantReplay(what, r.h.claim(s, r.h.claimOf(r.ref.Key, "late", long)), r.result())
	}
}

func commitShowsBoth(h *harness) {
	for i, s := range h.handles() {
		ref := h.acquire(h.store, h.claimOf(fmt.Sprintf("key-%d", i), "a", long))
		r := h.mustBegin(s, ref, ref.Key)
		r.write()
		r.wantRow("before the commit", false)
		h.wantRecord("before the commit", ref, kakutei.StatusProcessing)
		if r.Conflicted() {
			h.Error("a transaction that nothing happened to is marked as conflicted")
		}
		if err := r.commit(); err != nil {
			h.Fatalf("commit: %v", err)
		}
		r.wantCommitted("after the commit")
		// The engine rolls back whatever happened before; and a settlement whose
		// answer was lost is sent again without a transaction.
		_ = r.Rollback() // it may say that there is nothing
		_ = r.Rollback() // twice
		if r.Exclusive() {
			h.Error("a transaction that has ended keeps others waiting")
		}
		h.settle(h.store, ref, kakutei.StatusSucceeded, r.result())
		r.wantCommitted("after rollbacks that came too late")
	}
}

func rollbackUndoesAll(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	r := h.mustBegin(h.store, ref, "row")
	r.write()
	r.rollback()
	_ = r.Rollback() // it may say that there is nothing; it is to do nothing
	if r.Exclusive() {
		h.Error("a transaction that was rolled back keeps others waiting")
	}
	r.wantRow("after a rollback", false)
	h.wantRecord("after a rollback", ref, kakutei.StatusProcessing)
	// The attempt goes on: it may run again, or fail, and then somebody else does.
	h.settle(h.store, ref, kakutei.StatusFailed, kakutei.Result{})
	b := h.acquire(h.other, h.claimOf("key", "b", long))
	again := h.mustBegin(h.other, b, "row")
	again.write()
	if err := again.commit(); err != nil {
		h.Fatalf("commit of the next attempt: %v", err)
	}
	again.wantCommitted("the next attempt")
}

// nothingWritten: a handler that never asks for its transaction settles all the
// same, also if the store has not opened one.
func nothingWritten(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	r := h.mustBegin(h.other, ref, "row")
	if err := r.commit(); err != nil {
		h.Fatalf("commit: %v", err)
	}
	h.wantRecord("nothing written", ref, kakutei.StatusSucceeded)
	h.wantReplay("nothing written", h.claim(h.store, h.claimOf("key", "b", long)), r.result())

	ref = h.acquire(h.store, h.claimOf("key 2", "a", long))
	r = h.mustBegin(h.store, ref, "row 2")
	r.rollback()
	_ = r.Rollback() // it may say that there is nothing
	h.wantRecord("nothing written, rolled back", ref, kakutei.StatusProcessing)
}

func commitAfterExpiry(h *harness) {
	ref := h.expired("key", "a")
	r := h.mustBegin(h.store, ref, "row")
	r.write()
	if err := r.commit(); err != nil {
		h.Fatalf("commit after the lease has run out: %v", err)
	}
	r.wantCommitted("late, but not taken over")
}

// lostBeforeWriting: another attempt has taken over before the handler writes.
func lostBeforeWriting(h *harness) {
	a := h.expired("key", "a")
	r := h.mustBegin(h.store, a, "row of a")
	if r.Exclusive() {
		h.Skip("not applicable: nobody can take over from an open transaction of this store")
	}
	b := h.acquire(h.other, h.claimOf("key", "b", long))
	r.write()
	h.keeps("the commit of an attempt that has lost its lease", b.ID, func() {
		h.wantLost("commit", r.commit())
		r.wantRow("after a refused commit", false)
	})
	_ = r.Rollback() // the commit has rolled back
	r.wantRow("after a refused commit and a rollback", false)
	winner := h.mustBegin(h.other, b, "row of b")
	winner.write()
	if err := winner.commit(); err != nil {
		h.Fatalf("commit of the winner: %v", err)
	}
	winner.wantCommitted("the winner")
}

// lostAfterWriting: the same with the write before the takeover, which a store
// that keeps other writers waiting does not let happen.
func lostAfterWriting(h *harness) {
	a := h.expired("key", "a")
	r := h.mustBegin(h.store, a, "row of a")
	r.write()
	if r.Exclusive() {
		h.Skip("not applicable: nobody can take over from an open transaction of this store")
	}
	b := h.acquire(h.other, h.claimOf("key", "b", long))
	winner := h.mustBegin(h.other, b, "row of b")
	winner.write()
	if err := winner.commit(); err != nil {
		h.Fatalf("commit of the winner: %v", err)
	}
	h.wantLost("commit of the loser", r.commit())
	r.wantRow("after a refused commit", false)
	winner.wantCommitted("the winner")
}

// endedIsNotCommitted: neither an attempt that is held, nor one that has failed,
// nor one with another owner or number, commits anything.
func endedIsNotCommitted(h *harness) {
	held := h.expired("held", "a")
	h.wantDecision("under Hold", h.claim(h.other, holding(h.claimOf("held", "b", long))), kakutei.Uncertain, 1)
	failed := h.acquire(h.store, h.claimOf("failed", "a", long))
	h.settle(h.store, failed, kakutei.StatusFailed, kakutei.Result{})
	owner := h.acquire(h.store, h.claimOf("other owner", "a", long))
	owner.Owner = "b"
	attempt := h.acquire(h.store, h.claimOf("other attempt", "a", long))
	attempt.Attempt = 2
	none := kakutei.Ref{ID: h.id("none"), Owner: "a", Attempt: 1}
	for _, ref := range []kakutei.Ref{held, failed, owner, attempt, none} {
		r := h.mustBegin(h.store, ref, ref.Key)
		r.write()
		h.keeps("a commit, "+ref.Key+",", ref.ID, func() {
			h.wantLost("commit, "+ref.Key, r.commit())
			r.wantRow(ref.Key, false)
		})
		_ = r.Rollback() // the commit has rolled back
		r.wantRow(ref.Key, false)
	}
}

// settledIsNotWrittenAgain: a commit whose answer was lost may yet arrive after
// the attempt was run again. The second run finds the operation settled by its
// own attempt. To settle again alike is a success without effect (C11), but the
// business writes of the second run are an effect: they are rolled back,
// whatever the commit answers.
func settledIsNotWrittenAgain(h *harness) {
	for _, how := range []string{"by a commit", "without a transaction"} {
		ref := h.acquire(h.store, h.claimOf(how, "a", long))
		first := h.mustBegin(h.store, ref, how+", first run")
		if how == "by a commit" {
			first.write()
			if err := first.commit(); err != nil {
				h.Fatalf("commit: %v", err)
			}
		} else {
			h.settle(h.store, ref, kakutei.StatusSucceeded, first.result())
		}
		second := h.mustBegin(h.other, ref, how+", second run")
		second.write()
		h.keeps("the second run", ref.ID, func() {
			if err := second.commit(); err != nil {
				h.wantLost("commit of the second run", err)
			}
		})
		second.wantRow("settled "+how+"; the second run", false)
	}
}

// rolledBackIsNotCommitted: what was undone stays so.
func rolledBackIsNotCommitted(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	r := h.mustBegin(h.store, ref, "row")
	r.write()
	r.rollback()
	if err := r.commit(); err == nil {
		h.Error("a transaction that was rolled back has been committed")
	}
	r.wantRow("rolled back, then committed", false)
	h.wantRecord("rolled back, then committed", ref, kakutei.StatusProcessing)
}

// refusedByTheDatabase: all is rolled back, the attempt still holds the
// operation, and running again works.
func refusedByTheDatabase(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	r := h.mustBegin(h.store, ref, "row")
	r.write()
	if err := h.business.Refuse(r.ctx); err != nil && !errors.Is(err, kakutei.ErrConflict) {
		h.Logf("the handler is told: %v", err)
	}
	conflicted := r.Conflicted()
	if err := r.commit(); !errors.Is(err, kakutei.ErrConflict) {
		h.Errorf("commit: error %v (conflicted: %v), want ErrConflict", err, conflicted)
	}
	_ = r.Rollback() // the database has rolled back
	r.wantRow("refused", false)
	h.wantRecord("refused", ref, kakutei.StatusProcessing)
	again := h.mustBegin(h.store, ref, "row")
	again.write()
	if err := again.commit(); err != nil {
		h.Fatalf("commit of the next run: %v", err)
	}
	again.wantCommitted("the next run")
}
