package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

const day = 24 * time.Hour

// at makes the store's transactions believe that it is the given time now; from
// there the clock goes on.
func at(s *Store, now time.Time) {
	by := time.Until(now)
	shifted(s, func() time.Duration { return by })
}

// fixed makes the store's clock stand still.
func fixed(s *Store, now time.Time) {
	s.now = func(context.Context, *sql.Tx) (int64, error) { return now.UnixMilli(), nil }
}

// midnight is the end of today, in UTC, where the days of the results end.
func midnight() time.Time { return time.Now().UTC().Truncate(day).Add(day) }

// daysOf returns the days on which an operation has results.
func daysOf(t *testing.T, s *Store, key string) (days []string) {
	t.Helper()
	for _, table := range column(t, s.read, queryDays) {
		if value(t, s.read, "SELECT count(*) FROM "+table+" WHERE idempotency_key = ?", key) != "0" {
			days = append(days, strings.TrimPrefix(table, dayPrefix))
		}
	}
	return days
}

// Case 45: midnight comes between the claim and the settlement, between the
// settlement and the retry, and between two attempts.
func TestMidnight_case_45(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	a, b := open(t, path), open(t, path) // b has its statements prepared before any day is there
	end := midnight()
	before, after := end.Add(-100*time.Millisecond), end.Add(100*time.Millisecond)
	today, tomorrow := before.Format("20060102"), after.Format("20060102")
	// The readers' clock is the real one, so leases must be long enough for both.
	fixed(a, before)
	fixed(b, after)

	claims(t, a, claimOf("claimed before", "a", 2*day/2), kakutei.Acquired, 1)
	settle(t, a, success(refOf("claimed before", "a", 1))) // before midnight, too
	claims(t, b, claimOf("claimed before", "b", long), kakutei.Replay, 1)

	claims(t, a, claimOf("across", "a", day), kakutei.Acquired, 1)
	claims(t, b, claimOf("across", "b", day), kakutei.InFlight, 1)
	settle(t, b, success(refOf("across", "a", 1))) // the same holder, past midnight
	for _, s := range []*Store{a, b} {
		claims(t, s, claimOf("across", "c", day), kakutei.Replay, 1)
	}
	// Settled again, alike, after midnight: no second result.
	settle(t, b, success(refOf("claimed before", "a", 1)))

	// A failure before midnight, a success after it.
	claims(t, a, claimOf("failed before", "a", day), kakutei.Acquired, 1)
	settle(t, a, kakutei.Settlement{Ref: refOf("failed before", "a", 1), Status: kakutei.StatusFailed})
	claims(t, b, claimOf("failed before", "b", day), kakutei.Acquired, 2)
	settle(t, b, success(refOf("failed before", "b", 2)))

	for key, want := range map[string][]string{
		"claimed before": {today}, "across": {tomorrow}, "failed before": {today, tomorrow},
	} {
		if got := daysOf(t, a, key); !slices.Equal(got, want) {
			t.Errorf("%s has results on %v, want %v", key, got, want)
		}
	}
	// Back to before midnight: the store goes on in either table.
	done(t, a, "late for yesterday")
	if got := daysOf(t, a, "late for yesterday"); !slices.Equal(got, []string{today}) {
		t.Errorf("it has results on %v", got)
	}
}

