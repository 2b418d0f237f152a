//! leader-election.

use latchgate_testkit::postgres::shared_database;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::world::{Running, World, node};

/// Logs when it leads and when it is stopped, and whether another machine leads at the same time.
const LEAD: &str = r#"#!/usr/bin/env bash
trap 'rmdir leading; echo "stops $MACHINE" >>log; exit 0' TERM
mkdir leading || echo "overlap $MACHINE" >>log
echo "leads $MACHINE $TOKEN" >>log
while [[ -e log ]]; do sleep 0.02; done
"#;

fn join(world: &World, machine: &str, env: &[(&str, &str)]) -> Running {
    world.put("lead", LEAD);
    world.run_with(machine, "leader-election", &["the/leader", "./lead"], env)
}

fn assert_tokens_rise(leaders: &[String]) {
    let tokens: Vec<u64> = leaders.iter().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{leaders:?}");
}

#[tokio::test]
async fn one_machine_leads_at_a_time_and_the_next_when_it_stops() {
    let world = World::new().await;
    let mut machines: Vec<(&str, Running)> =
        ["a", "b", "c"].into_iter().map(|name| (name, join(&world, name, &[]))).collect();
    for round in 1..=3 {
        let leaders = world.until_logged("leads", round).await;
        assert_eq!(leaders.len(), round);
        let index = machines.iter().position(|(name, _)| leaders[round - 1].starts_with(name)).unwrap();
        let (_, mut leader) = machines.remove(index);
        leader.signal(Signal::SIGTERM);
        assert_eq!(leader.code().await, Some(143), "{}", leader.errors());
        assert_eq!(world.logged("stops").len(), round);
    }
    assert_eq!(world.logged("overlap"), [""; 0]);
    assert_tokens_rise(&world.logged("leads"));
}

#[tokio::test]
async fn a_leader_steps_down_when_its_lease_is_ended_or_revoked_and_joins_the_queue_again() {
    let world = World::new().await;
    // A lease of an hour does not end within the test.
    let _leader = join(&world, "a", &[("TTL_MS", "3600000"), ("RENEW_MS", "200")]);
    world.until_logged("leads", 1).await;
    world.force("the%2Fleader").await;
    world.until_logged("stops", 1).await;
    world.until_logged("leads", 2).await;
    world.post("the%2Fleader", "revoke", &json!({ "grace_ms": 3_600_000, "reason": "deploy" })).await;
    world.until_logged("stops", 2).await;
    world.until_logged("leads", 3).await;
    assert_eq!(world.logged("overlap"), [""; 0]);
    assert_tokens_rise(&world.logged("leads"));
}

#[tokio::test]
async fn a_leader_that_cannot_renew_stops_before_the_next_begins() {
    let database = shared_database().await;
    let mut world = World::with(&["--locks", &database]).await;
    let other = node(&["--locks", &database]).await;
    let _first = join(&world, "a", &[("TTL_MS", "8000")]);
    world.until_logged("leads", 1).await;
    let _second = join(&world, "b", &[("TTL_MS", "8000"), ("LATCHGATE", &other.base_url())]);
    world.node.kill9();
    let leaders = world.until_logged("leads", 2).await;
    assert!(leaders[1].starts_with('b'), "{leaders:?}");
    assert_eq!(world.logged("overlap"), [""; 0]);
    assert_tokens_rise(&leaders);
}

#[tokio::test]
async fn a_command_that_ends_by_itself_ends_the_lead() {
    let world = World::new().await;
    let mut leader = world.run("a", "leader-election", &["k", "sh", "-c", "exit 7"]);
    assert_eq!(leader.code().await, Some(7), "{}", leader.errors());
    assert_eq!(world.look("k").await["held"], false);
}
