//! hand-over-first and hand-over-second, pass-on and take-over.

use latchgate_testkit::node::command;
use nix::sys::signal::Signal;

use crate::world::World;

const FIRST: &str = r#"#!/usr/bin/env bash
echo "first $TOKEN" >>log
until [[ -e go ]]; do sleep 0.02; done
echo "first_ends $TOKEN" >>log
echo "what the first has found"
"#;

const SECOND: &str = r#"#!/usr/bin/env bash
echo "second $TOKEN" >>log
cat >found
"#;

fn world_of_two(world: &World) {
    world.put("first", FIRST);
    world.put("second", SECOND);
}

#[tokio::test]
async fn the_second_begins_when_the_first_has_ended_and_with_a_higher_token() {
    let world = World::new().await;
    world_of_two(&world);
    let mut first = world.run("a", "hand-over-first", &["k", "result", "./first"]);
    world.until_logged("first", 1).await;
    let mut second = world.run("b", "hand-over-second", &["k", "result", "./second"]);
    world.until_waiting("k", 1).await;
    world.touch("go");
    first.succeeds().await;
    second.succeeds().await;
    let order: Vec<String> = world.log().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(order, ["first", "first_ends", "second"]);
    let token = |word: &str| world.logged(word)[0].parse::<u64>().unwrap();
    assert!(token("second") > token("first"));
    assert_eq!(std::fs::read_to_string(world.path("found")).unwrap(), "what the first has found\n");
    // A result is taken once, and only by a higher token.
    assert_eq!(world.run("b", "hand-over-second", &["k", "result", "./second"]).code().await, Some(75));
    let highest = (1_u64 << 53) - 1;
    std::fs::write(world.path("result"), format!("{highest}\nof another lock\n")).unwrap();
    assert_eq!(world.run("b", "hand-over-second", &["k", "result", "./second"]).code().await, Some(75));
    assert_eq!(world.logged("second").len(), 1, "{:?}", world.log());
}

#[tokio::test]
async fn the_second_does_not_begin_if_the_first_has_died() {
    let world = World::new().await;
    world_of_two(&world);
    let first = world.run_with("a", "hand-over-first", &["k", "result", "./first"], &[("TTL_MS", "6000")]);
    world.until_logged("first", 1).await;
    let mut second = world.run("b", "hand-over-second", &["k", "result", "./second"]);
    world.until_waiting("k", 1).await;
    first.signal(Signal::SIGKILL);
    assert_eq!(second.code().await, Some(75), "{}", second.errors());
    assert_eq!(world.logged("second"), [""; 0]);
}

#[tokio::test]
async fn a_lease_is_passed_on_with_its_token_and_the_lock_is_never_free() {
    let world = World::new().await;
    world_of_two(&world);
    world.touch("go");
    world.run("a", "pass-on", &["k", "lease", "./first"]).succeeds().await;
    let waiting = world.hold("k", "between", 50_000);
    let taking_over = async {
        world.until_waiting("k", 1).await;
        let token = world.look("k").await["last_token"].as_u64().unwrap();
        world.run("b", "take-over", &["lease", "./second"]).succeeds().await;
        token
    };
    let (next, token) = tokio::join!(waiting, taking_over);
    assert_eq!((world.logged("first"), world.logged("second")), (vec![token.to_string()], vec![token.to_string()]));
    assert!(next > token);
    let again = world.run("c", "take-over", &["lease", "./second"]).code().await;
    assert_eq!(again, Some(75), "a lease is taken over once");
    world.run("a", "pass-on", &["forced", "lease", "./first"]).succeeds().await;
    assert_eq!(reqwest::Client::new().delete(world.lock("forced")).send().await.unwrap().status(), 200);
    assert_eq!(world.run("b", "take-over", &["lease", "./second"]).code().await, Some(75));
    assert_eq!(world.logged("second").len(), 1, "{:?}", world.log());
}

#[tokio::test]
async fn where_an_api_key_is_needed_a_script_sends_the_one_in_its_environment() {
    let made = command(env!("CARGO_BIN_EXE_latchgate")).args(["api-key", "generate"]).output().unwrap();
    let api_key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let world = World::with(&["--admin-api-key", &api_key]).await;
    let args = ["k", "result", "true"];
    world.run_with("a", "hand-over-first", &args, &[("LATCHGATE_API_KEY", &api_key)]).succeeds().await;
    let mut refused = world.run("b", "hand-over-first", &args);
    assert_eq!(refused.code().await, Some(75));
    assert!(refused.errors().contains("401"), "{}", refused.errors());
}
