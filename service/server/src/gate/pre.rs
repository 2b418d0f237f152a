//! Pres: where they claim, and how they wait.

use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, Durability, HoldOff, OperationAddress, Outcome, Retention};
use tokio::time::Instant;

use super::active::{Active, EPOCH_TRIES, Home};
use super::apply::fresh_stamp;
use super::give_back::Unanswered;
use super::post::outcome_of;
use super::{Inner, Operations, PreCall, Reply, ms};
use crate::failure::{Answer, Failure};
use crate::store::StoreError;

/// A waiting pre looks again this often even when nothing wakes it.
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
    pub async fn pre(&self, app: &App, call: PreCall) -> Answer<Reply> {
        let unanswered = Unanswered::new(&self.inner, app, &call);
        let reply = self.pre_with(app, &call, unanswered.claim.clone()).await;
        unanswered.answered();
        reply
    }

    /// As [`Operations::pre`], with a claim of this call.
    pub(super) async fn pre_with(&self, app: &App, call: &PreCall, claim: Claim) -> Answer<Reply> {
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
            hold_off: HoldOff::default(),
        }
    }
}

impl Inner {
    /// Whether no store could forget what fast operations are claimed in.
    pub(super) fn keeps_for_ever(&self) -> bool {
        self.second.is_none() && self.primary.gate.store().is_durable()
    }

    /// Where the record of an operation is made.
    ///
    /// # Errors
    /// When no store keeps what the caller wants to be kept: better before the work than after it.
    pub(super) fn home_of_new(&self, call: &PreCall) -> Answer<Home> {
        match (call.durability, &self.second) {
            (Durability::Durable, Some(_)) => Ok(Home::Durable),
            (Durability::Durable, None) if !self.primary.gate.store().is_durable() => Err(Failure::NoDurableStore),
            (Durability::Fast, _) if call.retention == Retention::Forever && !self.keeps_for_ever() => {
                Err(Failure::PermanentNeedsDurable)
            }
            _ => Ok(Home::Fast),
        }
    }

    /// Applies a pre, or a request for the outcome, and again while another attempt runs and the caller waits. The wait goes on while one
    /// engine is replaced by the other, and ends early if the node shuts down.
    pub(super) async fn wait_for(
        &self,
        home: Home,
        address: &OperationAddress,
        mut command: Command,
        wait: Wait,
    ) -> Answer<Reply> {
        let mut refusals = 0;
        loop {
            let Some(active) = self.active_within(home, wait).await else {
                return Err(self.engines(home).unavailable().into());
            };
            match self.wait_at(&active, address, &mut command, wait).await? {
                Err(StoreError::EpochOver) if refusals < EPOCH_TRIES || !wait.left().is_zero() => {
                    refusals += 1;
                    active.engines.refresh(active.epoch).await;
                }
                reply => return Ok(Reply { waited: wait.began.elapsed(), ..reply? }),
            }
        }
    }

    /// The engine in use. While none is, callers that wait have time until one is.
    async fn active_within(&self, home: Home, wait: Wait) -> Option<Active<'_>> {
        if let Some(active) = self.active(home) {
            return Some(active);
        }
        let mut standing = self.engines(home).watch();
        let stands = async { standing.wait_for(Option::is_some).await.is_ok() };
        tokio::select! {
            _ = tokio::time::timeout(wait.left(), stands) => {}
            () = self.closing.cancelled() => {}
        }
        self.active(home)
    }

    /// # Errors
    /// The outer one if too many callers wait already.
    async fn wait_at(
        &self,
        active: &Active<'_>,
        address: &OperationAddress,
        command: &mut Command,
        wait: Wait,
    ) -> Answer<Result<Reply, StoreError>> {
        let gate = &active.target.gate;
        if let Command::Pre(claim) = command {
            claim.hold_off = active.hold_off;
        }
        let mut place = match wait.patience.is_zero() {
            true => None,
            false => Some(active.target.waits.join(address)?),
        };
        loop {
            let left = wait.left();
            if let Some(place) = &mut place {
                place.listen();
            }
            mark(command, (!left.is_zero()).then(|| gate.clock_now().plus_ms(ms(left))));
            let mut reply = gate.apply(active.fence(), address, command).await;
            if matches!((&reply, &*command), (Err(StoreError::Contended(_)), Command::Await { until: Some(_) })) {
                // The record is locked: the caller waits without a mark, and looks again.
                reply = gate.apply(active.fence(), address, &Command::Await { until: None }).await;
            }
            let remaining_ms = match &reply {
                Ok(Reply { outcome: Outcome::InProgress { remaining_ms, .. }, .. }) => *remaining_ms,
                _ => return Ok(reply),
            };
            let Some(place) = place.as_mut().filter(|_| !left.is_zero() && !self.closing.is_cancelled()) else {
                return Ok(reply);
            };
            tokio::select! {
                () = place.notified() => {}
                () = tokio::time::sleep(left.min(LOOK_AGAIN).min(Duration::from_millis(remaining_ms + 1))) => {}
                () = self.closing.cancelled() => {}
            }
        }
    }
}

/// Until when the caller waits. The record of a running attempt is marked with it, although a caller that requests the outcome only reads:
/// the node that ends the attempt, which may be another one or a caller's transaction, notifies nodes only about marked records, because
/// in Postgres a notification makes commits wait for each other. A mark lasts a minute longer than the wait, so that the calls of one caller
/// write it about once a minute.
fn mark(command: &mut Command, until: Option<latchgate_core::Timestamp>) {
    match command {
        Command::Pre(claim) => claim.waits_until = until,
        Command::Await { until: marked } => *marked = until,
        _ => {}
    }
}
