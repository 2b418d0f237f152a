//! That all nodes use the same engine, and that there is always a way on.

use std::time::Duration;

use latchgate_core::lock::Outcome;
use tokio::time::timeout;

use super::world::{LONG, Line, Node, RIGHT, World, config};

#[tokio::test(start_paused = true)]
async fn nodes_that_start_at_once_agree() {
    for engines in [&["a", "b"][..], &["a", "b", "c"]] {
        let mut world = World::default();
        let mut reversed = engines.to_vec();
        reversed.reverse();
        let all = [world.wires(engines), world.wires(engines), world.wires(&reversed)];
        let nodes = futures::future::join_all(all.map(|wires| Node::open(wires, config()))).await;
        let active: Vec<String> = nodes.iter().flatten().map(|node| node.record().active).collect();
        assert!(active.windows(2).all(|pair| pair[0] == pair[1]), "{active:?}");
    }
}
