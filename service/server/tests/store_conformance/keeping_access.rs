//! The document of apps and API keys.

use latchgate::store::{AccessText, EngineState, Epoch, StoreError};

use crate::worlds::{EPOCH, World};

const ACTIVE: (EngineState, Epoch) = (EngineState::Active, EPOCH);

fn text(version: u64, text: &str) -> AccessText {
    AccessText { version, text: Some(text.to_owned()) }
}

pub async fn a_store_without_a_document_says_so(world: &World) {
    assert_eq!(world.store.read_access(0).await.unwrap(), AccessText::default());
    assert_eq!(world.store.read_access(7).await.unwrap(), AccessText::default());
    assert!(!world.store.write_access(ACTIVE, 7, (8, "{}")).await.unwrap());
    assert_eq!(world.store.read_access(0).await.unwrap(), AccessText::default());
}

pub async fn a_document_comes_back_as_it_was_and_without_its_text_if_it_is_known(world: &World) {
    let long = format!("{{\"é \\\" \\n 🔒\": \"{}\"}}", "x".repeat(300_000));
    assert!(world.store.write_access(ACTIVE, 0, (5, &long)).await.unwrap());
    assert_eq!(world.store.read_access(0).await.unwrap(), text(5, &long));
    assert_eq!(world.store.read_access(5).await.unwrap(), AccessText { version: 5, text: None });
    let largest = (1 << 53) - 1;
    assert!(world.store.write_access(ACTIVE, 5, (largest, "{}")).await.unwrap());
    assert_eq!(world.store.read_access(5).await.unwrap(), text(largest, "{}"));
}

pub async fn exactly_one_of_racing_changes_of_the_document_wins(world: &World) {
    let mut version = 0;
    for round in 1..=5 {
        let write = |number: u64| {
            let world = world.again();
            let next = 10 * round + number;
            tokio::spawn(async move {
                let is_written = world.store.write_access(ACTIVE, version, (next, &next.to_string())).await.unwrap();
                is_written.then_some(next)
            })
        };
        let writers: Vec<_> = (0..4).map(write).collect();
        let mut winners = Vec::new();
        for writer in writers {
            winners.extend(writer.await.unwrap());
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        version = winners[0];
        assert_eq!(world.store.read_access(0).await.unwrap(), text(version, &version.to_string()));
    }
}

pub async fn a_document_changes_only_under_the_record_that_the_writer_knows(world: &World) {
    assert!(world.store.write_access(ACTIVE, 0, (1, "one")).await.unwrap());
    for state in [EngineState::Moving, EngineState::Retired, EngineState::Filling, EngineState::Active] {
        let epoch = Epoch::from_number(7);
        world.turn(state, epoch).await;
        for fence in [ACTIVE, (state, EPOCH), (EngineState::Standby, epoch)] {
            let written = world.store.write_access(fence, 1, (2, "two")).await;
            assert!(matches!(written, Err(StoreError::EpochOver)), "{state:?} under {fence:?}: {written:?}");
        }
        // It can always be read, and survives what empties the store.
        let _ = world.store.clear(epoch).await.unwrap();
        assert_eq!(world.store.read_access(0).await.unwrap(), text(1, "one"));
    }
    world.turn(EngineState::Filling, Epoch::from_number(8)).await;
    let filling = (EngineState::Filling, Epoch::from_number(8));
    assert!(world.store.write_access(filling, 1, (2, "two")).await.unwrap());
}
