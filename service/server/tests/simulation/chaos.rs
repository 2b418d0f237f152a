//! What happens to nodes while clients use them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::link::Cut;
use crate::world::World;

/// Freezes, kills and skews nodes until `end`.
pub async fn disturb(world: Arc<World>, end: Instant) {
    let random = world.random.stream();
    let plan = world.plan;
    world.set_faults(plan.faults);
    let mut deaths = u32::from(plan.deaths) * 2;
    loop {
        sleep(Duration::from_millis(random.between(200..=2_000))).await;
        if Instant::now() >= end {
            return;
        }
        let index = random.below(plan.nodes);
        match random.between(0..=10) {
            0..=2 if plan.freezes => world.freeze(index, Duration::from_millis(random.between(100..=4_000))),
            3..=4 if deaths > 0 => {
                deaths -= 1;
                world.replace(index, Duration::from_millis(random.between(0..=1_500))).await;
                world.set_faults(plan.faults);
            }
            5..=7 if plan.skews => {
                // Within the bound, mostly.
                let skew_ms = *random.one_of(&[-90_i64, -50, 0, 50, 90, -400, 300]);
                let node = world.node(index);
                world.log.saw("skewed clock");
                world.log.line(|| format!("{}  learns times that are {skew_ms} ms off", node.name));
                node.links.iter().for_each(|link| link.set_skew(skew_ms));
            }
            8 => refuse_writes(&world, Duration::from_millis(random.between(100..=4_000))).await,
            9..=10 if plan.losses => {
                let ms = |max: u64| Duration::from_millis(random.between(0..=max));
                match random.between(0..=3) {
                    0 => world.fail_over(0, Duration::ZERO, ms(1_500)).await,
                    1 => world.fail_over(0, ms(1_000), ms(1_500)).await,
                    2 => world.step_clock(0, random.between(3_000..=30_000).cast_signed()).await,
                    _ => world.step_clock(0, -random.between(200..=4_000).cast_signed()).await,
                }
            }
            _ => {}
        }
    }
}

/// The store answers, and takes no commits.
async fn refuse_writes(world: &World, time: Duration) {
    world.log.saw("store that refuses writes");
    world.set_down(0, Some(Cut::ReadOnly));
    sleep(time).await;
    world.set_down(0, None);
}
