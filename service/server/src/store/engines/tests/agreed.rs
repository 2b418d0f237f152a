//! That all nodes use the same engine, and that there is always a way on.

use std::time::Duration;

use latchgate_core::lock::{Outcome, Refusal};
use tokio::time::{sleep, timeout};

use super::super::{EngineSetConfig, SwitchFailure};
use super::world::{LONG, Line, Node, RIGHT, World, config};
use crate::store::LockStore;

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

#[tokio::test(start_paused = true)]
async fn a_mover_whose_move_was_called_off_decides_nothing() {
    let mut world = World::default();
    let engines = ["a", "b", "c"];
    let (slow, quick) = (world.node(&engines).await, world.node(&engines).await);
    slow.granted("k", "held").await;
    slow.wire("b").set(Line::HungAt(&["begin_term"]));
    slow.order("b").await;
    // It has carried everything over.
    slow.wire("b").until_stuck().await;
    quick.wire("c").set(Line::HungAt(&["dump"]));
    quick.order("c").await;
    slow.until_record(|record| record.active == "c").await;
    slow.wire("b").set(Line::Open);
    sleep(RIGHT).await;
    quick.wire("c").set(Line::Open);
    quick.until_serving("c").await;
    slow.until_serving("c").await;
    assert!(matches!(slow.renew("k", "held").await, Ok(Outcome::Renewed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_move_can_be_called_off_and_the_old_engine_goes_on() {
    let mut world = World::with_terms("a");
    let node = world.node(&["a", "b"]).await;
    node.granted("k", "held").await;
    node.order("b").await;
    assert!(!node.record().is_serving());
    node.order("a").await;
    node.until_serving("a").await;
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::Renewed(_))));
    node.granted("other", "next").await;
    // And once more, to its end.
    node.order("b").await;
    node.until_serving("b").await;
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::Renewed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_move_whose_nodes_are_all_gone_is_brought_to_its_end_by_those_who_start() {
    let mut world = World::default();
    let long = EngineSetConfig { right: Duration::from_secs(15), ..config() };
    let node = Node::open(world.wires(&["a", "b"]), long.clone()).await.unwrap();
    node.granted("k", "held").await;
    node.order("b").await;
    drop(node);
    let node = Node::open(world.wires(&["a", "b"]), long).await.unwrap();
    node.until_serving("b").await;
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::Renewed(_))));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_name_the_engines_in_another_order_do_not_use_two() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mut world = World::default();
        let (one, two) = (world.wires(&["a", "b"]), world.wires(&["b", "a"]));
        // At the first start, when no engine has a board; each reaches one of them.
        one.iter().find(|(name, _)| *name == second).unwrap().1.set(Line::Cut);
        two.iter().find(|(name, _)| *name == first).unwrap().1.set(Line::Cut);
        let open = |wires| timeout(LONG, Node::open(wires, config()));
        let (one, two) = tokio::join!(open(one), open(two));
        let serve =
            |node: &Result<anyhow::Result<Node>, _>| matches!(node, Ok(Ok(node)) if node.set.status().is_serving);
        assert!(!(serve(&one) && serve(&two)), "each serves from another engine");
    }
}

#[tokio::test(start_paused = true)]
async fn no_other_set_is_founded_while_an_engine_is_not_heard_that_may_know_of_one() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    node.granted("k", "held").await;
    // One engine has lost its board, and a third is added by a node that does not reach the active one.
    node.wire("b").set(Line::Cut);
    world.engine("b").memory.forget_board();
    let wires = world.wires(&["a", "b", "c"]);
    wires[0].1.set(Line::Cut);
    let by_itself = EngineSetConfig { switch_after: Some(RIGHT), ..config() };
    let other = Node::open(wires.clone(), by_itself.clone()).await;
    assert!(other.is_err_and(|error| error.to_string().contains("all of them must answer")));
    wires[0].1.set(Line::Open);
    let other = Node::open(wires, by_itself).await.unwrap();
    other.until_record(|record| record.engines.len() == 3).await;
    assert_eq!(other.record().active, "a");
    assert!(matches!(other.renew("k", "held").await, Ok(Outcome::Renewed(_))));
}

