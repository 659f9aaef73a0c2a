package kakutei_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

type receipt struct {
	ID     string
	Amount int64
	Lines  []string `json:",omitempty"`
}

func TestDoReplaysItsValue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		want := receipt{ID: "r-1", Amount: 9007199254740993, Lines: []string{"", "\x00", "ü"}}
		runs := 0
		for _, x := range []*testEngine{e, e, newEngine(t, s, kakutei.Options{})} { // first, from memory, from the store
			got, err := kakutei.Do(t.Context(), x.Engine, operation("k"), rerun, func(context.Context) (receipt, error) {
				runs++
				return want, nil
			})
			assert.NoError(t, err)
			assert.True(t, reflect.DeepEqual(got, want), "got %#v, want %#v", got, want)
		}
		assert.Equal(t, runs, 1, "n")
	})
}

// Zero values are answers like any other (case 23).
func TestCase23DoZeroValues(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		a, b := newEngine(t, s, kakutei.Options{}), newEngine(t, s, kakutei.Options{})
		for _, e := range []*testEngine{a, a, b} {
			n, err := kakutei.Do(t.Context(), e.Engine, operation("int"), rerun, func(context.Context) (int, error) { return 0, nil })
			assert.NoError(t, err)
			assert.Equal(t, n, 0, "int")
			str, err := kakutei.Do(t.Context(), e.Engine, operation("string"), rerun, func(context.Context) (string, error) { return "", nil })
			assert.NoError(t, err)
			assert.Equal(t, str, "", "string")
			p, err := kakutei.Do(t.Context(), e.Engine, operation("pointer"), rerun, func(context.Context) (*int, error) { return nil, nil })
			assert.NoError(t, err)
			assert.True(t, p == nil, "pointer: %v", p)
			l, err := kakutei.Do(t.Context(), e.Engine, operation("slice"), rerun, func(context.Context) ([]int, error) { return []int{}, nil })
			assert.NoError(t, err)
			assert.True(t, l != nil && len(l) == 0, "slice: %#v", l)
			_, err = kakutei.Do(t.Context(), e.Engine, operation("struct"), rerun, func(context.Context) (struct{}, error) { return struct{}{}, nil })
			assert.NoError(t, err)
		}
		assert.Equal(t, len(a.seen(kakutei.EventAcquired))+len(b.seen(kakutei.EventAcquired)), 5, "operations that ran")
	})
}

var errDeclined = errors.New("the provider did not answer")

// An error of the function is returned as it is; the recovery decides whether
// the next call runs.
func TestDoErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		p    kakutei.Policy
		err  error
		next kakutei.Status
	}{
		{"rerun", rerun, errDeclined, kakutei.StatusFailed},
		{"transactional", transactional, errDeclined, kakutei.StatusFailed},
		{"hold", hold, errDeclined, kakutei.StatusUncertain},
		{"hold, wrapped", hold, fmt.Errorf("charge: %w", errDeclined), kakutei.StatusUncertain},
		{"hold, no effect", hold, kakutei.NoEffect(errDeclined), kakutei.StatusFailed}, // case 29
		{"hold, no effect, wrapped", hold, fmt.Errorf("charge: %w", kakutei.NoEffect(errDeclined)), kakutei.StatusFailed},
		{"hold, no effect, joined", hold, errors.Join(errGone, kakutei.NoEffect(errDeclined)), kakutei.StatusFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newFaultStore(t)
				e := newEngine(t, s, kakutei.Options{})
				got, err := kakutei.Do(t.Context(), e.Engine, operation("k"), tc.p, func(context.Context) (string, error) { return "partial", tc.err })
				assert.True(t, err == tc.err, "got error %v, want it as it is: %v", err, tc.err) //nolint:errorlint // the very value
				assert.Equal(t, got, "partial", "value beside the error")
				wantStatus(t, s.Store, operation("k"), tc.next)
				got, err = kakutei.Do(t.Context(), e.Engine, operation("k"), tc.p, func(context.Context) (string, error) { return "second", nil })
				if tc.next == kakutei.StatusUncertain {
					assert.ErrorIs(t, err, kakutei.ErrUncertain)
					assert.Equal(t, got, "", "value beside a refusal")
				} else {
					assert.NoError(t, err)
					assert.Equal(t, got, "second", "value")
				}
			})
		})
	}
}

