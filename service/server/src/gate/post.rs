//! Posts and heartbeats: in which store the attempt's record is, and unguarded runs that are entered when their post arrives.

use std::sync::Arc;

use latchgate_core::gate::{
    Claim, Command, Durability, HoldOff, OnExpiry, OperationAddress, OperationRecord, Outcome, Post, Posted, Report,
    Resolve, Retention, StoreRole,
};
use latchgate_core::{App, Timestamp};

use super::stamp::{Home, Presented, Unguarded};
use super::{Inner, Operations, PostCall, PreCall, Reply, StampText};
use crate::failure::{Answer, Failure};
use crate::observe::metrics::GateOutcome;
use crate::store::StoreError;

impl Operations {
    /// Reports how an attempt has ended.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn post(&self, address: &OperationAddress, stamp: &StampText, call: PostCall) -> Answer<Reply> {
        let reply = self.answer_post(address, stamp, call).await;
        self.inner.metrics.count(outcome_of(&reply));
        reply
    }

    async fn answer_post(&self, address: &OperationAddress, stamp: &StampText, call: PostCall) -> Answer<Reply> {
        let inner = &self.inner;
        let Some(presented) = inner.signer.read(stamp) else { return self.mismatch(address).await };
        let is_permanent = call.retention == Some(Retention::Forever) && call.report == Report::Success;
        let is_durable = matches!(presented, Presented::Guarded(Home::Durable, _));
        let post = |stamp| Post {
            stamp,
            report: call.report,
            result: call.result.clone(),
            result_omitted: call.result_omitted,
            detail: call.detail.clone(),
            retention: call.retention,
        };
        let reply = match presented {
            Presented::Unguarded(unguarded) if unguarded.app != address.app || unguarded.id != address.id => {
                return self.mismatch(address).await;
            }
            Presented::Unguarded(unguarded) if unguarded.is_over(inner.clock_now()) => {
                return Ok(inner.reply(Outcome::StampMismatch));
            }
            Presented::Unguarded(_) | Presented::Guarded(Home::Primary | Home::Fallback, _)
                if is_permanent && !inner.keeps_for_ever() =>
            {
                return Err(Failure::PermanentNeedsDurable);
            }
            // It did not happen, or nobody knows: there is nothing to enter.
            Presented::Unguarded(_) if call.report != Report::Success => {
                return Ok(inner.reply(Outcome::Posted(Posted {
                    report: call.report,
                    attempt: 1,
                    replayed: false,
                    late: false,
                    result_omitted: false,
                    keep_until: None,
                    double_runs: 0,
                })));
            }
            Presented::Unguarded(unguarded) => {
                let claim = unguarded.claim();
                inner.enter_unguarded(address, claim, post(unguarded.stamp), unguarded.at).await?
            }
            Presented::Guarded(home, stamp) => {
                let reply = inner.apply_there(home, address, &Command::Post(post(stamp))).await?;
                if is_durable && !is_permanent && is_success(&reply.outcome) {
                    inner.put_in_front_later(address, reply.record.clone());
                }
                reply
            }
        };
        if let Outcome::Superseded { counted: true, double_runs, .. } = reply.outcome {
            inner.count_double_run(address, double_runs, "a superseded attempt reports a success");
        }
        Ok(reply)
    }

    /// Enters a run that was made without a claim, because the gate did not answer.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn enter(&self, app: &App, call: &PreCall, run: Post, ran_at: Timestamp) -> Answer<Reply> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
        let home = inner.home_of_new(call)?;
        let entry = Command::Enter { claim: Box::new(call.claim()), run, ran_at };
        let reply = inner.apply(home, &address, &entry).await;
        inner.metrics.count(if reply.is_ok() { GateOutcome::Entered } else { GateOutcome::NoAnswer });
        let reply = reply?;
        match reply.outcome {
            Outcome::Superseded { counted: true, double_runs, .. }
            | Outcome::Posted(Posted { replayed: false, double_runs: double_runs @ 1.., .. }) => {
                inner.count_double_run(&address, double_runs, "a run without a claim is entered beside another");
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Says how an attempt has ended whose outcome is unknown, in its place.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn resolve(&self, address: &OperationAddress, resolve: Resolve) -> Answer<Reply> {
        let inner = &self.inner;
        let command = Command::Resolve(resolve);
        let in_primary = inner.apply(Home::Primary, address, &command).await;
        if inner.second.is_none() || in_primary.as_ref().is_ok_and(|reply| reply.outcome != Outcome::NotFound) {
            return Ok(in_primary?);
        }
        let reply = inner.apply(Home::Durable, address, &command).await?;
        if reply.outcome == Outcome::NotFound {
            // The record may be in the store that does not answer.
            in_primary?;
        }
        let is_durable = reply.record.as_ref().is_some_and(|record| record.durability == Durability::Durable);
        if is_durable && is_success(&reply.outcome) {
            inner.put_in_front_later(address, reply.record.clone());
        }
        Ok(reply)
    }

    /// Renews the lease of an attempt.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn heartbeat(
        &self,
        address: &OperationAddress,
        stamp: &StampText,
        lease_ms: Option<u64>,
    ) -> Answer<Reply> {
        let inner = &self.inner;
        match inner.signer.read(stamp) {
            Some(Presented::Guarded(home, stamp)) => {
                Ok(inner.apply_there(home, address, &Command::Heartbeat { stamp, lease_ms }).await?)
            }
            // There is no lease to renew.
            Some(Presented::Unguarded(_)) => Ok(inner.reply(Outcome::NotFound)),
            None => self.mismatch(address).await,
        }
    }

    /// The outcome for a text that is no stamp, whether or not there is such an operation.
    async fn mismatch(&self, address: &OperationAddress) -> Answer<Reply> {
        let is_known = self.get(address).await?.is_some();
        Ok(self.inner.reply(if is_known { Outcome::StampMismatch } else { Outcome::NotFound }))
    }
}

