package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
)

// trial is a store that passes the whole suite, with every means that a Factory
// can have, and that one protection can be taken from. It works item by item on
// a memstore, and has transactions, damaged records and retention of its own.
type trial struct {
	inner *memstore.Store
	fault fault

	mu      sync.Mutex
	rows    map[string]bool       // what business transactions have committed
	corrupt map[kakutei.ID]string // records written behind the store's back
	open    map[kakutei.ID]bool   // claims that are not committed
	ages    map[kakutei.ID]time.Duration
	dropped map[kakutei.ID]int  // how often retention has dropped an operation
	seen    map[kakutei.ID]bool // all that was ever claimed

	// What faults need to remember.
	settling map[kakutei.ID]bool
	results  map[kakutei.ID]kakutei.Result
	unsaved  []string
	opened   map[kakutei.ID]bool
}

// fault replaces parts of a trial. What is nil is sound.
type fault struct {
	id       func(kakutei.ID) kakutei.ID
	claims   func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error)
	claim    func(s *trial, c kakutei.Claim) kakutei.Decision
	look     func(s *trial, id kakutei.ID) kakutei.Looked
	renew    func(s *trial, r kakutei.Renewal) error
	settles  func(s *trial, xs []kakutei.Settlement) ([]error, error)
	settle   func(s *trial, x kakutei.Settlement) error
	looks    func(ctx context.Context, s *trial, ids []kakutei.ID) ([]kakutei.Looked, error)
	ended    func(s *trial, call any) // what was asked under a context that has ended: a batch, or a *trialTx
	write    func(t *trialTx, name string)
	commit   func(t *trialTx, x kakutei.Settlement) error
	rollback func(t *trialTx)
	drop     func(s *trial, id kakutei.ID, keep time.Duration) bool
}

func newTrial(f fault) *trial {
	return &trial{
		inner: memstore.New(), fault: f,
		rows: make(map[string]bool), corrupt: make(map[kakutei.ID]string), open: make(map[kakutei.ID]bool),
		ages: make(map[kakutei.ID]time.Duration), dropped: make(map[kakutei.ID]int), seen: make(map[kakutei.ID]bool),
		settling: make(map[kakutei.ID]bool), results: make(map[kakutei.ID]kakutei.Result), opened: make(map[kakutei.ID]bool),
	}
}

// trialFactory has every means.
func trialFactory(f fault) Factory {
	type T = *testing.T
	return Factory{
		Open:   func(T) kakutei.Store { return newTrial(f) },
		Reopen: func(_ T, s kakutei.Store) kakutei.Store { return s },
		Corrupt: func(_ T, s kakutei.Store, id kakutei.ID, status string, fingerprint []byte) {
			s.(*trial).locked(func(s *trial) { s.corrupt[id] = fmt.Sprintf("%q %x", status, fingerprint) })
		},
		Dump: func(_ T, s kakutei.Store, id kakutei.ID) (out string) {
			s.(*trial).locked(func(s *trial) { out = s.corrupt[id] })
			return out
		},
		ClaimUncommitted: func(_ T, s kakutei.Store, c kakutei.Claim) func() {
			s.(*trial).locked(func(s *trial) { s.open[c.ID()], s.opened[c.ID()] = true, true })
			return func() { s.(*trial).locked(func(s *trial) { delete(s.open, c.ID()) }) }
		},
		Backdate: func(_ T, s kakutei.Store, id kakutei.ID, age time.Duration) {
			s.(*trial).locked(func(s *trial) { s.ages[id] = age })
		},
		Business: func(_ T, s kakutei.Store) Business {
			return Business{
				Write: func(ctx context.Context, name string) error {
					tx := ctx.Value(trialTxKey{}).(*trialTx)
					if f.write != nil {
						f.write(tx, name)
						return nil
					}
					tx.rows = append(tx.rows, name)
					return nil
				},
				Exists: func(_ context.Context, name string) (ok bool, _ error) {
					s.(*trial).locked(func(s *trial) { ok = s.rows[name] })
					return ok, nil
				},
				Refuse: func(ctx context.Context) error {
					ctx.Value(trialTxKey{}).(*trialTx).refused = true
					return nil
				},
			}
		},
	}
}

