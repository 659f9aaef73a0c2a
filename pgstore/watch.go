package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// watchedTx is the transaction that a handler gets. It notes when the database
// refuses a statement for the sake of another transaction: the handler can only
// give up then, and is run again.
type watchedTx struct {
	pgx.Tx
	note func(error)
}

func (t watchedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.Tx.Begin(ctx)
	t.note(err)
	if err != nil {
		return nil, err
	}
	return watchedTx{Tx: tx, note: t.note}, nil
}

func (t watchedTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	tag, err := t.Tx.Exec(ctx, query, args...)
	t.note(err)
	return tag, err
}

func (t watchedTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	found, err := t.Tx.Query(ctx, query, args...)
	t.note(err)
	if err != nil {
		return found, err
	}
	return watchedRows{Rows: found, note: t.note}, nil
}

func (t watchedTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return watchedRow{row: t.Tx.QueryRow(ctx, query, args...), note: t.note}
}

func (t watchedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	n, err := t.Tx.CopyFrom(ctx, table, columns, src)
	t.note(err)
	return n, err
}

func (t watchedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return watchedBatch{BatchResults: t.Tx.SendBatch(ctx, b), note: t.note}
}

type watchedRows struct {
	pgx.Rows
	note func(error)
}

func (r watchedRows) Err() error {
	err := r.Rows.Err()
	r.note(err)
	return err
}

type watchedRow struct {
	row  pgx.Row
	note func(error)
}

func (r watchedRow) Scan(dest ...any) error {
	err := r.row.Scan(dest...)
	r.note(err)
	return err
}

type watchedBatch struct {
	pgx.BatchResults
	note func(error)
}

func (b watchedBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	b.note(err)
	return tag, err
}

func (b watchedBatch) Query() (pgx.Rows, error) {
	found, err := b.BatchResults.Query()
	b.note(err)
	if err != nil {
		return found, err
	}
	return watchedRows{Rows: found, note: b.note}, nil
}

func (b watchedBatch) QueryRow() pgx.Row {
	return watchedRow{row: b.BatchResults.QueryRow(), note: b.note}
}

func (b watchedBatch) Close() error {
	err := b.BatchResults.Close()
	b.note(err)
	return err
}
