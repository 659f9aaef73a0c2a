// Package memstore is a Store in memory, for tests and examples. It keeps the
// whole contract but one thing: what it holds is gone with the process. Never
// put it in front of anything that moves money.
package memstore

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kakutei-go/kakutei"
)

// Store implements [kakutei.Store] and [kakutei.Transactor]. The zero value is
// ready to use.
type Store struct {
	mu      sync.Mutex
	live    map[kakutei.ID]*live
	results map[kakutei.ID]kakutei.Record
	// committed holds what transactions wrote; see [Tx].
	committed map[string]string
}

// live is the record of an operation that is not settled.
type live struct {
	status      kakutei.Status
	fingerprint kakutei.Fingerprint
	attempt     int64
	owner       string
	lockedUntil time.Time
}

// New returns an empty store.
func New() *Store { return &Store{} }

func (s *Store) init() {
	if s.live == nil {
		s.live = make(map[kakutei.ID]*live)
		s.results = make(map[kakutei.ID]kakutei.Record)
		s.committed = make(map[string]string)
	}
}

// record returns what is known about id. The caller holds the mutex.
func (s *Store) record(id kakutei.ID) kakutei.Record {
	if rec, ok := s.results[id]; ok {
		return rec
	}
	l, ok := s.live[id]
	if !ok {
		return kakutei.Record{}
	}
	rec := kakutei.Record{Status: l.status, Fingerprint: l.fingerprint, Attempt: l.attempt, Owner: l.owner}
	if l.status == kakutei.StatusProcessing {
		rec.Left = time.Until(l.lockedUntil)
	}
	return rec
}

// Claim implements [kakutei.Store].
func (s *Store) Claim(ctx context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init()
	out := make([]kakutei.Decision, len(claims))
	for i, c := range claims {
		if err := c.Validate(); err != nil {
			out[i] = kakutei.Decision{Err: err}
			continue
		}
		d, change := kakutei.Decide(s.record(c.ID()), c)
		switch change {
		case kakutei.ChangeInsert, kakutei.ChangeTake:
			s.live[c.ID()] = &live{
				status: kakutei.StatusProcessing, fingerprint: c.Fingerprint,
				attempt: d.Attempt, owner: c.Owner, lockedUntil: time.Now().Add(c.Lease),
			}
		case kakutei.ChangeHold:
			s.live[c.ID()].status = kakutei.StatusUncertain
		}
		out[i] = d
	}
	return out, nil
}

// Look implements [kakutei.Store].
func (s *Store) Look(ctx context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]kakutei.Looked, len(ids))
	for i, id := range ids {
		out[i].Record = s.record(id)
	}
	return out, nil
}

// holder returns the live record of ref, if ref holds it.
func (s *Store) holder(ref kakutei.Ref) *live {
	l := s.live[ref.ID]
	if l == nil || l.status != kakutei.StatusProcessing || l.owner != ref.Owner || l.attempt != ref.Attempt {
		return nil
	}
	return l
}

// Renew implements [kakutei.Store].
func (s *Store) Renew(ctx context.Context, renewals []kakutei.Renewal) ([]error, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]error, len(renewals))
	for i, r := range renewals {
		if l := s.holder(r.Ref); l != nil {
			l.lockedUntil = time.Now().Add(r.Lease)
		} else {
			out[i] = kakutei.ErrLeaseLost
		}
	}
	return out, nil
}

// Settle implements [kakutei.Store].
func (s *Store) Settle(ctx context.Context, settlements []kakutei.Settlement) ([]error, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init()
	out := make([]error, len(settlements))
	for i, x := range settlements {
		out[i] = s.settle(x)
	}
	return out, nil
}

// settle ends one attempt. The caller holds the mutex.
func (s *Store) settle(x kakutei.Settlement) error {
	l := s.holder(x.Ref)
	if l == nil {
		rec := s.record(x.ID)
		if rec.Status != kakutei.StatusNone && rec.Status == x.Status && rec.Owner == x.Owner && rec.Attempt == x.Attempt {
			return nil // settled so already
		}
		return kakutei.ErrLeaseLost
	}
	switch x.Status {
	case kakutei.StatusSucceeded:
		result := x.Result
		result.Header, result.Body = bytes.Clone(result.Header), bytes.Clone(result.Body)
		s.results[x.ID] = kakutei.Record{
			Status: kakutei.StatusSucceeded, Fingerprint: l.fingerprint,
			Attempt: l.attempt, Owner: l.owner, Result: result,
		}
		delete(s.live, x.ID)
	case kakutei.StatusFailed, kakutei.StatusUncertain:
		l.status = x.Status
	default:
		return errors.Join(kakutei.ErrInvalid, errors.New("an attempt cannot end as "+x.Status.String()))
	}
	return nil
}

// Len returns the number of live records and of results.
func (s *Store) Len() (live, results int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live), len(s.results)
}
