package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// writeMutants are faults of Renew and Settle.
func writeMutants() []mutant {
	const strangers, zombies, again = "C10/strangers_are_refused(case_15)", "C8/zombie_changes_nothing(case_15)", "C8/old_owner_wins_again(case_16)"
	return []mutant{
		{"settle does not check the owner", fault{settle: func(s *trial, x kakutei.Settlement) error {
			x.Owner = s.record(x.ID).Owner
			return s.settle(x)
		}}, []string{strangers, "C11/alike_by_another_is_refused(case_15)"}},
		{"settle checks neither owner nor attempt", fault{settle: func(s *trial, x kakutei.Settlement) error {
			rec := s.record(x.ID)
			x.Owner, x.Attempt = rec.Owner, rec.Attempt
			return s.settle(x)
		}}, []string{strangers, zombies, again, "C8/takeover_one_winner(case_16)", "C4/completion_against_takeover(case_16)", "C2/random_sequences"}},
		{"settle does not check the attempt", fault{settle: func(s *trial, x kakutei.Settlement) error {
			x.Attempt = s.record(x.ID).Attempt
			return s.settle(x)
		}}, []string{strangers, again, "C5/resent_after_settlement(case_11)", "C2/random_sequences"}},
		{"renew does not check the owner", fault{renew: func(s *trial, r kakutei.Renewal) error {
			r.Owner = s.record(r.ID).Owner
			return s.renew(r)
		}}, []string{strangers, "C1/renewals_in_order"}},
		{"renew does not check the attempt", fault{renew: func(s *trial, r kakutei.Renewal) error {
			r.Attempt = s.record(r.ID).Attempt
			return s.renew(r)
		}}, []string{strangers, again, "C2/random_sequences"}},
		{"renew claims to have renewed", fault{renew: func(s *trial, r kakutei.Renewal) error {
			_ = s.renew(r)
			return nil
		}}, []string{strangers, zombies, "C10/only_processing_is_held(case_14)", "C8/renewal_against_takeover(case_13_14)"}},
		{"renew without effect", fault{renew: func(s *trial, r kakutei.Renewal) error {
			if rec := s.record(r.ID); rec.Owner != r.Owner || rec.Attempt != r.Attempt || rec.Status != kakutei.StatusProcessing {
				return kakutei.ErrLeaseLost
			}
			return nil
		}}, []string{"C1/renewals_in_order", "C7/renewal_counts_from_now", "C10/expired_is_still_held(case_13)", "C9/live_lease_is_not_held(case_17)"}},
		{"renew refuses what has expired", fault{renew: func(s *trial, r kakutei.Renewal) error {
			if expired(s.record(r.ID)) {
				return kakutei.ErrLeaseLost
			}
			return s.renew(r)
		}}, []string{"C10/expired_is_still_held(case_13)", "C7/renewal_counts_from_now", "C2/random_sequences"}},
		{"renew adds to what is left", fault{renew: func(s *trial, r kakutei.Renewal) error {
			r.Lease += max(0, s.record(r.ID).Left)
			return s.renew(r)
		}}, []string{"C7/renewal_counts_from_now"}},
		{"settle refuses what has expired", fault{settle: func(s *trial, x kakutei.Settlement) error {
			if expired(s.record(x.ID)) {
				return kakutei.ErrLeaseLost
			}
			return s.settle(x)
		}}, []string{"C10/expired_is_still_held(case_13)", "C5/resent_after_expiry(case_11)", "C11/alike_is_a_success(case_25_27)"}},
		{"settle again is refused", fault{settle: func(s *trial, x kakutei.Settlement) error {
			if s.record(x.ID).Status != kakutei.StatusProcessing {
				return kakutei.ErrLeaseLost
			}
			return s.settle(x)
		}}, []string{"C11/alike_is_a_success(case_25_27)", "C11/sent_twice_at_once(case_25)", "C6/same_key_twice_in_writes(case_9)", "C2/random_sequences"}},
		{"settle again is refused after failures", fault{settle: func(s *trial, x kakutei.Settlement) error {
			if s.record(x.ID).Status == kakutei.StatusFailed {
				return kakutei.ErrLeaseLost
			}
			return s.settle(x)
		}}, []string{"C11/alike_is_a_success(case_25_27)"}},
		{"settle again is always a success", fault{settle: func(s *trial, x kakutei.Settlement) error {
			if rec := s.record(x.ID); rec.Status != kakutei.StatusProcessing && rec.Owner == x.Owner && rec.Attempt == x.Attempt {
				return nil
			}
			return s.settle(x)
		}}, []string{"C11/otherwise_is_refused", "C9/held_for_ever(case_17)", "C10/other_status_is_refused"}},
		{"settle as it is already is a success", fault{settle: func(s *trial, x kakutei.Settlement) error {
			if rec := s.record(x.ID); rec.Status == x.Status && rec.Owner == x.Owner && rec.Attempt == x.Attempt {
				return nil
			}
			return s.settle(x)
		}}, []string{"C10/nothing_is_not_settled"}},
		{"settle by anybody is a success once it is settled", fault{settle: func(s *trial, x kakutei.Settlement) error {
			if rec := s.record(x.ID); rec.Status == x.Status {
				return nil
			}
			return s.settle(x)
		}}, []string{"C11/alike_by_another_is_refused(case_15)"}},
		{"settle is not durable", fault{settle: func(s *trial, x kakutei.Settlement) error {
			time.AfterFunc(5*time.Millisecond, func() { _ = s.settle(x) })
			return nil
		}}, []string{"C2/seen_elsewhere_at_once", "C4/settled_before_is_seen(case_2_29)"}},
		{"settle with a moment without a record", fault{
			settle: func(s *trial, x kakutei.Settlement) error {
				s.locked(func(s *trial) { s.settling[x.ID] = true })
				pause()
				err := s.settle(x)
				s.locked(func(s *trial) { delete(s.settling, x.ID) })
				return err
			},
			look: func(s *trial, id kakutei.ID) kakutei.Looked {
				l := s.look(id)
				s.locked(func(s *trial) {
					if s.settling[id] {
						l = kakutei.Looked{}
					}
				})
				return l
			},
		}, []string{"C12/never_without_a_record(case_2)", "C12/never_without_a_record_in_batches(case_2)"}},
	}
}

