use latchgate_core::lock::EventKind;
use latchgate_core::{Address, Timestamp};
use latchgate_node::store::{Change, EventCursor, Watched};
use tokio::time::timeout;

use crate::watching::ALL;
use crate::worlds::{FOREVER, PATIENCE, World, at, event, new, of_app, state, tokens};

pub async fn a_history_is_of_one_key_and_begins_with_the_newest(world: &World) {
    let key = at("key");
    let elsewhere = [at("key2"), at("ke"), of_app("other", "key")];
    for number in 1..=9 {
        world
            .write_events(&key, &[event(EventKind::Granted, 2 * number), event(EventKind::Released, 2 * number + 1)])
            .await;
        for other in &elsewhere {
            world.write_events(other, &[event(EventKind::Granted, 100 + number)]).await;
        }
    }
    let newest_first: Vec<u64> = (2..=19).rev().collect();
    assert_eq!(tokens(&world.history(&key, None, 100).await), newest_first);
    for limit in [1, 4, 18] {
        assert_eq!(world.history_by(&key, limit).await, newest_first, "{limit} at a time");
    }
    assert_eq!(world.history(&at("absent"), None, 100).await, []);
    assert_eq!(world.history(&key, Some(EventCursor::START), 100).await, []);
}

pub async fn the_oldest_events_are_deleted_up_to_a_limit(world: &World) {
    let key = at("key");
    // The number is also the time of the event.
    for number in 1..=20 {
        world.write_events(&key, &[event(EventKind::Granted, number)]).await;
    }
    world.all_events().await;
    let bound = Timestamp::from_ms(11);
    for (deleted, left) in [(4, 5..=20), (4, 9..=20), (2, 11..=20), (0, 11..=20)] {
        assert_eq!(world.store.trim(bound, 4).await.unwrap(), deleted);
        assert_eq!(tokens(&world.history(&key, None, 100).await), left.rev().collect::<Vec<_>>());
    }
    assert_eq!(world.store.trim(bound, 0).await.unwrap(), 0);
}

pub async fn no_event_is_deleted_after_one_that_is_kept(world: &World) {
    // A clock that was wrong has written the third.
    for time in [1, 2, 30, 3, 4, 31] {
        world.write_events(&at("key"), &[event(EventKind::Granted, time)]).await;
    }
    world.all_events().await;
    let bound = Timestamp::from_ms(10);
    assert_eq!(world.store.trim(bound, 100).await.unwrap(), 5);
    assert_eq!(tokens(&world.history(&at("key"), None, 100).await), [31]);
    assert_eq!(world.store.trim(FOREVER, 100).await.unwrap(), 2, "the marker event too");
}

pub async fn a_commit_with_very_many_events_is_read_and_deleted_in_parts(world: &World) {
    const KEYS: u64 = 50;
    let change = |number: u64| {
        let kinds = [EventKind::Granted, EventKind::Waited, EventKind::Released];
        let events = kinds.into_iter().zip(1..).map(|(kind, place)| event(kind, 3 * number + place)).collect();
        Change { events, ..new(&at(&format!("key-{number:02}")), state(1)) }
    };
    world.commit(&(0..KEYS).map(change).collect::<Vec<_>>()).await;
    // Then come small commits. A reader resumes within a commit and between them.
    let all: Vec<u64> = (1..=3 * KEYS + 20).collect();
    for number in 3 * KEYS..all.len() as u64 {
        world.write_events(&at("key"), &[event(EventKind::Granted, number + 1)]).await;
    }
    let last = all.len() as u64;
    for limit in [1, 7, 31, 33, 64, 1_000] {
        let read = world.events_until(ALL, EventCursor::START, limit, last).await;
        assert_eq!(tokens(&read), all, "{limit} at a time");
        for from in [0, 30, 31, 32, 100, 149, 160] {
            let rest = world.events_until(ALL, read[from].cursor, limit, last).await;
            assert_eq!(tokens(&rest), all[from + 1..], "{limit} at a time, after {from}");
        }
    }
    for limit in [1, 100] {
        assert_eq!(world.history_by(&at("key-20"), limit).await, [63, 62, 61], "{limit} at a time");
    }
    let mut deleted = 0;
    let trimming = async {
        while deleted < last {
            deleted += world.store.trim(FOREVER, 10).await.unwrap();
        }
    };
    timeout(PATIENCE, trimming).await.expect("all are deleted");
    assert_eq!(deleted, last);
    assert_eq!(world.all_events().await, []);
}

pub async fn a_reader_continues_after_the_events_it_has_read_are_deleted(world: &World) {
    world.write_events(&at("key"), &(1..=9).map(|number| event(EventKind::Granted, number)).collect::<Vec<_>>()).await;
    let read = world.events_until(ALL, EventCursor::START, 100, 9).await;
    let (fifth, last) = (read[4].cursor, read[8].cursor);
    assert_eq!(world.trim(FOREVER, 9).await, 9);
    assert_eq!(world.history(&at("key"), None, 100).await, []);
    world.write_events(&at("key"), &[event(EventKind::Granted, 10), event(EventKind::Granted, 11)]).await;
    for after in [EventCursor::START, fifth, last] {
        assert_eq!(tokens(&world.events_until(ALL, after, 100, 11).await), [10, 11], "{after:?}");
    }
}

/// `write_damaged` writes an event of the key that cannot be decoded.
pub async fn an_event_that_cannot_be_decoded_hides_no_other(world: &World, write_damaged: impl AsyncFn(&Address)) {
    let key = at("key");
    world.write_events(&key, &[event(EventKind::Granted, 1)]).await;
    write_damaged(&key).await;
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
}
