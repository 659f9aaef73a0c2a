package kakutei_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/memstore"
)

// writing returns a function whose business write is value, and that ends with
// it as its final answer; before may do something with its transaction.
func writing(value string, runs *int, before func(try int, tx *memstore.Tx) *kakutei.Ending) func(context.Context) kakutei.Ending {
	return func(ctx context.Context) kakutei.Ending {
		tx := memstore.TxFrom(ctx)
		*runs++
		tx.Set("order", fmt.Sprintf("%s %d", value, *runs))
		if before != nil {
			if ending := before(*runs, tx); ending != nil {
				return *ending
			}
		}
		return final(fmt.Sprintf("%s %d", value, *runs))
	}
}

// wantOrder checks the business row; "" means that there is none.
func wantOrder(t *testing.T, s *faultStore, want string) {
	t.Helper()
	got, ok := s.Get("order")
	assert.Equal(t, ok, want != "", "the business row is there")
	assert.Equal(t, got, want, "business row")
}

func TestTransactionCommitsWithItsResult(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		runs := 0
		a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
		wantAnswer(t, a, err, "paid 1")
		wantOrder(t, s, "paid 1")
		assert.Equal(t, s.count(settle), 0, "settlements outside the transaction")
		a, err = newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), transactional, never(t))
		wantReplay(t, a, err, "paid 1")
		assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine")
	})
}

// Under Transactional nothing is kept of a run that has no final answer.
func TestTransactionRolledBack(t *testing.T) {
	for _, tc := range endings {
		if tc.name == "final" {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					_, err := e.Run(t.Context(), operation("k"), transactional, func(ctx context.Context) kakutei.Ending {
						memstore.TxFrom(ctx).Set("order", "half done")
						return tc.end(ctx)
					})
					assert.NoError(t, err)
				}()
				<-done
				wantOrder(t, s, "")
				wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
				runs := 0
				a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
				wantAnswer(t, a, err, "paid 1")
				wantOrder(t, s, "paid 1")
			})
		})
	}
}

// Case 26: the database refuses the transaction twice; the third commits.
func TestCase26RefusedTwice(t *testing.T) {
	for _, where := range []string{"at commit", "in a statement", "in a statement, answered 200"} {
		t.Run(where, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				runs := 0
				a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, func(try int, tx *memstore.Tx) *kakutei.Ending {
					if try > 2 {
						return nil
					}
					tx.Refuse()
					switch where {
					case "in a statement":
						return &kakutei.Ending{Result: kakutei.Result{Code: 500}}
					case "in a statement, answered 200": // a handler that swallows the error of a statement
						return &kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Code: 200}}
					}
					return nil
				}))
				wantAnswer(t, a, err, "paid 3")
				assert.Equal(t, runs, 3, "runs")
				assert.Equal(t, a.Attempt, 1, "attempt: it is the same one")
				wantOrder(t, s, "paid 3")
				e.wantEvents(kakutei.EventAcquired, kakutei.EventConflict, kakutei.EventConflict, kakutei.EventSucceeded)
			})
		})
	}
}

// Case 26: refused for ever. The caller is told so at the deadline, and the row
// is released.
func TestCase26RefusedForEver(t *testing.T) {
	for _, detach := range []bool{true, false} {
		t.Run(fmt.Sprintf("detach %v", detach), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				p := kakutei.Policy{Recovery: kakutei.Transactional, Deadline: 20 * time.Second, Detach: detach}
				runs := 0
				start := time.Now()
				_, err := e.Run(t.Context(), operation("k"), p, writing("paid", &runs, func(_ int, tx *memstore.Tx) *kakutei.Ending {
					tx.Refuse()
					return nil
				}))
				assert.ErrorIs(t, err, kakutei.ErrUnavailable)
				assert.ErrorIs(t, err, kakutei.ErrConflict)
				assert.True(t, retryAfter(err) > 0, "RetryAfter is missing")
				assert.Equal(t, time.Since(start), p.Deadline, "time until the refusal")
				assert.True(t, runs > 10 && runs < 1000, "%d runs", runs)
				wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
				wantOrder(t, s, "")
				runs = 0
				a, err := e.Run(t.Context(), operation("k"), p, writing("paid", &runs, nil))
				wantAnswer(t, a, err, "paid 1")
			})
		})
	}
}

