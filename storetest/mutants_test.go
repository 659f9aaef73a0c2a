package storetest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// mutant is a trial with one protection taken away, and the cases that must
// notice.
type mutant struct {
	name     string
	fault    fault
	caughtBy []string
}

// pause widens the gap between two steps that a sound store does as one.
func pause() { time.Sleep(rand.N(200 * time.Microsecond)) }

func expired(rec kakutei.Record) bool {
	return rec.Status == kakutei.StatusProcessing && rec.Left <= 0
}

// mutants is every fault that the suite was tried with.
func mutants() []mutant {
	return slices.Concat(claimMutants(), identityMutants(), writeMutants(), resultMutants(), batchMutants(), otherMutants(), transactionMutants())
}

func claimMutants() []mutant {
	return []mutant{
		{"claim ignores the result", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if d.Outcome == kakutei.Replay {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: d.Attempt + 1}
			}
			return d
		}}, []string{"C4/settled_before_is_seen(case_2_29)", "C2/decision_table", "C2/random_sequences", "C3/soak(case_1_2_15_16)"}},
		{"claim does not look again after the insert", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			before := s.record(c.ID())
			pause()
			d := s.claim(c)
			if d.Outcome == kakutei.Replay && before.Status != kakutei.StatusSucceeded {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
			}
			return d
		}}, []string{"C4/runs_once_around_completion(case_2_3)", "C4/batches_around_completion(case_2_3)", "C12/never_without_a_record(case_2)"}},
		{"a batch that had to wait does not look again", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			before := make([]kakutei.Record, len(claims))
			for i, c := range claims {
				before[i] = s.record(c.ID())
			}
			for _, c := range claims {
				for open := true; open; pause() {
					s.locked(func(s *trial) { open = s.open[c.ID()] })
				}
			}
			ds, err := s.claimEach(claims)
			for i, d := range ds {
				if d.Outcome == kakutei.Replay && before[i].Status == kakutei.StatusNone {
					ds[i] = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
				}
			}
			return ds, err
		}}, []string{"C4/overtaken_while_waiting(case_2)", "C4/batches_around_completion(case_2_3)"}},
		{"insert without a unique key", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			before := s.record(c.ID())
			pause()
			d := s.claim(c)
			if d.Outcome == kakutei.InFlight && before.Status == kakutei.StatusNone {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
			}
			return d
		}}, []string{"C3/one_key_many_callers(case_1)", "C3/many_keys_several_racers(case_1)", "C2/mismatch_at_once(case_6)"}},
		{"takeover without a compare", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			before := s.record(c.ID())
			pause()
			d := s.claim(c)
			if d.Outcome == kakutei.InFlight && expired(before) {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: before.Attempt + 1, Takeover: true}
			}
			return d
		}}, []string{"C8/takeover_one_winner(case_16)", "C4/completion_against_takeover(case_16)", "C3/soak(case_1_2_15_16)"}},
		{"takeover of what was completed meanwhile", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			before := s.record(c.ID())
			pause()
			d := s.claim(c)
			if d.Outcome == kakutei.Replay && expired(before) {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: before.Attempt + 1, Takeover: true}
			}
			return d
		}}, []string{"C4/completion_against_takeover(case_16)"}},
		{"takeover keeps the attempt number", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if d.Takeover {
				d.Attempt--
			}
			return d
		}}, []string{"C8/attempts_only_grow(case_16)", "C8/takeover_one_winner(case_16)", "C2/decision_table", "C16/cancelled_takeover(case_16_25)"}},
		{"takeover of live leases", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if d.Outcome == kakutei.InFlight && d.Left < long-time.Millisecond {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: d.Attempt + 1, Takeover: true}
			}
			return d
		}}, []string{"C7/lease_lasts_as_asked"}},
		{"takeover of live leases by transactional routes", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if d.Outcome == kakutei.InFlight && c.Recovery == kakutei.Transactional {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: d.Attempt + 1, Takeover: true}
			}
			return d
		}}, []string{"C8/live_lease_is_not_taken(case_7)", "C2/decision_table"}},
		{"the fingerprint is ignored", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if rec := s.record(c.ID()); rec.Status != kakutei.StatusNone {
				c.Fingerprint, c.FingerprintFunc = rec.Fingerprint, nil
			}
			return s.claim(c)
		}}, []string{"C2/mismatch_in_every_state(case_7)", "C2/mismatch_at_once(case_6)", "C2/decision_table", "C2/older_fingerprint_version(case_35)", "C14/unknown_fingerprint_version(case_24_35)"}},
		{"the fingerprint is ignored in flight", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if rec := s.record(c.ID()); rec.Status == kakutei.StatusProcessing {
				c.Fingerprint = rec.Fingerprint
			}
			return s.claim(c)
		}}, []string{"C2/mismatch_in_every_state(case_7)"}},
		{"a mismatch extends the lease", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if rec := s.record(c.ID()); d.Outcome == kakutei.Mismatch {
				_ = s.renew(kakutei.Renewal{Ref: kakutei.Ref{ID: c.ID(), Owner: rec.Owner, Attempt: rec.Attempt}, Lease: 2 * long})
			}
			return d
		}}, []string{"C2/mismatch_in_every_state(case_7)"}},
		{"an unknown fingerprint version is a mismatch", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if errors.Is(d.Err, kakutei.ErrCorrupt) {
				d = kakutei.Decision{Outcome: kakutei.Mismatch, Attempt: 1}
			}
			return d
		}}, []string{"C14/unknown_fingerprint_version(case_24_35)", "C14/unknown_record(case_24)"}},
		{"a claim sent again is in flight", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if rec := s.record(c.ID()); rec.Status == kakutei.StatusProcessing && rec.Owner == c.Owner && rec.Fingerprint == c.Fingerprint {
				return kakutei.Decision{Outcome: kakutei.InFlight, Attempt: rec.Attempt, Left: rec.Left}
			}
			return s.claim(c)
		}}, []string{"C5/same_owner_same_attempt(case_11)", "C5/resent_at_once(case_11)", "C5/resent_after_expiry(case_11)", "C16/cancelled_claim(case_11_25)"}},
		{"a claim sent again is a new attempt", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			rec := s.record(c.ID())
			d := s.claim(c)
			if d.Outcome == kakutei.Acquired && rec.Owner == c.Owner && d.Attempt == rec.Attempt {
				d.Attempt++
			}
			return d
		}}, []string{"C5/same_owner_same_attempt(case_11)", "C5/resent_at_once(case_11)"}},
		{"an owner that lost is let in again", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if d.Outcome == kakutei.InFlight && c.Owner == "a" && d.Attempt == 2 {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}
			}
			return d
		}}, []string{"C5/resent_after_takeover(case_11_15)"}},
		{"Hold is ignored", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			c.Recovery = kakutei.Rerun
			return s.claim(c)
		}}, []string{"C9/held_for_ever(case_17)", "C2/decision_table", "C9/completion_against_hold(case_16_17)"}},
		{"Hold is not durable", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if rec := s.record(c.ID()); expired(rec) && c.Recovery == kakutei.Hold && rec.Owner != c.Owner && rec.Fingerprint == c.Fingerprint {
				return kakutei.Decision{Outcome: kakutei.Uncertain, Attempt: rec.Attempt}
			}
			return s.claim(c)
		}}, []string{"C9/held_for_ever(case_17)", "C2/record_after_decision", "C2/random_sequences"}},
		{"Hold without a compare", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			before := s.record(c.ID())
			pause()
			d := s.claim(c)
			if c.Recovery == kakutei.Hold && expired(before) && (d.Outcome == kakutei.InFlight || d.Outcome == kakutei.Replay) {
				d = kakutei.Decision{Outcome: kakutei.Uncertain, Attempt: before.Attempt}
			}
			return d
		}}, []string{"C9/completion_against_hold(case_16_17)", "C9/hold_against_takeover(case_16_17)"}},
		{"what is uncertain runs again", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			if d.Outcome == kakutei.Uncertain && c.Recovery == kakutei.Rerun {
				d = kakutei.Decision{Outcome: kakutei.Acquired, Attempt: d.Attempt + 1}
			}
			return d
		}}, []string{"C9/held_for_ever(case_17)", "C9/settled_as_uncertain(case_17)", "C2/decision_table"}},
		{"what has failed stays so", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if rec := s.record(c.ID()); rec.Status == kakutei.StatusFailed {
				return kakutei.Decision{Outcome: kakutei.InFlight, Attempt: rec.Attempt}
			}
			return s.claim(c)
		}}, []string{"C10/failed_runs_again(case_29)", "C4/settled_before_is_seen(case_2_29)"}},
		{"a claim that was never committed counts", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			var opened bool
			s.locked(func(s *trial) { opened = s.opened[c.ID()] })
			if opened {
				return kakutei.Decision{Outcome: kakutei.InFlight, Attempt: 1, Left: long}
			}
			return s.claim(c)
		}}, []string{"C2/uncommitted_claim_is_none(case_4)"}},
		{"leases are whole seconds", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if c.Lease > 0 {
				c.Lease = max(time.Second, c.Lease.Round(time.Second))
			}
			return s.claim(c)
		}}, []string{"C7/lease_lasts_as_asked"}},
		{"leases end early", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if c.Lease > 1 {
				c.Lease /= 2
			}
			return s.claim(c)
		}}, []string{"C7/lease_lasts_as_asked", "C7/long_lease(case_46)", "C2/record_after_decision"}},
		{"leases are in another time zone", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if c.Lease > 0 {
				c.Lease += 9 * time.Hour
			}
			return s.claim(c)
		}}, []string{"C7/long_lease(case_46)"}},
		{"tiny leases are refused", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			c.Lease = c.Lease.Truncate(time.Millisecond)
			return s.claim(c)
		}}, []string{"C7/tiny_lease"}},
	}
}

