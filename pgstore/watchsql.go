package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
)

// watchedSQL borrows a connection of the caller's pool for the transaction of
// one handler, and gives it a *sql.Tx that notes what the database refuses:
// database/sql has no hook for that, so the driver's connection is put into a
// pool of its own, of one, behind a driver that passes everything on.
type watchedSQL struct {
	*sql.Tx
	pool *sql.DB
	conn *sql.Conn
	free chan struct{}
	bad  *atomic.Bool
}

// beginWatched begins a transaction on a connection of db.
func beginWatched(ctx context.Context, db *sql.DB, note func(error)) (*watchedSQL, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &watchedSQL{conn: conn, free: make(chan struct{}), bad: new(atomic.Bool)}
	lent := make(chan driver.Conn)
	failed := make(chan error, 1)
	go func() {
		failed <- conn.Raw(func(c any) error {
			inner, ok := c.(driver.Conn)
			if !ok {
				return errors.New("pgstore: the driver has no connections of the usual kind")
			}
			lent <- inner
			<-w.free
			if w.bad.Load() {
				return driver.ErrBadConn // the pool must not use it again
			}
			return nil
		})
		_ = conn.Close() // only gives it back
	}()
	var inner driver.Conn
	select {
	case inner = <-lent:
	case err := <-failed:
		return nil, err
	}
	w.pool = sql.OpenDB(single{&watchedConn{inner: inner, bad: w.bad, note: note}})
	w.pool.SetMaxOpenConns(1)
	if w.Tx, err = w.pool.BeginTx(ctx, nil); err != nil {
		w.giveBack()
		return nil, err
	}
	return w, nil
}

// giveBack returns the connection to the caller's pool.
func (w *watchedSQL) giveBack() {
	_ = w.pool.Close() // closes nothing: see watchedConn.Close
	close(w.free)
}

// single is the connector of a pool of one connection.
type single struct{ conn *watchedConn }

func (s single) Connect(context.Context) (driver.Conn, error) { return s.conn, nil }
func (s single) Driver() driver.Driver                        { return s }

// Open is never called: the pool has a connector.
func (s single) Open(string) (driver.Conn, error) { return s.conn, nil }

// watchedConn passes on to the driver's connection, and notes errors.
type watchedConn struct {
	inner driver.Conn
	bad   *atomic.Bool
	note  func(error)
}

func (c *watchedConn) seen(err error) error {
	if errors.Is(err, driver.ErrBadConn) {
		c.bad.Store(true)
	}
	c.note(err)
	return err
}

func (c *watchedConn) Close() error { return nil } // it is lent

func (c *watchedConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Begin is what the interface wants; BeginTx is what is called.
func (c *watchedConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *watchedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	b, ok := c.inner.(driver.ConnBeginTx)
	if !ok {
		return nil, errors.New("pgstore: the driver cannot begin a transaction with a context")
	}
	tx, err := b.BeginTx(ctx, opts)
	return tx, c.seen(err)
}

func (c *watchedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	p, ok := c.inner.(driver.ConnPrepareContext)
	if !ok {
		return nil, errors.New("pgstore: the driver cannot prepare with a context")
	}
	stmt, err := p.PrepareContext(ctx, query)
	if c.seen(err) != nil {
		return nil, err
	}
	return watchedStmt{Stmt: stmt, conn: c}, nil
}

func (c *watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	e, ok := c.inner.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	res, err := e.ExecContext(ctx, query, args)
	return res, c.seen(err)
}

func (c *watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	q, ok := c.inner.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	found, err := q.QueryContext(ctx, query, args)
	return found, c.seen(err)
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *watchedConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.inner.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// watchedStmt notes the errors of a prepared statement.
type watchedStmt struct {
	driver.Stmt
	conn *watchedConn
}

func (s watchedStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	e, ok := s.Stmt.(driver.StmtExecContext)
	if !ok {
		return nil, errors.New("pgstore: the driver's statements take no context")
	}
	res, err := e.ExecContext(ctx, args)
	return res, s.conn.seen(err)
}

func (s watchedStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	q, ok := s.Stmt.(driver.StmtQueryContext)
	if !ok {
		return nil, errors.New("pgstore: the driver's statements take no context")
	}
	found, err := q.QueryContext(ctx, args)
	return found, s.conn.seen(err)
}
