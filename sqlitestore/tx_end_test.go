package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// What a handler leaves open does not keep it from being committed, also when
// that makes the table of a new day.
func TestTxLeavesRowsOpen(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	for i := range 3 {
		key := fmt.Sprint("k", i)
		shifted(b.Store, func() time.Duration { return time.Duration(i) * 24 * time.Hour })
		if _, err := b.run(key, func(ctx context.Context) kakutei.Ending {
			if err := charge(ctx, key); err != nil {
				t.Error(err)
			}
			tx, err := Tx(ctx)
			if err != nil {
				t.Error(err)
			}
			for _, query := range []string{"SELECT name FROM charges", "SELECT idempotency_key FROM idempotency_results", "SELECT 1 FROM idempotency_keys"} {
				//nolint:sqlclosecheck,rowserrcheck // that is the point
				rows, err := tx.QueryContext(ctx, query)
				if err != nil {
					t.Error(err)
				}
				rows.Next()
			}
			if _, err := tx.PrepareContext(ctx, "SELECT * FROM idempotency_results"); err != nil { //nolint:sqlclosecheck // that is the point
				t.Error(err)
			}
			return final(key)
		}); err != nil {
			t.Error(err)
		}
		b.state(t, key, "SUCCEEDED, charged true")
		b.free(t)
	}
}

// A handler that ends the transaction by itself breaks the promise that its
// writes come with the result. Whatever it does, neither of the two is found
// without the other.
func TestTxEndedByHand(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tx *sql.Tx) error{
		"Commit":   func(tx *sql.Tx) error { return tx.Commit() },
		"Rollback": func(tx *sql.Tx) error { return tx.Rollback() },
		"COMMIT":   func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err },
		"COMMIT and more": func(tx *sql.Tx) error {
			_, err := tx.Exec("COMMIT; INSERT INTO charges VALUES ('more')")
			return err
		},
		"COMMIT and BEGIN": func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT; BEGIN"); return err },
		"ROLLBACK":         func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err },
		"ROLLBACK and more": func(tx *sql.Tx) error {
			_, err := tx.Exec("ROLLBACK; INSERT INTO charges VALUES ('more')")
			return err
		},
		"ROLLBACK and BEGIN": func(tx *sql.Tx) error {
			_, err := tx.Exec("ROLLBACK; BEGIN; INSERT INTO charges VALUES ('more')")
			return err
		},
		"OR ROLLBACK": func(tx *sql.Tx) error {
			if _, err := tx.Exec("INSERT OR ROLLBACK INTO charges VALUES ('taken')"); code(err) != 19 {
				return fmt.Errorf("the test is void: %w", err)
			}
			_, err := tx.Exec("INSERT INTO charges VALUES ('more')")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBusiness(t, kakutei.Options{})
			exec1(t, b.DB(), "INSERT INTO charges VALUES ('taken')")
			runs := 0
			answer, err := b.runWith(context.Background(), "k", kakutei.Policy{Recovery: kakutei.Transactional, Deadline: 300 * time.Millisecond},
				func(ctx context.Context) kakutei.Ending {
					runs++
					tx, err := Tx(ctx)
					if err != nil {
						return kakutei.Ending{}
					}
					if err := charge(ctx, "k"); err != nil {
						t.Errorf("run %d: %v", runs, err)
					}
					err = end(tx)
					if runs == 1 {
						t.Logf("the handler is told: %v", err)
					}
					return final("charged")
				})
			t.Logf("%d runs; the caller is told %+v, %v", runs, answer, err)
			succeeded := look(t, b.Store, "k").Status == kakutei.StatusSucceeded
			told := err == nil && answer.Result.Code == 201
			if charged := b.charged(t, "k"); charged != succeeded || succeeded != told {
				t.Errorf("succeeded %v, charged %v, and the caller is told %v, %v", succeeded, charged, answer, err)
			}
			if b.charged(t, "more") && !succeeded {
				t.Error("what was written after the transaction had ended has stayed")
			}
			b.free(t)
			if got := value(t, b.read, "PRAGMA integrity_check"); got != "ok" {
				t.Error(got)
			}
			// The business's own transactions work as ever.
			tx, err := b.DB().Begin()
			if err != nil {
				t.Fatal(err)
			}
			exec1(t, tx, "INSERT INTO charges VALUES ('outside')")
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A COMMIT that SQLite itself refuses, here for a foreign key that is checked at
// the end, undoes all of it, and the writer goes on.
func TestTxCommitRefused(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	exec1(t, b.DB(), "CREATE TABLE lines (charge TEXT REFERENCES charges DEFERRABLE INITIALLY DEFERRED)")
	runs := 0
	_, err := b.runWith(context.Background(), "k", kakutei.Policy{Recovery: kakutei.Transactional},
		func(ctx context.Context) kakutei.Ending {
			runs++
			tx, err := Tx(ctx)
			if err != nil {
				return kakutei.Ending{}
			}
			// The pragma is without effect within a transaction.
			exec1(t, tx, "INSERT INTO lines VALUES ('no such charge')")
			return final("charged")
		})
	if err != nil || runs != 1 {
		t.Errorf("foreign keys are off: %v", err)
	}
	exec1(t, b.DB(), "PRAGMA foreign_keys = ON")
	answer, err := b.runWith(context.Background(), "k2", kakutei.Policy{Recovery: kakutei.Transactional, Deadline: 200 * time.Millisecond},
		func(ctx context.Context) kakutei.Ending {
			tx, err := Tx(ctx)
			if err != nil {
				return kakutei.Ending{}
			}
			exec1(t, tx, "INSERT INTO lines VALUES ('no such charge either')")
			return final("charged")
		})
	t.Logf("the caller is told %v", err)
	if err == nil && answer.Result.Code == 201 {
		t.Error("a refused COMMIT is a success")
	}
	if got := value(t, b.read, "SELECT count(*) FROM lines"); got != "1" {
		t.Errorf("%s lines are there", got)
	}
	if st := look(t, b.Store, "k2").Status; st != kakutei.StatusFailed {
		t.Errorf("the operation is %v", st)
	}
	b.free(t)
}

// Case 25: the connection to the file fails before the COMMIT, or after it was
// done. The business row is there once, with the result, and the caller has his
// answer.
func TestTxUnclearCommit_case_25(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			s := faulty(t, newFile(t), func(w, step string) error {
				if w == when && step == "COMMIT" && armed.CompareAndSwap(true, false) {
					return errFault
				}
				return nil
			})
			b := businessOn(t, s, kakutei.Options{})
			runs := 0
			answer, err := b.run("k", func(ctx context.Context) kakutei.Ending {
				runs++
				tx, err := Tx(ctx)
				if err != nil {
					t.Error(err)
				}
				exec1(t, tx, "INSERT INTO runs VALUES ('k')")
				if err := charge(ctx, "k"); err != nil {
					t.Error(err)
				}
				armed.Store(runs == 1)
				return final("charged")
			})
			if armed.Load() {
				t.Error("the fault did not fire")
			}
			if err != nil || answer.Replayed || string(answer.Result.Body) != "charged" {
				t.Errorf("%+v, %v", answer, err)
			}
			if want := map[string]int{"before": 2, "after": 1}[when]; runs != want {
				t.Errorf("it ran %d times, want %d", runs, want)
			}
			if got := value(t, s.read, "SELECT count(*) FROM runs"); got != "1" {
				t.Errorf("%s rows are there", got)
			}
			b.state(t, "k", "SUCCEEDED, charged true")
		})
	}
}

