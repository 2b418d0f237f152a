//! The verbs of locks through `runtime::Locks`, on every store: `cargo test --test lock_conformance postgres::` runs one
//! store's tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod asking;
mod expiry;
mod faults;
mod leaving;
mod limits;
mod only_sqlite;
mod queueing;
mod repeating;
mod telling;
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
    };
}

/// The stores that nodes can share.
macro_rules! shared_stores {
    ($($promises:tt)+) => {
        mod shared {
            suite! { memory; $($promises)+ }
            suite! { postgres; $($promises)+ }
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
}