func (s *trial) locked(f func(s *trial)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// at is where the memstore keeps an operation. What retention has dropped is
// left behind there, under a name that is not used any more.
func (s *trial) at(id kakutei.ID) kakutei.ID {
	if s.fault.id != nil && (kakutei.Operation{Scope: id.Scope, Key: id.Key, Fingerprint: kakutei.FingerprintOf()}).Validate() == nil {
		id = s.fault.id(id)
	}
	s.locked(func(s *trial) {
		if n := s.dropped[id]; n > 0 {
			id.Scope += fmt.Sprintf("#%d", n)
		}
	})
	return id
}

func (s *trial) damaged(id kakutei.ID) (damaged bool) {
	s.locked(func(s *trial) { damaged = s.corrupt[id] != "" })
	return damaged
}

// ended returns the error of a context that has ended.
func (s *trial) ended(ctx context.Context, call any) error {
	err := ctx.Err()
	if err != nil && s.fault.ended != nil {
		s.fault.ended(s, call)
	}
	return err
}

func (s *trial) Claim(ctx context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	if err := s.ended(ctx, claims); err != nil {
		return nil, err
	}
	if s.fault.claims != nil {
		return s.fault.claims(s, claims)
	}
	return s.claimEach(claims)
}

func (s *trial) claimEach(claims []kakutei.Claim) ([]kakutei.Decision, error) {
	out := make([]kakutei.Decision, len(claims))
	for i, c := range claims {
		if s.fault.claim != nil {
			out[i] = s.fault.claim(s, c)
		} else {
			out[i] = s.claim(c)
		}
	}
	return out, nil
}

// claim is the sound way to claim, as the methods below are.
func (s *trial) claim(c kakutei.Claim) kakutei.Decision {
	if s.damaged(c.ID()) {
		return kakutei.Decision{Err: fmt.Errorf("%w: damaged", kakutei.ErrCorrupt)}
	}
	s.locked(func(s *trial) { s.seen[c.ID()] = true })
	id := s.at(c.ID())
	c.Scope, c.Key = id.Scope, id.Key
	ds, err := s.inner.Claim(context.Background(), []kakutei.Claim{c})
	if err != nil {
		return kakutei.Decision{Err: err}
	}
	return ds[0]
}

func (s *trial) Look(ctx context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	if s.fault.looks != nil {
		return s.fault.looks(ctx, s, ids)
	}
	return s.lookEach(ctx, ids)
}

func (s *trial) lookEach(ctx context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := make([]kakutei.Looked, len(ids))
	for i, id := range ids {
		if s.fault.look != nil {
			out[i] = s.fault.look(s, id)
		} else {
			out[i] = s.look(id)
		}
	}
	return out, nil
}

func (s *trial) look(id kakutei.ID) kakutei.Looked {
	if s.damaged(id) {
		return kakutei.Looked{Err: fmt.Errorf("%w: damaged", kakutei.ErrCorrupt)}
	}
	out, err := s.inner.Look(context.Background(), []kakutei.ID{s.at(id)})
	if err != nil {
		return kakutei.Looked{Err: err}
	}
	return out[0]
}

// record is look for faults that decide by themselves.
func (s *trial) record(id kakutei.ID) kakutei.Record { return s.look(id).Record }

func (s *trial) Renew(ctx context.Context, renewals []kakutei.Renewal) ([]error, error) {
	if err := s.ended(ctx, renewals); err != nil {
		return nil, err
	}
	out := make([]error, len(renewals))
	for i, r := range renewals {
		if s.fault.renew != nil {
			out[i] = s.fault.renew(s, r)
		} else {
			out[i] = s.renew(r)
		}
	}
	return out, nil
}

func (s *trial) renew(r kakutei.Renewal) error {
	r.ID = s.at(r.ID)
	errs, err := s.inner.Renew(context.Background(), []kakutei.Renewal{r})
	return errors.Join(append(errs, err)...)
}

func (s *trial) Settle(ctx context.Context, xs []kakutei.Settlement) ([]error, error) {
	if err := s.ended(ctx, xs); err != nil {
		return nil, err
	}
	if s.fault.settles != nil {
		return s.fault.settles(s, xs)
	}
	return s.settleEach(xs)
}

func (s *trial) settleEach(xs []kakutei.Settlement) ([]error, error) {
	out := make([]error, len(xs))
	for i, x := range xs {
		if s.fault.settle != nil {
			out[i] = s.fault.settle(s, x)
		} else {
			out[i] = s.settle(x)
		}
	}
	return out, nil
}

func (s *trial) settle(x kakutei.Settlement) error {
	x.ID = s.at(x.ID)
	if x.Status < kakutei.StatusFailed || x.Status > kakutei.StatusSucceeded {
		return kakutei.ErrInvalid
	}
	errs, err := s.inner.Settle(context.Background(), []kakutei.Settlement{x})
	return errors.Join(append(errs, err)...)
}

func (s *trial) Retain(ctx context.Context, keep time.Duration) (kakutei.Retained, error) {
	if err := ctx.Err(); err != nil {
		return kakutei.Retained{}, err
	}
	var seen []kakutei.ID
	s.locked(func(s *trial) {
		for id := range s.seen {
			seen = append(seen, id)
		}
	})
	drop := s.fault.drop
	if drop == nil {
		drop = func(s *trial, id kakutei.ID, keep time.Duration) bool {
			return s.older(id, keep) && s.record(id).Status == kakutei.StatusSucceeded
		}
	}
	for _, id := range seen {
		if drop(s, id, keep) {
			s.locked(func(s *trial) { s.dropped[id]++; delete(s.ages, id) })
		}
	}
	return kakutei.Retained{}, nil
}

func (s *trial) older(id kakutei.ID, keep time.Duration) (older bool) {
	s.locked(func(s *trial) { older = s.ages[id] > keep+24*time.Hour })
	return older
}

// trialTx is a transaction of a trial.
type trialTx struct {
	s       *trial
	ref     kakutei.Ref
	rows    []string
	refused bool
	over    bool
}

type trialTxKey struct{}

func (s *trial) Begin(_ context.Context, ref kakutei.Ref) (kakutei.Transaction, error) {
	return &trialTx{s: s, ref: ref}, nil
}

func (tx *trialTx) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, trialTxKey{}, tx)
}

