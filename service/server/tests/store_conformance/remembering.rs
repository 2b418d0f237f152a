use std::ops::RangeInclusive;

use futures::future::join;
use latchgate_core::Timestamp;
use latchgate_core::lock::EventKind;
use latchgate_node::store::{Change, EventCursor, Version, Watched};
use latchgate_testkit::stores::Place;
use tokio::time::timeout;

use crate::watching::ALL;
use crate::worlds::{FOREVER, PATIENCE, World, at, change, event, state, tokens};

pub async fn the_oldest_events_are_deleted_up_to_a_limit_and_to_one_that_is_kept(world: &World) {
    let key = at("key");
    // Each has its number and its time. A clock that was wrong has written the third.
    let times = [1, 2, 30, 3, 4, 5, 6, 7, 8, 31, 9];
    for time in times {
        world.write_events(&key, &[event(EventKind::Granted, time)]).await;
    }
    world.all_events().await;
    let bound = Timestamp::from_ms(10);
    // The last one that is old goes with all before it; of a page, too.
    for (limit, deleted, left) in [(4, 4, 4), (0, 0, 4), (4, 4, 8), (2, 1, 9), (1, 0, 9), (100, 2, 11), (100, 0, 11)] {
        assert_eq!(world.store.trim(bound, limit).await.unwrap(), deleted);
        let left: Vec<u64> = times[left..].iter().rev().copied().collect();
        assert_eq!(tokens(&world.history(&key, None, 100).await), left);
    }
    assert_eq!(world.store.trim(FOREVER, 100).await.unwrap(), 1, "the marker event");
}

pub async fn a_commit_with_very_many_events_is_read_and_deleted_in_parts(world: &World) {
    const EACH: u64 = 3;
    const KEYS: u64 = 50;
    const MANY: u64 = EACH * KEYS;
    let mut versions = vec![Version::ABSENT; KEYS as usize];
    // The first inserts rows, the second updates them.
    for first in [1, MANY + 1] {
        let change = |(number, version): (u64, &Version)| {
            let from = first + EACH * number;
            let events = (from..from + EACH).map(|number| event(EventKind::Granted, number)).collect();
            Change { events, ..change(&at(&format!("key-{number:02}")), *version, state(first)) }
        };
        let changes: Vec<Change> = (0..KEYS).zip(&versions).map(change).collect();
        versions = world.commit(&changes).await.into_iter().map(Option::unwrap).collect();
    }
    // Then come small commits. A reader resumes within a commit and between them.
    let all: Vec<u64> = (1..=2 * MANY + 20).collect();
    for number in &all[2 * MANY as usize..] {
        world.write_events(&at("key"), &[event(EventKind::Granted, *number)]).await;
    }
    let last = all.len() as u64;
    for limit in [1, 7, 31, 33, 64, 1_000] {
        let read = world.events_until(ALL, EventCursor::START, limit, last).await;
        assert_eq!(tokens(&read), all, "{limit} at a time");
        assert!(read.is_sorted_by(|one, next| one.cursor < next.cursor));
        for from in [0, 30, 31, 32, 100, 149, 299, 310] {
            let rest = world.events_until(ALL, read[from].cursor, limit, last).await;
            assert_eq!(tokens(&rest), all[from + 1..], "{limit} at a time, after {from}");
        }
    }
    for limit in [1, 100] {
        let newest_first = [213, 212, 211, 63, 62, 61];
        assert_eq!(world.history_by(&at("key-20"), limit).await, newest_first, "{limit} at a time");
    }
    // Two nodes delete at once, until the newest events are gone. Of Redis, both may count an event.
    let trim = async || {
        let mut deleted = 0;
        while !world.history(&at("key"), None, 1).await.is_empty() {
            deleted += world.store.trim(FOREVER, 10).await.unwrap();
        }
        deleted
    };
    let (here, there) = timeout(PATIENCE, join(trim(), trim())).await.expect("all are deleted");
    let deleted = here + there;
    assert!(deleted == last || (deleted > last && matches!(world.place, Place::Redis(_))), "{deleted}");
    assert_eq!(world.all_events().await, []);
}

pub async fn a_reader_reads_all_later_events_also_after_earlier_ones_are_deleted(world: &World) {
    let empty = world.store.last_event().await.unwrap();
    let of = |numbers: RangeInclusive<u64>| numbers.map(|number| event(EventKind::Granted, number)).collect::<Vec<_>>();
    world.write_events(&at("key"), &of(1..=9)).await;
    let read = world.events_until(ALL, empty, 100, 9).await;
    assert_eq!(tokens(&read), (1..=9).collect::<Vec<_>>());
    let (fifth, last, now) = (read[4].cursor, read[8].cursor, world.store.last_event().await.unwrap());
    world.write_events(&at("key"), &of(10..=11)).await;
    for after in [last, now] {
        assert_eq!(tokens(&world.events_until(ALL, after, 100, 11).await), [10, 11], "{after:?}");
    }
    assert_eq!(world.trim(Timestamp::from_ms(10), 9).await, 9);
    assert_eq!(tokens(&world.history(&at("key"), None, 100).await), [11, 10]);
    for after in [EventCursor::START, empty, fifth, last, now] {
        assert_eq!(tokens(&world.events_until(ALL, after, 100, 11).await), [10, 11], "{after:?}");
    }
}

pub async fn an_event_that_cannot_be_decoded_hides_no_other(world: &World) {
    for is_damaged in [false, true] {
        let key = at(if is_damaged { "damaged" } else { "later" });
        world.write_events(&key, &[event(EventKind::Granted, 1)]).await;
        world.write_unreadable_event(&key, is_damaged).await;
        world.write_events(&at("other"), &[event(EventKind::Granted, 2)]).await;
        world.write_events(&key, &[event(EventKind::Released, 3)]).await;
        let (granted, damaged, released) = (EventKind::Granted, EventKind::Unreadable, EventKind::Released);
        for limit in [1, 2, 100] {
            let read = world.events_until(ALL, EventCursor::START, limit, 3).await;
            let kinds: Vec<_> = read.iter().map(|logged| (logged.event.kind, &logged.address)).collect();
            assert_eq!(kinds, [(granted, &key), (damaged, &key), (granted, &at("other")), (released, &key)]);
            let of_key = world.events_until(&Watched::Key(key.key.clone()), EventCursor::START, limit, 3).await;
            let kinds: Vec<_> = of_key.iter().map(|logged| logged.event.kind).collect();
            assert_eq!(kinds, [granted, damaged, released]);
        }
        let history = world.history(&key, None, 100).await;
        assert_eq!(history.iter().map(|logged| logged.event.kind).collect::<Vec<_>>(), [released, damaged, granted]);
        let rest = world.history(&key, Some(history[1].cursor), 100).await;
        assert_eq!(tokens(&rest), [1]);
        world.trim(FOREVER, 4).await;
    }
}
