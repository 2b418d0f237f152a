use std::collections::HashMap;

use latchgate::store::{StoreError, Stored};
use latchgate_core::{Address, App, Key};

use crate::worlds::{FOREVER, World, at, change, state};

impl World {
    /// Walks from `from` to the end; the pages.
    pub async fn dump_from(&self, from: Option<String>, limit: usize) -> Vec<Vec<(Address, Stored)>> {
        let mut pages = Vec::new();
        let mut from = from;
        loop {
            let (page, next) = self.store.dump(from.as_deref(), limit).await.unwrap();
            pages.push(page);
            assert!(pages.len() < 100_000, "{next:?}");
            from = next;
            if from.is_none() {
                return pages;
            }
        }
    }

    pub async fn dump(&self, limit: usize) -> Vec<Vec<(Address, Stored)>> {
        self.dump_from(None, limit).await
    }
}

/// Names that an encoding may take for something else.
fn awkward_addresses() -> Vec<Address> {
    let names =
        ["a", "a\",\"b", "a,b", "[\"a\"]", "a\\", "\\\"", "{a}", "{a}b", "A", "é", "🔒", "null", " ", "\u{10ffff}"];
    let mut addresses = Vec::new();
    for app in names {
        for key in names {
            addresses.push(Address { app: App::parse(app).unwrap(), key: Key::parse(key).unwrap() });
        }
    }
    addresses.push(at(&"🔒".repeat(128)));
    addresses
}

pub async fn a_dump_of_an_empty_store_ends(world: &World) {
    for limit in [1_000, 10] {
        assert_eq!(world.dump(limit).await.concat(), []);
    }
}

pub async fn a_dump_has_every_state_of_every_app_as_it_is_loaded(world: &World) {
    let addresses = awkward_addresses();
    for (address, number) in addresses.iter().zip(1..) {
        world.write(address, state(number), FOREVER).await;
    }
    let loaded = world.store.load(&addresses).await.unwrap().states;
    let expected: HashMap<Address, Stored> = addresses.into_iter().zip(loaded).collect();
    for limit in [10, 1_000] {
        // By address: in a cluster one may come twice.
        let dumped: HashMap<Address, Stored> = world.dump(limit).await.concat().into_iter().collect();
        assert_eq!(dumped.len(), expected.len());
        assert!(dumped == expected, "something has changed on the way");
    }
}

pub async fn a_dump_has_no_state_twice_and_no_page_with_more_than_asked(world: &World) {
    let addresses: Vec<Address> = (0..21).map(|number| at(&format!("key-{number}"))).collect();
    world.write_all(&addresses).await;
    for limit in [1, 2, 7, 20, 21, 22] {
        let pages = world.dump(limit).await;
        assert!(pages.iter().all(|page| page.len() <= limit));
        let mut dumped: Vec<Address> = pages.concat().into_iter().map(|(address, _)| address).collect();
        dumped.sort();
        let mut expected = addresses.clone();
        expected.sort();
        assert_eq!(dumped, expected, "{limit} at a time");
    }
}

pub async fn what_comes_and_changes_during_a_dump_hides_nothing_else(world: &World) {
    let still: Vec<Address> = (0..30).map(|number| at(&format!("key-{number:02}-still"))).collect();
    let changing = at("key-15-changing");
    for address in still.iter().chain([&changing]) {
        world.write(address, state(1), FOREVER).await;
    }
    let mut dumped = HashMap::new();
    let mut from = None;
    for round in 0..100_000 {
        let (page, next) = world.store.dump(from.as_deref(), 5).await.unwrap();
        dumped.extend(page);
        if next.is_none() {
            break;
        }
        from = next;
        if round < 20 {
            let version = world.load(&changing).await.version;
            world.commit(&[change(&changing, version, state(2 + round))]).await;
            for side in ["a", "z"] {
                world.write(&at(&format!("{side}-{round}")), state(1), FOREVER).await;
            }
        }
    }
    for address in &still {
        assert_eq!(dumped.get(address), Some(&world.load(address).await), "{address:?}");
    }
}

pub async fn a_dump_from_no_place_of_its_own_is_refused(world: &World) {
    world.write(&at("key"), state(1), FOREVER).await;
    for place in ["", "key", "[]", "[\"default\"]", "null", "{}"] {
        let told = world.store.dump(Some(place), 10).await;
        assert!(matches!(told, Err(StoreError::Unavailable(_))), "{place}: {told:?}");
    }
}
