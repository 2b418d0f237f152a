//! The verbs of locks through `runtime::Locks`, on every store: `cargo test --test lock_conformance postgres::` runs one
//! store's tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod asking;
mod crowds;
mod expiry;
mod faults;
mod fence;
mod leaving;
mod limits;
mod many;
mod modes;
mod multilocks;
mod only_postgres;
mod only_sqlite;
mod queueing;
mod reentrancy;
mod repeating;
mod telling;
mod terms;
mod tickets;
mod two_nodes;
mod verbs;
mod worlds;

/// Makes a test of each promise for one store; its name is `store::topic::promise`.
macro_rules! suite {
    ($store:ident; $($topic:ident: [$($promise:ident),+ $(,)?];)+) => {
        mod $store {
            $(
                mod $topic {
                    $(
                        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                        async fn $promise() {
                            let world = crate::worlds::World::$store().await;
                            crate::$topic::$promise(&world).await;
                        }
                    )+
                }
            )+
        }
    };
}

macro_rules! every_store {
    ($($promises:tt)+) => {
        suite! { memory; $($promises)+ }
        suite! { sqlite; $($promises)+ }
        suite! { postgres; $($promises)+ }
        suite! { redis; $($promises)+ }
    };
}

/// The stores that nodes can share.
macro_rules! shared_stores {
    ($($promises:tt)+) => {
        mod shared {
            suite! { memory; $($promises)+ }
            suite! { postgres; $($promises)+ }
            suite! { redis; $($promises)+ }
        }
    };
}

every_store! {
    verbs: [
        a_free_lock_is_granted_and_shown,
        a_held_lock_is_refused_with_its_holder,
        a_released_lock_is_free_and_its_tokens_rise,
        a_second_release_is_already_done,
        a_renewal_counts_the_lease_anew,
        an_unknown_lease_id_is_lost_for_no_known_reason,
        a_lease_id_of_another_key_is_unknown,
        locks_are_listed_by_prefix,
    ];
    expiry: [
        an_expired_lease_hands_over_to_who_waits,
        an_expired_lease_cannot_renew_or_release_its_successor,
        an_expired_lock_is_free_for_who_only_asks,
        a_renewed_lease_outlives_its_first_expiry,
    ];
    telling: [
        what_happens_to_a_lock_is_told_and_remembered,
        a_lease_that_runs_out_with_nobody_waiting_is_told_of,
        without_a_history_nothing_is_kept,
        events_past_their_retention_are_deleted,
    ];
    queueing: [
        who_waits_gets_the_lock_on_its_release,
        waiters_are_served_in_the_order_of_their_arrival,
        a_higher_priority_is_served_first,
        a_wait_that_runs_out_says_so_and_leaves_the_queue,
        closing_ends_waits_and_serves_the_rest,
        a_refused_ask_that_does_not_wait_keeps_nobody_waiting,
        a_waiter_whose_owner_gets_the_lock_has_it_too,
    ];
    repeating: [
        a_repeated_acquire_has_the_same_grant,
        another_owner_cannot_reuse_a_lease_id,
        a_lease_id_that_was_released_is_lost,
        a_lease_id_that_expired_is_lost,
        a_repetition_behind_other_waiters_hears_of_its_grant,
    ];
    leaving: [
        who_has_left_the_queue_never_holds,
        a_grant_that_reaches_nobody_goes_to_the_next,
        a_grant_that_reached_nobody_is_granted_anew_to_its_repetition,
        a_grant_that_was_repeated_is_not_given_back,
    ];
    limits: [
        more_waiters_than_allowed_are_refused_at_once,
        a_collected_key_goes_on_with_higher_tokens,
    ];
    modes: [
        readers_hold_together_and_writers_alone,
        a_reader_behind_a_waiting_writer_waits_and_is_told_so,
        consecutive_waiting_readers_are_admitted_together,
        a_semaphore_admits_as_many_as_it_has_permits,
        a_small_wish_does_not_overtake_a_large_one,
        another_limit_is_refused_while_the_key_has_one,
        who_waits_for_permits_keeps_their_limit,
        a_raised_limit_admits_who_waits_and_a_lowered_one_takes_nothing,
        a_limit_that_was_set_stays_until_it_is_unset,
        no_more_than_the_limit_is_ever_held,
    ];
    reentrancy: [
        the_same_owner_holds_again_under_the_same_token,
        who_does_not_want_to_hold_twice_is_refused,
        a_nested_lease_is_granted_while_others_wait,
        leases_of_one_owner_end_separately,
        a_downgrade_admits_waiting_readers_once_the_exclusive_lease_is_released,
        the_only_sharer_may_have_the_lock_alone,
        an_upgrade_that_others_block_is_refused_at_once,
        of_two_that_share_and_both_want_the_lock_alone_neither_waits_for_the_other,
        permits_are_counted_anew_for_the_same_owner,
    ];
    terms: [
        who_barges_goes_ahead_of_the_queue_but_not_of_the_holder,
        a_lock_delay_refuses_everybody_and_then_ends,
        who_waits_waits_out_the_lock_delay,
        a_lease_that_is_released_leaves_no_delay,
        renewals_count_no_further_than_the_longest_hold,
        a_longest_hold_below_the_length_of_the_lease_shortens_it,
        a_revocation_is_seen_in_renewals_and_ends_the_lease_after_its_grace,
        a_holder_that_gives_the_lock_back_in_its_grace_has_released_it,
        a_revocation_may_mean_one_of_many_and_only_be_brought_forward,
        a_forced_lock_goes_to_who_waits_and_its_holders_are_told,
        forcing_a_free_lock_ends_nothing,
    ];
    fence: [
        the_token_of_a_live_lease_passes_and_the_last_one_until_the_next_grant,
        a_holder_that_was_paused_past_its_lease_does_not_pass,
        readers_pass_side_by_side,
        a_token_that_was_never_granted_does_not_pass,
    ];
    tickets: [
        who_comes_back_is_served_before_those_who_came_later,
        how_long_it_has_waited_counts_from_its_first_arrival,
        the_place_of_who_is_away_for_a_moment_is_kept,
        a_kept_place_lapses_when_nobody_comes_back,
        the_place_of_who_has_gone_is_not_kept,
        a_ticket_that_is_used_twice_is_one_wait,
        a_node_that_closes_keeps_no_places,
    ];
    multilocks: [
        all_keys_are_granted_or_none,
        it_holds_nothing_while_it_waits,
        a_wait_that_ends_leaves_nothing_and_can_be_gone_on_with,
        all_are_renewed_or_it_is_said_which_are_lost,
        all_are_released_even_if_some_are_lost,
        a_repeated_acquire_has_the_same_leases,
        a_client_that_goes_away_while_it_waits_leaves_nothing,
        a_client_that_goes_away_in_the_moment_of_the_grant_leaves_nothing,
        a_grant_that_was_repeated_stays_when_its_first_client_goes,
        a_repetition_behind_others_hears_of_its_leases,
        opposite_orders_of_keys_do_not_block_each_other,
        each_key_has_its_own_mode,
        what_cannot_be_granted_ever_is_said_at_once_and_holds_nothing,
        a_try_that_fails_for_good_leaves_the_queue,
        what_its_owner_holds_already_is_nested,
        it_is_not_overtaken_where_it_waits,
    ];
    crowds: [
        multilocks_over_random_keys_exclude_each_other,
    ];
}

