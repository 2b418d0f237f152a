//! Walks the rows, a page of the primary key at a time. It removes the rows of idle keys, and has keys evaluated whose
//! leases have expired without a waiter. A state may be the only memory of the key's last token, so it
//! goes only when all new tokens are higher: see [`Epoch::token_min`](crate::store::Epoch::token_min).

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::Address;
use tokio::time::{Instant, timeout};

use super::limits::Limits;
use super::machine::Node;
use crate::engines::EngineInUse;
use crate::store::{Collected, RowState, Rows, Store, StoreError};

/// A step or a walk that removes at least one in so many of its rows is productive.
const PRODUCTIVE: u64 = 4;

/// How often the time of a step is waited after it. So 1/20 of the time is spent on a walk, and a half where it is productive.
const WAITED: u32 = 19;
const WAITED_IF_PRODUCTIVE: u32 = 1;

/// Collects rows of one kind for ever. `notice` is told of keys that are due.
pub(crate) async fn collect<S: RowState>(node: Arc<Node>, notice: impl Fn(Address) + Send)
where
    dyn Store: Rows<S>,
{
    // Where the next step begins in the engine with this index.
    let mut from: Option<(usize, String)> = None;
    let (mut unnamed, mut reported) = (0, 0);
    let mut walk = Walk::default();
    let mut pause = node.limits.collect_interval;
    loop {
        tokio::time::sleep(pause).await;
        pause = node.limits.collect_interval;
        // While leases end late, records do too.
        let now = node.clock.now().unwrap_or_default();
        let is_time = |used: &Arc<EngineInUse>| node.health.is_up() && used.operations_late_ms(now) == 0;
        let Some(used) = node.store.in_use().ok().filter(is_time) else { continue };
        let began = Instant::now();
        let position = from.as_ref().filter(|(index, _)| *index == used.index).map(|(_, position)| position.as_str());
        let step = Rows::<S>::collect(&*used.store, used.epoch, position, node.limits.collect_rows);
        match timeout(node.limits.store_timeout, node.store.checked(used.epoch, step)).await {
            Ok(Ok(collected)) => {
                if collected.removed > 0 {
                    tracing::debug!(removed = collected.removed, "idle keys were collected");
                }
                pause = walk.pause_after(&collected, began.elapsed(), &node.limits);
                collected.due.into_iter().for_each(&notice);
                unnamed += collected.unnamed;
                if collected.next.is_none() {
                    if unnamed != reported {
                        tracing::warn!(
                            rows = unnamed,
                            "rows of the store name no lock: they are passed over, and stay there"
                        );
                    }
                    (unnamed, reported) = (0, unnamed);
                }
                from = collected.next.map(|position| (used.index, position));
                if let Some(token) = collected.token_kept {
                    begin_epoch_above(&node, token).await;
                }
            }
            // The next step names the epoch that is in force by then.
            Ok(Err(StoreError::EpochOver)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a step of the collection failed"),
            Err(_) => tracing::warn!("a step of the collection took too long"),
        }
    }
}

/// Idle states have tokens that are not lower than all new ones. They are removed in the next epoch, by the next walk. It is ahead of the
/// tokens of all leases so far, so another one is not needed before the states of later leases are idle.
async fn begin_epoch_above(node: &Node, token: u64) {
    match timeout(node.limits.store_timeout, node.store.begin_epoch_above(token)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "no new epoch could be begun, so idle keys stay"),
        Err(_) => tracing::warn!("to begin a new epoch took too long, so idle keys stay"),
    }
}

/// What the steps since the begin of a walk have done, and whether the walk before was productive.
#[derive(Default)]
struct Walk {
    rows: u64,
    removed: u64,
    was_productive: bool,
}

impl Walk {
    /// A full interval at the end of a walk. Before it less, by what the step has cost; but no more than `collect_rows` keys whose
    /// leases have expired are given to the committer in an interval, so that they do not fill its queue.
    fn pause_after(&mut self, step: &Collected, took: Duration, limits: &Limits) -> Duration {
        let rows = limits.collect_rows as u64;
        let is_productive = |removed: u64, rows: u64| removed >= rows.div_ceil(PRODUCTIVE);
        self.rows += rows;
        self.removed += step.removed;
        if step.next.is_none() {
            let was_productive = is_productive(self.removed, self.rows);
            *self = Self { was_productive, ..Self::default() };
            return limits.collect_interval;
        }
        let is_productive =
            self.was_productive || is_productive(self.removed, self.rows) || is_productive(step.removed, rows);
        let for_cost = took * if is_productive { WAITED_IF_PRODUCTIVE } else { WAITED };
        let for_due = limits.collect_interval.mul_f64(step.due.len() as f64 / limits.collect_rows as f64);
        for_cost.max(for_due).min(limits.collect_interval)
    }
}

#[cfg(test)]
mod tests {
    use latchgate_core::{App, Key};

    use super::*;

    const TOOK: Duration = Duration::from_millis(2);
    const SECOND: Duration = Duration::from_secs(1);

    fn address(number: usize) -> Address {
        Address { app: App::default(), key: Key::parse(&number.to_string()).unwrap() }
    }

    fn step(removed: u64, due: usize) -> Collected {
        let due = (0..due).map(address).collect();
        Collected { removed, due, next: Some(String::new()), ..Collected::default() }
    }

    fn end() -> Collected {
        Collected { next: None, ..step(0, 0) }
    }

    fn pauses(steps: &[Collected]) -> Vec<Duration> {
        let mut walk = Walk::default();
        steps.iter().map(|step| walk.pause_after(step, TOOK, &Limits::default())).collect()
    }

    #[test]
    fn a_walk_takes_a_share_of_the_time_and_waits_an_interval_at_its_end() {
        let steps =
            [step(0, 0), step(0, 0), step(250, 0), step(249, 0), step(1_000, 0), step(1_000, 0), step(0, 0), end()];
        assert_eq!(pauses(&steps), [TOOK * 19, TOOK * 19, TOOK, TOOK * 19, TOOK, TOOK, TOOK, SECOND]);
    }

    #[test]
    fn a_walk_after_one_that_removed_a_quarter_of_its_rows_is_faster() {
        assert_eq!(
            pauses(&[step(1_000, 0), end(), step(0, 0), end(), step(0, 0)])[1..],
            [SECOND, TOOK, SECOND, TOOK * 19]
        );
    }

    #[test]
    fn an_interval_notices_no_more_expired_leases_than_one_step_has_rows() {
        assert_eq!(pauses(&[step(0, 100), step(0, 1_000), step(500, 500)]), [SECOND / 10, SECOND, SECOND / 2]);
    }
}
