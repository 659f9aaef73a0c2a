package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// job is one call of the store that wants to write. Jobs that are waiting share
// one transaction, and so one sync to disk.
type job struct {
	ctx context.Context
	// run does the work. It may be called twice: alone, if a neighbour's failure
	// undid the shared transaction.
	run func(ctx context.Context, tx *group) error
}

// group is the transaction of a group of jobs.
type group struct {
	*sql.Tx
	s   *Store
	now int64 // the database's clock, in milliseconds since 1970
	// result is the prepared queryRecordResult of the day; see settle.go.
	result *sql.Stmt
	// made is the table of the day, if this transaction made it.
	made string
	// mine holds the statements of the store as they are used in the transaction.
	mine map[*sql.Stmt]*sql.Stmt
}

// stmt returns a prepared statement for use in this transaction.
func (tx *group) stmt(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	mine := tx.mine[stmt]
	if mine == nil {
		mine = tx.StmtContext(ctx, stmt)
		if tx.mine == nil {
			tx.mine = make(map[*sql.Stmt]*sql.Stmt)
		}
		tx.mine[stmt] = mine
	}
	return mine
}

// commit ends the transaction. What it made is believed in from now on.
func (tx *group) commit() error {
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if tx.made != "" {
		tx.s.day.Store(tx.made)
	}
	return nil
}

// do has run done in a transaction that is committed when do returns nil.
func (s *Store) do(ctx context.Context, run func(ctx context.Context, tx *group) error) error {
	err, groupErr := s.groups.Do(ctx, &job{ctx: ctx, run: run}, nil)
	if groupErr != nil {
		return groupErr
	}
	return err
}

// runGroup runs jobs in one transaction and, if that fails, each in its own, so
// that one job's trouble is nobody else's.
func (s *Store) runGroup(jobs []*job) ([]error, error) {
	errs := make([]error, len(jobs))
	if len(jobs) > 1 {
		if err := s.transact(jobs, errs); err == nil {
			return errs, nil
		}
	}
	for i := range jobs {
		errs[i] = nil
		if err := s.transact(jobs[i:i+1], errs[i:i+1]); err != nil {
			errs[i] = err
		}
	}
	return errs, nil
}

// transact runs the jobs in one transaction. Its error means that nothing was kept.
func (s *Store) transact(jobs []*job, errs []error) error {
	// The transaction belongs to all; each job's own time is looked at below.
	ctx := context.Background()
	var tx *sql.Tx
	err := retryBusy(newest(jobs), func() (err error) {
		tx, err = s.begin(ctx, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback() // without effect after a commit
	g := &group{Tx: tx, s: s}
	if g.now, err = s.now(ctx, tx); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	for i, j := range jobs {
		if err := j.ctx.Err(); err != nil {
			errs[i] = err // its caller has left: to write now would surprise everybody
			continue
		}
		if err := j.run(ctx, g); err != nil {
			return err
		}
	}
	return g.commit()
}

// newest returns the context that lasts longest of the jobs' own.
func newest(jobs []*job) context.Context {
	ctx := jobs[0].ctx
	for _, j := range jobs[1:] {
		d, ok := j.ctx.Deadline()
		if last, lastOK := ctx.Deadline(); lastOK && (!ok || d.After(last)) {
			ctx = j.ctx
		}
	}
	return ctx
}

func (s *Store) clock(ctx context.Context, tx *sql.Tx) (ms int64, err error) {
	err = tx.StmtContext(ctx, s.writes.now).QueryRowContext(ctx).Scan(&ms)
	return ms, err
}

// retryBusy calls f until another process lets it in, or ctx ends.
func retryBusy(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || !isBusy(err) || !wait(ctx) {
			return err
		}
	}
}

// wait pauses for a random moment and reports whether ctx is still alive.
func wait(ctx context.Context) bool {
	t := time.NewTimer(rand.N(2 * time.Millisecond))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// code returns SQLite's primary result code of err, 0 if it is not SQLite's.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

func isBusy(err error) bool {
	c := code(err)
	return c == sqlite3.SQLITE_BUSY || c == sqlite3.SQLITE_LOCKED
}

// isRace reports whether err may come from another process that migrates the
// same file at the same time.
func isRace(err error) bool {
	if isBusy(err) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "already exists") || strings.Contains(text, "no such table") || strings.Contains(text, "UNIQUE constraint")
}

// explain adds to an error of SQLite what can be done about it.
func explain(err error) error {
	switch code(err) {
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("the file is not a SQLite database (damaged, encrypted, or something else); move it away or give another path: %w", err)
	case sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the file is damaged; restore it from a backup (it was left as it is): %w", err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Errorf("the file or its folder cannot be written by this user: %w", err)
	case sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("the folder must exist and be writable, and the path must not be a folder: %w", err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("the disk is full: %w", err)
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("another process keeps the file locked: %w", err)
	}
	return err
}
