package pgstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/kakutei-go/kakutei"
)

// CompleteTx settles the attempt ref as succeeded inside a transaction that the
// caller runs and commits: for programs that keep to their own transactions. Its
// error is [kakutei.ErrLeaseLost] if the attempt does not hold its operation;
// then the transaction must be rolled back. The transaction must be READ
// COMMITTED, or be tried again as a whole when it is refused.
func (s *Store) CompleteTx(ctx context.Context, tx pgx.Tx, ref kakutei.Ref, result kakutei.Result) error {
	return s.completeIn(ctx, pgxTx{tx}, ref, result)
}

// CompleteTxDB is [Store.CompleteTx] for database/sql.
func (s *Store) CompleteTxDB(ctx context.Context, tx *sql.Tx, ref kakutei.Ref, result kakutei.Result) error {
	return s.completeIn(ctx, sqlTx{Tx: tx}, ref, result)
}

func (s *Store) completeIn(ctx context.Context, tx handlerTx, ref kakutei.Ref, result kakutei.Result) error {
	err := s.settleIn(ctx, tx, kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: result})
	if err != nil {
		return fmt.Errorf("pgstore: complete: %w", err)
	}
	return nil
}

// FenceTx makes sure, inside a transaction of the caller's, that the attempt ref
// holds its operation, and keeps it so until the transaction ends: nobody can
// take the operation over before. Its error is [kakutei.ErrLeaseLost] if not.
func (s *Store) FenceTx(ctx context.Context, tx pgx.Tx, ref kakutei.Ref) error {
	return s.fenceIn(ctx, pgxTx{tx}, ref)
}

// FenceTxDB is [Store.FenceTx] for database/sql.
func (s *Store) FenceTxDB(ctx context.Context, tx *sql.Tx, ref kakutei.Ref) error {
	return s.fenceIn(ctx, sqlTx{Tx: tx}, ref)
}

func (s *Store) fenceIn(ctx context.Context, tx handlerTx, ref kakutei.Ref) error {
	held := false
	err := tx.run(ctx, []statement{{
		query: s.sql.fence, args: []any{ref.Scope, ref.Key, ref.Owner, ref.Attempt},
		scan: func(rows) error { held = true; return nil },
	}})
	if err != nil {
		return fmt.Errorf("pgstore: fence: %w", err)
	}
	if !held {
		return kakutei.ErrLeaseLost
	}
	return nil
}
