//! Posts, entries, resolutions and heartbeats.

use latchgate_core::gate::{Command, OperationAddress, Outcome, Post, Posted, Report, Resolve, Retention, Stamp};
use latchgate_core::{App, Timestamp};

use super::sets::is_elsewhere;
use super::{Inner, Operations, PreCall, Reply};
use crate::failure::{CallResult, Failure};
use crate::observe::metrics::GateOutcome;

impl Operations {
    /// Reports how an attempt has ended.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn post(&self, address: &OperationAddress, post: Post) -> CallResult<Reply> {
        let reply = self.inner.post(address, post).await;
        self.inner.metrics.count(outcome_of(&reply));
        if let Ok(Reply { outcome: Outcome::Superseded { counted: true, double_runs, .. }, .. }) = reply {
            self.inner.count_double_run(address, double_runs, "a superseded attempt reports a success");
        }
        reply
    }

    /// Enters a run that was made without a claim, because the gate did not answer.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn enter(&self, app: &App, call: &PreCall, run: Post, ran_at: Timestamp) -> CallResult<Reply> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
        let entry = Command::Enter { claim: Box::new(call.claim()), run, ran_at };
        let reply = match inner.home_of_new(call) {
            Ok(home) => home.apply(&address, &entry).await,
            Err(failure) => Err(failure),
        };
        inner.metrics.count(match outcome_of(&reply) {
            GateOutcome::Success | GateOutcome::Superseded => GateOutcome::Entered,
            other => other,
        });
        if let Ok(
            Outcome::Superseded { counted: true, double_runs, .. }
            | Outcome::Posted(Posted { replayed: false, double_runs: double_runs @ 1.., .. }),
        ) = reply.as_ref().map(|reply| &reply.outcome)
        {
            inner.count_double_run(&address, *double_runs, "a run without a claim is entered beside another");
        }
        reply
    }

    /// Says how an attempt has ended whose outcome is unknown, in its place.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn resolve(&self, address: &OperationAddress, resolve: Resolve) -> CallResult<Reply> {
        self.inner.apply_where_it_is(address, &Command::Resolve(resolve)).await
    }

    /// Renews the lease of an attempt.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn heartbeat(
        &self,
        address: &OperationAddress,
        stamp: Stamp,
        lease_ms: Option<u64>,
    ) -> CallResult<Reply> {
        self.inner.apply_where_it_is(address, &Command::Heartbeat { stamp, lease_ms }).await
    }
}

impl Inner {
    async fn post(&self, address: &OperationAddress, post: Post) -> CallResult<Reply> {
        let is_permanent = post.retention == Some(Retention::Forever) && post.report == Report::Success;
        let command = Command::Post(post);
        if !is_permanent || !self.fast().is_volatile()? {
            return self.apply_where_it_is(address, &command).await;
        }
        if self.main.is_volatile()? {
            return Err(Failure::PermanentNeedsDurable);
        }
        let reply = self.main.apply(address, &command).await?;
        if is_elsewhere(&reply) { Err(Failure::PermanentNeedsDurable) } else { Ok(reply) }
    }

    fn count_double_run(&self, address: &OperationAddress, double_runs: u32, why: &str) {
        self.metrics.double_runs.inc();
        tracing::warn!(id = %address.id, double_runs, "suspected double run: {why}");
    }
}

/// What a reply to a pre, a post or an entry counts as.
pub(super) fn outcome_of(reply: &CallResult<Reply>) -> GateOutcome {
    let outcome = match reply {
        Ok(reply) => &reply.outcome,
        Err(Failure::PermanentNeedsDurable | Failure::NoDurableStore) => return GateOutcome::Other,
        Err(_) => return GateOutcome::NoAnswer,
    };
    match outcome {
        Outcome::Go(go) if go.repeated => GateOutcome::Repeated,
        Outcome::Go(go) if go.reentry => GateOutcome::Reentry,
        Outcome::Go(_) => GateOutcome::Go,
        Outcome::InProgress { .. } => GateOutcome::InProgress,
        Outcome::Duplicate(_) => GateOutcome::Duplicate,
        Outcome::Unknown { .. } => GateOutcome::Unknown,
        Outcome::IdCollision => GateOutcome::IdCollision,
        Outcome::ContentsMismatch => GateOutcome::ContentsMismatch,
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
