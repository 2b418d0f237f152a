//! Pres: in which store they claim, and what becomes of them when the store does not answer.

use std::time::Duration;

use latchgate_core::gate::{
    Claim, Command, Durability, HoldOff, OperationAddress, OperationRecord, Outcome, StoreRole,
};
use latchgate_core::{App, Timestamp};
use tokio::time::Instant;

use super::active::{Active, EPOCH_TRIES};
use super::apply::fresh_stamp;
use super::give_back::Unanswered;
use super::outage;
use super::stamp::{Home, Unguarded};
use super::{Inner, OnOutage, Operations, PreCall, PreReply, StampText, is_down, ms};
use crate::failure::{Answer, Failure};
use crate::observe::metrics::{Degraded, GateMetrics, GateOutcome};
use crate::store::{StoreError, machine_time};

/// A waiting pre looks again this often even when nothing wakes it.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often a pre goes from the fallback store back to a primary that comes and goes.
const PRE_ROUNDS_MAX: usize = 3;

/// How long a pre waits, and since when.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub began: Instant,
    pub patience: Duration,
}

impl Wait {
    pub(super) fn left(self) -> Duration {
        (self.began + self.patience).saturating_duration_since(Instant::now())
    }

    fn refused(self, outcome: Outcome, record: Option<OperationRecord>, now: Timestamp) -> PreReply {
        let description = record.and_then(|record| record.description);
        PreReply::Refused { outcome, description, waited: self.began.elapsed(), now }
    }
}

/// Why a pre has no answer.
pub(super) enum Broken {
    Store(StoreError),
    Failed(Failure),
    /// The primary has come back while the second store was used in its place: the primary's answer counts.
    PrimaryIsBack,
}

impl Broken {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Store(error) => error.into(),
            Self::Failed(failure) => failure,
            Self::PrimaryIsBack => Failure::OutcomeUnknown("the gate's store comes and goes".to_owned()),
        }
    }
}

impl Operations {
    /// Requests to run an attempt.
    ///
    /// # Errors
    /// When there is no answer; `OutcomeUnknown` if the claim may have been made: repeat it with the same attempt id.
    pub async fn pre(&self, app: &App, call: PreCall) -> Answer<PreReply> {
        let unanswered = Unanswered::new(&self.inner, app, &call);
        let reply = self.pre_with(app, &call, unanswered.claim.clone()).await;
        unanswered.answered();
        reply
    }

    /// As [`Operations::pre`], with a claim of this call.
    pub(super) async fn pre_with(&self, app: &App, call: &PreCall, claim: Claim) -> Answer<PreReply> {
        let reply = self.answer_pre(app, call, claim).await;
        count(&self.inner.metrics, &reply);
        reply
    }

    async fn answer_pre(&self, app: &App, call: &PreCall, claim: Claim) -> Answer<PreReply> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
        let wait = Wait { began: Instant::now(), patience: call.wait };
        if inner.home_of_new(call)? == Home::Durable {
            if let Some(refused) = inner.refused_in_front(&address, &claim, wait).await {
                return Ok(refused);
            }
            return inner.pre_in_second(Home::Durable, &address, claim, wait).await.map_err(Broken::failure);
        }
        inner.pre_fast(&address, claim, wait, call.on_outage).await
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
            store: StoreRole::Primary,
            description: self.description.clone(),
            waits_until: None,
            hold_off: HoldOff::default(),
        }
    }
}