// Case 45: both at once across midnight. The clock goes through it while many
// callers, on two stores, want each key.
func TestMidnightRace_case_45(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	both := []*Store{open(t, path), open(t, path)}
	keys := 40
	if raceDetector {
		keys = 15
	}
	var progress atomic.Int64
	for _, s := range both {
		base := midnight()
		s.now = func(context.Context, *sql.Tx) (int64, error) {
			// Before midnight for the first half, after it for the second, and back
			// and forth in between.
			n := progress.Load()
			if n < int64(4*keys) || n < int64(6*keys) && n%2 == 0 {
				return base.Add(-time.Millisecond).UnixMilli(), nil
			}
			return base.UnixMilli(), nil
		}
	}
	ran := make([]atomic.Int64, keys)
	together(10, func(i int) {
		for n := range keys {
			progress.Add(1)
			key := fmt.Sprint("k", n)
			owner := fmt.Sprint("caller ", i)
			d, err := tryClaim(within(t), both[i%2], claimOf(key, owner, day))
			if err == nil && d.Outcome == kakutei.Acquired {
				ran[n].Add(1)
				err = trySettle(within(t), both[(i+n)%2], success(refOf(key, owner, d.Attempt)))
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	for n := range ran {
		if got := ran[n].Load(); got != 1 {
			t.Errorf("k%d ran %d times", n, got)
		}
	}
	if got := value(t, both[0].read, "SELECT count(*) || ' ' || count(DISTINCT idempotency_key) FROM idempotency_results"); got != fmt.Sprintf("%d %d", keys, keys) {
		t.Errorf("results and keys: %s", got)
	}
	if got := len(column(t, both[0].read, queryDays)); got != 2 {
		t.Errorf("there are %d days: the clock did not pass midnight", got)
	}
}

// Case 45: a handler's transaction that begins before midnight and commits after
// it, and is the first to need the new day.
func TestMidnightInTx_case_45(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	end := midnight()
	fixed(b.Store, end.Add(-time.Millisecond))
	done(t, b.Store, "yesterday")
	for _, keep := range []bool{false, true} { // first it makes the day and is undone
		fixed(b.Store, end.Add(-time.Millisecond))
		key := fmt.Sprint("kept ", keep)
		claims(t, b.Store, claimOf(key, "a", day), kakutei.Acquired, 1)
		tx, err := b.Begin(within(t), refOf(key, "a", 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := charge(tx.Context(within(t)), key); err != nil {
			t.Fatal(err)
		}
		fixed(b.Store, end.Add(time.Millisecond))
		x := success(refOf(key, "a", 1))
		if !keep {
			x.Attempt = 9 // not the holder
		}
		err = tx.Commit(within(t), x)
		if keep && err != nil || !keep && !errors.Is(err, kakutei.ErrLeaseLost) {
			t.Errorf("commit: %v", err)
		}
		if b.charged(t, key) != keep {
			t.Errorf("charged: %v", !keep)
		}
	}
	claims(t, b.Store, claimOf("kept true", "b", day), kakutei.Replay, 1)
	if got, want := daysOf(t, b.Store, "kept true"), []string{end.Format("20060102")}; !slices.Equal(got, want) {
		t.Errorf("it has results on %v, want %v", got, want)
	}
	done(t, b.Store, "today")
}

// childDay works on the days that its parent tells it of, by its own time zone.
func childDay(ctx context.Context, args []string) error {
	s, err := Open(ctx, args[0], Options{})
	if err != nil {
		return err
	}
	var base int64
	if _, err := fmt.Sscan(args[1], &base); err != nil {
		return err
	}
	zone, offset := time.Now().Zone()
	say("zone %s %d", zone, offset)
	b, err := s.Look(ctx, []kakutei.ID{idOf("before")}) // prepared, and used, before any day was made here
	if err != nil {
		return err
	}
	say("%v", b[0].Record.Status)
	for step := 0; ; step++ {
		untilTold()
		// Hours apart, so that it is another day here and there.
		fixed(s, time.UnixMilli(base).Add(time.Duration(step)*5*time.Hour+30*time.Minute))
		for _, key := range []string{"before", fmt.Sprint("parent ", step)} {
			d, err := tryClaim(ctx, s, claimOf(key, "child", day))
			if err != nil {
				return err
			}
			say("%s: %v", key, d.Outcome)
		}
		key := fmt.Sprint("child ", step)
		d, err := tryClaim(ctx, s, claimOf(key, "child", day))
		if err != nil {
			return err
		}
		if err := trySettle(ctx, s, success(refOf(key, "child", d.Attempt))); err != nil {
			return err
		}
		done, err := s.Retain(ctx, 10*time.Hour)
		if err != nil {
			return err
		}
		say("%v %v dropped %v", key, d.Outcome, done.Dropped)
		if step == 7 {
			return s.Close()
		}
	}
}

// Cases 45 and 46: another process, in whatever time zone, with its statements
// prepared long ago, finds what is settled on a day that it did not make, makes
// days itself, and drops them. The days are those of UTC everywhere.
func TestDaysOfAnotherProcess_cases_45_46(t *testing.T) {
	t.Parallel()
	var first []string
	zones := []string{"UTC", "Asia/Tokyo", "America/Los_Angeles", "Pacific/Chatham"}
	if raceDetector {
		zones = []string{"UTC", "Pacific/Chatham"}
	}
	for _, tz := range zones {
		path := newFile(t)
		s := open(t, path)
		base := time.Date(2031, 3, 8, 20, 0, 0, 0, time.UTC) // LA changes to summer time on the 9th
		fixed(s, base)
		done(t, s, "before")
		c := spawnEnv(t, []string{"TZ=" + tz}, "day", path, fmt.Sprint(base.UnixMilli()))
		if zone := c.line(); (tz == "UTC") != strings.HasSuffix(zone, " 0") {
			t.Errorf("in %s the child is in %s: the test is void", tz, zone)
		}
		c.expect("SUCCEEDED")
		var said []string
		for step := range 8 {
			fixed(s, base.Add(time.Duration(step)*5*time.Hour))
			done(t, s, fmt.Sprint("parent ", step)) // makes the day, if it is new
			c.tell()
			for range 3 {
				said = append(said, c.line())
			}
			key := fmt.Sprint("child ", step)
			claims(t, s, claimOf(key, "parent", day), kakutei.Replay, 1)
			if got, want := daysOf(t, s, key), []string{base.Add(time.Duration(step)*5*time.Hour + 30*time.Minute).Format("20060102")}; !slices.Equal(got, want) {
				t.Errorf("in %s the result of %s is of %v, want %v", tz, key, got, want)
			}
		}
		c.wait()
		said = append(said, column(t, s.read, queryDays)...)
		if first == nil {
			first = said
			t.Log(strings.Join(said, "\n"))
			for step := range 8 {
				if want := fmt.Sprintf("parent %d: replay", step); !slices.Contains(said, want) {
					t.Errorf("the child did not say %q", want)
				}
				if want := fmt.Sprintf("child %d acquired", step); !strings.Contains(strings.Join(said, "\n"), want) {
					t.Errorf("the child did not say %q", want)
				}
			}
			if !strings.Contains(strings.Join(said, "\n"), "dropped [2031-03-08]") {
				t.Error("the child dropped nothing: the test is void")
			}
		} else if !slices.Equal(said, first) {
			t.Errorf("in %s it went\n%s", tz, strings.Join(said, "\n"))
		}
	}
}

// Case 47: with a retention of three days a result is replayed at 2 d 23 h, and
// at 3 d, and is gone when all of its day is older than that.
func TestRetention_case_47(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	const keep = 3 * day
	settled := midnight().Add(10 * time.Hour)
	fixed(s, settled)
	done(t, s, "k")
	claims(t, s, claimOf("running", "me", day), kakutei.Acquired, 1)
	claims(t, s, claimOf("held", "me", day), kakutei.Acquired, 1)
	settle(t, s, kakutei.Settlement{Ref: refOf("held", "me", 1), Status: kakutei.StatusUncertain})
	claims(t, s, claimOf("failed", "me", day), kakutei.Acquired, 1)
	settle(t, s, kakutei.Settlement{Ref: refOf("failed", "me", 1), Status: kakutei.StatusFailed})
	dayEnds := settled.Truncate(day).Add(day)
	for _, x := range []struct {
		now     time.Time
		replay  bool
		failed  bool
		dropped bool
	}{
		{settled, true, true, false},
		{settled.Add(keep - time.Hour), true, true, false},
		{settled.Add(keep), true, true, false},
		{settled.Add(keep + time.Millisecond), true, false, false},
		{dayEnds.Add(keep - time.Millisecond), true, false, false},
		{dayEnds.Add(keep), false, false, true},
		{dayEnds.Add(100 * day), false, false, false},
	} {
		fixed(s, x.now)
		got, err := s.Retain(within(t), keep)
		if err != nil {
			t.Fatal(err)
		}
		age := x.now.Sub(settled)
		if slices.Contains(got.Dropped, settled.Format(time.DateOnly)) != x.dropped {
			t.Errorf("at %v: %v were dropped", age, got.Dropped)
		}
		if found := look(t, s, "k").Status == kakutei.StatusSucceeded; found != x.replay {
			t.Errorf("at %v: the result is there: %v", age, found)
		}
		if found := look(t, s, "failed").Status == kakutei.StatusFailed; found != x.failed {
			t.Errorf("at %v: the failed operation is there: %v", age, found)
		}
		if a, b := look(t, s, "running").Status, look(t, s, "held").Status; a != kakutei.StatusProcessing || b != kakutei.StatusUncertain {
			t.Errorf("at %v: what ran is %v, what was held is %v", age, a, b)
		}
	}
	// A key that was dropped runs again; what was never settled goes on.
	claims(t, s, claimOf("k", "again", day), kakutei.Acquired, 1)
	settle(t, s, success(refOf("k", "again", 1)))
	settle(t, s, success(refOf("running", "me", 1)))
	claims(t, s, claimOf("held", "other", day), kakutei.Uncertain, 1)
}

func TestRetainRefuses(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	for _, keep := range []time.Duration{0, -1, maxRetention + 1, 1 << 62} {
		if _, err := s.Retain(within(t), keep); !errors.Is(err, kakutei.ErrInvalid) {
			t.Errorf("keeping %v: %v", keep, err)
		}
	}
	// On a file without any day there is nothing to do.
	if got, err := s.Retain(within(t), 1); err != nil || len(got.Dropped) != 0 || got.FailedRemoved != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	done(t, s, "k")
}

// Case 47: all days are old. The view is never left without one, and other
// processes, which have a transaction open on what is dropped, go on.
func TestDropAllDays_case_47(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s, other := open(t, path), open(t, path)
	now := midnight().Add(time.Hour)
	for i := range 5 {
		fixed(s, now.Add(time.Duration(i)*day))
		done(t, s, fmt.Sprint("k", i))
	}
	claims(t, other, claimOf("k3", "other", long), kakutei.Replay, 1)
	// Somebody reads the oldest result, slowly: a long transaction elsewhere.
	long, err := other.read.BeginTx(within(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Rollback()
	rows, err := long.QueryContext(within(t), "SELECT idempotency_key FROM idempotency_results ORDER BY completed_at")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	rows.Next()
	fixed(s, now.Add(100*day))
	start := time.Now()
	got, err := s.Retain(within(t), day)
	if err != nil || len(got.Dropped) != 5 {
		t.Fatalf("%+v, %v", got, err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("dropping beside a reader took %v", took)
	}
	seen := 1
	for rows.Next() {
		seen++
	}
	if rows.Err() != nil || seen != 5 {
		t.Errorf("the reader saw %d of 5 results, %v", seen, rows.Err())
	}
	if got, want := column(t, s.read, queryDays), []string{dayTable(now.Add(100 * day).UnixMilli())}; !slices.Equal(got, want) {
		t.Errorf("the days are %v, want %v", got, want)
	}
	for i := range 5 {
		claims(t, other, claimOf(fmt.Sprint("k", i), "other", day), kakutei.Acquired, 1)
	}
	settle(t, other, success(refOf("k0", "other", 1)))
	claims(t, s, claimOf("k0", "third", day), kakutei.Replay, 1)
}

// Failed operations are forgotten a few at a time, while others claim.
func TestForgetFailed_case_47(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := open(t, path)
	const n = 1100
	var cs []kakutei.Claim
	var xs []kakutei.Settlement
	for i := range n {
		key := fmt.Sprint("k", i)
		cs = append(cs, claimOf(key, "me", day))
		xs = append(xs, kakutei.Settlement{Ref: refOf(key, "me", 1), Status: kakutei.StatusFailed})
	}
	if _, err := s.Claim(within(t), append(cs, claimOf("running", "me", day))); err != nil {
		t.Fatal(err)
	}
	if errs, err := s.Settle(within(t), xs); err != nil || errs[n-1] != nil {
		t.Fatal(err, errs[n-1])
	}
	at(s, time.Now().Add(10*day))
	var most, transactions int
	inner := s.now
	left := n
	s.now = func(ctx context.Context, tx *sql.Tx) (int64, error) { // called once for each transaction
		var now int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM idempotency_keys WHERE status = 'FAILED'").Scan(&now); err != nil {
			return 0, err
		}
		most, left = max(most, left-now), now
		transactions++
		return inner(ctx, tx)
	}
	got, err := s.Retain(within(t), 3*day)
	if err != nil || got.FailedRemoved != n {
		t.Fatalf("%+v, %v", got, err)
	}
	t.Logf("%d were forgotten in %d transactions, at most %d in one", n, transactions, most)
	if most > 500 || transactions < 5 {
		t.Error("they were not forgotten a few at a time")
	}
	if got := value(t, s.read, "SELECT group_concat(idempotency_key) FROM idempotency_keys"); got != "running" {
		t.Errorf("%s are left", got)
	}
}

// The view shows exactly the days that are there, however many, and the settled
// operations of all of them are found by their indexes. With days that nobody
// drops there are once more than SQLite joins in one SELECT.
func TestManyDays(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	now := midnight()
	made := 0
	counts := []int{0, 1, 4, 400, 520}
	if raceDetector {
		counts = counts[:3]
	}
	for _, n := range counts {
		err := s.do(within(t), func(ctx context.Context, tx *group) error {
			for ; made < n; made++ {
				table := dayTable(now.Add(-time.Duration(made+2) * day).UnixMilli())
				if _, err := tx.ExecContext(ctx, fmt.Sprintf(queryCreateDay, table)); err != nil {
					return err
				}
				if made == 0 || made == 250 || made == 398 || made == 519 {
					_, err := tx.ExecContext(ctx, `INSERT INTO `+table+` VALUES ('tenant', ?, 'POST', '/', ?, 'SUCCEEDED', 1, 'me', '', '', '', 200, NULL, x'41', '', 1, 1, 1)`,
						fmt.Sprint("old ", made), opOf(fmt.Sprint("old ", made)).Fingerprint.Bytes())
					if err != nil {
						return err
					}
				}
			}
			if n == 0 {
				return nil
			}
			return tx.makeView(ctx)
		})
		if err != nil {
			t.Fatalf("%d days: %v", n, err)
		}
		start := time.Now()
		done(t, s, fmt.Sprint("k", n))
		first := time.Since(start)
		claims(t, s, claimOf(fmt.Sprint("k", n), "other", day), kakutei.Replay, 1)
		for _, i := range []int{0, 250, 398, 519} {
			want := kakutei.StatusNone
			if i < n {
				want = kakutei.StatusSucceeded
			}
			if got := look(t, s, fmt.Sprint("old ", i)).Status; got != want {
				t.Errorf("%d days: the result of day %d is %v", n, i, got)
			}
		}
		if got := len(column(t, s.read, queryDays)); got != n+1 {
			t.Errorf("%d days and today are %d", n, got)
		}
		start = time.Now()
		for i := range 10 {
			claims(t, s, claimOf(fmt.Sprintf("speed %d %d", n, i), "me", day), kakutei.Acquired, 1)
		}
		t.Logf("%d days: the first claim and settlement take %v, then a claim %v", n, first, time.Since(start)/10)
		checkPlan(t, s, n)
	}
	if raceDetector {
		return
	}
	fixed(s, now.Add(2*day))
	if got, err := s.Retain(within(t), 400*day); err != nil || len(got.Dropped) != 123 {
		t.Errorf("%d days were dropped, %v", len(got.Dropped), err)
	}
	claims(t, s, claimOf("old 250", "other", day), kakutei.Replay, 1)
}

// Tables that only look like days are left alone.
func TestNotADay(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	names := []string{"idempotency_results_archive", "idempotency_results_2026010", "idempotency_results_202601011", "idempotency_results_2026010x",
		"idempotency_results_20260101_old", "my_idempotency_results_20260101", "idempotency_results_00000000", "idempotency_results_20261399"}
	for _, name := range names {
		exec1(t, s.DB(), "CREATE TABLE "+name+" (x TEXT)")
	}
	done(t, s, "k")
	at(s, time.Now().Add(1000*day))
	if got, err := s.Retain(within(t), day); err != nil || len(got.Dropped) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range names {
		value(t, s.read, "SELECT count(*) FROM "+name)
	}
}
