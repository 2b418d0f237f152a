//! Orders of operators, on pairs whose records are in every state that an order can meet.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::lock::{Event, Mode};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::engines::{EngineSet, EngineSpec, Opener, SwitchOrder};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate_node::store::{EventCursor, EventQuery, RecordStore, Store, Watched};
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
async fn an_engine_left_during_a_copy_does_not_take_over_when_it_is_back() {
    let (engines, stores) = pair([(EngineState::Moving, 2), (EngineState::Active, 3)]).await;
    let mut used = engines.watch();
    let _ = used.wait_for(Option::is_some).await.unwrap();
    assert_eq!(engines.standing().unwrap().index, 1);
    assert_eq!(records(&stores).await, [Some(EngineState::Retired), Some(EngineState::Active)]);
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

#[tokio::test(start_paused = true)]
async fn an_order_for_an_engine_that_was_left_during_a_copy_begins_a_hold_off() {
    let (engines, stores) = pair([(EngineState::Standby, 2), (EngineState::Active, 3)]).await;
    let _ = engines.watch().wait_for(Option::is_some).await.unwrap();
    write(&stores[0], EngineState::Moving, 2).await;
    write(&stores[1], EngineState::Standby, 1).await;
    engines.switch(&to(Some("one")), PATIENCE).await.unwrap();
    let read = stores[0].read_record().await.unwrap();
    let record = read.record.unwrap();
    assert_eq!(record.state, EngineState::Active);
    assert!(record.hold_off_until > read.now.plus_ms(50_000) && record.epoch > Epoch::from_number(3));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_was_left_is_not_copied_even_if_the_other_lost_its_data() {
    let (engines, stores) = pair([(EngineState::Standby, 2), (EngineState::Active, 3)]).await;
    let _ = engines.watch().wait_for(Option::is_some).await.unwrap();
    write(&stores[0], EngineState::Active, 2).await;
    write(&stores[1], EngineState::Standby, 4).await;
    engines.switch(&to(Some("other")), PATIENCE).await.unwrap();
    let read = stores[1].read_record().await.unwrap();
    assert!(read.record.unwrap().hold_off_until > read.now);
    assert_eq!(records(&stores).await[0], Some(EngineState::Standby));
}

#[tokio::test(start_paused = true)]
async fn a_reader_of_events_that_misses_a_given_up_switch_gets_no_event_twice() {
    let (engines, stores) = pair([(EngineState::Active, 1_000), (EngineState::Standby, 999)]).await;
    let _ = engines.watch().wait_for(Option::is_some).await.unwrap();
    let address = Address { app: App::default(), key: Key::parse("k").unwrap() };
    let event = Event::waited(None, Mode::Exclusive, 1, Timestamp::from_ms(1));
    stores[0].log(Epoch::from_number(1_000), &[(address.clone(), event)]).await.unwrap();
    let watched = Watched::Key(address.key.clone());
    let read = async |after| {
        engines.events(EventQuery { app: Some(&address.app), watched: &watched, after, limit: 10 }).await.unwrap()
    };
    let first = read(EventCursor::START).await;
    assert_eq!(first.events.len(), 1);

    let active = stores[0].read_record().await.unwrap();
    let moving = EngineRecord { state: EngineState::Moving, ..active.record.clone().unwrap() };
    assert!(stores[0].write_record(&active, &moving).await.unwrap());
    engines.switch(&to(Some("one")), PATIENCE).await.unwrap();
    engines.switch(&to(Some("other")), PATIENCE).await.unwrap();
    let mut page = read(first.next).await;
    assert!(page.is_dropped);
    while page.next != engines.last_event().await.unwrap() {
        page = read(page.next).await;
        assert!(page.events.is_empty(), "{:?}", page.events);
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
