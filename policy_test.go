package kakutei_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/memstore"
)

// There is no silent default for what is dangerous: who forgets the recovery
// reads what the choice is, and nothing is claimed.
func TestRecoveryMustBeChosen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		_, runErr := e.Run(t.Context(), operation("k"), kakutei.Policy{}, never(t))
		_, doErr := kakutei.Do(t.Context(), e.Engine, operation("k"), kakutei.Policy{Wait: time.Second}, func(context.Context) (int, error) {
			t.Error("the function ran")
			return 0, nil
		})
		for _, err := range []error{kakutei.Policy{}.Validate(), e.CheckPolicy(kakutei.Policy{}), runErr, doErr} {
			assert.ErrorIs(t, err, kakutei.ErrInvalid)
			for _, word := range []string{"Transactional:", "Rerun:", "Hold:", "may it run again?"} {
				assert.True(t, strings.Contains(err.Error(), word), "the text does not explain %q: %v", word, err)
			}
		}
		assert.Equal(t, s.count(claim), 0, "claims")
	})
}

func TestPolicyValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		p    kakutei.Policy
		ok   bool
	}{
		{"rerun", kakutei.Policy{Recovery: kakutei.Rerun}, true},
		{"unknown recovery", kakutei.Policy{Recovery: 9}, false},
		{"shortest lease", kakutei.Policy{Recovery: kakutei.Hold, Lease: kakutei.MinLease}, true},
		{"longest lease", kakutei.Policy{Recovery: kakutei.Hold, Lease: kakutei.MaxLease}, true},
		{"lease too short", kakutei.Policy{Recovery: kakutei.Hold, Lease: kakutei.MinLease - 1}, false},
		{"lease too long", kakutei.Policy{Recovery: kakutei.Hold, Lease: kakutei.MaxLease + 1}, false},
		{"lease below zero", kakutei.Policy{Recovery: kakutei.Hold, Lease: -time.Second}, false},
		{"no deadline", kakutei.Policy{Recovery: kakutei.Hold, Deadline: kakutei.NoDeadline}, true},
		{"deadline below zero", kakutei.Policy{Recovery: kakutei.Hold, Deadline: -time.Second}, false},
		{"wait below zero", kakutei.Policy{Recovery: kakutei.Hold, Wait: -1}, false},
	} {
		err := tc.p.Validate()
		if tc.ok {
			assert.NoError(t, err)
		} else if !assert.ErrorIs(t, err, kakutei.ErrInvalid) {
			t.Log(tc.name)
		}
	}
}

// Transactional needs a store with transactions, and says so at start.
func TestTransactionalNeedsATransactor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, plainStore{s}, kakutei.Options{})
		err := e.CheckPolicy(transactional)
		assert.ErrorIs(t, err, kakutei.ErrInvalid)
		assert.True(t, strings.Contains(err.Error(), "plainStore has no transactions"), "the text does not name the store: %v", err)
		_, err = e.Run(t.Context(), operation("k"), transactional, never(t))
		assert.ErrorIs(t, err, kakutei.ErrInvalid)
		assert.Equal(t, s.count(claim), 0, "claims")
		assert.NoError(t, e.CheckPolicy(rerun))
		assert.NoError(t, newEngine(t, s, kakutei.Options{}).CheckPolicy(transactional))
	})
}

func TestRecoveryNames(t *testing.T) {
	t.Parallel()
	for _, r := range []kakutei.Recovery{kakutei.Transactional, kakutei.Rerun, kakutei.Hold} {
		got, err := kakutei.ParseRecovery(r.String())
		assert.NoError(t, err)
		assert.Equal(t, got, r, "round trip of "+r.String())
	}
	for _, name := range []string{"", "Rerun", "recovery(0)", "retry"} {
		_, err := kakutei.ParseRecovery(name)
		assert.ErrorIs(t, err, kakutei.ErrInvalid)
	}
	assert.Equal(t, kakutei.Recovery(0).String(), "recovery(0)", "the zero recovery")
}