func (tx *trialTx) Commit(ctx context.Context, x kakutei.Settlement) error {
	if err := tx.s.ended(ctx, tx); err != nil {
		return err
	}
	if tx.s.fault.commit != nil {
		return tx.s.fault.commit(tx, x)
	}
	return tx.commit(x)
}

// commit holds the mutex over both halves: Exists takes it.
func (tx *trialTx) commit(x kakutei.Settlement) error {
	if tx.over {
		return errors.New("the transaction is over")
	}
	tx.over = true
	if tx.refused {
		return kakutei.ErrConflict
	}
	// The holder alone may commit: to settle again alike is not enough.
	if rec := tx.s.record(x.ID); rec.Status != kakutei.StatusProcessing {
		return kakutei.ErrLeaseLost
	}
	id := tx.s.at(x.ID)
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	x.ID = id
	errs, err := tx.s.inner.Settle(context.Background(), []kakutei.Settlement{x})
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	for _, name := range tx.rows {
		tx.s.rows[name] = true
	}
	return nil
}

func (tx *trialTx) Rollback() error {
	if tx.s.fault.rollback != nil {
		tx.s.fault.rollback(tx)
	}
	tx.over = true
	return nil
}

func (tx *trialTx) Exclusive() bool  { return false }
func (tx *trialTx) Conflicted() bool { return tx.refused }
