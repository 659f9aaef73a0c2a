package kakuteihttp_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
)

// store is a memstore whose calls a test can see and spoil. A hook is given the
// call that it stands in for.
type store struct {
	*memstore.Store

	mu     sync.Mutex
	claim  func(claims []kakutei.Claim, next claimFunc) ([]kakutei.Decision, error)
	renew  func(renewals []kakutei.Renewal, next renewFunc) ([]error, error)
	settle func(settlements []kakutei.Settlement, next settleFunc) ([]error, error)
	look   func(ids []kakutei.ID, next lookFunc) ([]kakutei.Looked, error)
	// claimed is what came to Claim, by its ID.
	claimed map[kakutei.ID]kakutei.Claim
}

type (
	claimFunc  = func([]kakutei.Claim) ([]kakutei.Decision, error)
	renewFunc  = func([]kakutei.Renewal) ([]error, error)
	settleFunc = func([]kakutei.Settlement) ([]error, error)
	lookFunc   = func([]kakutei.ID) ([]kakutei.Looked, error)
)

func newStore() *store {
	return &store{Store: memstore.New(), claimed: make(map[kakutei.ID]kakutei.Claim)}
}

// hook changes the hooks; nil hooks pass.
func (s *store) hook(set func(s *store)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(s)
}

// whole removes all hooks.
func (s *store) whole() {
	s.hook(func(s *store) { s.claim, s.renew, s.settle, s.look = nil, nil, nil, nil })
}

//nolint:revive // the context is one of the call's arguments
func hooked[In, Out any](s *store, hook func(s *store) func([]In, func([]In) ([]Out, error)) ([]Out, error),
	ctx context.Context, in []In, call func(context.Context, []In) ([]Out, error),
) ([]Out, error) {
	s.mu.Lock()
	h := hook(s)
	s.mu.Unlock()
	next := func(in []In) ([]Out, error) { return call(ctx, in) }
	if h == nil {
		return next(in)
	}
	return h(in, next)
}

func (s *store) Claim(ctx context.Context, in []kakutei.Claim) ([]kakutei.Decision, error) {
	s.mu.Lock()
	for _, c := range in {
		s.claimed[c.ID()] = c
	}
	s.mu.Unlock()
	return hooked(s, func(s *store) func([]kakutei.Claim, claimFunc) ([]kakutei.Decision, error) { return s.claim }, ctx, in, s.Store.Claim)
}

func (s *store) Renew(ctx context.Context, in []kakutei.Renewal) ([]error, error) {
	return hooked(s, func(s *store) func([]kakutei.Renewal, renewFunc) ([]error, error) { return s.renew }, ctx, in, s.Store.Renew)
}

func (s *store) Settle(ctx context.Context, in []kakutei.Settlement) ([]error, error) {
	return hooked(s, func(s *store) func([]kakutei.Settlement, settleFunc) ([]error, error) { return s.settle }, ctx, in, s.Store.Settle)
}

func (s *store) Look(ctx context.Context, in []kakutei.ID) ([]kakutei.Looked, error) {
	return hooked(s, func(s *store) func([]kakutei.ID, lookFunc) ([]kakutei.Looked, error) { return s.look }, ctx, in, s.Store.Look)
}

// expireAtOnce lets every lease end in the store the moment it is granted,
// while the engine believes in the whole of it.
func (s *store) expireAtOnce() {
	s.hook(func(s *store) {
		s.claim = func(claims []kakutei.Claim, next claimFunc) ([]kakutei.Decision, error) {
			claims = slices.Clone(claims)
			for i := range claims {
				claims[i].Lease = time.Nanosecond
			}
			return next(claims)
		}
	})
}

// lastClaim returns what came to Claim last for an ID.
func (s *store) lastClaim(id kakutei.ID) kakutei.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claimed[id]
}

// takeOver is what another process does: it claims an operation whose lease has
// run out, and returns its Ref.
func (s *store) takeOver(t testing.TB, op kakutei.Operation) kakutei.Ref {
	t.Helper()
	c := kakutei.Claim{Operation: op, Owner: "another process", Lease: time.Hour, Recovery: kakutei.Rerun}
	d, err := s.Store.Claim(context.Background(), []kakutei.Claim{c})
	if err != nil || d[0].Outcome != kakutei.Acquired {
		t.Errorf("the other process: %+v, %v", d, err)
		return kakutei.Ref{}
	}
	return kakutei.Ref{ID: op.ID(), Owner: c.Owner, Attempt: d[0].Attempt}
}

// succeed settles an attempt of another process.
func (s *store) succeed(t testing.TB, ref kakutei.Ref, result kakutei.Result) {
	t.Helper()
	errs, err := s.Store.Settle(context.Background(), []kakutei.Settlement{{Ref: ref, Status: kakutei.StatusSucceeded, Result: result}})
	if err != nil || errs[0] != nil {
		t.Errorf("the other process: %v, %v", errs, err)
	}
}

// dies is what a process leaves behind that is killed after its claim.
func (s *store) dies(t testing.TB, op kakutei.Operation, lease time.Duration) {
	t.Helper()
	d, err := s.Store.Claim(context.Background(), []kakutei.Claim{{Operation: op, Owner: "dead process", Lease: lease, Recovery: kakutei.Rerun}})
	if err != nil || d[0].Outcome != kakutei.Acquired {
		t.Fatalf("the process that dies: %+v, %v", d, err)
	}
}

// storeDown makes every claim fail.
func (s *store) storeDown() {
	s.hook(func(s *store) {
		s.claim = func([]kakutei.Claim, claimFunc) ([]kakutei.Decision, error) { return nil, errDriver }
	})
}

// settleFails makes the first n settlements fail, all if n is negative, and
// counts them.
func (s *store) settleFails(n int32) *atomic.Int32 {
	var failed atomic.Int32
	s.hook(func(s *store) {
		s.settle = func(x []kakutei.Settlement, next settleFunc) ([]error, error) {
			if n >= 0 && failed.Load() >= n {
				return next(x)
			}
			failed.Add(1)
			return nil, errDriver
		}
	})
	return &failed
}
