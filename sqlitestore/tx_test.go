package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
)

// business is a file with a table of the service, and an engine on it.
type business struct {
	*Store
	engine *kakutei.Engine
}

func newBusiness(t *testing.T, opts kakutei.Options) *business {
	t.Helper()
	return businessOn(t, open(t, newFile(t)), opts)
}

func businessOn(t *testing.T, s *Store, opts kakutei.Options) *business {
	t.Helper()
	exec1(t, s.DB(), "CREATE TABLE IF NOT EXISTS charges (name TEXT PRIMARY KEY) WITHOUT ROWID")
	exec1(t, s.DB(), "CREATE TABLE IF NOT EXISTS runs (name TEXT)")
	opts.ReplayMemoryBytes = kakutei.NoReplayMemory // the store is what is tested
	e, err := kakutei.New(s, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return &business{s, e}
}

func (b *business) run(key string, fn func(ctx context.Context) kakutei.Ending) (kakutei.Answer, error) {
	return b.runWith(context.Background(), key, kakutei.Policy{Recovery: kakutei.Transactional}, fn)
}

func (b *business) runWith(ctx context.Context, key string, p kakutei.Policy, fn func(ctx context.Context) kakutei.Ending) (kakutei.Answer, error) {
	return b.engine.Run(ctx, opOf(key), p, fn)
}

// charge writes the business row of a name through the attempt's transaction.
func charge(ctx context.Context, name string) error {
	tx, err := Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec("INSERT INTO charges VALUES (?)", name)
	return err
}

func (b *business) charged(t *testing.T, name string) bool {
	t.Helper()
	return value(t, b.read, "SELECT count(*) FROM charges WHERE name = ?", name) == "1"
}

// state is the operation's status, and whether its business row is there.
func (b *business) state(t *testing.T, key, want string) {
	t.Helper()
	got := fmt.Sprintf("%v, charged %v", look(t, b.Store, key).Status, b.charged(t, key))
	if got != want {
		t.Errorf("%s is %s, want %s", key, got, want)
	}
}

// free fails if the writer is not let go.
func (b *business) free(t *testing.T) {
	t.Helper()
	claims(t, b.Store, claimOf("is it free at "+time.Now().String()+"?", "me", long), kakutei.Acquired, 1)
}

func final(body string) kakutei.Ending {
	return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Code: 201, Body: []byte(body)}}
}

// C18: what is written through Tx becomes visible with the result. Until then
// the handler alone sees it.
func TestTxCommitsWithTheResult(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	other := open(t, b.path)
	answer, err := b.run("k", func(ctx context.Context) kakutei.Ending {
		if err := charge(ctx, "k"); err != nil {
			t.Error(err)
		}
		tx, err := Tx(ctx)
		if err != nil {
			t.Error(err)
		}
		if again, err := Tx(context.WithValue(ctx, txKey{}, ctx.Value(txKey{}))); err != nil || again != tx {
			t.Errorf("the second Tx is another: %v", err)
		}
		if got := value(t, tx, "SELECT count(*) FROM charges"); got != "1" {
			t.Errorf("the handler sees %s of its own rows", got)
		}
		if got := value(t, tx, "SELECT status FROM idempotency_keys"); got != "PROCESSING" {
			t.Errorf("the handler sees its operation %s", got)
		}
		for _, s := range []*Store{b.Store, other} {
			if got := value(t, s.read, "SELECT count(*) FROM charges"); got != "0" {
				t.Error("others see what is not committed")
			}
			claims(t, s, claimOf("k", "other", long), kakutei.InFlight, 1)
		}
		return final("charged")
	})
	if err != nil || answer.Replayed || string(answer.Result.Body) != "charged" {
		t.Fatalf("%+v, %v", answer, err)
	}
	b.state(t, "k", "SUCCEEDED, charged true")
	answer, err = b.run("k", func(context.Context) kakutei.Ending { t.Error("it ran again"); return final("") })
	if err != nil || !answer.Replayed || string(answer.Result.Body) != "charged" {
		t.Fatalf("%+v, %v", answer, err)
	}
}

