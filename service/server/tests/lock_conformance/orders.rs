//! Orders of operators, on pairs whose records are in every state that an order can meet.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_node::engines::{EngineSet, EngineSpec, Opener, SwitchOrder};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate_node::store::{RecordStore, Store};
use latchgate_testkit::memory::MemoryStore;

const PATIENCE: Duration = Duration::from_secs(5);

async fn write(store: &MemoryStore, state: EngineState, epoch: u64) {
    let read = store.read_record().await.unwrap();
    let pair = ["one".to_owned(), "other".to_owned()];
    let next = EngineRecord::new(state, Epoch::from_number(epoch), &pair, 60_000);
    assert!(store.write_record(&read, &next).await.unwrap());
}

/// A node of a pair whose records are these, as they are before it looks at them.
async fn pair(records: [(EngineState, u64); 2]) -> (EngineSet, [MemoryStore; 2]) {
    let stores = [MemoryStore::default(), MemoryStore::default()];
    for (store, (state, epoch)) in stores.iter().zip(records) {
        write(store, state, epoch).await;
    }
    let opened = |name, store: &MemoryStore| EngineSpec::opened(name, Arc::new(store.clone()) as Arc<dyn Store>);
    let specs = vec![opened("one", &stores[0]), opened("other", &stores[1])];
    (EngineSet::join(specs, PATIENCE, 60_000), stores)
}

fn to(engine: Option<&str>) -> SwitchOrder {
    SwitchOrder { to: engine.map(str::to_owned), ..SwitchOrder::default() }
}

async fn records(stores: &[MemoryStore; 2]) -> [Option<EngineState>; 2] {
    let [one, other] = [stores[0].read_record().await.unwrap(), stores[1].read_record().await.unwrap()];
    [one, other].map(|reading| reading.record.map(|record| record.state))
}

/// To empty a target again could destroy its copy: it may be complete by the time that its record is written.
#[tokio::test(start_paused = true)]
async fn an_order_goes_on_with_what_was_begun_and_empties_no_engine_in_use() {
    use EngineState::{Active, Filling, Moving, Retired};
    for (why, before, order, active, is_whole) in [
        ("during a copy", [(Moving, 2), (Filling, 2)], None, 1, false),
        ("back during a copy", [(Moving, 2), (Filling, 2)], Some("one"), 0, false),
        ("another order has begun", [(Active, 2), (Filling, 3)], Some("other"), 1, false),
        ("back after the decision", [(Retired, 2), (Filling, 2)], Some("one"), 0, true),
        ("from the later of two active engines", [(Active, 2), (Active, 3)], None, 0, true),
        ("to the later of two active engines", [(Active, 2), (Active, 3)], Some("other"), 1, true),
    ] {
        let (engines, stores) = pair(before).await;
        engines.switch(&to(order), PATIENCE).await.unwrap();
        let record = stores[active].read_record().await.unwrap().record.unwrap();
        assert!(
            record.state == Active && (!is_whole || record.hold_off_until == Timestamp::default()),
            "{why}: {record:?}"
        );
        match why {
            "during a copy" => assert_eq!(records(&stores).await[0], Some(Retired)),
            "another order has begun" => assert_eq!(record.epoch, Epoch::from_number(3)),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_replaces_a_stopped_one_is_in_a_later_epoch_by_any_clock() {
    let one = MemoryStore::starting_at(Timestamp::from_ms(1_000_000));
    // The stopped engine's clock was ahead, and its last epoch was begun by another node.
    let last = Epoch::from_number(1_030_000);
    write(&one, EngineState::Standby, 1).await;
    let engines = beside_a_stopped(&one);
    engines.switch(&SwitchOrder { is_stopped: true, ..to(Some("one")) }, PATIENCE).await.unwrap();
    assert!(one.read_record().await.unwrap().epoch() > last);
}
#[tokio::test(start_paused = true)]
async fn a_node_holds_off_an_engine_that_may_have_been_left_during_a_copy() {
    // The other engine is stopped, so the node cannot know whether it is in use.
    let one = MemoryStore::default();
    write(&one, EngineState::Moving, 2).await;
    let engines = beside_a_stopped(&one);
    engines.switch(&SwitchOrder { is_stopped: true, ..to(None) }, PATIENCE).await.unwrap();
    let read = one.read_record().await.unwrap();
    assert!(read.record.unwrap().hold_off_until > read.now.plus_ms(50_000));
}

/// A node that has used the other engine in a later epoch finds these records.
#[tokio::test(start_paused = true)]
async fn an_order_for_an_engine_that_was_left_begins_a_hold_off() {
    use EngineState::{Active, Moving, Standby};
    for (why, before, order, engine) in [
        ("it was left during a copy", [(Moving, 2), (Standby, 1)], "one", 0),
        ("it is not copied, even if the other one has lost its data", [(Active, 2), (Standby, 4)], "other", 1),
    ] {
        let (engines, stores) = pair([(Standby, 2), (Active, 3)]).await;
        let _ = engines.watch().wait_for(Option::is_some).await.unwrap();
        for (store, (state, epoch)) in stores.iter().zip(before) {
            write(store, state, epoch).await;
        }
        engines.switch(&to(Some(order)), PATIENCE).await.unwrap();
        let read = stores[engine].read_record().await.unwrap();
        let record = read.record.unwrap();
        assert!(record.state == Active && record.epoch > Epoch::from_number(3), "{why}: {record:?}");
        assert!(record.hold_off_until > read.now.plus_ms(50_000), "{why}: {record:?}");
        if order == "other" {
            assert_eq!(records(&stores).await[0], Some(Standby), "{why}");
        }
    }
}

/// A node that was started without the other engine, which is stopped.
fn beside_a_stopped(one: &MemoryStore) -> EngineSet {
    let gone: Opener = Arc::new(|| Box::pin(async { anyhow::bail!("it is stopped") }));
    let (name, kind) = ("other".to_owned(), "memory");
    let stopped = EngineSpec { name, kind, open: gone, is_trusted: false, is_new: false, is_left_out: true };
    let specs = vec![EngineSpec::opened("one", Arc::new(one.clone()) as Arc<dyn Store>), stopped];
    EngineSet::join(specs, PATIENCE, 60_000)
}
