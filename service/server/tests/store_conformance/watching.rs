use std::collections::HashMap;

use futures::future::join_all;
use latchgate_core::Address;
use latchgate_core::lock::EventKind;
use latchgate_node::store::{Change, EventCursor, LoggedEvent, Watched};

use crate::worlds::{EPOCH, World, at, change, event, number_of, of_app, state};

pub const ALL: &Watched = &Watched::Prefix(String::new());

/// Over all pages, and the cursor moves past events outside of the scope. A history is of one key of one app, the newest event first.
pub async fn only_events_of_the_apps_keys_in_scope_are_read_in_one_order(world: &World) {
    let keys = ["a", "a%", "a%b", "a_", "ab", "A", "é", "éa", "b", "a🔒", "aé"];
    let apps = ["default", "other", "c, \"d"];
    let addresses: Vec<Address> = keys.iter().flat_map(|key| apps.map(|app| of_app(app, key))).collect();
    let both = addresses.iter().chain(&addresses);
    for (number, address) in (1..).zip(both.clone()) {
        world.write_events(address, &[event(EventKind::Granted, number)]).await;
    }
    let count = addresses.len() as u64;
    world.write_events(&at("last"), &[event(EventKind::Granted, 2 * count + 1)]).await;
    // Once the last event can be read, all can.
    world.events_until(ALL, EventCursor::START, 100, 2 * count + 1).await;
    let (all, end) = world.events(None, ALL, EventCursor::START, 1_000).await;
    assert!(all.iter().map(|logged| &logged.address).eq(both.chain([&at("last")])));
    for (number, address) in (1..).zip(&addresses) {
        for limit in [1, 2, 100] {
            assert_eq!(world.history_by(address, limit).await, [count + number, number], "{address:?}");
        }
        assert_eq!(world.history(address, Some(EventCursor::START), 100).await, []);
    }
    assert_eq!(world.history(&at("absent"), None, 100).await, []);
    let prefixes = ["", "a", "a%", "a_", "A", "é", "a🔒", "e", "ab"].map(|prefix| Watched::Prefix(prefix.to_owned()));
    for watched in prefixes.into_iter().chain(keys.map(|key| Watched::Key(at(key).key))) {
        for app in [None, Some("default"), Some("other")] {
            let is_in_scope = |logged: &&LoggedEvent| {
                let key = &logged.address.key;
                let is_watched = match &watched {
                    Watched::Prefix(prefix) => key.as_str().starts_with(prefix),
                    Watched::Key(only) => key == only,
                };
                is_watched && app.is_none_or(|app| logged.address.app.as_str() == app)
            };
            let (mut read, mut examined) = (Vec::new(), 0);
            let mut after = EventCursor::START;
            while examined < all.len() {
                let (page, next) = world.events(app, &watched, after, 4).await;
                examined = all.len().min(examined + 4);
                assert_eq!(next, all[examined - 1].cursor, "{watched:?}");
                read.extend(page);
                after = next;
            }
            assert!(read.iter().eq(all.iter().filter(is_in_scope)), "{watched:?} of {app:?}: {read:?}");
        }
    }
    // There are no further events.
    assert_eq!(world.events(None, ALL, end, 4).await, (vec![], end));
}

/// Of racing changes of one version, exactly one is made.
pub async fn no_event_and_no_change_is_lost_while_many_write(world: &World) {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 12;
    const KEYS: u64 = 5;
    const END: u64 = 999_999;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let world = world.clone();
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
    let again = world.events_until(ALL, EventCursor::START, 1_000, END).await;
    assert_eq!(again, read);
}
