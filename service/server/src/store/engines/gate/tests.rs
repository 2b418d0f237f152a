//! Two nodes on two stores, in a time that is only told.

use tokio::time::{Instant, advance};

use super::*;
use crate::store::gate::memory::MemoryGateStore;

const RIGHT: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);

fn stores() -> [Arc<dyn GateStore>; 2] {
    [Arc::new(MemoryGateStore::default()), Arc::new(MemoryGateStore::default())]
}

fn node(stores: &[Arc<dyn GateStore>; 2]) -> GateEngines {
    let [one, other] = stores.clone();
    GateEngines::start_named([("one", one), ("other", other)], RIGHT, ANSWER_MAX)
}

/// Until the node may claim, and where.
async fn claims_in(node: &GateEngines) -> String {
    node.confirmed_within(LONG).await.expect("a right").record.active.clone()
}

#[tokio::test(start_paused = true)]
async fn from_the_first_all_claim_in_the_first_engine_and_no_look_at_the_other_is_needed() {
    let stores = stores();
    for node in [node(&stores), node(&stores)] {
        assert_eq!(claims_in(&node).await, "one");
        let standing = node.standing();
        assert!(standing.is_first() && !standing.was_switched() && !standing.is_by_force());
        assert_eq!(node.status().epoch, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_switch_is_followed_by_all_and_no_two_nodes_ever_claim_in_different_engines() {
    let stores = stores();
    let nodes = [node(&stores), node(&stores), node(&stores)];
    for node in &nodes {
        claims_in(node).await;
    }
    for (by, to) in [(0, "other"), (1, "one"), (2, "other")] {
        let began = Instant::now();
        let switch = nodes[by].switch(to, false, LONG);
        tokio::pin!(switch);
        let switched = loop {
            let all = nodes.each_ref().map(GateEngines::standing);
            let claiming: HashSet<&str> = all
                .iter()
                .filter(|standing| standing.may_claim())
                .map(|standing| standing.record.active.as_str())
                .collect();
            assert!(claiming.len() <= 1, "{claiming:?}");
            tokio::select! {
                biased;
                switched = &mut switch => break switched,
                () = advance(Duration::from_millis(10)) => {}
            }
        };
        assert_eq!(switched, Ok(()));
        assert!(began.elapsed() > RIGHT, "it waits until all rights are over");
        for node in &nodes {
            assert_eq!(claims_in(node).await, to);
            assert!(node.standing().was_switched());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_not_renewed_ends() {
    let stores = stores();
    let node = node(&stores);
    claims_in(&node).await;
    let standing = node.standing();
    drop(node);
    advance(RIGHT).await;
    assert!(!standing.may_claim());
}

#[tokio::test(start_paused = true)]
async fn an_engine_of_another_name_is_none_of_this_gate() {
    let stores = stores();
    let node = node(&stores);
    claims_in(&node).await;
    assert_eq!(node.switch("third", true, LONG).await, Err(SwitchFailure::UnknownEngine));
    assert_eq!(node.switch("one", true, LONG).await, Ok(()), "it is active already");
    assert!(!node.standing().is_by_force(), "the other answers");
}

#[tokio::test(start_paused = true)]
async fn a_node_with_another_second_store_claims_nothing_after_a_switch() {
    let stores = stores();
    let third: Arc<dyn GateStore> = Arc::new(MemoryGateStore::default());
    let stranger = GateEngines::start_named([("one", Arc::clone(&stores[0])), ("third", third)], RIGHT, ANSWER_MAX);
    let node = node(&stores);
    assert_eq!(claims_in(&stranger).await, claims_in(&node).await);
    node.switch("other", false, LONG).await.unwrap();
    assert!(stranger.confirmed_within(LONG).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_second_store_of_another_gate_is_not_switched_to_but_does_no_harm() {
    let (ours, theirs) = (stores(), stores());
    for stores in [&ours, &theirs] {
        claims_in(&node(stores)).await;
    }
    let mixed = [Arc::clone(&ours[0]), Arc::clone(&theirs[1])];
    for node in [node(&mixed), node(&ours), node(&mixed)] {
        assert_eq!(claims_in(&node).await, "one");
    }
    let node = node(&mixed);
    claims_in(&node).await;
    assert_eq!(node.switch("other", false, LONG).await, Err(SwitchFailure::NoAnswer("other".to_owned())));
    assert!(node.status().engines[1].trouble.contains("another gate"), "{:?}", node.status());
}

#[tokio::test(start_paused = true)]
async fn with_stores_of_two_gates_of_which_one_was_switched_nobody_claims() {
    let (ours, theirs) = (stores(), stores());
    claims_in(&node(&ours)).await;
    let switching = node(&theirs);
    claims_in(&switching).await;
    switching.switch("other", false, LONG).await.unwrap();
    claims_in(&switching).await;
    let mixed = [Arc::clone(&ours[0]), Arc::clone(&theirs[1])];
    assert!(node(&mixed).confirmed_within(LONG).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_forgotten_all_is_told_again() {
    let stores = stores();
    let switching = node(&stores);
    claims_in(&switching).await;
    switching.switch("other", false, LONG).await.unwrap();
    claims_in(&switching).await;
    drop(switching);
    let forgetful: Arc<dyn GateStore> = Arc::new(MemoryGateStore::default());
    let node = node(&[Arc::clone(&forgetful), Arc::clone(&stores[1])]);
    assert_eq!(claims_in(&node).await, "other");
    assert!(forgetful.board().await.unwrap().text.contains("other"));
}