// Between two tries nothing was watched, as the attempt seemed to be ending. The
// next try is watched like the first: it loses its lease, and has its deadline.
func TestRefusedThenTheLeaseIsLost(t *testing.T) {
	for _, away := range []bool{true, false} {
		t.Run(map[bool]string{true: "renewals fail", false: "the deadline comes"}[away], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				if away {
					s.fail(renew, 0)
				}
				a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
				p := transactional
				p.Deadline = time.Minute
				runs := 0
				c := a.start(t.Context(), operation("k"), p, func(ctx context.Context) kakutei.Ending {
					if runs++; runs == 1 {
						memstore.TxFrom(ctx).Refuse()
						return final("refused")
					}
					start := time.Now()
					<-ctx.Done()
					if away {
						assert.ErrorIs(t, context.Cause(ctx), kakutei.ErrLeaseLost)
						took := time.Since(start)
						assert.True(t, took <= lease, "the second run was cancelled after %v", took)
						time.Sleep(eps)
					} else {
						assert.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
						time.Sleep(2 * lease) // not renewed any more
					}
					got, err := b.Run(context.Background(), operation("k"), p, answering("winner").run)
					wantAnswer(t, got, err, "winner")
					return final("loser")
				})
				got, err := c.result()
				wantReplay(t, got, err, "winner")
				assert.Equal(t, runs, 2, "runs")
				assert.Equal(t, len(a.seen(kakutei.EventLeaseLost)), 1, "lost leases observed")
			})
		})
	}
}

// A handler whose answer is on its way already cannot be run again.
func TestRefusedAfterTheAnswerWasSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		runs := 0
		_, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, func(_ int, tx *memstore.Tx) *kakutei.Ending {
			tx.Refuse()
			return &kakutei.Ending{Finality: kakutei.FinalityFinal, Sent: true}
		}))
		assert.ErrorIs(t, err, kakutei.ErrUnavailable)
		assert.Equal(t, runs, 1, "runs")
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
		wantOrder(t, s, "")
	})
}

// The caller hangs up between two tries: no more tries, and the row is released.
func TestRefusedAndTheCallerLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		ctx, cancel := context.WithCancelCause(t.Context())
		runs := 0
		_, err := e.Run(ctx, operation("k"), transactional, writing("paid", &runs, func(_ int, tx *memstore.Tx) *kakutei.Ending {
			tx.Refuse()
			cancel(errGone)
			return nil
		}))
		assert.ErrorIs(t, err, kakutei.ErrUnavailable)
		assert.Equal(t, runs, 1, "runs")
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
	})
}

// Case 25: the reply of the commit is lost. The engine reads back what became of
// it: if it was committed, its answer stands; if not, it runs again.
func TestCase25UnclearCommit(t *testing.T) {
	for _, committed := range []bool{true, false} {
		for _, lookFails := range []int{0, 3} {
			t.Run(fmt.Sprintf("committed %v, %d looks fail", committed, lookFails), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s := newFaultStore(t)
					if committed {
						s.lose(commit, 1)
					} else {
						s.fail(commit, 1)
					}
					if lookFails > 0 {
						s.fail(look, lookFails)
					}
					e := newEngine(t, s, kakutei.Options{})
					runs := 0
					a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
					want := map[bool]string{true: "paid 1", false: "paid 2"}[committed]
					wantAnswer(t, a, err, want)
					wantOrder(t, s, want)
					assert.Equal(t, s.count(look), lookFails+1, "looks")
					a, err = newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), transactional, never(t))
					wantReplay(t, a, err, want)
				})
			})
		}
	}
}

// The commit hangs until the store's time is over, as a connection that is cut.
func TestCase25CommitHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.hang(commit, 1)
		e := newEngine(t, s, kakutei.Options{})
		runs := 0
		a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
		wantAnswer(t, a, err, "paid 2")
		wantOrder(t, s, "paid 2")
	})
}

// What became of the commit cannot be read: the caller is refused, and whatever
// it was comes out when the store is back, with no business row written twice.
func TestCase25UnclearForLong(t *testing.T) {
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprintf("committed %v", committed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				if committed {
					s.lose(commit, 1)
				} else {
					s.fail(commit, 1)
				}
				faults := []*fault{s.fail(look, 0), s.fail(settle, 0)}
				e := newEngine(t, s, kakutei.Options{})
				runs := 0
				_, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
				assert.ErrorIs(t, err, kakutei.ErrUnavailable)
				for _, f := range faults {
					s.repair(f)
				}
				time.Sleep(time.Minute)
				assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine")
				a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
				if committed {
					wantReplay(t, a, err, "paid 1")
					wantOrder(t, s, "paid 1")
				} else {
					wantAnswer(t, a, err, "paid 2")
					wantOrder(t, s, "paid 2")
				}
			})
		})
	}
}

