//! do-once, from docs/GATE.md.

use nix::sys::signal::Signal;

use crate::world::World;

const ORDER: &str = r#"{"order": 44}"#;

fn args(command: &'static str) -> [&'static str; 5] {
    ["charge", ORDER, "sh", "-c", command]
}

#[tokio::test]
async fn work_that_succeeded_is_not_done_again_and_its_output_is_printed_again() {
    let world = World::new().await;
    let mut first = world.run("a", "do-once", &args("echo charged >>log; echo receipt 7"));
    first.succeeds().await;
    let mut second = world.run("b", "do-once", &args("echo charged >>log; echo receipt 8"));
    second.succeeds().await;
    assert_eq!((first.errors(), second.errors()), ("receipt 7\n".to_owned(), "receipt 7\n".to_owned()));
    assert_eq!(world.log(), ["charged"]);
}

#[tokio::test]
async fn a_second_run_beside_the_first_is_put_off() {
    let world = World::new().await;
    let mut first = world.run("a", "do-once", &args("touch a.runs; until [ -e go ]; do sleep 0.02; done"));
    world.until_there("a.runs").await;
    assert_eq!(world.run("b", "do-once", &args("touch b.runs")).code().await, Some(75));
    assert!(!world.path("b.runs").exists());
    world.touch("go");
    first.succeeds().await;
}

#[tokio::test]
async fn a_failure_lets_the_next_run_proceed_and_an_unknown_outcome_does_not() {
    let world = World::new().await;
    assert_eq!(world.run("a", "do-once", &args("exit 1")).code().await, Some(1));
    assert_eq!(world.run("b", "do-once", &args("exit 3")).code().await, Some(3));
    let mut third = world.run("c", "do-once", &args("echo charged >>log"));
    assert_eq!(third.code().await, Some(70), "{}", third.errors());
    assert_eq!(world.log(), [""; 0]);
}

#[tokio::test]
async fn a_run_that_is_stopped_half_way_blocks_the_operation() {
    let world = World::new().await;
    let mut first = world.run("a", "do-once", &args("touch a.runs; sleep 600"));
    world.until_there("a.runs").await;
    first.signal(Signal::SIGTERM);
    assert_eq!(first.code().await, Some(143), "{}", first.errors());
    assert_eq!(world.run("b", "do-once", &args("echo charged >>log")).code().await, Some(70));
    assert_eq!(world.log(), [""; 0]);
}

#[tokio::test]
async fn without_an_answer_of_the_gate_nothing_is_done() {
    let mut world = World::new().await;
    world.node.kill9();
    assert_eq!(world.run("a", "do-once", &args("echo charged >>log")).code().await, Some(75));
    assert_eq!(world.log(), [""; 0]);
}
