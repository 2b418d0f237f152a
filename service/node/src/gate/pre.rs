//! Pres: where they claim, and how they wait.

use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, HoldOff, OperationAddress, Outcome};
use tokio::time::Instant;

use super::give_back::GiveBackOnDrop;
use super::machine::{Machine, fresh_stamp, row_of};
use super::post::outcome_of;
use super::waits::Waiting;
use super::{Inner, Operations, PreCall, Reply, ms};
use crate::failure::{CallResult, Failure};

/// The first of those that wait looks again this often even when nothing wakes it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long a call waits, and since when.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    began: Instant,
    patience: Duration,
}

impl Wait {
    pub(super) fn from_now(patience: Duration) -> Self {
        Self { began: Instant::now(), patience }
    }

    fn left(self) -> Duration {
        (self.began + self.patience).saturating_duration_since(Instant::now())
    }
}

impl Operations {
    /// Requests to run an attempt.
    ///
    /// # Errors
    /// When there is no answer; `OutcomeUnknown` if the claim may have been made: repeat it with the same attempt id.
    pub async fn pre(&self, app: &App, call: PreCall) -> CallResult<Reply> {
        let give_back = GiveBackOnDrop::new(&self.inner, app, &call);
        let reply = self.pre_with(app, &call, give_back.claim.clone()).await;
        give_back.answered();
        reply
    }

    /// As [`Operations::pre`], with a claim of this call.
    pub(super) async fn pre_with(&self, app: &App, call: &PreCall, claim: Claim) -> CallResult<Reply> {
        let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
        let reply = match self.inner.home_of_new(call) {
            Ok(home) => self.inner.wait_for(home, &address, Command::Pre(claim), Wait::from_now(call.wait)).await,
            Err(failure) => Err(failure),
        };
        self.inner.metrics.count(outcome_of(&reply));
        reply
    }
}

impl PreCall {
    /// A claim with a stamp of its own.
    pub(super) fn claim(&self) -> Claim {
        Claim {
            operation: self.operation.clone(),
            sha256: self.fingerprint.sha256,
            checked: self.checked,
            stamp: fresh_stamp(),
            attempt_id: self.attempt_id.clone(),
            lease_ms: self.lease_ms,
            on_expiry: self.on_expiry,
            durability: self.durability,
            retention: self.retention,
            ends_in_ms: self.ends_in_ms,
            description: self.description.clone(),
            waits_until: None,
            is_behind: false,
            hold_off: HoldOff::default(),
        }
    }
}

impl Inner {
    /// Applies a pre, or a request for the outcome, and again while another attempt runs and the caller waits. The wait goes on while one
    /// engine is replaced by the other, and ends early if the node shuts down.
    pub(super) async fn wait_for(
        &self,
        home: &Machine,
        address: &OperationAddress,
        mut command: Command,
        wait: Wait,
    ) -> CallResult<Reply> {
        let place = match wait.patience.is_zero() {
            true => None,
            false => Some(home.waits.join(&row_of(address))?),
        };
        loop {
            self.until_used(home, wait).await;
            let left = wait.left();
            let waiting = place.as_ref().filter(|_| !left.is_zero() && !self.closing.is_cancelled());
            let is_behind = waiting.is_some_and(|place| !place.is_first());
            mark(&mut command, (!left.is_zero()).then(|| home.now().plus_ms(ms(left))), is_behind);
            let mut reply = home.apply(address, &command).await;
            if matches!(reply, Err(Failure::Overloaded(_)))
                && (place.is_some() || matches!(command, Command::Await { .. }))
            {
                // The record is locked: the caller waits without a mark, and looks again.
                mark(&mut command, None, is_behind);
                if let Some(seen) = home.look(address, &command).await? {
                    reply = Ok(seen);
                }
            }
            let reply = Reply { waited: wait.began.elapsed(), ..reply? };
            let remaining_ms = match &reply.outcome {
                Outcome::InProgress { remaining_ms, .. } => *remaining_ms,
                Outcome::NotFound if is_behind && matches!(command, Command::Pre(_)) => 0,
                Outcome::Go(_) => return Ok(reply),
                _ => {
                    place.iter().for_each(Waiting::wake_others);
                    return Ok(reply);
                }
            };
            let Some(place) = waiting else { return Ok(reply) };
            // The others are woken when it is their turn to look.
            let look_again = match place.is_first() {
                true => left.min(LOOK_AGAIN).min(Duration::from_millis(remaining_ms + 1)),
                false => left,
            };
            tokio::select! {
                () = place.notified() => {}
                () = tokio::time::sleep(look_again) => {}
                () = self.closing.cancelled() => {}
            }
        }
    }

    /// Returns when an engine is in use, and takes commits. While none does, callers that wait have time.
    async fn until_used(&self, home: &Machine, wait: Wait) {
        let (mut used, mut health) = (home.engines().watch(), home.node.health.watch());
        let is_used = async {
            let is_used = used.wait_for(Option::is_some).await.is_ok();
            is_used && health.wait_for(Option::is_none).await.is_ok()
        };
        tokio::select! {
            biased;
            _ = tokio::time::timeout(wait.left(), is_used) => {}
            () = self.closing.cancelled() => {}
        }
    }
}

/// Until when the caller waits. The record of a running attempt is marked with it, although a caller that requests the outcome only reads:
/// the node that ends the attempt, which may be another one, notifies nodes only about marked records, because in Postgres a notification
/// makes commits wait for each other. A post in a caller's transaction notifies nobody: the first of those that wait finds it when it looks
/// again. A mark lasts a minute longer than the wait, so that the calls of one caller write it about once a minute.
fn mark(command: &mut Command, until: Option<latchgate_core::Timestamp>, is_behind: bool) {
    match command {
        Command::Pre(claim) => (claim.waits_until, claim.is_behind) = (until, is_behind),
        Command::Await { until: marked } => *marked = until,
        _ => {}
    }
}