shared_stores! {
    two_nodes: [
        a_lock_taken_on_one_is_refused_renewed_and_released_on_the_other,
        who_waits_on_one_gets_what_is_released_on_the_other,
        a_higher_priority_on_one_comes_before_the_other,
        a_repeated_acquire_on_the_other_has_the_same_grant,
        a_repetition_behind_waiters_of_the_other_hears_of_its_grant,
        fifty_waiters_on_both_are_served_in_order,
        a_node_that_vanishes_with_the_first_waiter_does_not_keep_the_others_waiting,
    ];
    modes: [
        no_more_than_the_limit_is_ever_held_on_both,
    ];
    reentrancy: [
        a_nested_lease_is_granted_on_the_other_while_others_wait_there,
        an_upgrade_is_refused_at_once_on_the_other_while_others_wait_there,
    ];
    terms: [
        what_is_forced_on_one_is_lost_on_the_other_and_goes_to_who_waits_there,
        a_lock_delay_on_one_holds_on_the_other,
    ];
    fence: [
        a_token_presented_on_one_is_known_on_the_other,
    ];
    tickets: [
        who_comes_back_to_the_other_is_served_before_those_who_came_later,
        the_turn_that_its_old_node_keeps_for_it_blocks_neither_it_nor_those_behind_it,
    ];
    crowds: [
        multilocks_over_random_keys_exclude_each_other_on_both,
        a_multilock_on_one_gets_what_is_released_on_the_other_before_those_behind_it,
    ];
}

// In a cluster each key is on its own.
suite! { redis_cluster;
    verbs: [
        a_held_lock_is_refused_with_its_holder,
        a_released_lock_is_free_and_its_tokens_rise,
        a_renewal_counts_the_lease_anew,
        a_lease_id_of_another_key_is_unknown,
        locks_are_listed_by_prefix,
    ];
    expiry: [
        an_expired_lease_hands_over_to_who_waits,
        an_expired_lease_cannot_renew_or_release_its_successor,
    ];
    telling: [
        what_happens_to_a_lock_is_told_and_remembered,
        a_lease_that_runs_out_with_nobody_waiting_is_told_of,
        without_a_history_nothing_is_kept,
    ];
    queueing: [
        waiters_are_served_in_the_order_of_their_arrival,
        a_higher_priority_is_served_first,
    ];
    repeating: [
        a_repeated_acquire_has_the_same_grant,
        a_lease_id_that_expired_is_lost,
    ];
    two_nodes: [
        a_lock_taken_on_one_is_refused_renewed_and_released_on_the_other,
        who_waits_on_one_gets_what_is_released_on_the_other,
        fifty_waiters_on_both_are_served_in_order,
    ];
}