func identityMutants() []mutant {
	const keys, scopes, pairs, longest = "C3/keys_are_bytes(case_10)", "C3/scopes_are_bytes(case_10_37)", "C3/pairs_are_not_joined(case_10)", "C3/longest_scope_and_key(case_10)"
	id := func(f func(id kakutei.ID) kakutei.ID) fault { return fault{id: f} }
	return []mutant{
		{"keys in small letters", id(func(id kakutei.ID) kakutei.ID { id.Key = strings.ToLower(id.Key); return id }), []string{keys, "C10/strangers_are_refused(case_15)"}},
		{"scopes in small letters", id(func(id kakutei.ID) kakutei.ID { id.Scope = strings.ToLower(id.Scope); return id }), []string{scopes}},
		{"keys padded with spaces", id(func(id kakutei.ID) kakutei.ID { id.Key = strings.TrimRight(id.Key, " ") + " "; return id }), []string{keys}},
		{"scopes padded with spaces", id(func(id kakutei.ID) kakutei.ID { id.Scope = strings.TrimRight(id.Scope, " "); return id }), []string{scopes}},
		{"scopes of one code page", id(func(id kakutei.ID) kakutei.ID {
			id.Scope = strings.Map(func(r rune) rune { return min(r, 0xffff) }, id.Scope)
			return id
		}), []string{scopes}},
		{"scope and key are joined", id(func(id kakutei.ID) kakutei.ID {
			return kakutei.ID{Scope: "joined", Key: fmt.Sprintf("%x", sha256.Sum256([]byte(id.Scope+":"+id.Key)))}
		}), []string{pairs}},
		{"scope and key are joined by nothing", id(func(id kakutei.ID) kakutei.ID {
			return kakutei.ID{Scope: "joined", Key: fmt.Sprintf("%x", sha256.Sum256([]byte(id.Scope+id.Key)))}
		}), []string{pairs}},
		{"the scope is ignored", id(func(id kakutei.ID) kakutei.ID { id.Scope = "all"; return id }), []string{scopes, "C3/tenants_are_apart(case_37)"}},
		{"an index over a prefix of the key", id(func(id kakutei.ID) kakutei.ID { id.Key = id.Key[:min(len(id.Key), 191)]; return id }), []string{longest}},
		{"an index over a prefix of the scope", id(func(id kakutei.ID) kakutei.ID {
			id.Scope = strings.ToValidUTF8(id.Scope[:min(len(id.Scope), 191)], "")
			return id
		}), []string{longest}},
	}
}

