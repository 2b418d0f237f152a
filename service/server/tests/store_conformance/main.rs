//! The promises of every store, tested on each: `cargo test --test store_conformance postgres::` runs the tests of one store.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod collecting;
mod committing;
mod documents;
mod dumping;
mod listing;
mod loading;
mod locking;
mod logging;
mod only_postgres;
mod only_postgres_events;
mod only_postgres_records;
mod only_redis;
mod only_sqlite;
mod operations;
mod remembering;
mod waking;
mod watching;
mod worlds;

latchgate_testkit::on_stores! {
    memory, sqlite, postgres, redis, pgbouncer: {
        loading: [
            an_absent_key_has_the_default_state_and_no_version,
            states_are_loaded_as_often_and_in_the_order_as_requested,
            a_load_returns_the_clock_of_the_store,
        ];
        committing: [
            a_stale_change_is_refused_and_the_rest_of_its_batch_is_made,
            a_commit_with_a_wrong_clock_writes_nothing,
            exactly_one_of_racing_commits_from_one_version_wins,
            awkward_keys_and_metadata_come_back_byte_for_byte,
            a_change_of_a_collected_row_is_refused,
        ];
        locking: [
            locked_states_are_loaded_in_the_order_of_the_request,
            a_locker_of_a_state_never_loses_its_commit,
            locked_states_given_up_or_dropped_are_unchanged_and_unlocked,
            a_locked_commit_with_a_wrong_clock_writes_nothing,
            overlapping_batches_in_opposite_orders_never_make_each_other_fail,
            batches_that_insert_the_same_rows_never_make_each_other_fail,
            commit_all_makes_all_changes,
            commit_all_makes_no_change_if_one_is_stale,
        ];
        listing: [
            a_listing_continues_after_the_previous_page,
            a_prefix_is_no_pattern_and_keys_come_in_the_order_of_their_bytes,
            apps_with_keys_are_found_one_after_the_other,
        ];
        logging: [
            an_event_comes_back_as_it_was,
            events_are_read_in_the_order_in_which_they_happened,
            only_changes_that_are_made_have_events,
            locked_commits_write_events,
            events_without_a_change_are_written,
            a_commit_dropped_half_way_has_its_events_if_it_was_made,
        ];
        watching: [
            a_cursor_moves_past_events_outside_the_scope,
            only_events_of_the_apps_keys_in_scope_are_read,
            events_of_all_apps_are_read_in_one_order,
            a_reader_that_begins_now_reads_all_later_events,
            no_event_is_missed_while_many_write,
        ];
        remembering: [
            a_history_is_of_one_key_and_begins_with_the_newest,
            the_oldest_events_are_deleted_up_to_a_limit,
            no_event_is_deleted_after_one_that_is_kept,
            a_commit_with_very_many_events_is_read_and_deleted_in_parts,
            a_reader_continues_after_the_events_it_has_read_are_deleted,
        ];
        collecting: [
            only_rows_past_their_time_are_collected,
            pages_cover_every_row_once,
            rows_are_due_once_their_notice_has_passed,
            a_row_that_is_due_is_kept_until_a_commit_has_handled_it,
            a_state_is_collected_only_in_an_epoch_whose_tokens_are_all_higher,
            a_row_created_again_never_has_an_old_version,
        ];
        documents: [
            a_store_without_a_document_says_so,
            a_document_comes_back_as_it_was_and_without_its_text_if_it_is_known,
            exactly_one_of_racing_changes_of_the_document_wins,
            a_document_changes_only_under_the_record_that_the_writer_knows,
            documents_with_other_names_are_others,
            nodes_that_start_at_once_have_one_secret,
            a_document_that_is_brought_replaces_the_one_that_is_there,
        ];
        dumping: [
            a_dump_has_every_state_of_every_app_once_and_as_it_is_loaded,
            a_dump_from_an_invalid_position_is_refused,
            a_copied_state_is_loaded_as_it_was_dumped,
            only_a_store_that_fills_for_this_epoch_is_emptied_or_filled,
            a_commit_in_another_epoch_writes_nothing,
            exactly_one_of_racing_changes_of_the_record_wins,
        ];
        operations: [
            a_second_claim_loses_and_a_lock_of_that_name_is_another_row,
            a_record_comes_back_as_it_was_written,
            a_claim_that_arrives_after_it_was_given_back_does_nothing,
            a_listing_has_each_record_with_its_app,
            every_visible_record_is_listed_once_over_all_pages,
            a_rare_record_is_found_behind_more_than_one_page_examines,
            a_suspicion_is_listed_until_it_is_forgotten,
            what_stays_is_listed_while_other_records_go,
            an_unknown_cursor_is_refused,
            what_is_over_is_collected_a_batch_at_a_time_and_nothing_else,
            records_are_copied_as_they_are,
        ];
    }
}

/// The stores that nodes can share.
mod shared {
    latchgate_testkit::on_stores! {
        memory, postgres, redis: {
            waking: [
                a_wake_up_reaches_only_its_node,
                many_wake_ups_at_once_all_arrive,
            ];
        }
    }
}
