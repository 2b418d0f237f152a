//! What every store promises, tested on each: `cargo test --test store_conformance postgres::` runs one store's tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod boards;
mod collecting;
mod committing;
mod dumping;
mod listing;
mod loading;
mod locking;
mod only_postgres;
mod only_postgres_boards;
mod only_postgres_events;
mod only_postgres_terms;
mod only_redis;
mod only_redis_dumps;
mod only_sqlite;
mod remembering;
mod telling;
mod waking;
mod watching;
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
                            let world = crate::worlds::$store().await;
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
        suite! { pgbouncer; $($promises)+ }
    };
}

every_store! {
    loading: [
        an_absent_key_has_the_default_state_and_no_version,
        states_come_in_the_order_asked,
        a_key_asked_for_twice_is_answered_twice,
        a_load_tells_the_stores_clock,
    ];
    committing: [
        every_commit_gives_the_key_another_version,
        a_stale_change_is_refused_and_the_rest_of_its_batch_is_made,
        a_committer_whose_clock_is_off_writes_nothing,
        of_racing_commits_from_one_version_exactly_one_wins,
        awkward_keys_and_metadata_come_back_byte_for_byte,
        one_key_in_two_apps_is_two_states,
        a_change_of_a_collected_row_is_refused,
        a_commit_dropped_half_way_leaves_the_store_usable,
    ];
    locking: [
        locked_states_are_loaded_in_the_order_asked,
        who_has_locked_a_state_never_loses_its_commit,
        a_dropped_lock_lets_others_go_on,
        states_that_are_given_up_are_as_before_and_others_go_on,
        a_locked_commit_is_held_to_the_clock_as_it_is_then,
        overlapping_batches_in_opposite_orders_never_fail_each_other,
        batches_that_make_the_same_rows_never_fail_each_other,
        changes_that_go_together_are_all_made,
        of_changes_that_go_together_none_is_made_if_one_cannot_be,
        changes_that_go_together_are_held_to_the_clock,
    ];
    listing: [
        a_listing_goes_on_where_the_page_before_ended,
        keys_are_listed_in_the_order_of_their_bytes,
        a_prefix_is_no_pattern,
        a_listing_shows_one_app_only,
    ];
    telling: [
        an_event_comes_back_as_it_was,
        events_are_told_in_the_order_in_which_they_happened,
        only_changes_that_are_made_are_told,
        a_committer_whose_clock_is_off_tells_nothing,
        locked_changes_are_told_too,
        events_without_a_change_are_told,
        a_commit_dropped_half_way_is_told_if_it_was_made,
    ];
    watching: [
        whoever_reads_page_by_page_sees_everything_once,
        a_place_goes_past_what_is_not_wanted,
        only_the_apps_keys_in_scope_are_told,
        a_reader_goes_on_from_the_text_of_a_cursor,
        who_begins_now_is_told_what_comes_from_now_on,
        no_event_is_missed_while_many_write,
    ];
    remembering: [
        a_history_is_of_one_key_and_begins_with_the_newest,
        renewals_are_no_part_of_a_history,
        the_oldest_events_are_deleted_so_many_at_a_time,
        nothing_is_deleted_behind_an_event_that_is_kept,
        renewals_are_deleted_before_the_rest,
        a_reader_goes_on_when_all_that_it_has_read_is_deleted,
    ];
    collecting: [
        only_rows_past_their_time_are_collected,
        pages_cover_everything_once,
        rows_are_due_once_their_notice_has_passed,
        a_row_that_is_due_is_kept_until_it_has_been_looked_at,
        a_row_made_anew_never_has_an_old_version,
    ];
    boards: [
        a_board_that_was_never_written_is_empty_and_has_no_version,
        a_board_tells_the_stores_clock,
        a_board_is_read_byte_for_byte_by_who_comes_later_too,
        a_stale_write_of_a_board_changes_nothing_and_says_so,
        of_racing_writes_of_a_board_exactly_one_wins,
        a_version_of_a_board_never_comes_back,
        a_write_of_a_board_dropped_half_way_leaves_it_usable,
        a_board_is_no_state,
    ];
    dumping: [
        a_dump_of_an_empty_store_ends,
        a_dump_has_every_state_of_every_app_as_it_is_loaded,
        a_dump_has_no_state_twice_and_no_page_with_more_than_asked,
        what_comes_and_changes_during_a_dump_hides_nothing_else,
        a_dump_from_no_place_of_its_own_is_refused,
    ];
}

// What goes over many keys is not for a cluster: a batch is written slot by slot, each held to the clock by itself.
suite! { redis_cluster;
    loading: [
        an_absent_key_has_the_default_state_and_no_version,
        states_come_in_the_order_asked,
        a_key_asked_for_twice_is_answered_twice,
        a_load_tells_the_stores_clock,
    ];
    committing: [
        every_commit_gives_the_key_another_version,
        a_stale_change_is_refused_and_the_rest_of_its_batch_is_made,
        a_committer_whose_clock_is_off_writes_nothing,
        of_racing_commits_from_one_version_exactly_one_wins,
        awkward_keys_and_metadata_come_back_byte_for_byte,
        one_key_in_two_apps_is_two_states,
        a_commit_dropped_half_way_leaves_the_store_usable,
    ];
    locking: [
        locked_states_are_loaded_in_the_order_asked,
        who_has_locked_a_state_never_loses_its_commit,
        a_dropped_lock_lets_others_go_on,
        states_that_are_given_up_are_as_before_and_others_go_on,
        a_locked_commit_is_held_to_the_clock_as_it_is_then,
        batches_that_make_the_same_rows_never_fail_each_other,
    ];
    listing: [
        a_listing_goes_on_where_the_page_before_ended,
        keys_are_listed_in_the_order_of_their_bytes,
        a_prefix_is_no_pattern,
        a_listing_shows_one_app_only,
    ];
    remembering: [
        a_history_is_of_one_key_and_begins_with_the_newest,
    ];
    boards: [
        a_board_that_was_never_written_is_empty_and_has_no_version,
        a_board_tells_the_stores_clock,
        a_board_is_read_byte_for_byte_by_who_comes_later_too,
        a_stale_write_of_a_board_changes_nothing_and_says_so,
        of_racing_writes_of_a_board_exactly_one_wins,
        a_version_of_a_board_never_comes_back,
        a_write_of_a_board_dropped_half_way_leaves_it_usable,
        a_board_is_no_state,
    ];
    dumping: [
        a_dump_of_an_empty_store_ends,
        a_dump_has_every_state_of_every_app_as_it_is_loaded,
        what_comes_and_changes_during_a_dump_hides_nothing_else,
        a_dump_from_no_place_of_its_own_is_refused,
    ];
    waking: [
        a_wake_up_reaches_only_its_node,
        many_wake_ups_at_once_all_arrive,
    ];
}

suite! { memory_wake_ups; waking: [
    a_wake_up_reaches_only_its_node,
    many_wake_ups_at_once_all_arrive,
]; }
suite! { redis_wake_ups; waking: [
    a_wake_up_reaches_only_its_node,
    many_wake_ups_at_once_all_arrive,
]; }
suite! { postgres_wake_ups; waking: [
    a_wake_up_reaches_only_its_node,
    many_wake_ups_at_once_all_arrive,
]; }
