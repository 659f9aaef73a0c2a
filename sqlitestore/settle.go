package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

const (
	dayPrefix = "idempotency_results_"
	// maxTerms is how many days are joined in one SELECT; SQLite allows 500.
	maxTerms = 250
)

// dayTable returns the table of the day, in UTC, that a time in milliseconds is in.
func dayTable(ms int64) string {
	return dayPrefix + time.UnixMilli(ms).UTC().Format("20060102")
}

// Settle implements [kakutei.Store].
func (s *Store) Settle(ctx context.Context, settlements []kakutei.Settlement) ([]error, error) {
	out := make([]error, len(settlements))
	err := s.do(ctx, func(ctx context.Context, tx *group) error {
		for i, x := range settlements {
			var err error
			if out[i], err = tx.settle(ctx, x); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite: settle: %w", err)
	}
	return out, nil
}

// settle ends one attempt. refused is the item's own answer; err undoes the
// transaction.
func (tx *group) settle(ctx context.Context, x kakutei.Settlement) (refused, err error) {
	ended, err := tx.end(ctx, x)
	switch {
	case errors.Is(err, kakutei.ErrInvalid):
		return err, nil
	case err != nil || ended:
		return nil, err
	}
	// Not the holder. If it has settled so already, this is the call again whose
	// reply was lost.
	rec, err := scanRecord(tx.stmt(ctx, tx.s.writes.record).QueryRowContext(ctx, x.Scope, x.Key))
	if errors.Is(err, kakutei.ErrCorrupt) {
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	if rec.Status == x.Status && rec.Owner == x.Owner && rec.Attempt == x.Attempt {
		return nil, nil
	}
	return kakutei.ErrLeaseLost, nil
}

// end ends one attempt, if it holds the operation.
func (tx *group) end(ctx context.Context, x kakutei.Settlement) (ended bool, err error) {
	var n int64
	switch x.Status {
	case kakutei.StatusSucceeded:
		if n, err = tx.recordResult(ctx, x); n == 1 {
			_, err = tx.exec(ctx, tx.s.writes.remove, x.Scope, x.Key, x.Owner, x.Attempt)
		}
	case kakutei.StatusFailed:
		x.Result = kakutei.Result{Code: x.Result.Code}
		if n, err = tx.recordResult(ctx, x); n == 1 {
			_, err = tx.exec(ctx, tx.s.writes.end, x.Scope, x.Key, x.Owner, x.Attempt, tx.now, x.Status.String())
		}
	case kakutei.StatusUncertain:
		n, err = tx.exec(ctx, tx.s.writes.end, x.Scope, x.Key, x.Owner, x.Attempt, tx.now, x.Status.String())
	default:
		return false, fmt.Errorf("%w: an attempt cannot end as %v", kakutei.ErrInvalid, x.Status)
	}
	return n == 1, err
}

// exec runs a prepared statement and returns how many rows it changed.
func (tx *group) exec(ctx context.Context, stmt *sql.Stmt, args ...any) (int64, error) {
	res, err := tx.stmt(ctx, stmt).ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// recordResult writes the result into the table of the day and returns how many
// rows that were: none if the attempt does not hold the operation.
func (tx *group) recordResult(ctx context.Context, x kakutei.Settlement) (int64, error) {
	if tx.result == nil {
		table := dayTable(tx.now)
		if table != tx.s.day.Load() {
			if err := tx.makeDay(ctx, table); err != nil {
				return 0, fmt.Errorf("make the table of the day: %w", err)
			}
			tx.made = table
		}
		var err error
		if tx.result, err = tx.PrepareContext(ctx, fmt.Sprintf(queryRecordResult, table)); err != nil {
			tx.s.day.Store("") // should somebody have dropped it, it is made next time
			return 0, err
		}
	}
	res, err := tx.result.ExecContext(ctx, x.Scope, x.Key, x.Owner, x.Attempt, x.Status.String(),
		x.Result.Code, x.Result.Header, x.Result.Body, x.Result.Omitted, tx.now)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// makeDay makes the table of a day, unless another process has, and the view
// that shows it.
func (tx *group) makeDay(ctx context.Context, table string) error {
	if _, err := tx.ExecContext(ctx, fmt.Sprintf(queryCreateDay, table)); err != nil {
		return err
	}
	return tx.makeView(ctx)
}

// makeView makes the view over all days anew.
func (tx *group) makeView(ctx context.Context) error {
	days, err := tx.days(ctx)
	if err != nil {
		return err
	}
	selects := make([]string, len(days))
	for i, day := range days {
		selects[i] = fmt.Sprintf(querySelectDay, day)
	}
	for len(selects) > maxTerms {
		var joined []string
		for part := range slices.Chunk(selects, maxTerms) {
			joined = append(joined, fmt.Sprintf(querySelectDays, union(part)))
		}
		selects = joined
	}
	if _, err := tx.ExecContext(ctx, queryDropView); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf(queryCreateView, union(selects)))
	return err
}

func union(selects []string) string { return strings.Join(selects, "\nUNION ALL\n") }

// days returns the tables of all days, the oldest first.
func (tx *group) days(ctx context.Context) (tables []string, err error) {
	rows, err := tx.QueryContext(ctx, queryDays)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		tables = append(tables, name)
	}
	return tables, rows.Err()
}
