package sqlitestore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// Claim implements [kakutei.Store]. Claims that come to nothing (replays,
// conflicts) are answered by readers and wait for no writer.
func (s *Store) Claim(ctx context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	out := make([]kakutei.Decision, len(claims))
	var writing []int
	for i, c := range claims {
		if err := c.Validate(); err != nil {
			out[i].Err = err
			continue
		}
		rec, err := scanRecord(s.record.QueryRowContext(ctx, c.Scope, c.Key))
		if err != nil && !errors.Is(err, kakutei.ErrCorrupt) {
			return nil, fmt.Errorf("sqlite: claim: %w", err)
		}
		if err != nil {
			out[i].Err = err
			continue
		}
		d, change := kakutei.Decide(rec, c)
		if change == kakutei.ChangeNone {
			out[i] = d
			continue
		}
		writing = append(writing, i)
	}
	if len(writing) == 0 {
		return out, nil
	}
	err := s.do(ctx, func(ctx context.Context, tx *group) error {
		for _, i := range writing {
			d, err := tx.claim(ctx, claims[i])
			if err != nil {
				return err
			}
			out[i] = d
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite: claim: %w", err)
	}
	return out, nil
}

// claim decides one claim and writes what the decision asks for. The
// transaction has the file to itself, so the decision cannot be overtaken.
func (tx *group) claim(ctx context.Context, c kakutei.Claim) (kakutei.Decision, error) {
	st := &tx.s.writes
	until := tx.now + kakutei.Millis(c.Lease)
	n, err := tx.exec(ctx, st.insert, c.Scope, c.Key, c.Method, c.Path, c.Fingerprint.Bytes(),
		c.Owner, c.Node, c.Actor, c.TraceID, tx.now, until)
	if err != nil {
		return kakutei.Decision{}, err
	}
	if n == 1 {
		d, _ := kakutei.Decide(kakutei.Record{}, c)
		return d, nil
	}
	rec, err := scanRecord(tx.stmt(ctx, st.record).QueryRowContext(ctx, c.Scope, c.Key))
	if errors.Is(err, kakutei.ErrCorrupt) {
		return kakutei.Decision{Err: err}, nil
	}
	if err != nil {
		return kakutei.Decision{}, err
	}
	d, change := kakutei.Decide(rec, c)
	switch change {
	case kakutei.ChangeInsert:
		return kakutei.Decision{}, errors.New("the record was neither found nor made")
	case kakutei.ChangeTake:
		_, err = tx.exec(ctx, st.take, c.Scope, c.Key, d.Attempt, c.Owner, c.Node, c.Actor, c.TraceID,
			tx.now, until, rec.Owner, rec.Attempt)
	case kakutei.ChangeHold:
		_, err = tx.exec(ctx, st.hold, c.Scope, c.Key, rec.Owner, rec.Attempt, tx.now)
	}
	return d, err
}

// Renew implements [kakutei.Store].
func (s *Store) Renew(ctx context.Context, renewals []kakutei.Renewal) ([]error, error) {
	out := make([]error, len(renewals))
	err := s.do(ctx, func(ctx context.Context, tx *group) error {
		for i, r := range renewals {
			if err := r.Validate(); err != nil {
				out[i] = err
				continue
			}
			n, err := tx.exec(ctx, tx.s.writes.renew, r.Scope, r.Key, r.Owner, r.Attempt, tx.now, tx.now+kakutei.Millis(r.Lease))
			if err != nil {
				return err
			}
			if out[i] = nil; n == 0 {
				out[i] = kakutei.ErrLeaseLost
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite: renew: %w", err)
	}
	return out, nil
}