#[tokio::test(start_paused = true)]
async fn an_engine_of_another_set_is_not_taken_in() {
    let mut world = World::default();
    let here = world.node(&["a", "b"]).await;
    let there = world.node(&["c", "d"]).await;
    // So that the other set's record is the later one.
    for engine in ["d", "c", "d", "c"] {
        there.order(engine).await;
        there.until_serving(engine).await;
    }
    here.granted("k", "held").await;
    let mixed = Node::open(world.wires(&["a", "b", "c"]), config()).await;
    assert!(mixed.is_err_and(|error| error.to_string().contains("another set")));
    assert_eq!((here.record().active.as_str(), there.record().active.as_str()), ("a", "c"));
    // Nor by a node that knows its own set already.
    let wires = world.wires(&["a", "b", "c"]);
    wires[2].1.set(Line::Cut);
    let node = Node::open(wires, config()).await.unwrap();
    node.wire("c").set(Line::Open);
    sleep(RIGHT * 2).await;
    assert!(node.set.status().engines[2].trouble.contains("another set"), "{:?}", node.set.status());
    assert_eq!(node.record().engines, ["a", "b"]);
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::Renewed(_))));
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_has_left_its_set_is_not_taken_back_by_what_the_others_remember() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    node.order("b").await;
    node.until_serving("b").await;
    drop(node);
    sleep(RIGHT).await;
    // The one that was active has left, and may have been used alone since.
    let left = world.engine("b").memory.clone();
    let version = left.board().await.unwrap().version;
    assert!(left.write_board(version, "").await.unwrap().is_some());
    let node = Node::open(world.wires(&["a", "b"]), config()).await;
    assert!(node.is_err(), "{:?}", node.map(|node| node.set.status()));
    // What that node was at comes to its end.
    sleep(RIGHT).await;
    let other = world.engine("a").memory.clone();
    let version = other.board().await.unwrap().version;
    assert!(other.write_board(version, "").await.unwrap().is_some());
    let node = Node::open(world.wires(&["b", "a"]), config()).await.unwrap();
    assert_eq!(node.record().active, "b");
}

#[tokio::test(start_paused = true)]
async fn of_two_engines_one_that_dies_while_it_is_moved_to_can_be_left_again() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    node.granted("k", "held").await;
    node.order("b").await;
    node.wire("b").set(Line::Cut);
    // It may have served already, and granted what the old engine does not know.
    let back = async |stopped| node.set.switch("a", false, stopped, LONG).await;
    assert_eq!(back(false).await, Err(SwitchFailure::InDoubt("b".to_owned())));
    assert_eq!(back(true).await, Ok(()));
    node.until_serving("a").await;
    assert!(matches!(node.renew("k", "held").await, Ok(Outcome::LeaseLost(_))));
    assert!(matches!(node.acquire("k", "next").await, Ok(Outcome::Refused(Refusal::HeldOff(_)))));
}

#[tokio::test(start_paused = true)]
async fn another_store_under_the_active_engines_name_is_not_used() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    node.granted("k", "held").await;
    let mut elsewhere = World::default();
    let mut wires = elsewhere.wires(&["a"]);
    wires.extend(world.wires(&["b"]));
    let Err(refused) = Node::open(wires, config()).await else { panic!("it uses another store than the others") };
    assert!(refused.to_string().contains("another store"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_active_engine_that_comes_back_empty_grants_nothing_and_its_leases_are_waited_for() {
    let mut world = World::default();
    let node = world.node(&["a", "b"]).await;
    node.granted("k", "held").await;
    world.engine("a").memory.lose_everything();
    // As long as the node relies on what it has seen, it does not notice.
    sleep(2 * RIGHT).await;
    assert!(node.acquire("k", "next").await.is_err());
    // It cannot be asked for what it had: it is as good as stopped.
    node.set.switch("b", false, true, LONG).await.unwrap();
    node.until_serving("b").await;
    let refused = node.acquire("k", "next").await.unwrap();
    assert!(matches!(refused, Outcome::Refused(Refusal::HeldOff(_))), "{refused:?}");
}
