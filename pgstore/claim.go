package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/kakutei-go/kakutei"
)

// Claim implements [kakutei.Store]: one round trip for all claims that are new
// or come to nothing; one more for those that take over or hold.
func (s *Store) Claim(ctx context.Context, claims []kakutei.Claim) ([]kakutei.Decision, error) {
	out := make([]kakutei.Decision, len(claims))
	todo := make([]int, 0, len(claims))
	for i, c := range claims {
		if err := c.Validate(); err != nil {
			out[i].Err = err
			continue
		}
		todo = append(todo, i)
	}
	sort.SliceStable(todo, func(a, b int) bool { return before(claims[todo[a]].ID(), claims[todo[b]].ID()) })
	for try := 0; len(todo) > 0; try++ {
		if try == maxTries {
			// Others change these records faster than we can look; they run.
			for _, i := range todo {
				out[i] = kakutei.Decision{Outcome: kakutei.InFlight, Left: blockedLeft}
			}
			return out, nil
		}
		if try > 1 && !pause(ctx, try) {
			return nil, fmt.Errorf("pgstore: claim: %w", ctx.Err())
		}
		var err error
		if todo, err = s.claimOnce(ctx, claims, todo, out); err != nil {
			return nil, fmt.Errorf("pgstore: claim: %w", err)
		}
	}
	return out, nil
}

func before(a, b kakutei.ID) bool {
	if a.Scope != b.Scope {
		return a.Scope < b.Scope
	}
	return a.Key < b.Key
}

// claimOnce decides the claims in todo and returns those that must start again.
func (s *Store) claimOnce(ctx context.Context, claims []kakutei.Claim, todo []int, out []kakutei.Decision) (again []int, err error) {
	found, err := s.probe(ctx, claims, todo)
	if sqlState(err) == codeLockTimeout {
		return s.apart(ctx, claims, todo, out)
	}
	if err != nil {
		return nil, err
	}
	var takes, holds []change
	for n, i := range todo {
		f := found[n]
		switch {
		case f.err != nil:
			out[i] = kakutei.Decision{Err: f.err}
			continue
		case f.inserted:
			out[i] = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
			continue
		case f.rec.Status == kakutei.StatusNone:
			again = append(again, i) // another claim came first
			continue
		}
		d, todo := kakutei.Decide(f.rec, claims[i])
		switch todo {
		case kakutei.ChangeTake:
			takes = append(takes, change{i, f.rec, d})
		case kakutei.ChangeHold:
			holds = append(holds, change{i, f.rec, d})
		default:
			out[i] = d
		}
	}
	if len(takes)+len(holds) > 0 {
		done, err := s.change(ctx, claims, takes, holds)
		if err != nil {
			return nil, err
		}
		for _, c := range append(takes, holds...) {
			if done[c.i] {
				out[c.i] = c.decision
			} else {
				again = append(again, c.i) // somebody else changed it first
			}
		}
	}
	return again, nil
}

// apart claims one by one what could not be claimed together, because somebody's
// open transaction holds one of the keys.
func (s *Store) apart(ctx context.Context, claims []kakutei.Claim, todo []int, out []kakutei.Decision) (again []int, err error) {
	if len(todo) == 1 {
		out[todo[0]] = kakutei.Decision{Outcome: kakutei.InFlight, Left: blockedLeft}
		return nil, nil
	}
	for half := range 2 {
		part := todo[half*len(todo)/2 : (half+1)*len(todo)/2]
		more, err := s.claimOnce(ctx, claims, part, out)
		if err != nil {
			return nil, err
		}
		again = append(again, more...)
	}
	return again, nil
}

// found is what the probe says about one claim.
type found struct {
	inserted bool
	rec      kakutei.Record
	err      error
}

// probe looks, inserts and looks again.
func (s *Store) probe(ctx context.Context, claims []kakutei.Claim, todo []int) ([]found, error) {
	var scopes, keys, methods, paths, owners, nodes, actors, traces []string
	var hashes [][]byte
	var leases []int64
	for _, i := range todo {
		c := claims[i]
		scopes, keys = append(scopes, c.Scope), append(keys, c.Key)
		methods, paths = append(methods, clean(c.Method)), append(paths, clean(c.Path))
		hashes, owners, nodes = append(hashes, c.Fingerprint.Bytes()), append(owners, c.Owner), append(nodes, clean(c.Node))
		actors, traces, leases = append(actors, clean(c.Actor)), append(traces, clean(c.TraceID)), append(leases, kakutei.Millis(c.Lease))
	}
	out := make([]found, len(todo))
	scan := func(late bool) func(rows) error {
		return func(rows rows) error {
			n, rec, err := scanRecord(rows)
			if err != nil && !errors.Is(err, kakutei.ErrCorrupt) {
				return err
			}
			if late || !(out[n].rec.Status == kakutei.StatusSucceeded) {
				out[n] = found{inserted: err == nil && rec.Status == kakutei.StatusNone, rec: rec, err: err}
			}
			return nil
		}
	}
	err := s.run(ctx,
		statement{query: s.sql.claim, args: []any{scopes, keys, methods, paths, hashes, owners, nodes, actors, traces, leases}, scan: scan(false)},
		statement{query: s.sql.secondLook, args: []any{scopes, keys, owners}, scan: scan(true)},
	)
	return out, err
}

// change is a takeover or a hold that was decided and is to be written.
type change struct {
	i        int
	rec      kakutei.Record
	decision kakutei.Decision
}

// change writes takeovers and holds, and tells which of them were done.
func (s *Store) change(ctx context.Context, claims []kakutei.Claim, takes, holds []change) (map[int]bool, error) {
	done := make(map[int]bool)
	mark := func(changes []change) func(rows) error {
		return func(rows rows) error {
			var ordinal int64
			if err := rows.Scan(&ordinal); err != nil {
				return err
			}
			done[changes[ordinal-1].i] = true
			return nil
		}
	}
	var stmts []statement
	if len(takes) > 0 {
		var scopes, keys, owners, nodes, actors, traces, oldOwners []string
		var attempts, leases, oldAttempts []int64
		for _, t := range takes {
			c := claims[t.i]
			scopes, keys, attempts = append(scopes, c.Scope), append(keys, c.Key), append(attempts, t.decision.Attempt)
			owners, nodes = append(owners, c.Owner), append(nodes, clean(c.Node))
			actors, traces = append(actors, clean(c.Actor)), append(traces, clean(c.TraceID))
			leases = append(leases, kakutei.Millis(c.Lease))
			oldOwners, oldAttempts = append(oldOwners, t.rec.Owner), append(oldAttempts, t.rec.Attempt)
		}
		stmts = append(stmts, statement{
			query: s.sql.take, scan: mark(takes),
			args: []any{scopes, keys, attempts, owners, nodes, actors, traces, leases, oldOwners, oldAttempts},
		})
	}
	if len(holds) > 0 {
		var scopes, keys, owners []string
		var attempts []int64
		for _, h := range holds {
			c := claims[h.i]
			scopes, keys = append(scopes, c.Scope), append(keys, c.Key)
			owners, attempts = append(owners, h.rec.Owner), append(attempts, h.rec.Attempt)
		}
		stmts = append(stmts, statement{query: s.sql.hold, args: []any{scopes, keys, owners, attempts}, scan: mark(holds)})
	}
	return done, s.run(ctx, stmts...)
}

// clean makes text of the audit trail storable: PostgreSQL takes neither NUL
// nor invalid UTF-8.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