// The refusals are those of Run.
func TestDoRefusals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		abandon(t, s.Store, operation("k"), lease)
		fn := func(context.Context) (int, error) {
			t.Error("the function ran")
			return 1, nil
		}
		n, err := kakutei.Do(t.Context(), e.Engine, operation("k"), rerun, fn)
		wantInFlight(t, err, lease)
		assert.Equal(t, n, 0, "value")
		_, err = kakutei.Do(t.Context(), e.Engine, operation("k", "another"), rerun, fn)
		assert.ErrorIs(t, err, kakutei.ErrMismatch)
		_, err = kakutei.Do(t.Context(), e.Engine, kakutei.Operation{Key: "k"}, rerun, fn)
		assert.ErrorIs(t, err, kakutei.ErrInvalid)
		ctx, cancel := context.WithCancelCause(t.Context())
		c := make(chan error)
		go func() {
			_, err := kakutei.Do(ctx, e.Engine, operation("k"), waiting(rerun, time.Hour), fn)
			c <- err
		}()
		time.Sleep(time.Second)
		cancel(errGone)
		assert.Equal(t, <-c, errGone, "error of a caller that left")
	})
}

// Case 27: the effect happened and could not be recorded: the value comes with
// an error that says so.
func TestCase27DoUnrecorded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		f := s.fail(settle, 0)
		e := newEngine(t, s, kakutei.Options{})
		got, err := kakutei.Do(t.Context(), e.Engine, operation("k"), hold, func(context.Context) (string, error) { return "paid", nil })
		assert.ErrorIs(t, err, kakutei.ErrUnavailable)
		assert.True(t, retryAfter(err) > 0, "RetryAfter is missing")
		assert.Equal(t, got, "paid", "value")
		_, err = kakutei.Do(t.Context(), e.Engine, operation("failed"), hold, func(context.Context) (string, error) { return "", errDeclined })
		assert.Equal(t, err, errDeclined, "the function's own error comes first")
		s.repair(f)
		time.Sleep(time.Minute)
		got, err = kakutei.Do(t.Context(), e.Engine, operation("k"), hold, func(context.Context) (string, error) { return "twice", nil })
		assert.NoError(t, err)
		assert.Equal(t, got, "paid", "value replayed")
	})
}

// A value that JSON does not take is an error of the program. The effect has
// happened, so the recovery decides.
func TestDoCannotEncode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		got, err := kakutei.Do(t.Context(), e.Engine, operation("k"), hold, func(context.Context) (func(), error) { return func() {}, nil })
		assert.True(t, err != nil && got != nil, "value is nil: %v, error %v; want both", got == nil, err)
		wantStatus(t, s.Store, operation("k"), kakutei.StatusUncertain)
	})
}

// Case 24: a recorded value of another type is not given, nothing runs, and the
// operator learns of it.
func TestCase24DoCannotDecode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		_, err := kakutei.Do(t.Context(), e.Engine, operation("k"), rerun, func(context.Context) (string, error) { return "text", nil })
		assert.NoError(t, err)
		n, err := kakutei.Do(t.Context(), e.Engine, operation("k"), rerun, func(context.Context) (int, error) {
			t.Error("the function ran")
			return 1, nil
		})
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
		assert.Equal(t, n, 0, "value")
		assert.Equal(t, len(e.seen(kakutei.EventCorrupt)), 1, "corrupt records observed")
	})
}

// Under Transactional the value of the run that was committed counts.
func TestDoRunsAgainOnConflict(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		s.add(&fault{method: commit, times: 2, before: func(context.Context) error { return kakutei.ErrConflict }})
		runs := 0
		got, err := kakutei.Do(t.Context(), e.Engine, operation("k"), transactional, func(context.Context) (int, error) {
			runs++
			return runs, nil
		})
		assert.NoError(t, err)
		assert.Equal(t, got, 3, "value")
	})
}

func TestDoPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		func() {
			defer func() {
				assert.True(t, recover() == errPanic, "the panic did not pass through") //nolint:errorlint // the very value
			}()
			_, err := kakutei.Do(t.Context(), e.Engine, operation("k"), hold, func(context.Context) (int, error) { panic(errPanic) })
			t.Errorf("Do returned %v", err)
		}()
		wantStatus(t, s.Store, operation("k"), kakutei.StatusUncertain)
	})
}
