package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/kakutei-go/kakutei"
)

// handlerTx is the transaction of a handler, by either door.
type handlerTx interface {
	run(ctx context.Context, stmts []statement) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

type pgxTx struct{ pgx.Tx }

func (t pgxTx) run(ctx context.Context, stmts []statement) error {
	for _, st := range stmts {
		found, err := t.Query(ctx, st.query, st.args...)
		if err != nil {
			return err
		}
		if err := each(found, st.scan); err != nil {
			return err
		}
	}
	return nil
}

func (t pgxTx) commit(ctx context.Context) error   { return t.Commit(ctx) }
func (t pgxTx) rollback(ctx context.Context) error { return t.Rollback(ctx) }

// sqlTx is a transaction of database/sql; end, unless nil, is called after it.
type sqlTx struct {
	*sql.Tx
	end func()
}

func (t sqlTx) run(ctx context.Context, stmts []statement) error {
	for _, st := range stmts {
		if err := querySQL(ctx, t.Tx, st); err != nil {
			return err
		}
	}
	return nil
}

func (t sqlTx) commit(context.Context) error { return t.Commit() }

func (t sqlTx) rollback(context.Context) error {
	err := t.Rollback()
	if t.end != nil {
		t.end()
	}
	return err
}

// transaction is one run of a transactional attempt. The database transaction is
// opened when the handler first asks for it, at the isolation level that the
// role or the database has by default.
type transaction struct {
	s   *Store
	ctx context.Context // of the attempt

	conflict atomic.Bool // the database refused a statement of the handler

	mu    sync.Mutex
	tx    handlerTx
	over  bool
	ended bool // rolled back, or committed and given back
}

type txKey struct{}

// Tx returns the transaction of the attempt that ctx belongs to, for a store
// made by [New]; the first call opens it. What is written through it is
// committed together with the recorded result, or not at all. Committing or
// rolling it back by hand is an error.
//
// When the database refuses the transaction (serialization failure, deadlock),
// the handler is run again with a new one, within its deadline.
func Tx(ctx context.Context) (pgx.Tx, error) {
	tx, err := opened[pgxTx](ctx, "TxDB")
	return tx.Tx, err
}

// TxDB is [Tx] for a store made by [NewDB].
func TxDB(ctx context.Context) (*sql.Tx, error) {
	tx, err := opened[sqlTx](ctx, "Tx")
	return tx.Tx, err
}

// opened returns the database transaction of ctx, which must be of the door T.
func opened[T handlerTx](ctx context.Context, other string) (tx T, err error) {
	t, _ := ctx.Value(txKey{}).(*transaction)
	if t == nil {
		return tx, errors.New("pgstore: there is no transaction here: it is for handlers whose route has Recovery: kakutei.Transactional and an engine on pgstore")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return tx, errors.New("pgstore: the attempt has ended, and its transaction with it")
	}
	if t.tx == nil {
		if t.tx, err = t.s.door.begin(t.ctx, t.note); err != nil {
			return tx, fmt.Errorf("pgstore: begin: %w", err)
		}
	}
	tx, ok := t.tx.(T)
	if !ok {
		return tx, fmt.Errorf("pgstore: the store has the other door; use %s", other)
	}
	return tx, nil
}

// note remembers that the database refused a statement of the handler for the
// sake of another transaction.
func (t *transaction) note(err error) {
	if isConflict(err) {
		t.conflict.Store(true)
	}
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
		return t.s.settleOne(ctx, x)
	}
	defer t.rollBack() // after the commit, it gives the connection back
	err := t.s.settleIn(ctx, t.tx, x)
	if err == nil {
		if err = t.tx.commit(ctx); err != nil {
			err = fmt.Errorf("commit: %w", err)
		}
	}
	if err == nil {
		return nil
	}
	switch {
	case sqlState(err) == codeFailedTransaction && x.Result.Code >= 400:
		// A statement of the handler failed, and the handler answered accordingly.
		// The answer stands, without what was written before the failure.
		t.rollBack()
		return t.s.settleOne(ctx, x)
	case sqlState(err) == codeFailedTransaction:
		t.rollBack()
		return fmt.Errorf("%w: pgstore: the handler answered with success although a statement of its transaction had failed; nothing was kept", kakutei.ErrInvalid)
	case sqlState(err) == codeNoPartition:
		t.rollBack()
		if made := t.s.makePartitions(ctx); made != nil {
			return fmt.Errorf("pgstore: %w", made)
		}
		return fmt.Errorf("%w: %w", kakutei.ErrConflict, errNoPartition)
	case isConflict(err):
		return fmt.Errorf("%w: %w", kakutei.ErrConflict, err)
	}
	return fmt.Errorf("pgstore: settle: %w", err)
}

// settleOne settles an attempt in a transaction of its own.
func (s *Store) settleOne(ctx context.Context, x kakutei.Settlement) error {
	errs, err := s.Settle(ctx, []kakutei.Settlement{x})
	if err != nil {
		return err
	}
	return errs[0]
}

// settleIn settles an attempt within a transaction.
func (s *Store) settleIn(ctx context.Context, tx handlerTx, x kakutei.Settlement) error {
	refused, settled := make([]error, 1), make([]bool, 1)
	stmts := s.settleStatements([]kakutei.Settlement{x}, refused, settled)
	if refused[0] != nil {
		return refused[0]
	}
	if err := tx.run(ctx, stmts); err != nil {
		return err
	}
	if !settled[0] {
		return kakutei.ErrLeaseLost
	}
	return nil
}

// rollBack ends the database transaction, once. After a commit it only gives the
// connection back.
func (t *transaction) rollBack() {
	if t.tx == nil || t.ended {
		return
	}
	t.ended = true
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
	defer cancel()
	_ = t.tx.rollback(ctx) // if it fails, the connection is dropped with all that was done
}

// Rollback implements [kakutei.Transaction].
func (t *transaction) Rollback() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.rollBack()
	return nil
}

// Exclusive implements [kakutei.Transaction]: PostgreSQL has many writers.
func (t *transaction) Exclusive() bool { return false }

// Conflicted implements [kakutei.Transaction].
func (t *transaction) Conflicted() bool {
	return t.conflict.Load()
}