// Every ending but a final one takes the business writes with it, and the
// operation may run again.
func TestTxRollsBack_cases_21_29(t *testing.T) {
	t.Parallel()
	for name, ending := range map[string]func(ctx context.Context) kakutei.Ending{
		"unknown, as after a 5xx": func(context.Context) kakutei.Ending { return kakutei.Ending{Result: kakutei.Result{Code: 500}} },
		"no effect":               func(context.Context) kakutei.Ending { return kakutei.Ending{Finality: kakutei.FinalityNoEffect} },
		"final, but said to be without effect": func(ctx context.Context) kakutei.Ending {
			kakutei.FromContext(ctx).NoEffect()
			return final("")
		},
		"panic":  func(context.Context) kakutei.Ending { panic("the handler") },
		"Goexit": func(context.Context) kakutei.Ending { runtime.Goexit(); return final("") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBusiness(t, kakutei.Options{})
			var kept context.Context
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() {
					if p := recover(); p != nil && p != "the handler" {
						panic(p)
					}
				}()
				//nolint:errcheck // what counts is what is left behind
				b.run("k", func(ctx context.Context) kakutei.Ending {
					kept = ctx
					if err := charge(ctx, "k"); err != nil {
						t.Error(err)
					}
					return ending(ctx)
				})
			}()
			<-ended
			b.state(t, "k", "FAILED, charged false")
			b.free(t)
			if tx, err := Tx(kept); err == nil || !strings.Contains(err.Error(), "has ended") {
				t.Errorf("after its attempt, Tx returns %v, %v", tx, err)
			}
			answer, err := b.run("k", func(ctx context.Context) kakutei.Ending {
				if n := kakutei.FromContext(ctx).Number(); n != 2 {
					t.Errorf("the next attempt is number %d", n)
				}
				if err := charge(ctx, "k"); err != nil {
					t.Error(err)
				}
				return final("second")
			})
			if err != nil || answer.Attempt != 2 {
				t.Errorf("%+v, %v", answer, err)
			}
			b.state(t, "k", "SUCCEEDED, charged true")
		})
	}
}

// Do: an error of the function rolls back and is returned as it is.
func TestTxDo(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	p := kakutei.Policy{Recovery: kakutei.Transactional}
	broken := errors.New("no coverage")
	if _, err := kakutei.Do(within(t), b.engine, opOf("k"), p, func(ctx context.Context) (int, error) {
		return 0, errors.Join(charge(ctx, "k"), broken)
	}); !errors.Is(err, broken) {
		t.Error(err)
	}
	b.state(t, "k", "FAILED, charged false")
	for range 2 {
		if n, err := kakutei.Do(within(t), b.engine, opOf("k"), p, func(ctx context.Context) (int, error) {
			return 42, charge(ctx, "k")
		}); n != 42 || err != nil {
			t.Error(n, err)
		}
	}
	b.state(t, "k", "SUCCEEDED, charged true")
}

// Case 8: a unique violation in the handler's own table is the handler's
// answer. It is not taken for a conflict of keys, and undoes nothing else.
func TestTxUniqueViolation_case_8(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	exec1(t, b.DB(), "INSERT INTO charges VALUES ('taken')")
	runs := 0
	answer, err := b.run("k", func(ctx context.Context) kakutei.Ending {
		runs++
		if err := charge(ctx, "k"); err != nil {
			t.Error(err)
		}
		if err := charge(ctx, "taken"); code(err) != 19 { // SQLITE_CONSTRAINT
			t.Errorf("the second insert of a unique row: %v", err)
		}
		return final("there is one of that name")
	})
	if err != nil || runs != 1 || string(answer.Result.Body) != "there is one of that name" {
		t.Errorf("%d runs, %+v, %v", runs, answer, err)
	}
	b.state(t, "k", "SUCCEEDED, charged true")
}

