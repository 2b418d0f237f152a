//! The promises of `latchgate_node::gate::Operations`, tested with two nodes on each store. What is promised of the stores alone is in
//! `store_conformance`. `make test` starts the servers it needs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod calls;
mod contention;
mod listing;
mod only_postgres;
mod outages;
mod unreadable;
mod worlds;

latchgate_testkit::on_stores! {
    memory, sqlite, postgres, redis: {
        calls: [
            those_that_wait_go_one_at_a_time_in_the_order_of_their_arrival,
            a_caller_that_waits_for_the_outcome_claims_nothing,
            nodes_are_notified_of_an_end_that_is_waited_for_and_of_no_other,
            of_a_batch_all_or_nothing_no_claim_stays_unless_all_may_go,
            a_claim_whose_caller_has_gone_is_given_back,
            a_permanent_success_needs_a_store_that_commits_to_disk,
        ];
        contention: [
            of_64_concurrent_pres_exactly_one_goes,
            callers_that_vanish_in_mid_call_leave_a_store_that_works,
        ];
        listing: [
            a_listing_by_time_has_the_first_ones_of_all,
            an_unknown_cursor_is_refused,
        ];
        unreadable: [
            an_unreadable_record_is_listed_and_dumped_by_name_and_hides_no_other,
            a_record_that_cannot_be_decoded_lets_no_attempt_go_until_it_is_removed,
            of_many_removals_at_once_none_removes_a_later_claim,
        ];
    }
}