// The same, but the store takes settlements again at once: the attempt is given
// up unless its commit was made, in which case its answer is given.
func TestCase25UnclearThenSettled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.lose(commit, 1)
		f := s.fail(look, 0)
		e := newEngine(t, s, kakutei.Options{})
		s.add(&fault{method: settle, times: 1, before: func(context.Context) error { s.repair(f); return nil }})
		runs := 0
		a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
		wantReplay(t, a, err, "paid 1")
		wantOrder(t, s, "paid 1")
		assert.Equal(t, runs, 1, "runs")
	})
}

// A commit that seemed to have failed and arrives while the second run is under
// way: the fence lets one of the two through.
func TestCase25CommitArrivesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		var late func()
		s.add(&fault{method: commit, times: 1, before: func(context.Context) error {
			rec := record(t, s.Store, operation("k"))
			late = func() {
				errs, err := s.Store.Settle(context.Background(), []kakutei.Settlement{{
					Ref:    kakutei.Ref{ID: operation("k").ID(), Owner: rec.Owner, Attempt: rec.Attempt},
					Status: kakutei.StatusSucceeded, Result: kakutei.Result{Body: []byte("paid 1")},
				}})
				assert.NoError(t, errors.Join(err, errs[0]))
			}
			return errStore
		}})
		runs := 0
		a, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, func(try int, _ *memstore.Tx) *kakutei.Ending {
			if try == 2 {
				late()
			}
			return &kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Body: fmt.Appendf(nil, "paid %d", try)}}
		}))
		assert.NoError(t, err)
		assert.Equal(t, string(a.Result.Body), "paid 1", "body")
		assert.Equal(t, runs, 2, "runs")
		wantOrder(t, s, "") // of the second run
		a, err = newEngine(t, s, kakutei.Options{}).Run(t.Context(), operation("k"), transactional, never(t))
		wantReplay(t, a, err, "paid 1")
	})
}

// Case 15 in a transaction: the lease is lost, the commit is refused, and the
// caller gets the winner's answer.
func TestCase15TransactionOfTheLoser(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.fail(renew, 0)
		a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		runs, runsB := 0, 0
		gate := make(chan struct{})
		first := a.start(t.Context(), operation("k"), transactional, writing("A", &runs, func(int, *memstore.Tx) *kakutei.Ending {
			<-gate
			return nil
		}))
		time.Sleep(lease + eps)
		got, err := b.Run(t.Context(), operation("k"), transactional, writing("B", &runsB, nil))
		wantAnswer(t, got, err, "B 1")
		close(gate)
		got, err = first.result()
		wantReplay(t, got, err, "B 1")
		wantOrder(t, s, "B 1")
		assert.Equal(t, len(a.seen(kakutei.EventLeaseLost)), 1, "lost leases observed")
	})
}

// The loser's caller hung up meanwhile: that must not matter to what is recorded.
func TestTransactionCommitsAfterItsCallerLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		ctx, cancel := context.WithCancelCause(t.Context())
		runs := 0
		a, err := e.Run(ctx, operation("k"), transactional, writing("paid", &runs, func(int, *memstore.Tx) *kakutei.Ending {
			cancel(errGone)
			return nil
		}))
		wantAnswer(t, a, err, "paid 1")
		wantOrder(t, s, "paid 1")
	})
}

// The transaction cannot be begun: nothing ran, the row is released.
func TestBeginFails(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				if how == "fails" {
					s.fail(begin, 1)
				} else {
					s.hang(begin, 1)
				}
				e := newEngine(t, s, kakutei.Options{})
				start := time.Now()
				_, err := e.Run(t.Context(), operation("k"), transactional, never(t))
				assert.ErrorIs(t, err, kakutei.ErrUnavailable)
				assert.True(t, retryAfter(err) > 0, "RetryAfter is missing")
				took := time.Since(start)
				assert.True(t, took <= 5*time.Minute, "refused after %v", took)
				wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
			})
		})
	}
}

// Case 8 in the engine: an error that the handler makes its answer is its answer.
func TestCase08HandlersOwnViolation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		conflict := func(context.Context) kakutei.Ending {
			return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Code: 409, Body: []byte("email is taken")}}
		}
		a, err := e.Run(t.Context(), operation("k"), transactional, conflict)
		wantAnswer(t, a, err, "email is taken")
		a, err = e.Run(t.Context(), operation("k"), transactional, never(t))
		wantReplay(t, a, err, "email is taken")
		assert.Equal(t, a.Result.Code, 409, "code")
	})
}