impl Inner {
    async fn pre_fast(
        &self,
        address: &OperationAddress,
        mut claim: Claim,
        wait: Wait,
        on_outage: OnOutage,
    ) -> Answer<PreReply> {
        let (mut may_be_in_second, mut rounds, mut refusals) = (false, 0, 0);
        // A durable operation never goes unguarded.
        let may_be_unguarded = on_outage == OnOutage::Open && claim.durability == Durability::Fast;
        loop {
            let Some(active) = self.active_within(Home::Primary, wait).await else {
                let error = self.engines.unavailable();
                if may_be_unguarded {
                    return Ok(PreReply::Unguarded { stamp: self.sign(address, &claim) });
                }
                return Err(error.into());
            };
            claim.hold_off = active.hold_off;
            let error = match self.pre_on_active(&active, address, &claim, wait, may_be_in_second).await {
                Ok(reply) => return Ok(reply),
                Err(Broken::Store(StoreError::EpochOver)) if refusals < EPOCH_TRIES || !wait.left().is_zero() => {
                    refusals += 1;
                    self.engines.refresh(active.epoch).await;
                    continue;
                }
                Err(Broken::Store(error)) if self.is_outage(&active, &error).await => error,
                Err(broken) => return Err(broken.failure()),
            };
            match (on_outage, &self.second) {
                (OnOutage::Fallback, Some(_)) if active.is_primary => {
                    // The same stamp: should the claim have reached the primary after all, it is the same attempt.
                    claim.store = StoreRole::Fallback;
                    match self.pre_in_second(Home::Fallback, address, claim.clone(), wait).await {
                        Err(Broken::PrimaryIsBack) if rounds < PRE_ROUNDS_MAX => rounds += 1,
                        reply => return reply.map_err(Broken::failure),
                    }
                    claim.store = StoreRole::Primary;
                    may_be_in_second = true;
                }
                _ if may_be_unguarded => return Ok(PreReply::Unguarded { stamp: self.sign(address, &claim) }),
                _ => return Err(error.into()),
            }
        }
    }

    /// Claims in the second store, whichever engine is active.
    async fn pre_in_second(
        &self,
        home: Home,
        address: &OperationAddress,
        mut claim: Claim,
        wait: Wait,
    ) -> Result<PreReply, Broken> {
        let mut refusals = 0;
        loop {
            let Some(active) = self.active_within(home, wait).await else {
                return Err(Broken::Store(self.engines(home).unavailable()));
            };
            claim.hold_off = active.hold_off;
            match self.pre_on(&active, home, address, claim.clone(), wait).await {
                Err(Broken::Store(StoreError::EpochOver)) if refusals < EPOCH_TRIES || !wait.left().is_zero() => {
                    refusals += 1;
                    active.engines.refresh(active.epoch).await;
                }
                reply => return reply,
            }
        }
    }

    /// The engine in use. While none is, callers that wait have time until one is.
    pub(super) async fn active_within(&self, home: Home, wait: Wait) -> Option<Active<'_>> {
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

    /// Claims in the active engine, unless that is the primary and is away. While the primary returns, what the second store has
    /// of the operation is carried to it first; `may_be_in_second`: this very claim may be there.
    async fn pre_on_active(
        &self,
        active: &Active<'_>,
        address: &OperationAddress,
        claim: &Claim,
        wait: Wait,
        may_be_in_second: bool,
    ) -> Result<PreReply, Broken> {
        if active.is_primary {
            if self.outage.is_down() {
                return Err(Broken::Store(is_down()));
            }
            if may_be_in_second || self.outage.may_be_in_second(address) {
                outage::carry_one_back(self, active, address).await.map_err(Broken::Store)?;
            }
        }
        self.pre_on(active, Home::Primary, address, claim.clone(), wait).await
    }