func TestNewRefusesOptions(t *testing.T) {
	t.Parallel()
	_, err := kakutei.New(nil, kakutei.Options{})
	assert.ErrorIs(t, err, kakutei.ErrInvalid)
	for _, o := range []kakutei.Options{
		{Lease: kakutei.MinLease - 1}, {Lease: kakutei.MaxLease + 1}, {Lease: -1},
		{Retention: time.Minute}, {Retention: -2}, {Deadline: -2},
		{StoreTimeout: -1}, {SettleTimeout: -1}, {MaxBatch: -1},
	} {
		_, err := kakutei.New(memstore.New(), o)
		if !assert.ErrorIs(t, err, kakutei.ErrInvalid) {
			t.Logf("options: %+v", o)
		}
	}
	for _, o := range []kakutei.Options{
		{}, {Lease: kakutei.MinLease}, {Lease: kakutei.MaxLease}, {Retention: time.Hour},
		{Retention: kakutei.NoRetention, Deadline: kakutei.NoDeadline, ReplayMemoryBytes: kakutei.NoReplayMemory},
	} {
		e, err := kakutei.New(memstore.New(), o)
		if assert.NoError(t, err) {
			assert.NoError(t, e.Close(t.Context()))
		}
	}
}

// The defaults are those that the comments name, as the store sees them.
func TestDefaults(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		var got kakutei.Claim
		s.decided = func(c kakutei.Claim, d kakutei.Decision) kakutei.Decision { got = c; return d }
		e, err := kakutei.New(s, kakutei.Options{Logger: slog.New(slog.DiscardHandler)})
		assert.NoError(t, err)
		start := time.Now()
		_, err = e.Run(t.Context(), operation("k"), rerun, func(ctx context.Context) kakutei.Ending {
			until, _ := ctx.Deadline()
			assert.Equal(t, until.Sub(start), 5*time.Minute, "deadline")
			return final("done")
		})
		assert.NoError(t, err)
		assert.NoError(t, e.Close(t.Context()))
		assert.Equal(t, got.Lease, 30*time.Second, "lease")
		assert.Equal(t, got.Recovery, kakutei.Rerun, "recovery")
		assert.True(t, got.Node != "", "the node has no name")
		assert.True(t, len(got.Owner) >= 16, "the owner token %q is short", got.Owner)
	})
}

// Every claim has an owner token of its own.
func TestOwnersDiffer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		owners := map[string]bool{}
		s.decided = func(c kakutei.Claim, d kakutei.Decision) kakutei.Decision {
			assert.True(t, !owners[c.Owner], "the owner token %q was used before", c.Owner)
			owners[c.Owner] = true
			return d
		}
		e := newEngine(t, s, kakutei.Options{})
		for range 100 {
			_, err := e.Run(t.Context(), operation("k"), rerun, func(context.Context) kakutei.Ending { return kakutei.Ending{} })
			assert.NoError(t, err)
		}
		assert.Equal(t, len(owners), 100, "claims")
	})
}

// Old results are dropped in the background, with the retention of the options.
func TestRetention(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &retainer{faultStore: newFaultStore(t)}
		e := newEngine(t, s, kakutei.Options{Retention: 48 * time.Hour})
		time.Sleep(10*kakutei.RetainInterval + time.Minute)
		passes := s.count()
		assert.True(t, passes >= 9 && passes <= 11, "%d passes in ten hours; the first one failed", passes)
		assert.NoError(t, e.Close(t.Context()))
		time.Sleep(10 * kakutei.RetainInterval)
		assert.Equal(t, s.count(), passes, "passes after Close")

		none := &retainer{faultStore: newFaultStore(t)}
		newEngine(t, none, kakutei.Options{Retention: kakutei.NoRetention})
		time.Sleep(10 * kakutei.RetainInterval)
		assert.Equal(t, none.count(), 0, "passes with NoRetention")
	})
}

type retainer struct {
	*faultStore
	passes int
}

func (s *retainer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.passes
}

func (s *retainer) Retain(ctx context.Context, keep time.Duration) (kakutei.Retained, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.passes++; s.passes == 1 {
		return kakutei.Retained{}, errStore
	}
	if keep != 48*time.Hour || ctx.Err() != nil {
		return kakutei.Retained{}, errGone
	}
	return kakutei.Retained{Dropped: []string{"2026-01-01"}}, nil
}
