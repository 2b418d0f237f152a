//! The rules of locks in random histories: several nodes, each with its own clock, one store, and faults. Each test checks
//! one promise in all histories. `PROPTEST_CASES` sets how many there are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arbitrary;
mod calm;
mod grants;
mod groups;
mod history;
mod interventions;
mod ledger;
mod node;
mod order;
mod promise;
mod repetition;
mod replay;
mod search;
mod seen;
mod steps;
mod store;
mod witness;
mod world;

use crate::promise::Promise;
use crate::search::{keeps, seen_everything};

macro_rules! promises {
    ($($name:ident: $promise:ident;)+) => {
        $(
            #[test]
            fn $name() {
                keeps(Promise::$promise);
            }
        )+
    };
}

promises! {
    leases_of_different_owners_live_together_only_if_they_share: GoTogether;
    permits_never_exceed_the_limit_of_their_grants: PermitsWithinLimit;
    permits_granted_within_a_shortest_hold_never_exceed_the_limit: RateIsKept;
    no_two_leases_have_the_same_number_and_none_that_is_kept: NumbersAreDistinct;
    a_grant_has_the_lowest_free_numbers_below_the_limit: NumbersAreLowest;
    a_lease_keeps_its_numbers_until_it_ends: NumbersStay;
    no_grant_gives_a_group_more_permits_than_its_request_allows: GroupWithinLimit;
    free_permits_go_to_the_group_with_fewest_and_groups_take_turns: GroupsTakeTurns;
    a_closed_key_is_granted_to_no_client: ClosedGrantsNothing;
    closing_takes_no_lease_and_no_position: ClosingTakesNothing;
    tokens_strictly_rise_over_all_grants: TokensRise;
    a_lease_is_nested_only_under_the_token_of_its_own_owner: NestedOnlyForItsOwner;
    an_owner_that_holds_the_lock_is_granted_it_again_at_once: HoldersWaitForNobody;
    an_owner_that_shares_the_lock_never_waits_for_an_upgrade: UpgradeNeverWaits;
    a_refusal_is_true: RefusalsAreTrue;
    a_lease_is_never_ended_before_its_expiry: NeverEndedEarly;
    a_lease_outlives_its_expiry_by_no_more_than_twice_the_clock_bound: NeverOutlived;
    no_expiry_is_later_than_the_longest_hold: NeverHeldTooLong;
    no_new_lease_is_granted_during_the_lock_delay: DelayIsWaitedOut;
    a_live_waiter_is_served_once_the_lock_is_free: WaitersAreServed;
    the_node_whose_turn_has_come_is_notified: NextTurnIsNotified;
    a_repeated_command_changes_nothing: RepetitionsChangeNothing;
    a_step_says_exactly_whether_it_changed_anything: ChangedIsExact;
    a_lease_id_that_has_ended_is_never_granted_again: EndedStaysEnded;
    a_lease_that_one_node_answers_as_lost_is_lost_at_every_node: LostIsFinal;
    an_end_that_is_answered_is_in_the_state_with_the_same_reason_and_time: OneEnd;
    a_lost_lease_is_remembered_with_its_reason: ReasonsAreTrue;
    a_revoked_lease_is_over_by_its_deadline: RevokedByTheDeadline;
    a_lease_that_was_revoked_or_forced_never_comes_back: RevokedIsOver;
    a_give_back_never_takes_a_lease_that_was_acknowledged_since: GiveBackTakesNothingClaimed;
    only_its_own_lease_id_renews_or_ends_a_lease: OnlyItsOwnId;
    a_renewal_never_shortens_a_lease_unless_it_names_a_shorter_length: RenewalExtends;
    the_queue_of_one_node_is_served_in_order: FifoOnOneNode;
    a_higher_priority_is_never_overtaken: StrictPriority;
    across_nodes_no_waiter_is_overtaken_by_more_than_the_clock_bound: FifoAcrossNodes;
    a_reader_never_overtakes_a_writer_that_came_before_it: WritersAreNotStarved;
    a_smaller_request_never_overtakes_an_earlier_larger_one: LargeRequestsAreNotStarved;
    readers_that_wait_in_a_row_are_admitted_together: ReadersGoTogether;
    a_limit_mismatch_is_answered_exactly_when_there_is_one: MismatchIsExact;
    a_limit_stays_while_permits_are_held_or_waited_for: LimitIsKept;
    setting_a_limit_takes_nothing_from_holders: LoweringTakesNothing;
    a_token_passes_the_fence_exactly_if_it_is_live_or_the_last: FenceIsExact;
    after_a_higher_token_no_dead_one_passes_the_fence: FenceIsFinal;
    every_change_to_a_lease_has_its_event: EventsAreExact;
    no_event_says_that_a_lease_lives_which_is_over: EventsAreAhead;
    the_events_alone_give_the_holders: EventsGiveTheHolders;
    every_state_survives_json: SurvivesJson;
}

/// Promises about what never happens prove nothing.
#[test]
fn histories_reach_what_the_promises_are_about() {
    let seen = seen_everything();
    let never = seen.never();
    assert!(never.is_empty(), "no history contains {never:?}: {seen:?}");
}