// G3: the attempt was overtaken before it asked for its transaction. Its writes
// are refused with its result.
func TestTxAfterTakeover_case_15(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	other := open(t, b.path)
	ctx := within(t)
	claims(t, b.Store, claimOf("k", "a", time.Millisecond), kakutei.Acquired, 1)
	time.Sleep(3 * time.Millisecond)
	claims(t, other, claimOf("k", "b", long), kakutei.Acquired, 2)
	for _, first := range []bool{true, false} { // before and after the new holder's success; a new day is made here, too
		zombie, err := b.Begin(ctx, refOf("k", "a", 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := charge(zombie.Context(ctx), "the zombie"); err != nil {
			t.Fatal(err)
		}
		if !zombie.Exclusive() {
			t.Error("an open transaction is not exclusive")
		}
		if err := zombie.Commit(ctx, success(refOf("k", "a", 1))); !errors.Is(err, kakutei.ErrLeaseLost) {
			t.Errorf("the zombie commits: %v", err)
		}
		if zombie.Exclusive() {
			t.Error("an ended transaction is exclusive")
		}
		if b.charged(t, "the zombie") {
			t.Fatal("the zombie's row is there")
		}
		if first {
			settle(t, other, success(refOf("k", "b", 2)))
		}
	}
	b.free(t)
	// The transaction of the zombie was the first to make the day's table here.
	done(t, b.Store, "after the zombie")
	claims(t, b.Store, claimOf("k", "c", long), kakutei.Replay, 2)
}

// G3: a zombie that has its transaction open. It keeps the writer, so nobody can
// take over before it ends: it commits, and who waited to take over replays. If
// it does not commit, the takeover goes on.
func TestTxZombieHoldsTheWriter_case_15(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprint("commits ", commits), func(t *testing.T) {
			t.Parallel()
			b := newBusiness(t, kakutei.Options{})
			other := open(t, b.path)
			ctx := within(t)
			claims(t, b.Store, claimOf("k", "a", short), kakutei.Acquired, 1)
			zombie, err := b.Begin(ctx, refOf("k", "a", 1))
			if err != nil {
				t.Fatal(err)
			}
			if err := charge(zombie.Context(ctx), "k"); err != nil {
				t.Fatal(err)
			}
			for look(t, other, "k").Left > 0 {
				time.Sleep(time.Millisecond)
			}
			heir := make(chan kakutei.Decision, 1)
			go func() {
				d, err := tryClaim(ctx, other, claimOf("k", "b", long))
				if err != nil {
					t.Error(err)
				}
				heir <- d
			}()
			select {
			case d := <-heir:
				t.Fatalf("beside an open transaction a claim came to %v", d.Outcome)
			case <-time.After(50 * time.Millisecond):
			}
			if commits {
				if err := zombie.Commit(ctx, success(refOf("k", "a", 1))); err != nil {
					t.Errorf("an attempt that was not overtaken cannot commit: %v", err)
				}
				if d := <-heir; d.Outcome != kakutei.Replay || d.Attempt != 1 {
					t.Errorf("who waited to take over came to %v, attempt %d", d.Outcome, d.Attempt)
				}
				b.state(t, "k", "SUCCEEDED, charged true")
				return
			}
			if err := zombie.Rollback(); err != nil {
				t.Error(err)
			}
			if d := <-heir; d.Outcome != kakutei.Acquired || d.Attempt != 2 || !d.Takeover {
				t.Errorf("who waited to take over came to %v, attempt %d", d.Outcome, d.Attempt)
			}
			if err := zombie.Commit(ctx, success(refOf("k", "a", 1))); err == nil {
				t.Error("a transaction was committed after it was rolled back")
			}
			b.state(t, "k", "PROCESSING, charged false")
		})
	}
}

// A handler whose transaction is open for longer than its lease cannot be
// renewed: nobody else can write, and the renewal neither. It is cancelled, and
// all of it is undone.
func TestTxOutlivesItsLease_case_14(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{Lease: 500 * time.Millisecond})
	var cause error
	_, err := b.run("k", func(ctx context.Context) kakutei.Ending {
		if err := charge(ctx, "k"); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		cause = context.Cause(ctx)
		return final("too late")
	})
	if !errors.Is(cause, kakutei.ErrLeaseLost) {
		t.Errorf("the handler's context was cancelled with %v", cause)
	}
	if err == nil {
		t.Error("the attempt without a lease has succeeded")
	}
	t.Logf("the caller is told: %v", err)
	b.state(t, "k", "FAILED, charged false")
	b.free(t)
}

// The deadline of a run undoes it, also in the middle of a statement, and the
// writer is as it was.
func TestTxDeadline(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	for name, wait := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"between statements": func(ctx context.Context, _ *sql.Tx) error { <-ctx.Done(); return ctx.Err() },
		"in a statement": func(ctx context.Context, tx *sql.Tx) error {
			var n int
			return tx.QueryRowContext(ctx, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n").Scan(&n)
		},
	} {
		start := time.Now()
		_, err := b.runWith(context.Background(), name, kakutei.Policy{Recovery: kakutei.Transactional, Deadline: 300 * time.Millisecond},
			func(ctx context.Context) kakutei.Ending {
				tx, err := Tx(ctx)
				if err != nil {
					t.Error(err)
				}
				if err := charge(ctx, name); err != nil {
					t.Error(err)
				}
				if err := wait(ctx, tx); err == nil {
					t.Error("it has ended by itself")
				}
				return final("too late")
			})
		if err == nil {
			t.Errorf("%s: a run past its deadline has succeeded", name)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: the deadline of 300ms took %v", name, took)
		}
		b.state(t, name, "FAILED, charged false")
		b.free(t)
		for pragma, want := range map[string]string{"synchronous": "2", "busy_timeout": fmt.Sprint(busyMillis), "journal_mode": "wal"} {
			if got := value(t, b.DB(), "PRAGMA "+pragma); got != want {
				t.Errorf("%s: afterwards %s is %s, want %s", name, pragma, got, want)
			}
		}
	}
}

