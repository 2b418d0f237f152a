//! n-at-a-time and reader-writer.

use crate::world::World;

/// Logs how many scripts work at the same time, and ends after there have been three.
const WORK: &str = r#"#!/usr/bin/env bash
touch "working/$MACHINE"
until [[ -e three ]]; do
  (($(ls working | wc -l) < 3)) || touch three
done
echo "together $(ls working | wc -l)" >>log
sleep 0.05
rm "working/$MACHINE"
"#;

#[tokio::test]
async fn at_most_three_work_at_a_time() {
    let world = World::new().await;
    world.put("work", WORK);
    world.put("working/.keep", "");
    let names: Vec<String> = (0..10).map(|number| format!("m{number}")).collect();
    let mut machines: Vec<_> =
        names.iter().map(|name| world.run(name, "n-at-a-time", &["pool", "3", "./work"])).collect();
    for machine in &mut machines {
        machine.succeeds().await;
    }
    let together: Vec<u64> = world.logged("together").iter().map(|line| line.parse().unwrap()).collect();
    assert_eq!((together.len(), together.iter().max()), (10, Some(&3)), "{together:?}");
    assert_eq!(world.look("pool").await["held"], false);
}

#[tokio::test]
async fn another_limit_is_refused() {
    let world = World::new().await;
    let mut first =
        world.run("a", "n-at-a-time", &["pool", "3", "sh", "-c", "touch a.runs; until [ -e go ]; do sleep 0.02; done"]);
    world.until_there("a.runs").await;
    let mut second = world.run("b", "n-at-a-time", &["pool", "4", "touch", "b.runs"]);
    assert_eq!(second.code().await, Some(75));
    assert!(!world.path("b.runs").exists());
    world.touch("go");
    first.succeeds().await;
}

/// Leaves the file half written for a moment.
const WRITE: &str = r#"#!/usr/bin/env bash
echo "$TOKEN" >file
sleep 0.05
echo "$TOKEN" >>file
echo "wrote $TOKEN" >>log
"#;

const READ: &str = r#"#!/usr/bin/env bash
mapfile -t lines <file
[[ ${#lines[@]} == 2 && ${lines[0]} == "${lines[1]}" ]] && echo "whole" >>log || echo "torn ${lines[*]}" >>log
"#;

#[tokio::test]
async fn no_reader_reads_while_a_writer_writes() {
    let world = World::new().await;
    world.put("write", WRITE);
    world.put("read", READ);
    world.run("first", "reader-writer", &["write", "stock", "./write"]).succeeds().await;
    let mut machines = Vec::new();
    for number in 0..12 {
        let what = if number % 4 == 0 { "write" } else { "read" };
        machines.push(world.run(&format!("m{number}"), "reader-writer", &[what, "stock", &format!("./{what}")]));
    }
    for machine in &mut machines {
        machine.succeeds().await;
    }
    assert_eq!(world.logged("torn"), [""; 0]);
    let whole = world.log().iter().filter(|line| *line == "whole").count();
    assert_eq!((whole, world.logged("wrote").len()), (9, 4), "{:?}", world.log());
}

#[tokio::test]
async fn readers_read_together() {
    let world = World::new().await;
    // Each command ends only if the other runs.
    let meet = |own: &str, other: &str| format!("touch {own}; until [ -e {other} ]; do sleep 0.02; done");
    let mut one = world.run("a", "reader-writer", &["read", "stock", "sh", "-c", &meet("a.in", "b.in")]);
    let mut other = world.run("b", "reader-writer", &["read", "stock", "sh", "-c", &meet("b.in", "a.in")]);
    one.succeeds().await;
    other.succeeds().await;
}

#[tokio::test]
async fn work_that_outlasts_its_lease_is_killed() {
    let world = World::new().await;
    let args = ["write", "stock", "sh", "-c", "echo began >>log; sleep 600; echo ended >>log"];
    let code = world.run_with("a", "reader-writer", &args, &[("TTL_MS", "2000")]).code().await;
    assert_eq!((code, world.log()), (Some(137), vec!["began".to_owned()]));
}
