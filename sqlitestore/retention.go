package sqlitestore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// Retain implements [kakutei.Retainer]. A day is dropped when all of it is older
// than keep, by the database's clock and in UTC, so a result lives for keep and
// up to a day more. Dropping takes the writer for a moment and copies nothing;
// the space is used again by later days.
func (s *Store) Retain(ctx context.Context, keep time.Duration) (kakutei.Retained, error) {
	var done kakutei.Retained
	if keep <= 0 || keep > maxRetention {
		return done, fmt.Errorf("%w: sqlite: a retention of %v; it must be above zero and at most %v", kakutei.ErrInvalid, keep, maxRetention)
	}
	err := s.do(ctx, func(ctx context.Context, tx *group) (err error) {
		done.Dropped, err = tx.dropDays(ctx, keep)
		return err
	})
	if err != nil {
		return kakutei.Retained{}, fmt.Errorf("sqlite: retain: %w", err)
	}
	for {
		var n int64
		err := s.do(ctx, func(ctx context.Context, tx *group) error {
			res, err := tx.ExecContext(ctx, queryForgetFailed, tx.now-keep.Milliseconds())
			if err != nil {
				return err
			}
			n, err = res.RowsAffected()
			return err
		})
		if err != nil {
			return done, fmt.Errorf("sqlite: retain: %w", err)
		}
		if done.FailedRemoved += n; n == 0 {
			return done, nil
		}
	}
}

// dropDays drops the days that ended more than keep ago.
func (tx *group) dropDays(ctx context.Context, keep time.Duration) (dropped []string, err error) {
	tables, err := tx.days(ctx)
	if err != nil {
		return nil, err
	}
	var old []string
	for _, table := range tables {
		day, err := time.Parse("20060102", strings.TrimPrefix(table, dayPrefix))
		if err != nil {
			continue // not a table of ours
		}
		if end := day.AddDate(0, 0, 1); end.Add(keep).UnixMilli() <= tx.now {
			old = append(old, table)
			dropped = append(dropped, day.Format(time.DateOnly))
		}
	}
	if len(old) == 0 {
		return nil, nil
	}
	// The view may not be left without a day, so today's is made first.
	if err := tx.makeDay(ctx, dayTable(tx.now)); err != nil {
		return nil, err
	}
	for _, table := range old {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(queryDropDay, table)); err != nil {
			return nil, err
		}
	}
	return dropped, tx.makeView(ctx)
}
