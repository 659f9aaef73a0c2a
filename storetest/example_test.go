package storetest_test

import (
	"fmt"

	"github.com/kakutei-go/kakutei/storetest"
)

// The whole suite, by the number of the contract; in brackets the production
// cases of which a test shows the store's part.
func ExampleCases() {
	number := ""
	for _, c := range storetest.Cases() {
		if c.Number != number {
			number = c.Number
			fmt.Println(number)
		}
		if len(c.Production) > 0 {
			fmt.Println("  ", c.Title, c.Production)
		} else {
			fmt.Println("  ", c.Title)
		}
	}
	// Output:
	// C1
	//    empty_batches
	//    claims_in_order
	//    looks_in_order
	//    renewals_in_order
	//    settlements_in_order
	//    large_batch
	// C2
	//    decision_table
	//    record_after_decision
	//    seen_elsewhere_at_once
	//    mismatch_in_every_state [7]
	//    mismatch_at_once [6]
	//    uncommitted_claim_is_none [4]
	//    older_fingerprint_version [35]
	//    random_sequences
	// C3
	//    pairs_are_not_joined [10]
	//    keys_are_bytes [10]
	//    scopes_are_bytes [10 37]
	//    longest_scope_and_key [10]
	//    tenants_are_apart [37]
	//    one_key_many_callers [1]
	//    many_keys_several_racers [1]
	//    soak [1 2 15 16]
	// C4
	//    settled_before_is_seen [2 29]
	//    runs_once_around_completion [2 3]
	//    batches_around_completion [2 3]
	//    overtaken_while_waiting [2]
	//    completion_against_takeover [16]
	// C5
	//    same_owner_same_attempt [11]
	//    resent_at_once [11]
	//    resent_after_expiry [11]
	//    resent_after_takeover [11 15]
	//    resent_after_settlement [11]
	// C6
	//    one_unusable_claim [9 37]
	//    same_key_twice_in_claims [9]
	//    same_key_twice_in_writes [9]
	//    one_unusable_write [9]
	//    one_unusable_look [9]
	//    any_audit_text [9]
	// C7
	//    lease_lasts_as_asked
	//    long_lease [46]
	//    tiny_lease
	//    renewal_counts_from_now
	// C8
	//    takeover_one_winner [16]
	//    zombie_changes_nothing [15]
	//    old_owner_wins_again [16]
	//    attempts_only_grow [16]
	//    live_lease_is_not_taken [7]
	//    renewal_against_takeover [13 14]
	// C9
	//    held_for_ever [17]
	//    live_lease_is_not_held [17]
	//    settled_as_uncertain [17]
	//    completion_against_hold [16 17]
	//    hold_against_takeover [16 17]
	// C10
	//    strangers_are_refused [15]
	//    only_processing_is_held [14]
	//    expired_is_still_held [13]
	//    failed_runs_again [29]
	//    other_status_is_refused
	//    nothing_is_not_settled
	// C11
	//    alike_is_a_success [25 27]
	//    sent_twice_at_once [25]
	//    otherwise_is_refused
	//    first_result_stands
	//    alike_by_another_is_refused [15]
	// C12
	//    never_without_a_record [2]
	//    never_without_a_record_in_batches [2]
	// C13
	//    bodies [23 40]
	//    headers [23 39]
	//    codes [40]
	//    omitted_bodies [22]
	//    large_body [23]
	//    kept_apart_from_the_caller [28]
	//    only_success_has_a_result
	// C14
	//    unknown_fingerprint_version [24 35]
	//    unknown_record [24]
	// C15
	//    look_changes_nothing
	//    look_shows_every_state
	//    claims_pass_lookers [49]
	//    look_passes_an_open_claim [4]
	// C16
	//    cancelled_claim [11 25]
	//    cancelled_settlement [25 27]
	//    cancelled_renewal
	//    cancelled_look
	//    cancelled_takeover [16 25]
	// C17
	//    unsettled_is_kept [47]
	//    unsettled_is_kept_however_old [47]
	//    results_are_kept_as_long_as_asked [47]
	//    claims_go_on [45 47]
	//    failed_may_go
	// C18
	//    commit_shows_both
	//    rollback_undoes_all [4]
	//    nothing_written
	//    expired_is_still_held
	//    lost_before_writing [15]
	//    lost_after_writing [15]
	//    held_or_ended_is_not_committed [17]
	//    settled_is_not_written_again [25]
	//    rolled_back_is_not_committed
	//    refused_by_the_database [26]
	//    visible_together
	//    many_at_once
	//    blocks_nobody [49]
	//    cancelled_commit [25]
}