// Another process keeps the writer for longer than the handler has time: it is
// told so, nothing is kept, and later it runs.
func TestTxWriterTaken_case_26(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	other := raw(t, b.path)
	var tx *sql.Tx
	var told error
	_, err := b.runWith(context.Background(), "k", kakutei.Policy{Recovery: kakutei.Transactional, Deadline: 200 * time.Millisecond},
		func(ctx context.Context) kakutei.Ending {
			var err error
			if tx, err = other.Begin(); err != nil {
				t.Error(err)
			}
			told = charge(ctx, "k")
			time.AfterFunc(100*time.Millisecond, func() { tx.Rollback() })
			return kakutei.Ending{}
		})
	t.Logf("the handler is told %v, the caller %v", told, err)
	if told == nil {
		t.Error("the handler had its transaction beside another one")
	}
	b.state(t, "k", "FAILED, charged false")
	if _, err := b.run("k", func(ctx context.Context) kakutei.Ending {
		if err := charge(ctx, "k"); err != nil {
			t.Error(err)
		}
		return final("charged")
	}); err != nil {
		t.Error(err)
	}
	b.state(t, "k", "SUCCEEDED, charged true")
}

// While a handler has its transaction open nobody's lease can be renewed. Whoever
// loses his lease by that is cancelled in time, and nobody runs twice.
func TestTxKeepsRenewalsWaiting_case_14(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{Lease: 400 * time.Millisecond})
	other := businessOn(t, open(t, b.path), kakutei.Options{})
	opened, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		// Another process, say, with a longer lease.
		if _, err := other.run("slow", func(ctx context.Context) kakutei.Ending {
			if err := charge(ctx, "slow"); err != nil {
				t.Error(err)
			}
			close(opened)
			time.Sleep(1200 * time.Millisecond)
			return final("slow")
		}); err != nil {
			t.Error(err)
		}
	}()
	var runs atomic.Int64
	var cause error
	answer, err := b.runWith(context.Background(), "k", kakutei.Policy{Recovery: kakutei.Rerun}, func(ctx context.Context) kakutei.Ending {
		runs.Add(1)
		<-opened
		<-ctx.Done()
		cause = context.Cause(ctx)
		return final("it was done all the same")
	})
	<-over
	if !errors.Is(cause, kakutei.ErrLeaseLost) {
		t.Errorf("the handler was cancelled with %v", cause)
	}
	t.Logf("the caller is told %v %q, %v", answer.Unrecorded, answer.Result.Body, err)
	again, err := b.runWith(within(t), "k", kakutei.Policy{Recovery: kakutei.Rerun, Wait: 5 * time.Second}, func(context.Context) kakutei.Ending {
		runs.Add(1)
		return final("twice")
	})
	if err != nil || runs.Load() != 1 || string(again.Result.Body) != "it was done all the same" {
		t.Errorf("%d runs, %q, %v", runs.Load(), again.Result.Body, err)
	}
	other.state(t, "slow", "SUCCEEDED, charged true")
}

