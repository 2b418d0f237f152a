//! Switches while clients request, run and report.

use latchgate_testkit::recorded::Options;
use latchgate_testkit::recorder::{Args, Workload};

use super::world::{Wired, World, switched, until_serving};
use crate::recorded::Recording;

/// Clients of operations that are taken over, and of others that are not.
fn load(nodes: &[Wired]) -> Recording {
    let mix = vec![Workload::Gate, Workload::Block];
    let choose = |args| Args { mix, keys: 3, ttl_ms: 2_000, abandon_one_in: 30, ..args };
    Recording::start(nodes.iter().map(|wired| &wired.node), choose)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_during_a_switch_lets_nobody_go_twice() {
    let world = World::start().await;
    let mut nodes = world.two().await;
    let load = load(&nodes);
    for engine in ["postgres", "redis"] {
        load.goes_on(20).await;
        nodes[1].node.pause();
        switched(&nodes[..1], engine).await;
        nodes[1].node.resume();
        until_serving(&nodes[1].node, engine).await;
    }
    load.goes_on(20).await;
    load.checked(&Options::default()).await;
}