// batchMutants are faults that come with having more than one item.
func batchMutants() []mutant {
	return []mutant{
		{"an item's error is the batch's", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			ds, _ := s.claimEach(claims)
			for _, d := range ds {
				if d.Err != nil {
					return nil, d.Err
				}
			}
			return ds, nil
		}}, []string{"C6/one_unusable_claim(case_9_37)", "C14/unknown_record(case_24)"}},
		{"an item's error spreads to the rest", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			ds, _ := s.claimEach(claims)
			for i := 1; i < len(ds); i++ {
				if ds[i-1].Err != nil {
					ds[i] = ds[i-1]
				}
			}
			return ds, nil
		}}, []string{"C6/one_unusable_claim(case_9_37)", "C14/unknown_record(case_24)"}},
		{"a lost lease fails the batch", fault{settles: func(s *trial, xs []kakutei.Settlement) ([]error, error) {
			errs, _ := s.settleEach(xs)
			return errs, errors.Join(errs...)
		}}, []string{"C1/settlements_in_order", "C6/one_unusable_write(case_9)"}},
		{"unusable claims are taken", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			if c.Owner == "" || c.Lease <= 0 {
				c.Owner, c.Lease = "nobody", long
			}
			return s.claim(c)
		}}, []string{"C6/one_unusable_claim(case_9_37)"}},
		{"answers in another order", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			ds, err := s.claimEach(claims)
			slices.Reverse(ds)
			return ds, err
		}}, []string{"C1/claims_in_order", "C6/one_unusable_claim(case_9_37)"}},
		{"answers of settlements in another order", fault{settles: func(s *trial, xs []kakutei.Settlement) ([]error, error) {
			errs, err := s.settleEach(xs)
			slices.Reverse(errs)
			return errs, err
		}}, []string{"C1/settlements_in_order"}},
		{"an empty batch is an error", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			if len(claims) == 0 {
				return nil, errors.New("syntax error")
			}
			return s.claimEach(claims)
		}}, []string{"C1/empty_batches"}},
		{"a large batch is an error", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			if len(claims) > 999 {
				return nil, errors.New("too many variables")
			}
			return s.claimEach(claims)
		}}, []string{"C1/large_batch"}},
		{"the second of a key is left out", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			seen := make(map[kakutei.ID]bool)
			var out []kakutei.Claim
			for _, c := range claims {
				if !seen[c.ID()] {
					out = append(out, c)
				}
				seen[c.ID()] = true
			}
			return s.claimEach(out)
		}}, []string{"C6/same_key_twice_in_claims(case_9)", "C5/same_owner_same_attempt(case_11)"}},
		{"both of a key are acquired", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			before := make([]kakutei.Record, len(claims))
			for i, c := range claims {
				before[i] = s.record(c.ID())
			}
			ds, err := s.claimEach(claims)
			for i, c := range claims {
				if d, _ := kakutei.Decide(before[i], c); ds[i].Outcome == kakutei.InFlight && d.Outcome == kakutei.Acquired {
					ds[i] = d
				}
			}
			return ds, err
		}}, []string{"C6/same_key_twice_in_claims(case_9)"}},
		{"an audit text fails the batch", fault{claims: func(s *trial, claims []kakutei.Claim) ([]kakutei.Decision, error) {
			for _, c := range claims {
				if slices.Contains([]byte(c.Path), 0) {
					return nil, errors.New("invalid byte sequence")
				}
			}
			return s.claimEach(claims)
		}}, []string{"C6/any_audit_text(case_9)"}},
	}
}

