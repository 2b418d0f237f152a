//! Documents.

use futures::future::join_all;
use latchgate_node::store::documents::{SECRET, StoredDocument, agreed, bring};
use latchgate_node::store::{EngineState, Epoch, Store};
use latchgate_testkit::memory::MemoryStore;

use crate::worlds::{EPOCH, World, is_over};

const ACTIVE: Option<(EngineState, Epoch)> = Some((EngineState::Active, EPOCH));

fn text(version: u64, text: &str) -> StoredDocument {
    StoredDocument { version, text: Some(text.to_owned()) }
}

pub async fn a_store_without_a_document_says_so(world: &World) {
    assert_eq!(world.store.read_document("one", 0).await.unwrap(), StoredDocument::default());
    assert_eq!(world.store.read_document("one", 7).await.unwrap(), StoredDocument::default());
    assert!(!world.store.write_document("one", 7, (8, "{}"), ACTIVE).await.unwrap());
    assert_eq!(world.store.read_document("one", 0).await.unwrap(), StoredDocument::default());
}

pub async fn a_document_comes_back_as_it_was_and_without_its_text_if_it_is_known(world: &World) {
    let long = format!("{{\"é \\\" \\n 🔒\": \"{}\"}}", "x".repeat(300_000));
    assert!(world.store.write_document("one", 0, (5, &long), ACTIVE).await.unwrap());
    assert_eq!(world.store.read_document("one", 0).await.unwrap(), text(5, &long));
    assert_eq!(world.store.read_document("one", 5).await.unwrap(), StoredDocument { version: 5, text: None });
    let largest = (1 << 53) - 1;
    assert!(world.store.write_document("one", 5, (largest, "{}"), ACTIVE).await.unwrap());
    assert_eq!(world.store.read_document("one", 5).await.unwrap(), text(largest, "{}"));
}

pub async fn exactly_one_of_racing_changes_of_the_document_wins(world: &World) {
    let mut version = 0;
    for round in 1..=5 {
        let write = |number: u64| {
            let world = world.again();
            let next = 10 * round + number;
            tokio::spawn(async move {
                let is_written =
                    world.store.write_document("one", version, (next, &next.to_string()), ACTIVE).await.unwrap();
                is_written.then_some(next)
            })
        };
        let written = join_all((0..4).map(write)).await;
        let winners: Vec<u64> = written.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        version = winners[0];
        assert_eq!(world.store.read_document("one", 0).await.unwrap(), text(version, &version.to_string()));
    }
}

pub async fn a_document_changes_only_under_the_record_that_the_writer_knows(world: &World) {
    assert!(world.store.write_document("one", 0, (1, "one"), ACTIVE).await.unwrap());
    for state in [EngineState::Moving, EngineState::Retired, EngineState::Filling, EngineState::Active] {
        let epoch = Epoch::from_number(7);
        world.turn(state, epoch).await;
        for fence in [ACTIVE, Some((state, EPOCH)), Some((EngineState::Standby, epoch))] {
            is_over(world.store.write_document("one", 1, (2, "two"), fence).await);
        }
        // It can always be read, and survives what empties the store.
        let _ = world.store.clear(epoch).await.unwrap();
        assert_eq!(world.store.read_document("one", 0).await.unwrap(), text(1, "one"));
    }
    // Without a fence it changes under any record.
    assert!(world.store.write_document("other", 0, (1, "{}"), None).await.unwrap());
    world.turn(EngineState::Filling, Epoch::from_number(8)).await;
    let filling = Some((EngineState::Filling, Epoch::from_number(8)));
    assert!(world.store.write_document("one", 1, (2, "two"), filling).await.unwrap());
}

pub async fn documents_with_other_names_are_others(world: &World) {
    assert!(world.store.write_document("one", 0, (1, "one"), ACTIVE).await.unwrap());
    assert!(world.store.write_document("other", 0, (2, "other"), None).await.unwrap());
    assert!(!world.store.write_document("other", 1, (3, "one"), None).await.unwrap());
    assert_eq!(world.store.read_document("one", 0).await.unwrap(), text(1, "one"));
    assert_eq!(world.store.read_document("other", 0).await.unwrap(), text(2, "other"));
}

pub async fn nodes_that_start_at_once_have_one_secret(world: &World) {
    let start = |number: u64| {
        let world = world.again();
        tokio::spawn(async move { agreed(&*world.store, SECRET, &number.to_string()).await.unwrap() })
    };
    let nodes = (0..4).map(start);
    let secrets: Vec<StoredDocument> = join_all(nodes).await.into_iter().map(Result::unwrap).collect();
    assert!(secrets.iter().all(|secret| *secret == secrets[0] && secret.text.is_some()), "{secrets:?}");
}

pub async fn a_document_that_is_brought_replaces_the_one_that_is_there(world: &World) {
    let other: &dyn Store = &MemoryStore::default();
    let store: &dyn Store = &*world.store;
    // Without a document there is nothing to bring.
    assert!(bring(other, store, "one", None).await.unwrap());
    assert!(store.write_document("one", 0, (7, "here"), None).await.unwrap());
    assert!(other.write_document("one", 0, (5, "there"), None).await.unwrap());
    let filling = Some((EngineState::Filling, EPOCH));
    assert!(!bring(other, store, "one", filling).await.unwrap());
    for _ in 0..2 {
        assert!(bring(other, store, "one", ACTIVE).await.unwrap());
        assert_eq!(store.read_document("one", 0).await.unwrap(), text(5, "there"));
    }
}
