//! The promises of every store, tested on each: `cargo test --test store_conformance postgres::` runs the tests of one store.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod collecting;
mod committing;
mod documents;
mod dumping;
mod listing;
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
        committing: [
            a_stale_change_is_refused_and_the_rest_of_its_batch_is_made,
            a_commit_with_a_wrong_clock_writes_nothing,
        ];
        locking: [
            states_are_loaded_in_the_order_of_the_request,
            locked_states_given_up_or_dropped_are_unchanged_and_unlocked,
            a_locked_commit_with_a_wrong_clock_writes_nothing,
            overlapping_batches_in_opposite_orders_never_make_each_other_fail,
            commit_all_makes_all_changes_or_none,
        ];
        listing: [
            a_prefix_is_no_pattern_and_keys_come_in_the_order_of_their_bytes,
            apps_with_keys_are_found_one_after_the_other,
        ];
        logging: [
            an_event_comes_back_as_it_was,
            locked_commits_write_events,
            a_commit_dropped_half_way_has_its_events_if_it_was_made,
        ];
        watching: [
            only_events_of_the_apps_keys_in_scope_are_read_in_one_order,
            no_event_and_no_change_is_lost_while_many_write,
        ];
        remembering: [
            the_oldest_events_are_deleted_up_to_a_limit_and_to_one_that_is_kept,
            a_commit_with_very_many_events_is_read_and_deleted_in_parts,
            a_reader_reads_all_later_events_also_after_earlier_ones_are_deleted,
        ];
        collecting: [
            only_rows_past_their_time_are_collected_page_by_page,
            a_row_is_due_from_its_notice_until_a_commit_has_handled_it,
            a_state_is_collected_only_in_an_epoch_whose_tokens_are_all_higher,
            a_row_created_again_never_has_an_old_version,
        ];
        documents: [
            a_document_comes_back_under_its_name_without_its_text_if_known,
            of_racing_changes_of_a_document_one_wins_and_all_agree_on_the_first,
            a_document_changes_only_under_the_record_that_the_writer_knows,
        ];
        dumping: [
            a_copy_has_every_row_of_every_app_once_and_as_it_is_loaded,
            a_dump_from_an_invalid_position_is_refused,
            only_a_store_that_fills_for_this_epoch_is_emptied_or_filled,
            a_commit_in_another_epoch_writes_nothing,
            exactly_one_of_racing_changes_of_the_record_wins,
        ];
        operations: [
            a_record_comes_back_as_it_was_beside_a_lock_of_that_name,
            each_visible_record_is_listed_once_over_all_pages,
            a_rare_record_is_found_behind_more_than_one_page_examines,
            what_stays_is_listed_while_other_records_are_collected,
        ];
    }
}

/// The stores that nodes can share.
mod shared {
    latchgate_testkit::on_stores! {
        memory, postgres, redis: {
            waking: [
                wake_ups_all_arrive_and_only_at_their_node,
            ];
        }
    }
}

/// The stores that other programs can write to.
mod open {
    latchgate_testkit::on_stores! {
        sqlite, postgres, redis: {
            remembering: [
                an_event_that_cannot_be_decoded_hides_no_other,
            ];
            collecting: [
                rows_that_name_no_lock_stop_neither_collection_nor_a_copy,
            ];
        }
    }
}

/// The stores that can lose acknowledged commits in a fail-over.
mod replicated {
    latchgate_testkit::on_stores! {
        postgres, redis: {
            committing: [
                a_version_of_a_lost_commit_is_never_used_again,
            ];
        }
    }
}
