//! Documents.

use futures::future::join_all;
use latchgate_node::store::documents::{SECRET, StoredDocument, agreed};
use latchgate_node::store::{EngineState, Epoch};

use crate::worlds::{EPOCH, World, is_over};

const ACTIVE: Option<(EngineState, Epoch)> = Some((EngineState::Active, EPOCH));

fn text(version: u64, text: &str) -> StoredDocument {
    StoredDocument { version, text: Some(text.to_owned()) }
}

pub async fn a_document_comes_back_under_its_name_without_its_text_if_known(world: &World) {
    let read = async |name, known| world.store.read_document(name, known).await.unwrap();
    let write = async |name, expected, next| world.store.write_document(name, expected, next, ACTIVE).await.unwrap();
    assert!(!write("one", 7, (8, "{}")).await);
    for known in [0, 7] {
        assert_eq!(read("one", known).await, StoredDocument::default());
    }
    let long = format!("{{\"é \\\" \\n 🔒\": \"{}\"}}", "x".repeat(300_000));
    assert!(write("one", 0, (5, &long)).await);
    assert_eq!(read("one", 0).await, text(5, &long));
    assert_eq!(read("one", 5).await, StoredDocument { version: 5, text: None });
    let largest = (1 << 53) - 1;
    assert!(write("one", 5, (largest, "{}")).await);
    assert!(!write("other", largest, (7, "{}")).await && write("other", 0, (7, "other")).await);
    assert_eq!((read("one", 5).await, read("other", 5).await), (text(largest, "{}"), text(7, "other")));
}

pub async fn of_racing_changes_of_a_document_one_wins_and_all_agree_on_the_first(world: &World) {
    let start = |number: u64| {
        let world = world.clone();
        tokio::spawn(async move { agreed(&*world.store, SECRET, &number.to_string()).await.unwrap() })
    };
    let agreed: Vec<StoredDocument> = join_all((0..4).map(start)).await.into_iter().map(Result::unwrap).collect();
    assert!(agreed.iter().all(|document| *document == agreed[0] && document.text.is_some()), "{agreed:?}");
    let mut version = agreed[0].version;
    for round in 1..=5 {
        let write = |number: u64| {
            let (world, next) = (world.clone(), 10 * round + number);
            tokio::spawn(async move {
                let text = next.to_string();
                world.store.write_document(SECRET, version, (next, &text), ACTIVE).await.unwrap().then_some(next)
            })
        };
        let written = join_all((0..4).map(write)).await;
        let winners: Vec<u64> = written.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        version = winners[0];
        assert_eq!(world.store.read_document(SECRET, 0).await.unwrap(), text(version, &version.to_string()));
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