// Where there is no transaction, Tx says so.
func TestTxElsewhere(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	says := func(ctx context.Context, text string) {
		t.Helper()
		if tx, err := Tx(ctx); tx != nil || err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("Tx returns %v, %v", tx, err)
		}
	}
	const hint = "Recovery: kakutei.Transactional"
	says(context.Background(), hint)
	for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold} {
		if _, err := b.runWith(within(t), recovery.String(), kakutei.Policy{Recovery: recovery}, func(ctx context.Context) kakutei.Ending {
			says(ctx, hint)
			return final("")
		}); err != nil {
			t.Error(err)
		}
	}
	e, err := kakutei.New(memstore.New(), kakutei.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(within(t))
	if _, err := e.Run(within(t), opOf("k"), kakutei.Policy{Recovery: kakutei.Transactional}, func(ctx context.Context) kakutei.Ending {
		says(ctx, hint)
		return final("")
	}); err != nil {
		t.Error(err)
	}
	var kept context.Context
	if _, err := b.run("k", func(ctx context.Context) kakutei.Ending { kept = ctx; return final("") }); err != nil {
		t.Error(err)
	}
	says(kept, "the attempt has ended")
}

// An operation within the open transaction of another would wait for itself.
func TestTxNested(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{StoreTimeout: 300 * time.Millisecond})
	inner := func(ctx context.Context, key string, recovery kakutei.Recovery) error {
		_, err := b.runWith(ctx, key, kakutei.Policy{Recovery: recovery}, func(context.Context) kakutei.Ending { return final("inner") })
		return err
	}
	answer, err := b.run("outer", func(ctx context.Context) kakutei.Ending {
		// Before the transaction is open, nothing is in the way.
		if err := inner(ctx, "before", kakutei.Rerun); err != nil {
			t.Errorf("before the transaction: %v", err)
		}
		if err := inner(ctx, "before, transactional", kakutei.Transactional); err != nil {
			t.Errorf("before the transaction: %v", err)
		}
		if err := charge(ctx, "outer"); err != nil {
			t.Error(err)
		}
		for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional} {
			if err := inner(ctx, "within", recovery); !errors.Is(err, kakutei.ErrNested) {
				t.Errorf("%v, within the transaction: %v", recovery, err)
			}
		}
		// Who hides where he comes from waits, but not for ever.
		if err := inner(context.Background(), "hidden", kakutei.Rerun); !errors.Is(err, kakutei.ErrUnavailable) {
			t.Errorf("hidden, within the transaction: %v", err)
		}
		return final("outer")
	})
	if err != nil || answer.Replayed {
		t.Errorf("%+v, %v", answer, err)
	}
	b.state(t, "outer", "SUCCEEDED, charged true")
	if rec := look(t, b.Store, "hidden"); rec.Status == kakutei.StatusSucceeded {
		t.Error("the hidden one ran")
	}
	if err := inner(context.Background(), "within", kakutei.Rerun); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// An attempt that never asks for its transaction is settled with everybody
// else's, in their transaction.
func TestTxNeverCalled(t *testing.T) {
	t.Parallel()
	var begins atomic.Int64
	s := faulty(t, newFile(t), func(when, step string) error {
		if when == "after" && step == "BEGIN" {
			begins.Add(1)
		}
		return nil
	})
	b := businessOn(t, s, kakutei.Options{})
	const n = 30
	var ready, others atomic.Int64
	together(n, func(i int) {
		answer, err := b.run(fmt.Sprint("k", i), func(ctx context.Context) kakutei.Ending {
			ready.Add(1)
			for ready.Load() < n { // until all have been claimed, and end together
				runtime.Gosched()
			}
			others.CompareAndSwap(0, begins.Load())
			return final("x")
		})
		if err != nil || answer.Replayed {
			t.Errorf("%+v, %v", answer, err)
		}
	})
	used := begins.Load() - others.Load()
	t.Logf("%d attempts were settled in %d transactions", n, used)
	if used >= n {
		t.Error("each was settled in a transaction of its own")
	}
	if got := value(t, s.read, "SELECT count(*) FROM idempotency_results WHERE status = 'SUCCEEDED'"); got != fmt.Sprint(n) {
		t.Errorf("%s have succeeded", got)
	}
}