impl Inner {
    /// Counts a double run that a command has found.
    fn count_double_run(&self, address: &OperationAddress, double_runs: u32, why: &str) {
        self.metrics.double_runs.inc();
        tracing::warn!(id = %address.id, double_runs, "suspected double run: {why}");
    }

    fn keeps_for_ever(&self) -> bool {
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
            _ => Ok(Home::Primary),
        }
    }

    /// An outcome that no store has said.
    fn reply(&self, outcome: Outcome) -> Reply {
        Reply { outcome, now: self.clock_now(), record: None }
    }

    pub(super) async fn apply_there(
        &self,
        home: Home,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<Reply, StoreError> {
        match (home, &self.second) {
            (Home::Durable | Home::Fallback, Some(_)) => self.apply_at_second(home, address, command).await,
            _ => self.apply(Home::Primary, address, command).await,
        }
    }

    /// An attempt that was claimed in the second store is still there, or was carried to the active engine: a record of the
    /// fallback also serves those of its attempts that request durability.
    async fn apply_at_second(
        &self,
        home: Home,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<Reply, StoreError> {
        match self.apply(home, address, command).await {
            Ok(reply) if !is_elsewhere(&reply) => Ok(reply),
            Ok(_) => self.apply(Home::Primary, address, command).await,
            Err(error @ StoreError::Unavailable(_)) => {
                match self.apply(Home::Primary, address, command).await {
                    Ok(reply) if !is_elsewhere(&reply) => Ok(reply),
                    // The attempt's record may be in the store that does not answer.
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Enters an unguarded run in the ledger: in the active engine, or for it in the second store if it still does not answer.
    async fn enter_unguarded(
        &self,
        address: &OperationAddress,
        mut claim: Claim,
        run: Post,
        ran_at: Timestamp,
    ) -> Result<Reply, StoreError> {
        let entry = Command::Enter { claim: Box::new(claim.clone()), run: run.clone(), ran_at };
        let mut reply = self.apply(Home::Primary, address, &entry).await;
        if matches!(reply, Err(StoreError::Unavailable(_))) && self.second.is_some() {
            claim.store = StoreRole::Fallback;
            let entry = Command::Enter { claim: Box::new(claim), run, ran_at };
            reply = self.apply(Home::Fallback, address, &entry).await;
        }
        reply
    }

    fn put_in_front_later(self: &Arc<Self>, address: &OperationAddress, posted: Option<OperationRecord>) {
        let Ok(permit) = Arc::clone(&self.in_background).try_acquire_owned() else { return };
        let (inner, address) = (Arc::clone(self), address.clone());
        tokio::spawn(async move {
            let _permit = permit;
            inner.put_in_front(&address, posted).await;
        });
    }

    /// Lets the primary refuse duplicates of a durable success. If that fails, the second store refuses them.
    async fn put_in_front(&self, address: &OperationAddress, posted: Option<OperationRecord>) {
        let Some(active) = self.active(Home::Primary).filter(|active| active.is_primary) else { return };
        if let Some(record) = posted {
            let copy = Command::CarryBack(Box::new(record));
            let _ = self.call(&active, self.primary.gate.apply(active.fence(), address, &copy)).await;
        }
    }
}

impl Unguarded {
    fn claim(&self) -> Claim {
        Claim {
            operation: self.operation.clone(),
            sha256: self.sha256,
            checked: self.checked,
            stamp: self.stamp,
            attempt_id: None,
            lease_ms: self.lease_ms,
            // It has run: a hold-off does not keep it from being entered.
            on_expiry: OnExpiry::Retry,
            durability: Durability::Fast,
            retention: Retention::default(),
            store: StoreRole::Primary,
            description: None,
            waits_until: None,
            hold_off: HoldOff::default(),
        }
    }
}

fn outcome_of(reply: &Answer<Reply>) -> GateOutcome {
    let outcome = match reply {
        Ok(reply) => &reply.outcome,
        Err(Failure::PermanentNeedsDurable) => return GateOutcome::Other,
        Err(_) => return GateOutcome::NoAnswer,
    };
    match outcome {
        Outcome::Posted(posted) if posted.replayed => GateOutcome::Replayed,
        Outcome::Posted(posted) => match posted.report {
            Report::Success => GateOutcome::Success,
            Report::Failure => GateOutcome::Failure,
            Report::Unknown => GateOutcome::LeftUnknown,
        },
        Outcome::OutcomeConflict { .. } => GateOutcome::OutcomeConflict,
        Outcome::Superseded { .. } => GateOutcome::Superseded,
        Outcome::StampMismatch => GateOutcome::StampMismatch,
        Outcome::NotFound => GateOutcome::NotFound,
        _ => GateOutcome::Other,
    }
}

fn is_success(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Posted(posted) if posted.report == Report::Success)
}

/// The attempt is not one of this store's.
fn is_elsewhere(reply: &Reply) -> bool {
    matches!(reply.outcome, Outcome::NotFound | Outcome::StampMismatch)
}
