package sqlitestore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// plan returns the steps by which SQLite would run a query.
func plan(t *testing.T, s *Store, query string, args ...any) (steps []string) {
	t.Helper()
	conn, err := s.read.Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Explaining does not notice that the schema has changed; reading does.
	if err := conn.QueryRowContext(within(t), queryProbe).Scan(new(int)); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.QueryContext(within(t), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}

// checkPlan fails if looking up an operation would read more than indexes.
func checkPlan(t *testing.T, s *Store, days int) {
	t.Helper()
	steps := plan(t, s, queryRecord, "tenant", "k")
	searches := 0
	for _, step := range steps {
		if days == 0 && (step == "SCAN CONSTANT ROW" || step == "SCAN idempotency_results") {
			continue // the view before the first day, which has no rows
		}
		if strings.Contains(step, "SCAN") || strings.Contains(step, "TEMP") || strings.Contains(step, "AUTOMATIC") || strings.Contains(step, "MATERIALIZE") {
			t.Errorf("%d days: the plan has %q", days, step)
		}
		if strings.HasPrefix(step, "SEARCH") {
			searches++
			if !strings.Contains(step, "(scope=? AND idempotency_key=?)") {
				t.Errorf("%d days: the plan has %q", days, step)
			}
		}
	}
	if searches < days+1 {
		t.Errorf("%d days: only %d searches in %d steps", days, searches, len(steps))
	}
}

// Every statement that looks for an operation finds it by an index, on tables
// just made, with many rows, and with statistics of either.
func TestQueryPlans(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	check := func(when string, days int) {
		t.Helper()
		checkPlan(t, s, days)
		for _, x := range []struct {
			query string
			args  int
		}{{queryTake, 11}, {queryHold, 5}, {queryRenew, 6}, {queryRemove, 4}, {queryEnd, 6}} {
			for _, step := range plan(t, s, x.query, make([]any, x.args)...) {
				if step != "SEARCH idempotency_keys USING PRIMARY KEY (scope=? AND idempotency_key=?)" {
					t.Errorf("%s: %q in the plan of%s", when, step, x.query)
				}
			}
		}
		for _, step := range plan(t, s, queryForgetFailed, 1) {
			if strings.HasPrefix(step, "SCAN") {
				t.Errorf("%s: %q in the plan of%s", when, step, queryForgetFailed)
			}
		}
		for _, table := range column(t, s.read, queryDays) {
			for _, step := range plan(t, s, fmt.Sprintf(queryRecordResult, table), make([]any, 10)...) {
				if step != "SEARCH idempotency_keys USING PRIMARY KEY (scope=? AND idempotency_key=?)" {
					t.Errorf("%s: %q in the plan of%s", when, step, queryRecordResult)
				}
			}
		}
	}
	check("just made", 0)
	exec1(t, s.DB(), "ANALYZE")
	check("analysed empty", 0)
	now := midnight()
	rows := 5000
	if raceDetector {
		rows = 500
	}
	for days := 1; days <= 4; days++ {
		fixed(s, now.Add(time.Duration(days)*day))
		err := s.do(within(t), func(ctx context.Context, tx *group) error {
			if err := tx.makeDay(ctx, dayTable(tx.now)); err != nil {
				return err
			}
			for _, q := range []string{
				`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
				INSERT INTO ` + dayTable(tx.now) + ` SELECT 'tenant', 'settled ' || i || ?1, '', '', x'01', CASE WHEN i % 10 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END,
					1, '', '', '', '', 200, NULL, NULL, '', 1, 1, 1 FROM n`,
				`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
				INSERT INTO idempotency_keys SELECT 'tenant', 'live ' || i || ?1, '', '', x'01', CASE WHEN i % 2 = 0 THEN 'FAILED' ELSE 'PROCESSING' END,
					1, '', '', '', '', 2, 1, 1, 1 FROM n`,
			} {
				if _, err := tx.ExecContext(ctx, q, days, rows); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if days == 1 || days == 4 {
			check("with many rows", days)
			exec1(t, s.DB(), "ANALYZE")
			check("with many rows, analysed", days)
		}
	}
	exec1(t, s.DB(), "DELETE FROM idempotency_keys")
	check("emptied", 4)
}
