use std::collections::BTreeSet;

use latchgate_core::lock::NodeId;
use latchgate_node::store::WakeUp;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::worlds::{PATIENCE, World, at};

pub async fn a_wake_up_reaches_only_its_node(world: &World) {
    let (here, there) = (NodeId::new("here"), NodeId::new("there"));
    let mut receiver_here = world.store.wake_ups(&here).await.unwrap();
    let mut receiver_there = world.store.wake_ups(&there).await.unwrap();
    let (a, b, c) = (at("it's \"a\""), at("b"), at("c"));
    world.store.wake(&[(here.clone(), a.clone()), (there.clone(), b.clone())]).await.unwrap();
    assert_eq!(next(&mut receiver_here).await, WakeUp::Key(a));
    assert_eq!(next(&mut receiver_there).await, WakeUp::Key(b));
    // If the wake-up of the other node had also been sent here, it would arrive first.
    world.store.wake(&[(there, at("not for here")), (NodeId::new("unknown"), at("lost"))]).await.unwrap();
    world.store.wake(&[(here, c.clone())]).await.unwrap();
    assert_eq!(next(&mut receiver_here).await, WakeUp::Key(c));
}

pub async fn many_wake_ups_at_once_all_arrive(world: &World) {
    let node = NodeId::new("node");
    let mut receiver = world.store.wake_ups(&node).await.unwrap();
    let keys: Vec<_> = (0..500).map(|number| at(&format!("{number}{}", "🔒".repeat(120)))).collect();
    let wake_ups: Vec<_> = keys.iter().map(|address| (node.clone(), address.clone())).collect();
    world.store.wake(&wake_ups).await.unwrap();
    let mut arrived = BTreeSet::new();
    while arrived.len() < keys.len() {
        let WakeUp::Key(address) = next(&mut receiver).await else { panic!("no wake-up was lost") };
        arrived.insert(address);
    }
    assert_eq!(arrived, keys.into_iter().collect());
}

pub async fn next(receiver: &mut Receiver<WakeUp>) -> WakeUp {
    timeout(PATIENCE, receiver.recv()).await.expect("a wake-up").expect("the store listens")
}
