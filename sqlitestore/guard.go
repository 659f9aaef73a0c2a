package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"modernc.org/sqlite"

	"github.com/kakutei-go/kakutei"
)

// guarded makes connections on which the store alone ends the transaction of an
// attempt. To end it by hand is an easy mistake ("defer tx.Rollback()", "return
// tx.Commit()"), and SQLite does so by itself at OR ROLLBACK and after some
// errors. Then the handler's writes would be kept without the result, or the
// result without the writes.
type guarded struct {
	driver.Connector
	s *Store
}

// errUndone is an ErrInvalid: to run such a handler again would end the same way.
var errUndone = fmt.Errorf("%w: the transaction was ended by the handler, or by SQLite after an error, and everything in it was undone", kakutei.ErrInvalid)

// Connect implements [driver.Connector].
func (g guarded) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := g.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	hooks, ok := conn.(sqlite.HookRegisterer)
	if !ok {
		return nil, errors.Join(errors.New("the driver has no hooks"), conn.Close())
	}
	hooks.RegisterCommitHook(func() int32 {
		if t := g.s.holder.Load(); t != nil && t.ctx.Err() == nil {
			return 1 // SQLite rolls back instead
		}
		return 0
	})
	hooks.RegisterRollbackHook(func() {
		if t := g.s.holder.Load(); t != nil {
			t.undone.Store(true)
		}
	})
	return conn, nil
}

// begin begins a transaction that belongs to holder; nil is the store itself.
// Whoever has begun has the connection, so nobody else is the holder any more.
func (s *Store) begin(ctx context.Context, holder *transaction) (*sql.Tx, error) {
	tx, err := s.write.BeginTx(ctx, nil)
	if err == nil {
		s.holder.Store(holder)
	}
	return tx, err
}
