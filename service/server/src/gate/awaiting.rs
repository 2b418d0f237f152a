//! Callers that wait for the outcome of an operation, and claim nothing.

use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, Outcome};
use tokio::time::Instant;

use super::pre::{LOOK_AGAIN, Wait};
use super::stamp::Home;
use super::waits::Waiting;
use super::{Awaited, Inner, Operations, Reply, ms};
use crate::failure::{Answer, Failure};
use crate::store::StoreError;

impl Operations {
    /// Waits while an attempt of the operation runs, for at most `patience`. The wait ends early if the node shuts down.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn outcome(&self, address: &OperationAddress, patience: Duration) -> Answer<Awaited> {
        let inner = &self.inner;
        let wait = Wait { began: Instant::now(), patience };
        let mut place: Option<(Home, Waiting)> = None;
        loop {
            let left = wait.left();
            if let Some((_, place)) = &mut place {
                place.listen();
            }
            // While an engine is replaced by the other one, the wait goes on.
            inner.active_within(Home::Primary, wait).await;
            let (home, reply) = inner.look(address, left).await?;
            let remaining_ms = match reply.outcome {
                Outcome::InProgress { remaining_ms, .. } if !left.is_zero() && !inner.closing.is_cancelled() => {
                    remaining_ms
                }
                outcome => {
                    let (record, waited, now) = (reply.record, wait.began.elapsed(), reply.now);
                    return Ok(Awaited { outcome, record, waited, now });
                }
            };
            match &mut place {
                Some((at, place)) if *at == home => {
                    let next_look = left.min(LOOK_AGAIN).min(Duration::from_millis(remaining_ms + 1));
                    tokio::select! {
                        () = place.notified() => {}
                        () = tokio::time::sleep(next_look) => {}
                        () = inner.closing.cancelled() => {}
                    }
                }
                // The next look is made with an ear to the store that has the record.
                _ => place = Some((home, inner.join(home, address)?)),
            }
        }
    }
}

impl Inner {
    /// What the record that counts says, and where it is. A record that an attempt has is marked as awaited for `left`, although the
    /// caller only reads: the node that ends the attempt, which may be another one or a caller's transaction, notifies nodes only about marked
    /// records, because in Postgres a notification makes commits wait for each other. A mark lasts a minute longer than the wait, so that
    /// the calls of one caller write it about once a minute. If the record is locked, the caller waits without a mark and looks again each second.
    async fn look(&self, address: &OperationAddress, left: Duration) -> Result<(Home, Reply), StoreError> {
        let look = async |home| {
            let clock = self.active(home).map(|active| active.target.gate.clock_now());
            let until = clock.filter(|_| !left.is_zero()).map(|now| now.plus_ms(ms(left)));
            match self.apply(home, address, &Command::Await { until }).await {
                Err(StoreError::Contended(_)) => self.apply(home, address, &Command::Await { until: None }).await,
                reply => reply,
            }
        };
        let in_primary = look(Home::Primary).await;
        if self.second.is_none() || in_primary.as_ref().is_ok_and(|reply| reply.outcome != Outcome::NotFound) {
            return in_primary.map(|reply| (Home::Primary, reply));
        }
        let in_second = look(Home::Durable).await?;
        match in_primary {
            // The record that counts may be in the store that does not answer.
            Err(error) if in_second.outcome == Outcome::NotFound => Err(error),
            _ => Ok((Home::Durable, in_second)),
        }
    }

    fn join(&self, home: Home, address: &OperationAddress) -> Result<Waiting, Failure> {
        self.active(home).map_or(&self.primary, |active| active.target).waits.join(address)
    }
}
