package kakutei_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
)

// The calls of a store that a fault can be put on.
const (
	claim  = "Claim"
	look   = "Look"
	renew  = "Renew"
	settle = "Settle"
	begin  = "Begin"
	commit = "Commit"
)

var errStore = errors.New("injected: the store is away")

// faultStore is a memstore whose calls can fail, lose their reply after the
// effect, block and be slow. A test fails if a fault it asked for never fired.
type faultStore struct {
	*memstore.Store

	mu     sync.Mutex
	faults []*fault
	calls  map[string]int
	items  map[string]int
	open   int // calls under way now
	peak   int // the most calls that were under way at once

	// exclusive is what the transactions say of themselves.
	exclusive bool
	// decided may change the answer to a claim.
	decided func(c kakutei.Claim, d kakutei.Decision) kakutei.Decision
}

// fault is applied to calls of one method, in the order the faults were added:
// the first that is not used up and that matches.
type fault struct {
	method string
	// times is how many calls it applies to; 0 means all.
	times int
	// key, unless empty, restricts it to calls that carry this key.
	key string
	// before runs before the effect; an error keeps the effect from happening.
	before func(ctx context.Context) error
	// after runs after the effect; an error is a reply that was lost.
	after func(ctx context.Context) error

	fired int // guarded by the store's mutex
}

// newFaultStore returns a store without faults.
func newFaultStore(t testing.TB) *faultStore {
	s := &faultStore{Store: memstore.New(), calls: map[string]int{}, items: map[string]int{}}
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range s.faults {
			if f.fired == 0 || f.fired < f.times {
				t.Errorf("a fault on %s (key %q) fired %d times, of %d: the test proves nothing", f.method, f.key, f.fired, f.times)
			}
		}
	})
	return s
}

func (s *faultStore) add(f *fault) *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return f
}

// fail lets the next calls (0: all) fail without effect.
func (s *faultStore) fail(method string, times int) *fault {
	return s.add(&fault{method: method, times: times, before: func(context.Context) error { return errStore }})
}

// lose lets the next calls (0: all) take effect and lose their reply.
func (s *faultStore) lose(method string, times int) *fault {
	return s.add(&fault{method: method, times: times, after: func(context.Context) error { return errStore }})
}

// block holds the next call back, before its effect, until release is called or
// the call's context ends; blocked is closed when the call has arrived.
func (s *faultStore) block(method, key string) (blocked <-chan struct{}, release func()) {
	arrived, gate := make(chan struct{}), make(chan struct{})
	s.add(&fault{method: method, times: 1, key: key, before: func(ctx context.Context) error {
		close(arrived)
		return wait(ctx, gate)
	}})
	return arrived, sync.OnceFunc(func() { close(gate) })
}

// hang lets the next calls (0: all) hang until their context ends.
func (s *faultStore) hang(method string, times int) *fault {
	return s.add(&fault{method: method, times: times, before: func(ctx context.Context) error { return wait(ctx, nil) }})
}

// repair takes a fault away.
func (s *faultStore) repair(f *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.times = f.fired
	if f.times == 0 {
		f.times = -1 // reported as never fired
	}
}

func wait(ctx context.Context, gate <-chan struct{}) error {
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// count returns how many calls of method there were.
func (s *faultStore) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// itemCount returns how many items the calls of method carried.
func (s *faultStore) itemCount(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.items[method]
}

// most returns the most calls that were under way at once.
func (s *faultStore) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peak
}

// forget starts counting anew.
func (s *faultStore) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peak, s.calls, s.items = s.open, map[string]int{}, map[string]int{}
}

// do runs one call under the faults.
func (s *faultStore) do(ctx context.Context, method string, ids []kakutei.ID, effect func() error) error {
	s.mu.Lock()
	s.calls[method]++
	s.items[method] += len(ids)
	s.open++
	s.peak = max(s.peak, s.open)
	var f *fault
	for _, x := range s.faults {
		if x.method == method && (x.times == 0 || x.fired < x.times) && carries(ids, x.key) {
			f = x
			f.fired++
			break
		}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.open--
		s.mu.Unlock()
	}()
	if f != nil && f.before != nil {
		if err := f.before(ctx); err != nil {
			return err
		}
	}
	if err := effect(); err != nil {
		return err
	}
	if f != nil && f.after != nil {
		return f.after(ctx)
	}
	return nil
}

func carries(ids []kakutei.ID, key string) bool {
	for _, id := range ids {
		if id.Key == key {
			return true
		}
	}
	return key == ""
}

func idsOf[T any](items []T, id func(T) kakutei.ID) []kakutei.ID {
	ids := make([]kakutei.ID, len(items))
	for i, x := range items {
		ids[i] = id(x)
	}
	return ids
}

func (s *faultStore) Claim(ctx context.Context, claims []kakutei.Claim) (out []kakutei.Decision, err error) {
	err = s.do(ctx, claim, idsOf(claims, func(c kakutei.Claim) kakutei.ID { return c.ID() }), func() error {
		out, err = s.Store.Claim(ctx, claims)
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.decided != nil {
		for i := range out {
			out[i] = s.decided(claims[i], out[i])
		}
	}
	return out, nil
}

func (s *faultStore) Look(ctx context.Context, ids []kakutei.ID) (out []kakutei.Looked, err error) {
	err = s.do(ctx, look, ids, func() error {
		out, err = s.Store.Look(ctx, ids)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *faultStore) Renew(ctx context.Context, renewals []kakutei.Renewal) (out []error, err error) {
	err = s.do(ctx, renew, idsOf(renewals, func(r kakutei.Renewal) kakutei.ID { return r.ID }), func() error {
		out, err = s.Store.Renew(ctx, renewals)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *faultStore) Settle(ctx context.Context, xs []kakutei.Settlement) (out []error, err error) {
	err = s.do(ctx, settle, idsOf(xs, func(x kakutei.Settlement) kakutei.ID { return x.ID }), func() error {
		out, err = s.Store.Settle(ctx, xs)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *faultStore) Begin(ctx context.Context, ref kakutei.Ref) (tx kakutei.Transaction, err error) {
	err = s.do(ctx, begin, []kakutei.ID{ref.ID}, func() error {
		tx, err = s.Store.Begin(ctx, ref)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &faultTx{Transaction: tx, store: s, id: ref.ID}, nil
}

// faultTx is a transaction of a faultStore.
type faultTx struct {
	kakutei.Transaction
	store *faultStore
	id    kakutei.ID
}

func (tx *faultTx) Commit(ctx context.Context, x kakutei.Settlement) error {
	return tx.store.do(ctx, commit, []kakutei.ID{tx.id}, func() error { return tx.Transaction.Commit(ctx, x) })
}

func (tx *faultTx) Exclusive() bool { return tx.store.exclusive }

// plainStore hides everything of a store but the four methods.
type plainStore struct{ kakutei.Store }
