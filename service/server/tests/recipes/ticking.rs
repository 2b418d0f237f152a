//! once-per-tick.

use crate::world::World;

const PERIOD_S: u64 = 60;

/// Gives the machine a clock that always shows this time.
fn set_clock(world: &World, machine: &str, now_s: u64) {
    world.put(&format!("{machine}/date"), &format!("#!/bin/sh\necho {now_s}\n"));
}

#[tokio::test]
async fn three_machines_run_each_tick_once_though_their_clocks_differ() {
    let world = World::new().await;
    // Before, on and after the tick. The last machine starts when the others have ended.
    let machines = [("slow", -5), ("right", 0), ("fast", 5), ("late", 20)];
    let args = ["report", "60", "sh", "-c", "echo ran $TICK $MACHINE >>log"];
    for tick in 30_000_000..30_000_005_u64 {
        let run = |(machine, off_s): (&str, i64)| {
            set_clock(&world, machine, (tick * PERIOD_S).strict_add_signed(off_s));
            world.run(machine, "once-per-tick", &args)
        };
        let (at_once, late) = machines.split_at(3);
        let mut running: Vec<_> = at_once.iter().map(|machine| run(*machine)).collect();
        for machine in &mut running {
            machine.succeeds().await;
        }
        run(late[0]).succeeds().await;
    }
    let mut ticks: Vec<String> =
        world.logged("ran").iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    ticks.sort();
    assert_eq!(ticks, ["30000000", "30000001", "30000002", "30000003", "30000004"], "{:?}", world.log());
}

#[tokio::test]
async fn a_failed_run_says_so_and_is_not_repeated() {
    let world = World::new().await;
    set_clock(&world, "a", 600);
    set_clock(&world, "b", 600);
    assert_eq!(world.run("a", "once-per-tick", &["job", "60", "false"]).code().await, Some(1));
    world.run("b", "once-per-tick", &["job", "60", "sh", "-c", "echo ran >>log"]).succeeds().await;
    assert_eq!(world.log(), [""; 0]);
}
