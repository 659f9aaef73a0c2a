package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

var errFault = errors.New("the fault")

// grouped runs what callers want written in one group, as the queue would if
// they came together, and returns what each of them is told.
func grouped(s *Store, jobs ...*job) []error {
	errs, err := s.runGroup(jobs)
	if err != nil {
		panic(err) // runGroup answers each job by itself
	}
	return errs
}

func jobOf(ctx context.Context, run func(ctx context.Context, tx *group) error) *job {
	return &job{ctx: ctx, run: run}
}

func claiming(c kakutei.Claim) *job {
	return jobOf(context.Background(), func(ctx context.Context, tx *group) error {
		d, err := tx.claim(ctx, c)
		if err == nil && d.Outcome != kakutei.Acquired {
			err = fmt.Errorf("it came to %v", d.Outcome)
		}
		return err
	})
}

func settling(x kakutei.Settlement) *job {
	return jobOf(context.Background(), func(ctx context.Context, tx *group) error {
		refused, err := tx.settle(ctx, x)
		return errors.Join(refused, err)
	})
}

func failing() *job {
	return jobOf(context.Background(), func(context.Context, *group) error { return errFault })
}

// One job that fails is nobody else's trouble, wherever it stands.
func TestGroupNeighbours(t *testing.T) {
	t.Parallel()
	for at := range 5 {
		t.Run(fmt.Sprint("failing at ", at), func(t *testing.T) {
			t.Parallel()
			s := open(t, newFile(t))
			var jobs []*job
			for i := range 4 {
				jobs = append(jobs, claiming(claimOf(fmt.Sprint("k", i), "me", long)))
			}
			for i, err := range grouped(s, slices.Insert(jobs, at, failing())...) {
				if want := i == at; errors.Is(err, errFault) != want || (err != nil) != want {
					t.Errorf("job %d: %v", i, err)
				}
			}
			for i := range 4 {
				if d := claims(t, s, claimOf(fmt.Sprint("k", i), "other", long), kakutei.InFlight, 1); d.Left <= 0 {
					t.Errorf("k%d: %v are left", i, d.Left)
				}
			}
		})
	}
}

// A failing job undoes what its group has written so far, and with it the table
// of a new day. The store must not go on believing that the table is there.
func TestGroupUndoesTheDay(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	for i := range 4 {
		claims(t, s, claimOf(fmt.Sprint("k", i), "me", long), kakutei.Acquired, 1)
	}
	// The first settlement of the day, and behind it one who fails.
	errs := grouped(s, settling(success(refOf("k0", "me", 1))), failing(), settling(success(refOf("k1", "me", 1))))
	if errs[0] != nil || !errors.Is(errs[1], errFault) || errs[2] != nil {
		t.Errorf("the jobs are told %v", errs)
	}
	// Alone, and undone.
	s = open(t, newFile(t))
	claims(t, s, claimOf("k2", "me", long), kakutei.Acquired, 1)
	errs = grouped(s, jobOf(context.Background(), func(ctx context.Context, tx *group) error {
		if refused, err := tx.settle(ctx, success(refOf("k2", "me", 1))); refused != nil || err != nil {
			t.Error(refused, err)
		}
		return errFault
	}))
	if !errors.Is(errs[0], errFault) {
		t.Errorf("the job is told %v", errs)
	}
	settle(t, s, success(refOf("k2", "me", 1)))
	claims(t, s, claimOf("k2", "other", long), kakutei.Replay, 1)
}

// Somebody else has dropped the table that the store believes in: after one
// failure it finds out.
func TestDayVanishes(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	done(t, s, "k")
	db := raw(t, s.path)
	day := column(t, db, queryDays)[0]
	exec1(t, db, queryDropView)
	exec1(t, db, "DROP TABLE "+day)
	exec1(t, db, "CREATE VIEW idempotency_results AS SELECT "+strings.Join([]string{
		"'' AS scope", "'' AS idempotency_key", "'' AS status", "x'' AS request_hash", "0 AS attempt", "'' AS owner",
		"0 AS response_code", "NULL AS response_headers", "NULL AS response_body", "'' AS omitted",
	}, ", ")+" WHERE 0")
	claims(t, s, claimOf("k2", "me", long), kakutei.Acquired, 1)
	first := trySettle(within(t), s, success(refOf("k2", "me", 1)))
	t.Log("first: ", first)
	settle(t, s, success(refOf("k2", "me", 1)))
	claims(t, s, claimOf("k2", "other", long), kakutei.Replay, 1)
}

