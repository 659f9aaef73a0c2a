package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sort"

	"github.com/kakutei-go/kakutei"
)

// Renew implements [kakutei.Store].
func (s *Store) Renew(ctx context.Context, renewals []kakutei.Renewal) ([]error, error) {
	out := make([]error, len(renewals))
	var scopes, keys, owners []string
	var attempts, leases []int64
	order := sorted(len(renewals), func(i int) kakutei.ID { return renewals[i].ID })
	renewed := make([]int, 0, len(order)) // what the statement's rows count
	for _, i := range order {
		r := renewals[i]
		out[i] = kakutei.ErrLeaseLost
		if !usable(r.ID) {
			continue
		}
		if err := r.Validate(); err != nil {
			out[i] = err
			continue
		}
		renewed = append(renewed, i)
		scopes, keys, owners = append(scopes, r.Scope), append(keys, r.Key), append(owners, r.Owner)
		attempts, leases = append(attempts, r.Attempt), append(leases, kakutei.Millis(r.Lease))
	}
	err := s.run(ctx, statement{
		query: s.sql.renew, args: []any{scopes, keys, owners, attempts, leases},
		scan: ordinals(func(n int) { out[renewed[n]] = nil }),
	})
	for _, i := range renewed {
		if err == nil && out[i] != nil {
			out[i], err = s.renewWait(ctx, renewals[i])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pgstore: renew: %w", err)
	}
	return out, nil
}

// renewWait renews a lease whose row is locked, or which is lost. A row that
// stays locked for longer than lock_timeout is held by a transaction that
// settles or fences this attempt: nobody can take it over meanwhile, so the
// lease counts as renewed.
func (s *Store) renewWait(ctx context.Context, r kakutei.Renewal) (lost, err error) {
	lost = kakutei.ErrLeaseLost
	err = s.run(ctx, statement{
		query: s.sql.renewWait, args: []any{r.Scope, r.Key, r.Owner, r.Attempt, kakutei.Millis(r.Lease)},
		scan: func(rows rows) error { lost = nil; return rows.Scan(new(int64)) },
	})
	if sqlState(err) == codeLockTimeout {
		return nil, nil
	}
	return lost, err
}

// sorted returns the indices of n items in the order of their keys: all batches
// lock rows in it, so that none waits for one that waits for it.
func sorted(n int, id func(i int) kakutei.ID) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return before(id(order[a]), id(order[b])) })
	return order
}

// ordinals scans rows of one number that counts from one.
func ordinals(f func(n int)) func(rows) error {
	return func(rows rows) error {
		var ordinal int64
		if err := rows.Scan(&ordinal); err != nil {
			return err
		}
		f(int(ordinal) - 1)
		return nil
	}
}

// Settle implements [kakutei.Store].
func (s *Store) Settle(ctx context.Context, settlements []kakutei.Settlement) ([]error, error) {
	out := make([]error, len(settlements))
	settled := make([]bool, len(settlements))
	stmts := s.settleStatements(settlements, out, settled)
	err := s.run(ctx, stmts...)
	if sqlState(err) == codeNoPartition {
		// The day has no partition yet, since nobody made it ahead.
		if err = s.makePartitions(ctx); err == nil {
			clear(settled)
			err = s.run(ctx, stmts...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("pgstore: settle: %w", err)
	}
	var ids []kakutei.ID
	var open []int
	for i := range settlements {
		if !settled[i] && out[i] == nil {
			ids, open = append(ids, settlements[i].ID), append(open, i)
		}
	}
	if len(open) == 0 {
		return out, nil
	}
	// These do not hold their operations. Those that have settled so already are
	// calls again whose reply was lost.
	looked, err := s.Look(ctx, ids)
	if err != nil {
		return nil, err
	}
	for n, i := range open {
		x, rec := settlements[i], looked[n].Record
		switch {
		case looked[n].Err != nil:
			out[i] = looked[n].Err
		case rec.Status != x.Status || rec.Owner != x.Owner || rec.Attempt != x.Attempt:
			out[i] = kakutei.ErrLeaseLost
		}
	}
	return out, nil
}

// settleStatements returns the statements that settle, one for those that
// succeeded and one for the others; they mark in settled what they did.
func (s *Store) settleStatements(settlements []kakutei.Settlement, refused []error, settled []bool) []statement {
	var done, ended batch
	for _, i := range sorted(len(settlements), func(i int) kakutei.ID { return settlements[i].ID }) {
		x := settlements[i]
		if !usable(x.ID) {
			refused[i] = kakutei.ErrLeaseLost
			continue
		}
		switch x.Status {
		case kakutei.StatusSucceeded:
			done.add(i, x)
		case kakutei.StatusFailed, kakutei.StatusUncertain:
			ended.add(i, x)
		default:
			refused[i] = fmt.Errorf("%w: an attempt cannot end as %v", kakutei.ErrInvalid, x.Status)
		}
	}
	var stmts []statement
	mark := func(b *batch) func(rows) error { return ordinals(func(n int) { settled[b.index[n]] = true }) }
	if len(done.index) > 0 {
		stmts = append(stmts, statement{
			query: s.sql.settle, scan: mark(&done),
			args: []any{done.scopes, done.keys, done.owners, done.attempts, done.codes, done.headers, done.bodies, done.omitted},
		})
	}
	if len(ended.index) > 0 {
		stmts = append(stmts, statement{
			query: s.sql.end, scan: mark(&ended),
			args: []any{ended.scopes, ended.keys, ended.owners, ended.attempts, ended.codes, ended.statuses},
		})
	}
	return stmts
}

// batch collects the columns of settlements.
type batch struct {
	index                                   []int
	scopes, keys, owners, statuses, omitted []string
	attempts, codes                         []int64
	headers, bodies                         [][]byte
}

func (b *batch) add(i int, x kakutei.Settlement) {
	b.index = append(b.index, i)
	b.scopes, b.keys, b.owners = append(b.scopes, x.Scope), append(b.keys, x.Key), append(b.owners, x.Owner)
	b.attempts, b.codes = append(b.attempts, x.Attempt), append(b.codes, int64(x.Result.Code))
	b.statuses, b.omitted = append(b.statuses, x.Status.String()), append(b.omitted, x.Result.Omitted)
	b.headers, b.bodies = append(b.headers, notNil(x.Result.Header)), append(b.bodies, notNil(x.Result.Body))
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// errNoPartition tells, inside a handler's transaction, that it must be run again.
var errNoPartition = errors.New("the day had no partition; it has one now")
