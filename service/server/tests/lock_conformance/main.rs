//! The promises of `latchgate_node::locks::Locks`, tested on every store: `cargo test --test lock_conformance postgres::` runs the
//! tests of one store. The rules alone are tested in latchgate-core.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod calls;
mod closing;
mod events;
mod faults;
mod faulty;
mod give_backs;
mod groups;
mod limits;
mod many;
mod multilocks;
mod only_postgres;
mod orders;
mod queueing;
mod terms;
mod tickets;
mod two_nodes;
mod verbs;
mod worlds;

latchgate_testkit::on_stores! {
    memory, sqlite, postgres, redis: {
        verbs: [
            a_lock_is_granted_shown_refused_to_others_and_released_once,
        ];
        events: [
            events_of_a_lock_are_written_and_kept,
            without_a_history_no_event_is_kept,
            events_past_their_retention_are_deleted,
        ];
        queueing: [
            a_wait_that_times_out_is_refused_and_leaves_the_queue,
            a_refused_request_that_does_not_wait_blocks_no_waiter,
            a_waiter_whose_owner_gets_the_lock_has_it_too,
            a_raised_limit_admits_waiters_and_a_lowered_one_ends_no_lease,
            a_waiter_that_has_left_the_queue_is_never_granted,
            a_grant_whose_client_is_gone_goes_to_the_next_waiter,
        ];
        limits: [
            more_waiters_than_allowed_are_refused_at_once,
            a_key_without_space_refuses_more_leases_for_good,
        ];
        terms: [
            the_lock_goes_to_the_waiter_and_the_expired_lease_cannot_touch_it,
            a_revocation_is_seen_in_renewals_and_ends_the_lease_after_its_grace,
        ];
        groups: [
            a_multilock_counts_for_its_group_and_waits_for_it,
        ];
        closing: [
            a_closed_key_keeps_its_waiters_and_opens_for_the_first,
            a_multilock_waits_for_a_closed_key_as_for_a_held_one,
        ];
        tickets: [
            the_position_of_a_ticket_holder_is_reserved_for_a_moment,
            a_reserved_position_lapses_if_the_ticket_holder_does_not_return,
            the_position_of_a_client_that_hangs_up_is_not_reserved,
            a_ticket_that_is_used_twice_is_one_wait,
            a_closing_node_ends_waits_and_reserves_no_positions,
        ];
        multilocks: [
            all_keys_are_granted_or_none,
            a_wait_that_times_out_holds_nothing_and_can_be_resumed,
            a_repeated_acquire_has_the_same_leases,
            each_key_has_its_own_mode,
            an_impossible_multilock_is_refused_at_once_and_holds_nothing,
            a_multilock_that_can_no_longer_be_granted_leaves_the_queue,
            a_multilock_nests_in_locks_that_its_owner_already_holds,
            a_waiting_multilock_is_not_overtaken,
        ];
    }
}

/// The stores that nodes can share.
mod shared {
    latchgate_testkit::on_stores! {
        memory, postgres, redis: {
            two_nodes: [
                a_repetition_at_another_node_is_never_refused,
                a_wait_that_times_out_names_no_holder_that_has_released,
                a_blocked_upgrade_is_refused_at_once_on_another_node_with_waiters,
            ];
            terms: [
                a_token_presented_on_one_is_known_on_the_other,
            ];
            groups: [
                a_waiter_at_its_group_limit_is_granted_when_a_permit_ends_elsewhere,
            ];
            tickets: [
                a_turn_left_at_the_old_node_blocks_no_ticket_holder_and_no_waiter,
            ];
        }
    }
}