func resultMutants() []mutant {
	const inBodies, inHeaders = "C13/bodies(case_23_40)", "C13/headers(case_23_39)"
	spoil := func(f func(r *kakutei.Result)) fault {
		return fault{settle: func(s *trial, x kakutei.Settlement) error {
			f(&x.Result)
			return s.settle(x)
		}}
	}
	// keep lets a fault choose the result that is given out later, from those of
	// all the settlements that were accepted.
	keep := func(choose func(s *trial, x kakutei.Settlement) bool) fault {
		given := func(s *trial, id kakutei.ID, r *kakutei.Result) {
			s.locked(func(s *trial) {
				if kept, ok := s.results[id]; ok {
					*r = kept
				}
			})
		}
		return fault{
			settle: func(s *trial, x kakutei.Settlement) error {
				err := s.settle(x)
				s.locked(func(s *trial) {
					if err == nil && choose(s, x) {
						s.results[x.ID] = x.Result
					}
				})
				return err
			},
			claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
				d := s.claim(c)
				if d.Outcome == kakutei.Replay {
					given(s, c.ID(), &d.Result)
				}
				return d
			},
			look: func(s *trial, id kakutei.ID) kakutei.Looked {
				l := s.look(id)
				if l.Record.Status == kakutei.StatusSucceeded {
					given(s, id, &l.Record.Result)
				}
				return l
			},
		}
	}
	return []mutant{
		{"the last result stands", keep(func(*trial, kakutei.Settlement) bool { return true }),
			[]string{"C11/first_result_stands", "C13/kept_apart_from_the_caller(case_28)"}},
		{"the result of a failure stands", keep(func(s *trial, x kakutei.Settlement) bool {
			_, ok := s.results[x.ID]
			return !ok
		}), []string{"C13/only_success_has_a_result", "C10/failed_runs_again(case_29)"}},
		{"bodies are text", spoil(func(r *kakutei.Result) { r.Body = bytes.ToValidUTF8(r.Body, []byte("?")) }), []string{inBodies, "C13/large_body(case_23)"}},
		{"bodies end at NUL", spoil(func(r *kakutei.Result) { r.Body, _, _ = bytes.Cut(r.Body, []byte{0}) }), []string{inBodies}},
		{"bodies are trimmed", spoil(func(r *kakutei.Result) { r.Body = bytes.TrimSpace(r.Body) }), []string{inBodies}},
		{"bodies are JSON", spoil(func(r *kakutei.Result) {
			if bytes.HasPrefix(r.Body, []byte("{")) {
				r.Body = bytes.ReplaceAll(r.Body, []byte(" "), nil)
			}
		}), []string{inBodies}},
		{"null is nothing", spoil(func(r *kakutei.Result) {
			if string(r.Body) == "null" {
				r.Body = nil
			}
		}), []string{inBodies}},
		{"bodies are cut at 64 KiB", spoil(func(r *kakutei.Result) { r.Body = r.Body[:min(len(r.Body), 1<<16)] }), []string{"C13/large_body(case_23)"}},
		{"headers are text", spoil(func(r *kakutei.Result) { r.Header = bytes.ToValidUTF8(r.Header, nil) }), []string{inHeaders}},
		{"headers are lost", spoil(func(r *kakutei.Result) { r.Header = nil }), []string{inHeaders, "C4/settled_before_is_seen(case_2_29)"}},
		{"codes are lost", spoil(func(r *kakutei.Result) { r.Code = 200 }), []string{"C13/codes(case_40)"}},
		{"what was omitted is lost", spoil(func(r *kakutei.Result) { r.Omitted = "" }), []string{"C13/omitted_bodies(case_22)"}},
		{"looking gives no result", fault{look: func(s *trial, id kakutei.ID) kakutei.Looked {
			l := s.look(id)
			l.Record.Result = kakutei.Result{}
			return l
		}}, []string{inBodies, "C1/looks_in_order", "C15/look_shows_every_state"}},
	}
}
