//! Audit records.

use latchgate::store::{AuditClass, AuditPosition, AuditRecord, EngineState, Epoch};
use latchgate_core::Timestamp;

use crate::worlds::World;

fn record(class: AuditClass, at_ms: u64, id: u64) -> AuditRecord {
    let position = AuditPosition { at: Timestamp::from_ms(at_ms), id };
    AuditRecord { position, class, text: format!("{{\"é \\\" \\n\": {id}}}") }
}

async fn ids(world: &World, before: AuditPosition, limit: usize) -> Vec<u64> {
    let records = world.store.read_audit(before, limit).await.unwrap();
    records.iter().map(|record| record.position.id).collect()
}

pub async fn records_come_back_as_they_were_newest_first_and_once(world: &World) {
    use AuditClass::{App, Operator, Refused};
    // Several of one ms, of all classes, written in another order than that of their positions.
    let records = [
        record(App, 5, 8),
        record(Operator, 5, 9),
        record(Refused, 5, (1 << 53) - 1),
        record(App, 4, 7),
        record(App, 6, 1),
    ];
    world.store.write_audit(&records[2..]).await.unwrap();
    world.store.write_audit(&records).await.unwrap();
    world.store.write_audit(&[]).await.unwrap();
    let mut expected = records.to_vec();
    expected.sort_by_key(|record| std::cmp::Reverse(record.position));
    assert_eq!(world.again().store.read_audit(AuditPosition::END, 100).await.unwrap(), expected);
    let (mut before, mut paged) = (AuditPosition::END, Vec::new());
    loop {
        let page = world.store.read_audit(before, 1).await.unwrap();
        let Some(last) = page.last() else { break };
        before = last.position;
        paged.extend(page);
    }
    assert_eq!(paged, expected);
}

pub async fn old_records_go_and_each_class_keeps_its_newest(world: &World) {
    let mut records: Vec<_> = (1..=5).map(|number| record(AuditClass::Operator, number, number)).collect();
    records.extend((11..=20).map(|number| record(AuditClass::Refused, number, number)));
    world.store.write_audit(&records).await.unwrap();
    world.store.trim_audit(Timestamp::from_ms(3), 4).await.unwrap();
    // A flood of one class does not displace the records of another.
    assert_eq!(ids(world, AuditPosition::END, 100).await, [20, 19, 18, 17, 5, 4, 3]);
    world.store.trim_audit(Timestamp::from_ms(0), 4).await.unwrap();
    assert_eq!(ids(world, AuditPosition::END, 100).await, [20, 19, 18, 17, 5, 4, 3]);
}

pub async fn a_store_takes_records_in_any_state_and_keeps_them_when_it_is_emptied(world: &World) {
    let epoch = Epoch::from_number(7);
    world.turn(EngineState::Filling, epoch).await;
    world.store.write_audit(&[record(AuditClass::Operator, 1, 1)]).await.unwrap();
    assert!(world.store.clear(epoch).await.unwrap());
    world.turn(EngineState::Retired, epoch).await;
    world.store.write_audit(&[record(AuditClass::Operator, 2, 2)]).await.unwrap();
    assert_eq!(ids(world, AuditPosition::END, 100).await, [2, 1]);
}
