//! Promises to watchers while several transactions of a Postgres are open at once.

use latchgate_core::lock::EventKind;
use latchgate_node::store::{Change, CommitResult, Rule};

use crate::only_postgres::until_waiting;
use crate::watching::ALL;
use crate::worlds::{EPOCH, FOREVER, at, change, event, postgres, state, tokens, until_in_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_commits_after_later_ones_is_not_missed() {
    let world = postgres().await;
    let (slow, quick) = (at("slow"), at("quick"));
    let mut after = world.store.last_event().await.unwrap();
    let attempt = async |round| {
        let number = 10 * round;
        let version = world.write(&slow, state(1), FOREVER).await;
        // From here on its transaction is open and has its number.
        let (_, locked) = world.locks().lock(EPOCH, std::slice::from_ref(&slow)).await.unwrap();
        world.write_events(&quick, &[event(EventKind::Granted, number + 2)]).await;
        let newest = world.history(&quick, None, 1).await;
        assert_eq!(tokens(&newest), [number + 2], "a history does not wait for open transactions");
        let (read, next) = world.events(None, ALL, after, 100).await;
        assert_eq!(read, [], "an older transaction is still open");
        let events = vec![event(EventKind::Granted, number + 1)];
        let late = Change { events, ..change(&slow, version, state(2)) };
        let committed = locked.commit(world.now().await, &[late], Rule::Each).await.unwrap();
        world.write_events(&quick, &[event(EventKind::Granted, number + 3)]).await;
        let read = world.events_until(ALL, next, 100, number + 3).await;
        after = read.last().unwrap().cursor;
        let is_in_time = committed.result != CommitResult::ClockOff;
        let mut numbers = tokens(&read);
        numbers.sort_unstable();
        assert!(!is_in_time || numbers == [number + 1, number + 2, number + 3], "{numbers:?}");
        is_in_time
    };
    until_in_time(attempt).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_a_commit_that_waited_for_a_row_come_after_earlier_commits() {
    let world = postgres().await;
    let (a, b, c) = (at("a"), at("b"), at("c"));
    world.write_all(&[a.clone(), b.clone(), c.clone()]).await;
    let mut blocker = world.session().await;
    let attempt = async |round| {
        let number = 10 * round;
        let block = "begin; select 1 from latchgate.locks where key = 'b' for update";
        sqlx::raw_sql(block).execute(&mut blocker).await.unwrap();
        // Its transaction has locked a, and so has its number, when it waits for b.
        let locking = {
            let (world, keys) = (world.clone(), [a.clone(), b.clone(), c.clone()]);
            tokio::spawn(async move {
                let (loaded, locked) = world.locks().lock(EPOCH, &keys).await.unwrap();
                let events = vec![event(EventKind::Granted, number + 2)];
                let last = Change { events, ..change(&keys[2], loaded.states[2].version, state(2)) };
                locked.commit(loaded.now, &[last], Rule::Each).await.unwrap().result
            })
        };
        assert!(until_waiting(&world, 1, &locking).await);
        world.write_events(&c, &[event(EventKind::Granted, number + 1)]).await;
        sqlx::query("rollback").execute(&mut blocker).await.unwrap();
        let is_in_time = locking.await.unwrap() != CommitResult::ClockOff;
        if is_in_time {
            assert_eq!(tokens(&world.history(&c, None, 2).await), [number + 2, number + 1]);
            let read = world.all_events().await;
            assert_eq!(tokens(&read[read.len() - 2..]), [number + 1, number + 2]);
        }
        is_in_time
    };
    until_in_time(attempt).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_goes_back_over_any_number_of_transactions() {
    let world = postgres().await;
    let mut other = world.session().await;
    // As if as many transactions had come after the event.
    for (number, later) in (1..).zip([3_000_000_i64, 2_999_999, 70_000, 5_000, 1, 0]) {
        world.write_events(&at("key"), &[event(EventKind::Granted, number)]).await;
        world.write_events(&at("neighbour"), &[event(EventKind::Granted, 100 + number)]).await;
        let shifted = "update latchgate.lock_events
            set xid = xid - $1, hashes = array(
                select hash # latchgate.event_slice(xid) # latchgate.event_slice(xid - $1) from unnest(hashes) as hash
            )
            where events[1] like 'granted ' || $2 || ' %'";
        let shifted = sqlx::query(shifted).bind(later).bind(number.to_string()).execute(&mut other).await.unwrap();
        assert_eq!(shifted.rows_affected(), 1);
    }
    for limit in [100, 1] {
        assert_eq!(world.history_by(&at("key"), limit).await, [6, 5, 4, 3, 2, 1], "{limit} at a time");
    }
}
