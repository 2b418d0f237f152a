//! One lock, many waiters: how fast the lock passes from one to the next, and that two never hold it at once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::time::{sleep_until, timeout_at};

use crate::drive::{Errors, Laps, Worker};
use crate::http::{Connection, Failure, Request, Target, lease_id_template};

const ARRIVE_EVERY: Duration = Duration::from_millis(2);
const ARRIVE_MAX: Duration = Duration::from_secs(4);
/// The most that nodes accept by default.
const WAIT_MS: u64 = 50_000;

/// What the waiters together have observed.
#[derive(Default)]
pub struct Seen {
    is_held: bool,
    token: u64,
    /// Of the last holder.
    node: usize,
    release_sent: Option<Instant>,
    /// Grants seen while another waiter had not yet sent its release.
    overlaps: u64,
    /// Grants whose token was not above that of the grant before.
    tokens_not_rising: u64,
}

impl Seen {
    /// How long the grant took after the release before it, which is absent before the first, and whether that holder was at another
    /// node.
    fn granted(&mut self, node: usize, token: u64, now: Instant) -> Option<(Duration, bool)> {
        self.overlaps += u64::from(self.is_held);
        self.tokens_not_rising += u64::from(token <= self.token);
        self.is_held = true;
        self.token = token;
        let is_crossing = std::mem::replace(&mut self.node, node) != node;
        Some((now - self.release_sent?, is_crossing))
    }

    /// Called before the release is sent: a grant after that is no overlap.
    fn releasing(&mut self, now: Instant) {
        self.is_held = false;
        self.release_sent = Some(now);
    }

    /// Broken promises, which are errors of the measurement.
    pub fn broken(&self) -> Errors {
        let broken = [("two holders at once", self.overlaps), ("a token that did not rise", self.tokens_not_rising)];
        broken.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| (what.to_owned(), count)).collect()
    }
}

/// How long it takes until all of so many waiters have arrived. If all began at once, the small differences between the nodes' clocks
/// would group the queue by node, and few hand-offs would cross nodes. Later each waiter returns to the end of the queue, so the order
/// remains.
pub fn arrival(waiters: usize) -> Duration {
    ARRIVE_MAX.min(ARRIVE_EVERY.saturating_mul(u32::try_from(waiters).unwrap_or(u32::MAX)))
}

pub struct Waiter {
    node: usize,
    connection: Connection,
    acquire: Request,
    release: Request,
    arrives_at: Instant,
    seen: Arc<Mutex<Seen>>,
}

impl Waiter {
    /// Waiter `number`, at the node of this number.
    pub async fn open(
        (node, target): (usize, &Target),
        run: u64,
        number: usize,
        seen: &Arc<Mutex<Seen>>,
    ) -> anyhow::Result<Self> {
        let path = format!("/v1/locks/bench-{run:016x}");
        let id = lease_id_template(run, number);
        let acquire = format!(r#"{{"lease_id":"{id}","owner":"bench-{number}","ttl_ms":30000,"wait_ms":{WAIT_MS}}}"#);
        Ok(Self {
            node,
            connection: Connection::open(target).await?,
            acquire: Request::post(target, &format!("{path}/acquire"), &acquire),
            release: Request::post(target, &format!("{path}/release"), &format!(r#"{{"lease_id":"{id}"}}"#)),
            arrives_at: Instant::now(),
            seen: seen.clone(),
        })
    }

    pub fn arrive_at(&mut self, at: Instant) {
        self.arrives_at = at;
    }
}

impl Worker for Waiter {
    async fn operation(&mut self, sequence: u64, laps: &mut Laps) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Grant {
            token: u64,
        }
        if sequence == 0 {
            sleep_until(self.arrives_at.into()).await;
        }
        let acquire = self.connection.call("acquire", self.acquire.with(sequence, 0));
        // The end may cut a wait short, but not a release: the lock would stay held for the rest of its lease.
        let Ok(granted) = timeout_at(laps.until.into(), acquire).await else { return Ok(()) };
        let Grant { token } = serde_json::from_slice(granted?)
            .map_err(|error| Failure { what: format!("acquire 2xx: {error}"), outcome_unknown: false })?;
        let handoff = self.seen.lock().expect("no waiter panicked").granted(self.node, token, Instant::now());
        if let Some((duration, is_crossing)) = handoff {
            laps.add("hand-off", duration);
            if is_crossing {
                laps.add("crossing", duration);
            }
        }
        let release = self.release.with(sequence, 0);
        self.seen.lock().expect("no waiter panicked").releasing(Instant::now());
        // A repeated acquire would get the same token again.
        let decided = |failure| Failure { outcome_unknown: false, ..failure };
        self.connection.call("release", release).await.map(drop).map_err(decided)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holders_and_a_token_that_does_not_rise_are_reported() {
        let mut seen = Seen::default();
        for token in [5, 6, 6] {
            seen.granted(0, token, Instant::now());
            seen.releasing(Instant::now());
        }
        assert_eq!(seen.broken(), [("a token that did not rise".to_owned(), 1)].into());
        seen.granted(0, 7, Instant::now());
        seen.granted(0, 8, Instant::now());
        assert_eq!(seen.broken()["two holders at once"], 1);
    }

    #[test]
    fn a_handoff_counts_from_the_sending_of_the_release() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(seen.granted(0, 1, start), None);
        seen.releasing(after(10));
        assert_eq!(seen.granted(1, 2, after(15)), Some((Duration::from_millis(5), true)));
    }
}
