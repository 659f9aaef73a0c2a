package pgstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// statement is one query of a transaction. Its arguments are Go values and
// slices of text, bytes and integers, which each door passes in its own way.
type statement struct {
	query string
	args  []any
	scan  func(rows) error // called for each row; nil if there are none
}

// rows is what pgx.Rows and sql.Rows have in common.
type rows interface{ Scan(dest ...any) error }

// door is a way to the database.
type door interface {
	// transact runs the statements in one READ COMMITTED transaction.
	transact(ctx context.Context, stmts []statement) error
	// exec runs one statement outside of a transaction.
	exec(ctx context.Context, query string, args ...any) (affected int64, err error)
	// query runs one query outside of a transaction.
	query(ctx context.Context, st statement) error
	// begin opens the transaction of a handler; note is told of its errors.
	begin(ctx context.Context, note func(error)) (handlerTx, error)
}

// run runs statements in one transaction, with the settings that they need, and
// again if the database refuses it for the sake of another one.
func (s *Store) run(ctx context.Context, stmts ...statement) error {
	all := append([]statement{{query: querySettings, scan: func(rows) error { return nil }}}, stmts...)
	for try := 0; ; try++ {
		err := s.door.transact(ctx, all)
		if err == nil || !isConflict(err) || try == maxTries || !pause(ctx, try) {
			return err
		}
	}
}

// pause sleeps for a random moment that grows with try, and reports whether ctx
// is still alive.
func pause(ctx context.Context, try int) bool {
	t := time.NewTimer(rand.N(time.Millisecond << min(try, 6)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

const (
	beginReadCommitted = "begin isolation level read committed"
	commit             = "commit"
)

// pgxDoor sends a whole transaction at once: one round trip.
type pgxDoor struct{ pool *pgxpool.Pool }

func (d pgxDoor) transact(ctx context.Context, stmts []statement) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return pipeline(ctx, conn.Conn(), stmts)
}

// pipeline runs a transaction in one round trip. If a statement fails, the
// server skips the rest, and the connection is left in a failed transaction,
// which is then rolled back.
func pipeline(ctx context.Context, conn *pgx.Conn, stmts []statement) (err error) {
	var b pgx.Batch
	b.Queue(beginReadCommitted)
	for _, st := range stmts {
		b.Queue(st.query, st.args...)
	}
	b.Queue(commit)
	results := conn.SendBatch(ctx, &b)
	defer func() {
		err = errors.Join(err, results.Close())
		if err != nil && conn.PgConn().TxStatus() != 'I' {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = conn.Exec(ctx, "rollback") // if it fails, the pool drops the connection
		}
	}()
	if _, err := results.Exec(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for _, st := range stmts {
		found, err := results.Query()
		if err != nil {
			return err
		}
		if err := each(found, st.scan); err != nil {
			return err
		}
	}
	if _, err := results.Exec(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// each gives every row of found to scan, unless that is nil, and closes found.
func each(found pgx.Rows, scan func(rows) error) error {
	defer found.Close()
	for found.Next() {
		if scan == nil {
			continue
		}
		if err := scan(found); err != nil {
			return err
		}
	}
	found.Close() // only then the error is complete
	return found.Err()
}

func (d pgxDoor) exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := d.pool.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (d pgxDoor) query(ctx context.Context, st statement) error {
	found, err := d.pool.Query(ctx, st.query, st.args...)
	if err != nil {
		return err
	}
	return each(found, st.scan)
}

func (d pgxDoor) begin(ctx context.Context, note func(error)) (handlerTx, error) {
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return nil, err
	}
	return pgxTx{watchedTx{Tx: tx, note: note}}, nil
}

// sqlDoor goes through database/sql. A driver that is pgx underneath pipelines;
// others send statement by statement.
type sqlDoor struct{ db *sql.DB }

func (d sqlDoor) transact(ctx context.Context, stmts []statement) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	pipelined := true
	err = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			pipelined = false
			return nil
		}
		return pipeline(ctx, c.Conn(), stmts)
	})
	if pipelined {
		return err
	}
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback()
	for _, st := range stmts {
		if err := querySQL(ctx, tx, st); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// sqlQueryer is what sql.DB and sql.Tx have in common.
type sqlQueryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func querySQL(ctx context.Context, q sqlQueryer, st statement) error {
	found, err := q.QueryContext(ctx, st.query, literals(st.args)...)
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		if st.scan == nil {
			continue
		}
		if err := st.scan(found); err != nil {
			return err
		}
	}
	return found.Err()
}

func (d sqlDoor) exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := d.db.ExecContext(ctx, query, literals(args)...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (d sqlDoor) query(ctx context.Context, st statement) error { return querySQL(ctx, d.db, st) }

func (d sqlDoor) begin(ctx context.Context, note func(error)) (handlerTx, error) {
	w, err := beginWatched(ctx, d.db, note)
	if err != nil {
		return nil, err
	}
	return sqlTx{Tx: w.Tx, end: w.giveBack}, nil
}

// literals writes slices as PostgreSQL's array literals, which every driver can
// pass as text.
func literals(args []any) []any {
	out := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case []string:
			out[i] = arrayLiteral(v, quoteElement)
		case [][]byte:
			out[i] = arrayLiteral(v, func(b []byte) string { return `"\\x` + hex.EncodeToString(b) + `"` })
		case []int64:
			out[i] = arrayLiteral(v, func(n int64) string { return strconv.FormatInt(n, 10) })
		default:
			out[i] = arg
		}
	}
	return out
}

func arrayLiteral[T any](values []T, element func(T) string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(element(v))
	}
	b.WriteByte('}')
	return b.String()
}

var elementEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func quoteElement(s string) string { return `"` + elementEscapes.Replace(s) + `"` }
