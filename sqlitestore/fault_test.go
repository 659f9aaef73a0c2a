package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"

	"modernc.org/sqlite"
)

// openFaulty opens the file with a writer whose every step goes through hook:
// twice, before and after it is done. An error of hook becomes the step's own.
// The store under test is unchanged but for the driver underneath.
func openFaulty(path string, hook func(when, step string) error) (*Store, error) {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return nil, err
	}
	connector, err := sqlite.NewConnector(dsn(path, "immediate", "synchronous(FULL)"))
	if err != nil {
		return nil, err
	}
	s.write.Close()
	s.write = sql.OpenDB(&faultyConnector{guarded{connector, s}, hook})
	s.write.SetMaxOpenConns(1)
	s.write.SetMaxIdleConns(1)
	s.record.Close()
	return s, s.prepare(ctx)
}

func faulty(t *testing.T, path string, hook func(when, step string) error) *Store {
	t.Helper()
	s, err := openFaulty(path, hook)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type faultyConnector struct {
	driver.Connector
	hook func(when, step string) error
}

func (c *faultyConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyConn{conn, c.hook}, nil
}

type faultyConn struct {
	driver.Conn
	hook func(when, step string) error
}

// around does one step between the two calls of the hook. drop is what becomes
// of a step that was done and is said to have failed.
func around[T any](hook func(when, step string) error, step string, do func() (T, error), drop func(T)) (T, error) {
	var zero T
	if err := hook("before", step); err != nil {
		return zero, err
	}
	v, err := do()
	if err != nil {
		return zero, err
	}
	if err := hook("after", step); err != nil {
		drop(v)
		return zero, err
	}
	return v, nil
}

func nothing[T any](T) {}

func closeRows(rows driver.Rows) { rows.Close() }

// stepOf names a statement by its first words.
func stepOf(query string) string {
	words := strings.Fields(query)
	return strings.Join(words[:min(len(words), 3)], " ")
}

func (c *faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return around(c.hook, "BEGIN", func() (driver.Tx, error) {
		tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return &faultyTx{tx, c.hook}, err
	}, func(tx driver.Tx) {
		tx.(*faultyTx).Tx.Rollback() //nolint:errcheck // its connection goes on in any case
	})
}

func (c *faultyConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	st, err := c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
	return &faultyStmt{st, c.hook, stepOf(query)}, err
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return around(c.hook, stepOf(query), func() (driver.Result, error) {
		return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	}, nothing)
}

func (c *faultyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return around(c.hook, stepOf(query), func() (driver.Rows, error) {
		return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
	}, closeRows)
}

func (c *faultyConn) ResetSession(ctx context.Context) error {
	return c.Conn.(driver.SessionResetter).ResetSession(ctx)
}

func (c *faultyConn) IsValid() bool { return c.Conn.(driver.Validator).IsValid() }

type faultyTx struct {
	driver.Tx
	hook func(when, step string) error
}

func (tx *faultyTx) Commit() error {
	_, err := around(tx.hook, "COMMIT", func() (struct{}, error) { return struct{}{}, tx.Tx.Commit() }, nothing)
	if err != nil {
		// A driver whose COMMIT failed has ended the transaction; modernc's does.
		tx.Tx.Rollback() //nolint:errcheck // there is none left if the COMMIT was done
	}
	return err
}

func (tx *faultyTx) Rollback() error {
	_, err := around(tx.hook, "ROLLBACK", func() (struct{}, error) { return struct{}{}, tx.Tx.Rollback() }, nothing)
	return err
}

type faultyStmt struct {
	driver.Stmt
	hook func(when, step string) error
	step string
}

func (st *faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return around(st.hook, st.step, func() (driver.Result, error) {
		return st.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
	}, nothing)
}

func (st *faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return around(st.hook, st.step, func() (driver.Rows, error) {
		return st.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	}, closeRows)
}