    pub(super) async fn pre_on(
        &self,
        active: &Active<'_>,
        home: Home,
        address: &OperationAddress,
        mut claim: Claim,
        wait: Wait,
    ) -> Result<PreReply, Broken> {
        let Active { target, .. } = *active;
        let mut place = None;
        if !wait.patience.is_zero() {
            place = Some(target.waits.join(address).map_err(Broken::Failed)?);
        }
        let is_over = || home == Home::Fallback && !self.outage.is_down();
        loop {
            if is_over() {
                return Err(Broken::PrimaryIsBack);
            }
            let left = wait.left();
            claim.waits_until = (!left.is_zero()).then(|| target.gate.clock_now().plus_ms(ms(left)));
            if let Some(place) = &mut place {
                place.listen();
            }
            let reply = target
                .gate
                .apply(active.fence(), address, &Command::Pre(claim.clone()))
                .await
                .map_err(Broken::Store)?;
            let remaining_ms = match reply.outcome {
                // The primary serves other callers already: it decides which of them may go.
                Outcome::Go(_) if is_over() => return Err(Broken::PrimaryIsBack),
                Outcome::Go(go) => {
                    return Ok(PreReply::Go {
                        stamp: StampText::guarded(home, go.stamp),
                        go,
                        degraded: home == Home::Fallback,
                        is_volatile: !target.gate.store().is_durable(),
                        forced_ms: forced_ms(claim.hold_off, reply.now),
                    });
                }
                Outcome::InProgress { remaining_ms, .. } if !left.is_zero() && !self.closing.is_cancelled() => {
                    remaining_ms
                }
                outcome => return Ok(wait.refused(outcome, reply.record, reply.now)),
            };
            let next_look = left.min(LOOK_AGAIN).min(Duration::from_millis(remaining_ms + 1));
            if let Some(place) = &mut place {
                tokio::select! {
                    () = place.notified() => {}
                    () = tokio::time::sleep(next_look) => {}
                    () = self.outage.ended(), if home == Home::Fallback => {}
                    () = self.closing.cancelled() => {}
                }
            }
        }
    }

    /// What the primary, in front of the second store, already knows of an operation whose claim must be durable.
    async fn refused_in_front(&self, address: &OperationAddress, claim: &Claim, wait: Wait) -> Option<PreReply> {
        let active = self.active(Home::Primary).filter(|active| active.is_primary)?;
        let at = self.call(&active, self.primary.gate.get(active.fence(), address)).await.ok()?;
        let record = at.answer?;
        let step = latchgate_core::gate::step(Some(record), Command::Pre(claim.clone()), at.now);
        match step.outcome {
            Outcome::Go(_) => None,
            // Its end is notified by the second store: the caller waits there.
            Outcome::InProgress { .. } if !wait.patience.is_zero() => None,
            outcome => Some(wait.refused(outcome, step.record, at.now)),
        }
    }

    fn sign(&self, address: &OperationAddress, claim: &Claim) -> StampText {
        self.signer.sign(&Unguarded {
            app: address.app.clone(),
            id: address.id,
            sha256: claim.sha256,
            operation: claim.operation.clone(),
            stamp: claim.stamp,
            at: Some(self.clock_now()).filter(|at| *at > Timestamp::default()).unwrap_or_else(machine_time),
            lease_ms: claim.lease_ms,
            checked: claim.checked,
        })
    }
}

fn count(metrics: &GateMetrics, reply: &Answer<PreReply>) {
    let outcome = match reply {
        Ok(PreReply::Go { go, .. }) if go.repeated => GateOutcome::Repeated,
        Ok(PreReply::Go { go, degraded, .. }) => {
            if *degraded {
                metrics.degraded(Degraded::Fallback);
            }
            if go.reentry { GateOutcome::Reentry } else { GateOutcome::Go }
        }
        Ok(PreReply::Unguarded { .. }) => {
            metrics.degraded(Degraded::Open);
            GateOutcome::Unguarded
        }
        Ok(PreReply::Refused { outcome, .. }) => match outcome {
            Outcome::InProgress { .. } => GateOutcome::InProgress,
            Outcome::Duplicate(_) => GateOutcome::Duplicate,
            Outcome::Unknown { .. } => GateOutcome::Unknown,
            Outcome::IdCollision => GateOutcome::IdCollision,
            Outcome::ContentsMismatch => GateOutcome::ContentsMismatch,
            _ => GateOutcome::Other,
        },
        Err(_) => GateOutcome::NoAnswer,
    };
    metrics.count(outcome);
}

/// For how long records may be missing though an operator lets operations go, in ms.
fn forced_ms(hold_off: HoldOff, now: latchgate_core::Timestamp) -> Option<u64> {
    Some(hold_off.forced_until.ms_since(now)).filter(|left| *left > 0)
}