// otherMutants are faults of looking, of damaged records, of sending again and
// of retention.
func otherMutants() []mutant {
	const kept, keptOld = "C17/unsettled_is_kept(case_47)", "C17/unsettled_is_kept_however_old(case_47)"
	return []mutant{
		{"looking holds what has expired", fault{look: func(s *trial, id kakutei.ID) kakutei.Looked {
			if l := s.look(id); expired(l.Record) {
				_ = s.settle(kakutei.Settlement{Ref: kakutei.Ref{ID: id, Owner: l.Record.Owner, Attempt: l.Record.Attempt}, Status: kakutei.StatusUncertain})
			}
			return s.look(id)
		}}, []string{"C15/look_changes_nothing", "C15/look_shows_every_state"}},
		{"looking hides the owner", fault{look: func(s *trial, id kakutei.ID) kakutei.Looked {
			l := s.look(id)
			l.Record.Owner = ""
			return l
		}}, []string{"C15/look_shows_every_state"}},
		{"looking at what is not there is an error", fault{look: func(s *trial, id kakutei.ID) kakutei.Looked {
			l := s.look(id)
			if l.Record.Status == kakutei.StatusNone {
				l.Err = errors.New("no rows")
			}
			return l
		}}, []string{"C15/look_shows_every_state", "C1/looks_in_order"}},
		{"looking sees what is not committed", fault{look: func(s *trial, id kakutei.ID) kakutei.Looked {
			l := s.look(id)
			s.locked(func(s *trial) {
				if s.open[id] {
					l.Record.Status = kakutei.StatusProcessing
				}
			})
			return l
		}}, []string{"C15/look_passes_an_open_claim(case_4)"}},
		{"a damaged record is written over", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			s.locked(func(s *trial) { delete(s.corrupt, c.ID()) })
			return s.claim(c)
		}}, []string{"C14/unknown_record(case_24)"}},
		{"a damaged record is mended", fault{claim: func(s *trial, c kakutei.Claim) kakutei.Decision {
			d := s.claim(c)
			s.locked(func(s *trial) {
				if s.corrupt[c.ID()] != "" {
					s.corrupt[c.ID()] = "mended"
				}
			})
			return d
		}}, []string{"C14/unknown_record(case_24)"}},
		{"a damaged record is not there", fault{look: func(s *trial, id kakutei.ID) kakutei.Looked {
			if s.damaged(id) {
				return kakutei.Looked{}
			}
			return s.look(id)
		}}, []string{"C14/unknown_record(case_24)"}},
		{"a cancelled claim is somebody else's", fault{ended: func(s *trial, call any) {
			claims, _ := call.([]kakutei.Claim)
			for _, c := range claims {
				c.Owner += " cancelled"
				s.claim(c)
			}
		}}, []string{"C16/cancelled_claim(case_11_25)", "C16/cancelled_takeover(case_16_25)"}},
		{"a cancelled settlement loses its result", fault{ended: func(s *trial, call any) {
			xs, _ := call.([]kakutei.Settlement)
			for _, x := range xs {
				_ = s.settle(kakutei.Settlement{Ref: x.Ref, Status: x.Status})
			}
		}}, []string{"C16/cancelled_settlement(case_25_27)"}},
		{"a cancelled renewal gives the lease back", fault{ended: func(s *trial, call any) {
			renewals, _ := call.([]kakutei.Renewal)
			for _, r := range renewals {
				_ = s.settle(kakutei.Settlement{Ref: r.Ref, Status: kakutei.StatusFailed})
			}
		}}, []string{"C16/cancelled_renewal"}},
		{"a cancelled look finds nothing", fault{looks: func(ctx context.Context, s *trial, ids []kakutei.ID) ([]kakutei.Looked, error) {
			if ctx.Err() != nil {
				return make([]kakutei.Looked, len(ids)), nil //nolint:nilerr // that is the fault
			}
			return s.lookEach(ctx, ids)
		}}, []string{"C16/cancelled_look"}},
		{"an ID that cannot be fails the batch", fault{looks: func(ctx context.Context, s *trial, ids []kakutei.ID) ([]kakutei.Looked, error) {
			for _, id := range ids {
				if strings.Contains(id.Scope, "\x00") {
					return nil, errors.New("invalid byte sequence")
				}
			}
			return s.lookEach(ctx, ids)
		}}, []string{"C6/one_unusable_look(case_9)"}},
		{"retention drops what has expired", fault{drop: func(s *trial, id kakutei.ID, _ time.Duration) bool {
			return expired(s.record(id))
		}}, []string{kept, keptOld}},
		{"retention drops what is uncertain", fault{drop: func(s *trial, id kakutei.ID, _ time.Duration) bool {
			return s.record(id).Status == kakutei.StatusUncertain
		}}, []string{kept, keptOld}},
		{"retention drops all that is old", fault{drop: func(s *trial, id kakutei.ID, keep time.Duration) bool {
			return s.older(id, keep)
		}}, []string{keptOld}},
		{"retention drops results too early", fault{drop: func(s *trial, id kakutei.ID, keep time.Duration) bool {
			return s.older(id, keep-48*time.Hour) && s.record(id).Status == kakutei.StatusSucceeded
		}}, []string{"C17/results_are_kept_as_long_as_asked(case_47)"}},
		{"retention drops nothing", fault{drop: func(*trial, kakutei.ID, time.Duration) bool { return false }},
			[]string{"C17/results_are_kept_as_long_as_asked(case_47)"}},
		{"retention drops all results", fault{drop: func(s *trial, id kakutei.ID, _ time.Duration) bool {
			return s.record(id).Status == kakutei.StatusSucceeded
		}}, []string{"C17/claims_go_on(case_45_47)", "C17/results_are_kept_as_long_as_asked(case_47)"}},
	}
}