// A caller whose time is over before its turn is not written, and the others are.
func TestGroupSkipsWhoLeft(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	left, cancel := context.WithCancel(context.Background())
	cancel()
	gone := claiming(claimOf("gone", "me", long))
	gone.ctx = left
	errs := grouped(s, claiming(claimOf("a", "me", long)), gone, claiming(claimOf("b", "me", long)))
	if errs[0] != nil || !errors.Is(errs[1], context.Canceled) || errs[2] != nil {
		t.Errorf("the jobs are told %v", errs)
	}
	if rec := look(t, s, "gone"); rec.Status != kakutei.StatusNone {
		t.Errorf("who left was written: %v", rec.Status)
	}
	for _, key := range []string{"a", "b"} {
		claims(t, s, claimOf(key, "other", long), kakutei.InFlight, 1)
	}
	// Alone as well.
	if errs := grouped(s, gone); !errors.Is(errs[0], context.Canceled) {
		t.Errorf("alone, who left is told %v", errs)
	}
	if rec := look(t, s, "gone"); rec.Status != kakutei.StatusNone {
		t.Errorf("alone, who left was written: %v", rec.Status)
	}
}

// The same with a real queue: behind a writer that takes its time, callers wait,
// and leave. Later nothing of theirs is found.
func TestLeavingTheQueue(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	tx, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	together(n, func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(20+i)*time.Millisecond)
		defer cancel()
		if _, err := tryClaim(ctx, s, claimOf(fmt.Sprint("k", i), "me", long)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that left is told %v", err)
		}
	})
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	claims(t, s, claimOf("late", "me", long), kakutei.Acquired, 1)
	for i := range n {
		if rec := look(t, s, fmt.Sprint("k", i)); rec.Status != kakutei.StatusNone {
			t.Errorf("k%d was written after its caller had left", i)
		}
	}
}

// Another process keeps the file for longer than one caller of a group has time
// for: that one is told so, the other is served.
func TestGroupWaitsForTheMostPatient(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"impatient first", "impatient last", "cancelled by hand"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			s := open(t, path)
			tx, err := raw(t, path).Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			if order == "cancelled by hand" { // nobody knows beforehand that it will not last
				ctx, cancel = context.WithCancel(context.Background())
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			defer cancel()
			impatient, patient := claiming(claimOf("impatient", "me", long)), claiming(claimOf("patient", "me", long))
			impatient.ctx = ctx
			jobs := []*job{impatient, patient}
			if order == "impatient last" {
				slices.Reverse(jobs)
			}
			time.AfterFunc(300*time.Millisecond, func() { tx.Rollback() })
			errs := grouped(s, jobs...)
			if order == "impatient last" {
				slices.Reverse(errs)
			}
			if errs[0] == nil || errs[1] != nil {
				t.Errorf("the impatient one is told %v, the patient one %v", errs[0], errs[1])
			}
			claims(t, s, claimOf("patient", "other", long), kakutei.InFlight, 1)
			claims(t, s, claimOf("impatient", "other", long), kakutei.Acquired, 1)
		})
	}
}

// Whatever step fails, once or for a while, before it is done or after: the
// callers are told, nothing is half done, and the same call again works.
func TestFailingSteps(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "after"} {
		for _, step := range []string{"BEGIN", "SELECT CAST(unixepoch('subsec') *", "SELECT status, request_hash,", "INSERT INTO idempotency_keys",
			"UPDATE idempotency_keys SET", "INSERT INTO idempotency_results_", "DELETE FROM idempotency_keys", "CREATE TABLE IF", "DROP VIEW idempotency_results",
			"CREATE VIEW idempotency_results", "COMMIT"} {
			t.Run(when+" "+step, func(t *testing.T) {
				t.Parallel()
				var armed, fired atomic.Int64
				path := newFile(t)
				s := faulty(t, path, func(w, st string) error {
					if w == when && strings.HasPrefix(st, step) && armed.Load() > 0 {
						armed.Add(-1)
						fired.Add(1)
						return errFault
					}
					return nil
				})
				ctx := within(t)
				// At the end of each trouble the operation must be where it belongs,
				// and the call that failed can be made again, with the same words.
				again := func(what string, times int64, f func() error) {
					t.Helper()
					armed.Store(times)
					err := f()
					for tries := 0; err != nil && tries < 20; tries++ {
						if !errors.Is(err, errFault) {
							t.Fatalf("%s: %v", what, err)
						}
						armed.Store(0)
						err = f()
					}
					if err != nil {
						t.Fatalf("%s never works again: %v", what, err)
					}
					armed.Store(0)
				}
				for _, times := range []int64{1, 2, 1000} {
					key := fmt.Sprint("k", times)
					again("claim", times, func() error {
						d, err := tryClaim(ctx, s, claimOf(key, "a", time.Millisecond))
						if err == nil && (d.Outcome != kakutei.Acquired || d.Attempt != 1) {
							t.Errorf("the claim came to %v, attempt %d", d.Outcome, d.Attempt)
						}
						return err
					})
					time.Sleep(3 * time.Millisecond)
					again("take over", times, func() error {
						d, err := tryClaim(ctx, s, claimOf(key, "b", long))
						if err == nil && (d.Outcome != kakutei.Acquired || d.Attempt != 2) {
							t.Errorf("the takeover came to %v, attempt %d", d.Outcome, d.Attempt)
						}
						return err
					})
					again("renew", times, func() error { return tryRenew(ctx, s, refOf(key, "b", 2), long) })
					again("fail", times, func() error {
						return trySettle(ctx, s, kakutei.Settlement{Ref: refOf(key, "b", 2), Status: kakutei.StatusFailed})
					})
					claims(t, s, claimOf(key, "c", long), kakutei.Acquired, 3)
					again("settle", times, func() error { return trySettle(ctx, s, success(refOf(key, "c", 3))) })
					claims(t, s, claimOf(key, "d", long), kakutei.Replay, 3)
					if got := value(t, s.read, "SELECT group_concat(status || attempt) FROM (SELECT * FROM idempotency_results WHERE idempotency_key = ? ORDER BY attempt)", key); got != "FAILED2,SUCCEEDED3" {
						t.Errorf("the results are %s", got)
					}
				}
				if fired.Load() == 0 {
					t.Error("the fault did not fire")
				}
			})
		}
	}
}

