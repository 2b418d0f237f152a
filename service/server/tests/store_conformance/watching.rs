use std::collections::HashMap;

use futures::future::join_all;
use latchgate_core::Address;
use latchgate_core::lock::EventKind;
use latchgate_node::store::{Change, EventCursor, LoggedEvent, Watched};

use crate::worlds::{EPOCH, World, at, change, event, number_of, of_app, state, tokens};

pub const ALL: &Watched = &Watched::Prefix(String::new());

pub async fn a_cursor_moves_past_events_outside_the_scope(world: &World) {
    for number in 1..=10 {
        world.write_events(&at("other"), &[event(EventKind::Granted, number)]).await;
    }
    // Once the last event can be read, all can.
    let read = world.events_until(ALL, EventCursor::START, 100, 10).await;
    let wanted = Watched::Key(at("wanted").key);
    let mut after = EventCursor::START;
    // At last there are no further events.
    for examined in [4, 8, 10, 10] {
        let (page, next) = world.events(&wanted, after, 4).await;
        assert_eq!((page, next), (vec![], read[examined - 1].cursor));
        after = next;
    }
}

pub async fn only_events_of_the_apps_keys_in_scope_are_read(world: &World) {
    let keys = ["a", "a%", "a%b", "a_", "ab", "A", "é", "éa", "b", "a🔒", "aé"];
    let ours = keys.map(|key| of_app("default", key));
    for (number, address) in (1..).zip(&ours) {
        world.write_events(address, &[event(EventKind::Granted, number)]).await;
        world.write_events(&of_app("other", address.key.as_str()), &[event(EventKind::Granted, 100 + number)]).await;
    }
    let last = at("last");
    world.write_events(&last, &[event(EventKind::Granted, 99)]).await;
    let read = world.events_until(ALL, EventCursor::START, 1_000, 99).await;
    assert_eq!(tokens(&read), (1..=keys.len() as u64).chain([99]).collect::<Vec<_>>());
    let addresses_of = async |app: &str, watched: &Watched| {
        let (read, _) = world.events_of(Some(app), watched, EventCursor::START, 1_000).await;
        read.into_iter().map(|logged| logged.address).collect::<Vec<_>>()
    };
    for prefix in ["a", "a%", "a_", "A", "é", "a🔒", "e", "ab"] {
        let expected: Vec<Address> =
            ours.iter().filter(|address| address.key.as_str().starts_with(prefix)).cloned().collect();
        assert_eq!(addresses_of("default", &Watched::Prefix(prefix.to_owned())).await, expected, "{prefix:?}");
    }
    for address in &ours {
        assert_eq!(addresses_of("default", &Watched::Key(address.key.clone())).await, std::slice::from_ref(address));
        let other = of_app("other", address.key.as_str());
        assert_eq!(addresses_of("other", &Watched::Key(address.key.clone())).await, [other]);
    }
}

pub async fn events_of_all_apps_are_read_in_one_order(world: &World) {
    let at_app = |number: u64| of_app(["a", "b", "c, \"d"][number as usize % 3], "k");
    for number in 1..=9 {
        world.write_events(&at_app(number), &[event(EventKind::Granted, number)]).await;
    }
    world.write_events(&at("k"), &[event(EventKind::Granted, 10)]).await;
    // Once the last event can be read, all can.
    world.events_until(ALL, EventCursor::START, 100, 10).await;
    for (watched, expected) in [
        (ALL.clone(), (1..=10).collect::<Vec<u64>>()),
        (Watched::Prefix("k".to_owned()), (1..=10).collect()),
        (Watched::Key(at("k").key), (1..=10).collect()),
        (Watched::Prefix("other".to_owned()), vec![]),
    ] {
        let (mut read, mut after) = (Vec::new(), EventCursor::START);
        loop {
            let (page, next) = world.events_of(None, &watched, after, 4).await;
            if next == after {
                break;
            }
            read.extend(page);
            after = next;
        }
        assert_eq!(tokens(&read), expected, "{watched:?}");
        for logged in &read {
            let token = logged.event.token;
            assert_eq!(logged.address, if token == 10 { at("k") } else { at_app(token) });
        }
    }
}

pub async fn a_reader_that_begins_now_reads_all_later_events(world: &World) {
    let empty = world.store.last_event().await.unwrap();
    world.write_events(&at("key"), &[event(EventKind::Granted, 1), event(EventKind::Waited, 2)]).await;
    assert_eq!(tokens(&world.events_until(ALL, empty, 100, 2).await), [1, 2]);
    // Events from before the new position are not read again.
    let now = world.store.last_event().await.unwrap();
    world.write_events(&at("key"), &[event(EventKind::Granted, 3), event(EventKind::Waited, 4)]).await;
    assert_eq!(tokens(&world.events_until(ALL, now, 100, 4).await), [3, 4]);
}

pub async fn no_event_is_missed_while_many_write(world: &World) {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 12;
    const KEYS: u64 = 5;
    const END: u64 = 999_999;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let world = world.again();
        writers.push(tokio::spawn(async move {
            // Each batch changes two keys, in varying orders, and is repeated when it loses the race.
            for round in 0..ROUNDS {
                let addresses = [writer, writer + 1 + round % 3].map(|number| at(&format!("key-{}", number % KEYS)));
                let mut open: Vec<Address> = addresses.to_vec();
                while !open.is_empty() {
                    let loaded = world.locks().load(EPOCH, &open).await.unwrap();
                    let batch: Vec<Change> = open
                        .iter()
                        .zip(loaded.states)
                        .map(|(address, stored)| {
                            let number = number_of(&stored.state) + 1;
                            let events = vec![event(EventKind::Granted, number)];
                            Change { events, ..change(address, stored.version, state(number)) }
                        })
                        .collect();
                    let versions = world.commit(&batch).await;
                    let mut made = versions.into_iter();
                    open.retain(|_| made.next().flatten().is_none());
                }
            }
        }));
    }
    let reader = world.events_until(ALL, EventCursor::START, 7, END);
    let writing = async {
        for written in join_all(writers).await {
            written.unwrap();
        }
        world.write_events(&at("the end"), &[event(EventKind::Granted, END)]).await;
    };
    let (read, ()) = tokio::join!(reader, writing);
    let mut by_key: HashMap<&Address, Vec<u64>> = HashMap::new();
    for logged in &read[..read.len() - 1] {
        by_key.entry(&logged.address).or_default().push(logged.event.token);
    }
    let changes = by_key.values().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(changes, 2 * WRITERS * ROUNDS);
    for (address, numbers) in by_key {
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "{address:?}");
    }
    let again: Vec<LoggedEvent> = world.events_until(ALL, EventCursor::START, 1_000, END).await;
    assert_eq!(again, read);
}
