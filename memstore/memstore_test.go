package memstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/storetest"
)

// TestStore checks the whole contract. The process is the database here, so the
// store is its own second handle. A damaged record cannot be written: the
// records are Go values.
func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Factory{
		Open:   func(*testing.T) kakutei.Store { return New() },
		Reopen: func(_ *testing.T, s kakutei.Store) kakutei.Store { return s },
		Dump: func(_ *testing.T, s kakutei.Store, id kakutei.ID) string {
			return s.(*Store).dump(id)
		},
		Business: func(_ *testing.T, s kakutei.Store) storetest.Business {
			return storetest.Business{
				Write: func(ctx context.Context, name string) error {
					TxFrom(ctx).Set(name, "written")
					return nil
				},
				Exists: func(_ context.Context, name string) (bool, error) {
					_, ok := s.(*Store).Get(name)
					return ok, nil
				},
				Refuse: func(ctx context.Context) error {
					TxFrom(ctx).Refuse()
					return nil
				},
			}
		},
	})
}

// dump returns all that the store holds about id.
func (s *Store) dump(id kakutei.ID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := "no live record"
	if l, ok := s.live[id]; ok {
		out = fmt.Sprintf("live %+v", *l)
	}
	if rec, ok := s.results[id]; ok {
		out += fmt.Sprintf(", result %+v", rec)
	}
	return out
}

// TestZeroValue: the zero Store is ready, for every method that comes first.
func TestZeroValue(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	id := kakutei.ID{Scope: "tenant", Key: "key"}
	ref := kakutei.Ref{ID: id, Owner: "a", Attempt: 1}
	if looked, err := new(Store).Look(ctx, []kakutei.ID{id}); err != nil || looked[0].Record.Status != kakutei.StatusNone {
		t.Errorf("Look: %v, %v", looked, err)
	}
	if errs, err := new(Store).Renew(ctx, []kakutei.Renewal{{Ref: ref, Lease: 1}}); err != nil || !errors.Is(errs[0], kakutei.ErrLeaseLost) {
		t.Errorf("Renew: %v, %v", errs, err)
	}
	if errs, err := new(Store).Settle(ctx, []kakutei.Settlement{{Ref: ref, Status: kakutei.StatusFailed}}); err != nil || !errors.Is(errs[0], kakutei.ErrLeaseLost) {
		t.Errorf("Settle: %v, %v", errs, err)
	}
	tx, err := new(Store).Begin(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx, kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded}); !errors.Is(err, kakutei.ErrLeaseLost) {
		t.Errorf("Commit: %v", err)
	}
	if _, ok := new(Store).Get("name"); ok {
		t.Error("Get finds something")
	}
}

// TestLen counts what tests of the engine look for.
func TestLen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New()
	op := kakutei.Operation{Scope: "tenant", Key: "key", Fingerprint: kakutei.FingerprintOf([]byte("request"))}
	want := func(what string, live, results int) {
		t.Helper()
		if l, r := s.Len(); l != live || r != results {
			t.Errorf("%s: %d live and %d results, want %d and %d", what, l, r, live, results)
		}
	}
	want("at first", 0, 0)
	if _, err := s.Claim(ctx, []kakutei.Claim{{Operation: op, Owner: "a", Lease: time.Hour, Recovery: kakutei.Rerun}}); err != nil {
		t.Fatal(err)
	}
	want("claimed", 1, 0)
	if _, err := s.Settle(ctx, []kakutei.Settlement{{Ref: kakutei.Ref{ID: op.ID(), Owner: "a", Attempt: 1}, Status: kakutei.StatusSucceeded}}); err != nil {
		t.Fatal(err)
	}
	want("settled", 0, 1)
	if TxFrom(ctx) != nil {
		t.Error("there is a transaction outside of every attempt")
	}
}