// An operation started inside the transaction of another one, on a store with
// one writer, would wait for itself.
func TestNested(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, plain := newFaultStore(t), newFaultStore(t)
		s.exclusive = true
		e, same, elsewhere := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{}), newEngine(t, plain, kakutei.Options{})
		var outer context.Context
		a, err := e.Run(t.Context(), operation("outer"), transactional, func(ctx context.Context) kakutei.Ending {
			outer = ctx
			for _, x := range []*testEngine{e, same} {
				for _, p := range []kakutei.Policy{transactional, rerun, hold} {
					_, err := x.Run(ctx, operation("inner"), p, never(t))
					assert.ErrorIs(t, err, kakutei.ErrNested)
				}
			}
			a, err := elsewhere.Run(ctx, operation("inner"), transactional, answering("another store").run)
			wantAnswer(t, a, err, "another store")
			return final("outer")
		})
		wantAnswer(t, a, err, "outer")
		assert.Equal(t, s.itemCount(claim), 1, "claims that reached the store")
		// After the transaction its context is as good as any.
		a, err = e.Run(context.WithoutCancel(outer), operation("inner"), rerun, answering("inner").run)
		wantAnswer(t, a, err, "inner")
	})
}

// A handler that spoils its transaction would do so again: it is not run again,
// and the key is free.
func TestSpoiltTransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.add(&fault{method: commit, times: 1, before: func(context.Context) error { return fmt.Errorf("%w: spoilt", kakutei.ErrInvalid) }})
		e := newEngine(t, s, kakutei.Options{})
		runs := 0
		_, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
		assert.ErrorIs(t, err, kakutei.ErrInvalid)
		assert.Equal(t, runs, 1, "runs")
		wantStatus(t, s.Store, operation("k"), kakutei.StatusFailed)
	})
}

// An operation inside itself, as where a middleware was put on twice, would be
// told that it is in flight, for ever.
func TestNestedInItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := newEngine(t, newFaultStore(t), kakutei.Options{})
		a, err := e.Run(t.Context(), operation("k"), rerun, func(ctx context.Context) kakutei.Ending {
			_, err := e.Run(ctx, operation("k"), rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrNested)
			return final("outer")
		})
		wantAnswer(t, a, err, "outer")
	})
}

// The same through an attempt on another store in between.
func TestNestedThroughAnotherStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		s.exclusive = true
		e, elsewhere := newEngine(t, s, kakutei.Options{}), newEngine(t, newFaultStore(t), kakutei.Options{})
		_, err := e.Run(t.Context(), operation("outer"), transactional, func(ctx context.Context) kakutei.Ending {
			_, err := elsewhere.Run(ctx, operation("middle"), rerun, func(ctx context.Context) kakutei.Ending {
				_, err := e.Run(ctx, operation("inner"), rerun, answering("inner").run)
				assert.ErrorIs(t, err, kakutei.ErrNested)
				return final("middle")
			})
			assert.NoError(t, err)
			return final("outer")
		})
		assert.NoError(t, err)
	})
}

// Where transactions are not exclusive, operations may be started inside others.
func TestNestedIsAllowed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		a, err := e.Run(t.Context(), operation("outer"), transactional, func(ctx context.Context) kakutei.Ending {
			a, err := e.Run(ctx, operation("inner"), rerun, func(ctx context.Context) kakutei.Ending {
				assert.Equal(t, kakutei.FromContext(ctx).ID(), operation("inner").ID(), "the innermost attempt")
				return final("inner")
			})
			wantAnswer(t, a, err, "inner")
			return final("outer")
		})
		wantAnswer(t, a, err, "outer")
		assert.True(t, kakutei.FromContext(t.Context()) == nil, "an attempt without one")
	})
}

// A driver that panics must not leave the key in flight for the rest of the process.
func TestStorePanicsInTheRequest(t *testing.T) {
	for _, method := range []string{begin, commit} {
		t.Run(method, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				s.add(&fault{method: method, times: 1, before: func(context.Context) error { panic(errPanic) }})
				e := newEngine(t, s, kakutei.Options{})
				runs := 0
				func() {
					defer func() {
						assert.True(t, recover() == errPanic, "the panic did not pass through") //nolint:errorlint // the very value
					}()
					_, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
					t.Errorf("Run returned %v", err)
				}()
				synctest.Wait()
				if assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine") {
					_, err := e.Run(t.Context(), operation("k"), transactional, writing("paid", &runs, nil))
					assert.NoError(t, err)
				}
			})
		})
	}
}
