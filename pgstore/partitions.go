package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kakutei-go/kakutei"
)

const (
	// daysAhead is how many days have a partition before they come.
	daysAhead       = 3
	rollbackTimeout = 5 * time.Second
	dayFormat       = "20060102"
)

// partition returns the bare name of the partition of a day.
func (n names) partition(day time.Time) string { return n.bare("results_") + day.Format(dayFormat) }

// quoted returns the quoted name of a table of the store's schema.
func (n names) quoted(bare string) string { return pgx.Identifier{n.schema, bare}.Sanitize() }

// now returns the database's clock, in UTC.
func (s *Store) now(ctx context.Context) (now time.Time, err error) {
	err = s.door.query(ctx, statement{query: queryNow, scan: func(r rows) error { return r.Scan(&now) }})
	return now.UTC(), err
}

// makePartitions makes the partitions of today and the days ahead, as far as
// they are missing. Several processes may do so at once.
func (s *Store) makePartitions(ctx context.Context) error {
	now, err := s.now(ctx)
	if err != nil {
		return fmt.Errorf("make partitions: %w", err)
	}
	have, err := s.partitions(ctx)
	if err != nil {
		return fmt.Errorf("make partitions: %w", err)
	}
	today := now.Truncate(24 * time.Hour)
	// Yesterday, too: a transaction that began before midnight may settle after it.
	for d := -1; d <= daysAhead; d++ {
		day := today.AddDate(0, 0, d)
		if _, ok := have[s.names.partition(day)]; ok {
			continue
		}
		if err := s.makePartition(ctx, day); err != nil {
			return fmt.Errorf("make the partition of %s: %w", day.Format(time.DateOnly), err)
		}
	}
	return nil
}

// makePartition makes one partition, unless another process does.
func (s *Store) makePartition(ctx context.Context, day time.Time) error {
	table := s.names.quoted(s.names.partition(day))
	if _, err := s.door.exec(ctx, fmt.Sprintf(s.names.fill(queryCreateTable), table)); err != nil && !isExisting(err) {
		return err
	}
	const bound = "2006-01-02 00:00:00+00"
	_, err := s.door.exec(ctx, fmt.Sprintf(s.names.fill(queryAttach), table, day.Format(bound), day.AddDate(0, 0, 1).Format(bound)))
	if err == nil {
		return nil
	}
	have, lookErr := s.partitions(ctx)
	if _, ok := have[s.names.partition(day)]; ok {
		return nil // another process attached it first
	}
	return errors.Join(err, lookErr)
}

// isExisting reports whether two processes made the same table at once:
// PostgreSQL's IF NOT EXISTS is not safe against that.
func isExisting(err error) bool {
	switch sqlState(err) {
	case codeDuplicateTable, codeDuplicateObj, "23505":
		return true
	}
	return false
}

// partitions returns the attached partitions, and whether each is half detached.
func (s *Store) partitions(ctx context.Context) (map[string]bool, error) {
	out := make(map[string]bool)
	err := s.door.query(ctx, statement{query: queryPartitions, args: []any{s.names.table("results")}, scan: func(r rows) error {
		var name string
		var pending bool
		if err := r.Scan(&name, &pending); err != nil {
			return err
		}
		out[name] = pending
		return nil
	}})
	return out, err
}

// Retain implements [kakutei.Retainer]. It makes the partitions of the days
// ahead, and drops the days that ended more than keep ago, whole. A day is
// detached concurrently and then dropped, so claims and settlements go on, also
// while a long transaction elsewhere delays it. One process at a time does it;
// the others return at once.
func (s *Store) Retain(ctx context.Context, keep time.Duration) (done kakutei.Retained, err error) {
	if keep <= 0 {
		return done, fmt.Errorf("%w: pgstore: a retention of %v", kakutei.ErrInvalid, keep)
	}
	owner := rand.Text()
	n, err := s.door.exec(ctx, s.names.fill(queryMaintain), owner)
	if isConflict(err) {
		return done, nil // another process has just taken it
	}
	if err != nil {
		return done, fmt.Errorf("pgstore: retain: %w", err)
	}
	if n == 0 {
		return done, nil // another process is at it
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_, end := s.door.exec(ctx, s.names.fill(queryMaintained), owner)
		err = errors.Join(err, end)
	}()
	if err := s.makePartitions(ctx); err != nil {
		return done, fmt.Errorf("pgstore: retain: %w", err)
	}
	if err := s.dropDays(ctx, keep, &done); err != nil {
		return done, fmt.Errorf("pgstore: retain: %w", err)
	}
	for {
		n, err := s.door.exec(ctx, s.names.fill(queryForgetFailed), keep.Milliseconds())
		if err != nil {
			return done, fmt.Errorf("pgstore: forget failed operations: %w", err)
		}
		if done.FailedRemoved += n; n == 0 {
			return done, nil
		}
	}
}

// dropDays detaches and drops the days that ended more than keep ago.
func (s *Store) dropDays(ctx context.Context, keep time.Duration, done *kakutei.Retained) error {
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	have, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	for name, pending := range have {
		day, ok := s.names.day(name)
		if !ok || day.AddDate(0, 0, 1).Add(keep).After(now) {
			continue
		}
		detach := queryDetach
		if pending { // a process died, or was cancelled, in the middle of it
			detach = queryDetachFinish
		}
		if _, err := s.door.exec(ctx, fmt.Sprintf(s.names.fill(detach), s.names.quoted(name))); err != nil {
			return fmt.Errorf("detach the partition of %s: %w", day.Format(time.DateOnly), err)
		}
	}
	// What is detached belongs to nobody: also what an earlier pass has left.
	var old []string
	err = s.door.query(ctx, statement{query: queryLeftovers, args: []any{s.names.schema, likeEscapes.Replace(s.names.bare("results_")) + "%"}, scan: func(r rows) error {
		var name string
		if err := r.Scan(&name); err != nil {
			return err
		}
		if day, ok := s.names.day(name); ok && !day.AddDate(0, 0, 1).Add(keep).After(now) {
			old = append(old, name)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	for _, name := range old {
		day, _ := s.names.day(name)
		if _, err := s.door.exec(ctx, fmt.Sprintf(queryDropTable, s.names.quoted(name))); err != nil {
			return fmt.Errorf("drop the results of %s: %w", day.Format(time.DateOnly), err)
		}
		done.Dropped = append(done.Dropped, day.Format(time.DateOnly))
	}
	return nil
}

var likeEscapes = strings.NewReplacer(`\`, `\\`, `_`, `\_`, `%`, `\%`)

// day returns the day that a partition's bare name tells.
func (n names) day(name string) (time.Time, bool) {
	date, ok := strings.CutPrefix(name, n.bare("results_"))
	if !ok {
		return time.Time{}, false
	}
	day, err := time.Parse(dayFormat, date)
	return day, err == nil
}