// A group whose COMMIT was done and whose reply was lost, with many callers: it
// is run again, one by one, and each finds its own.
func TestLostCommitOfAGroup_case_11(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	s := faulty(t, newFile(t), func(when, step string) error {
		if when == "after" && step == "COMMIT" && armed.CompareAndSwap(true, false) {
			return errFault
		}
		return nil
	})
	var jobs []*job
	for i := range 10 {
		jobs = append(jobs, claiming(claimOf(fmt.Sprint("k", i), "me", long)))
	}
	armed.Store(true)
	for i, err := range grouped(s, jobs...) {
		if err != nil {
			t.Errorf("claim %d is told %v", i, err)
		}
	}
	if armed.Load() {
		t.Fatal("the fault did not fire")
	}
	jobs = nil
	for i := range 10 {
		jobs = append(jobs, settling(success(refOf(fmt.Sprint("k", i), "me", 1))))
	}
	armed.Store(true)
	for i, err := range grouped(s, jobs...) {
		if err != nil {
			t.Errorf("settlement %d is told %v", i, err)
		}
	}
	if got := value(t, s.read, "SELECT count(*) || ' ' || count(DISTINCT idempotency_key) FROM idempotency_results"); got != "10 10" {
		t.Errorf("results and keys: %s", got)
	}
}

// The database may not grow any more. Callers are told, what needs no room goes
// on, and when there is room again everything works.
func TestDatabaseFull(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	done(t, s, "settled")
	claims(t, s, claimOf("running", "me", long), kakutei.Acquired, 1)
	pages := value(t, s.DB(), "PRAGMA page_count")
	if got := value(t, s.DB(), "PRAGMA max_page_count = "+pages); got != pages {
		t.Fatalf("max_page_count is %s, not %s", got, pages)
	}
	big := success(refOf("running", "me", 1))
	big.Result.Body = make([]byte, 1<<20)
	refusals := 0
	for range 3 {
		if err := trySettle(within(t), s, big); code(err) == 13 { // SQLITE_FULL
			refusals++
		} else {
			t.Errorf("settling into a full database: %v", err)
		}
	}
	if refusals == 0 {
		t.Fatal("the fault did not fire")
	}
	// Beside the one that finds no room, small ones do.
	errs := grouped(s, settling(big), claiming(claimOf("small", "me", long)))
	if code(errs[0]) != 13 || errs[1] != nil {
		t.Errorf("the jobs are told %v", errs)
	}
	claims(t, s, claimOf("settled", "other", long), kakutei.Replay, 1)
	claims(t, s, claimOf("running", "other", long), kakutei.InFlight, 1)
	value(t, s.DB(), "PRAGMA max_page_count = 1000000")
	settle(t, s, big)
	if d := claims(t, s, claimOf("running", "other", long), kakutei.Replay, 1); len(d.Result.Body) != 1<<20 {
		t.Errorf("%d bytes were recorded", len(d.Result.Body))
	}
	if got := value(t, s.read, "PRAGMA integrity_check"); got != "ok" {
		t.Error(got)
	}
}
