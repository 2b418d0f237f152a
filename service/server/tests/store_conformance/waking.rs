use std::collections::BTreeSet;

use latchgate_core::lock::NodeId;
use latchgate_node::store::WakeUp;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::worlds::{PATIENCE, World, at};

pub async fn wake_ups_all_arrive_and_only_at_their_node(world: &World) {
    let (here, there) = (NodeId::new("here"), NodeId::new("there"));
    let mut receiver_here = world.store.wake_ups(&here).await.unwrap();
    let mut receiver_there = world.store.wake_ups(&there).await.unwrap();
    let keys: BTreeSet<_> = (0..500).map(|number| at(&format!("it's \"{number}\"{}", "🔒".repeat(120)))).collect();
    let (alone, last) = (at("not for here"), at("last"));
    let mut wake_ups: Vec<_> = keys.iter().map(|address| (here.clone(), address.clone())).collect();
    wake_ups.extend([(there, alone.clone()), (NodeId::new("unknown"), at("lost"))]);
    world.store.wake(&wake_ups).await.unwrap();
    world.store.wake(&[(here, last.clone())]).await.unwrap();
    let mut arrived = BTreeSet::new();
    for _ in 0..keys.len() {
        let WakeUp::Key(address) = next(&mut receiver_here).await else { panic!("no wake-up was lost") };
        arrived.insert(address);
    }
    assert_eq!(arrived, keys);
    assert_eq!(next(&mut receiver_here).await, WakeUp::Key(last));
    assert_eq!(next(&mut receiver_there).await, WakeUp::Key(alone));
}

pub async fn next(receiver: &mut Receiver<WakeUp>) -> WakeUp {
    timeout(PATIENCE, receiver.recv()).await.expect("a wake-up").expect("the store listens")
}
