package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kakutei-go/kakutei"
)

// transaction is one run of a transactional attempt. The database transaction
// is opened when the handler first asks for it, since from then on the file has
// no other writer.
type transaction struct {
	s   *Store
	ctx context.Context // of the attempt: when it ends, the transaction is undone

	// undone tells that SQLite has ended the transaction; see guard.go.
	undone atomic.Bool

	mu       sync.Mutex
	tx       *sql.Tx
	over     bool
	conflict bool
}

type txKey struct{}

// Tx returns the transaction of the attempt that ctx belongs to; the first call
// opens it. What is written through it is committed together with the recorded
// result, or not at all. Do not end it by hand: a commit is refused, and after a
// rollback the attempt cannot succeed.
//
// From the first call until the handler ends no other write of the file goes
// on: ask for it late, and do nothing slow after. Outside of a handler whose
// route has Recovery: kakutei.Transactional, Tx returns an error.
func Tx(ctx context.Context) (*sql.Tx, error) {
	t, _ := ctx.Value(txKey{}).(*transaction)
	if t == nil {
		return nil, errors.New("sqlite: there is no transaction here: Tx works inside a handler whose route has Recovery: kakutei.Transactional and a sqlitestore engine")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.over:
		return nil, errors.New("sqlite: the attempt has ended, and its transaction with it")
	case t.tx != nil:
		return t.tx, nil
	}
	err := retryBusy(t.ctx, func() (err error) {
		t.tx, err = t.s.begin(t.ctx, t)
		return err
	})
	if err != nil {
		t.conflict = isBusy(err)
		return nil, fmt.Errorf("sqlite: begin: %w", err)
	}
	return t.tx, nil
}

// Begin implements [kakutei.Transactor].
func (s *Store) Begin(ctx context.Context, _ kakutei.Ref) (kakutei.Transaction, error) {
	return &transaction{s: s, ctx: ctx}, nil
}

// Context implements [kakutei.Transaction].
func (t *transaction) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, t)
}

// Commit implements [kakutei.Transaction].
func (t *transaction) Commit(ctx context.Context, x kakutei.Settlement) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.tx == nil { // nothing was written: settle with everybody else's
		errs, err := t.s.Settle(ctx, []kakutei.Settlement{x})
		if err == nil {
			err = errs[0]
		}
		return err
	}
	defer t.tx.Rollback() // without effect after a commit
	defer t.s.holder.CompareAndSwap(t, nil)
	g := &group{Tx: t.tx, s: t.s}
	var err error
	var ended bool
	if g.now, err = t.s.now(ctx, t.tx); err == nil {
		ended, err = g.end(ctx, x)
	}
	switch {
	case t.undone.Load():
		err = errUndone
	case err == nil && !ended:
		// Also if it has settled so already: to do that again is no harm, but the
		// handler has written again.
		err = kakutei.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("sqlite: settle: %w", err)
	}
	t.s.holder.CompareAndSwap(t, nil)
	if err := g.commit(); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	return nil
}

// Rollback implements [kakutei.Transaction].
func (t *transaction) Rollback() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.tx == nil {
		return nil
	}
	t.s.holder.CompareAndSwap(t, nil)
	if err := t.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("sqlite: roll back: %w", err)
	}
	return nil
}

// Exclusive implements [kakutei.Transaction].
func (t *transaction) Exclusive() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tx != nil && !t.over
}

// Conflicted implements [kakutei.Transaction].
func (t *transaction) Conflicted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conflict
}