// Handlers that write, handlers that do not, duplicates and failures, all at
// once and from two handles: in the end the sums are right, and each row stands
// with its result.
func TestTxManyAtOnce(t *testing.T) {
	t.Parallel()
	a := newBusiness(t, kakutei.Options{})
	b := businessOn(t, open(t, a.path), kakutei.Options{})
	exec1(t, a.DB(), "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
	exec1(t, a.DB(), "INSERT INTO accounts VALUES (0, 1000), (1, 1000), (2, 1000)")
	keys := 60
	if raceDetector {
		keys = 20
	}
	var failures atomic.Int64
	together(16, func(worker int) {
		here := []*business{a, b}[worker%2]
		for n := range keys {
			key := fmt.Sprint("k", (n+worker)%keys) // each key is wanted by all workers, at different times
			p := kakutei.Policy{Recovery: kakutei.Transactional, Wait: 5 * time.Second}
			_, err := here.runWith(context.Background(), key, p, func(ctx context.Context) kakutei.Ending {
				switch n % 5 {
				case 0: // nothing to write
					return final("nothing")
				case 1: // writes, and fails the first time
					if kakutei.FromContext(ctx).Number() == 1 {
						failures.Add(1)
						if err := charge(ctx, key); err != nil {
							return kakutei.Ending{}
						}
						return kakutei.Ending{Finality: kakutei.FinalityUnknown}
					}
				}
				if err := charge(ctx, key); err != nil {
					return kakutei.Ending{}
				}
				tx, err := Tx(ctx)
				if err != nil {
					return kakutei.Ending{}
				}
				var from int
				if err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = ?", n%3).Scan(&from); err != nil {
					return kakutei.Ending{}
				}
				for _, q := range []string{
					fmt.Sprintf("UPDATE accounts SET balance = %d WHERE id = %d", from-1, n%3),
					fmt.Sprintf("UPDATE accounts SET balance = balance + 1 WHERE id = %d", (n+1)%3),
				} {
					if _, err := tx.ExecContext(ctx, q); err != nil {
						return kakutei.Ending{}
					}
				}
				return final("moved")
			})
			if err != nil && !errors.Is(err, kakutei.ErrInFlight) {
				t.Errorf("%s: %v", key, err)
			}
		}
	})
	t.Logf("%d attempts failed on purpose", failures.Load())
	if got := value(t, a.read, "SELECT sum(balance) FROM accounts"); got != "3000" {
		t.Errorf("the accounts hold %s", got)
	}
	rows := column(t, a.read, "SELECT name FROM charges ORDER BY name")
	results := column(t, a.read, "SELECT idempotency_key FROM idempotency_results WHERE status = 'SUCCEEDED' AND CAST(response_body AS TEXT) = 'moved' ORDER BY idempotency_key")
	if fmt.Sprint(rows) != fmt.Sprint(results) {
		t.Errorf("business rows: %v\nresults: %v", rows, results)
	}
}
