//! The gate as a node runs it: waiting, outages, two stores.
//!
//! The second store, if there is one, is the SQL store of the locks. It has the durable records. The gate's engines say which of
//! the two has the others: the primary, until an operator switches. While the primary is active and away, the second store takes
//! claims with the outage mode `fallback`.

pub mod apply;
mod batch;
mod calls;
mod outage;
mod pre;
mod stamp;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{
    Claim, Command, Durability, HoldOff, OperationAddress, OperationId, OperationRecord, Outcome, Phase, Post, Report,
    State, StoreRole,
};
use latchgate_core::{App, Timestamp};
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::apply::{Bounds, Gate};
pub use self::calls::{BatchReply, OnOutage, PostCall, PreCall, PreReply, Reply, Shown, ShownPage};
use self::outage::Outage;
pub use self::stamp::StampText;
use self::stamp::{Home, Presented, Signer, Unguarded};
use self::waits::Waits;
use crate::engines::GateEngines;
use crate::failure::{Answer, Failure};
use crate::store::StoreError;
use crate::store::engine_record::{Epoch, LEASE_MS_SHORT};
use crate::store::gate::{At, Fence, Filter, GateStore, ListError, WakeUp};

/// A waiting pre looks again this often even when nothing wakes it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often finished records are removed, and how many at a time.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
const EXPIRE_MAX: usize = 1_000;

/// How often a call tries again because the store has refused its epoch.
const EPOCH_TRIES: usize = 5;
/// Before a store that does not answer is called again for its notifications.
const LISTEN_PAUSE: Duration = Duration::from_millis(500);

/// How much the gate of a node takes on.
#[derive(Clone, Debug)]
pub struct GateLimits {
    /// Longest time for one command's dealings with a store.
    pub command_max: Duration,
    pub waiters_max: usize,
}

impl Default for GateLimits {
    fn default() -> Self {
        Self { command_max: Duration::from_millis(450), waiters_max: 50_000 }
    }
}

/// This node's gate. Clones are handles on the same one.
#[derive(Clone)]
pub struct Operations {
    inner: Arc<Inner>,
    /// Ends the gate's own tasks with the last handle.
    _running: Arc<DropGuard>,
}

struct Inner {
    /// Over the primary, or over the primary and the second store, in this order.
    engines: GateEngines,
    primary: Side,
    second: Option<Side>,
    outage: Outage,
    signer: Signer,
    limits: GateLimits,
    /// How many claims may be given back in the background at once.
    give_backs: Arc<Semaphore>,
    /// Ends all waits.
    closing: CancellationToken,
}

/// A store, and the pres at this node that wait for operations in it.
struct Side {
    gate: Gate,
    waits: Arc<Waits>,
}

/// The engine in use, as this node knows it.
#[derive(Clone, Copy)]
struct Active<'a> {
    side: &'a Side,
    is_primary: bool,
    epoch: Epoch,
    hold_off: HoldOff,
}

impl Active<'_> {
    const fn fence(&self) -> Fence {
        Fence::Active(self.epoch)
    }
}

/// Why there is no listing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ListFailure {
    #[error("the cursor is not one of this listing")]
    InvalidCursor,
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Operations {
    /// Starts the gate on its stores, over which `engines` are. `secret` signs the stamps of unguarded runs.
    pub async fn start(
        engines: GateEngines,
        primary: Arc<dyn GateStore>,
        second: Option<Arc<dyn GateStore>>,
        secret: &[u8],
        limits: GateLimits,
    ) -> Self {
        let running = CancellationToken::new();
        let side = async |store: Arc<dyn GateStore>| {
            let bounds = Bounds { call_max: limits.command_max, command_max: limits.command_max };
            let waits = Waits::new(limits.waiters_max);
            let wake_ups = store.wake_ups().await;
            let listening = listen(Arc::clone(&store), wake_ups, Arc::clone(&waits));
            tokio::spawn(running.clone().run_until_cancelled_owned(listening));
            Side { gate: Gate::new(store, bounds), waits }
        };
        let primary = side(primary).await;
        let second = match second {
            Some(store) => Some(side(store).await),
            None => None,
        };
        let inner = Arc::new(Inner {
            engines,
            primary,
            second,
            outage: Outage::default(),
            signer: Signer::new(secret),
            give_backs: Arc::new(Semaphore::new(limits.waiters_max)),
            limits,
            closing: CancellationToken::new(),
        });
        tokio::spawn(running.clone().run_until_cancelled_owned(outage::look_after(Arc::clone(&inner))));
        tokio::spawn(running.clone().run_until_cancelled_owned(expire(Arc::clone(&inner))));
        Self { inner, _running: Arc::new(running.drop_guard()) }
    }

    pub fn engines(&self) -> &GateEngines {
        &self.inner.engines
    }

    /// The clock of the engine in use by this node's estimate.
    pub fn now(&self) -> Timestamp {
        self.inner.clock_now()
    }

    /// Ends all waits.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// This is how it ended.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn post(&self, app: &App, id: OperationId, stamp: &StampText, call: PostCall) -> Answer<Reply> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        let Some(presented) = inner.signer.read(stamp) else { return self.mismatch(app, id).await };
        let is_permanent = call.permanent && call.report == Report::Success;
        let is_durable = matches!(presented, Presented::Guarded(Home::Durable, _));
        let post = |stamp| Post {
            stamp,
            report: call.report,
            result: call.result.clone(),
            retention_ms: call.retention_ms,
            permanent: call.permanent,
        };
        let reply = match presented {
            Presented::Unguarded(unguarded) if unguarded.app != *app || unguarded.id != id => {
                return self.mismatch(app, id).await;
            }
            Presented::Unguarded(unguarded) if unguarded.is_over(inner.clock_now()) => {
                return Ok(Reply::Outcome { outcome: Outcome::StampMismatch, now: inner.clock_now() });
            }
            Presented::Unguarded(_) | Presented::Guarded(Home::Primary | Home::Fallback, _)
                if is_permanent && (inner.second.is_some() || !inner.primary.gate.store().is_durable()) =>
            {
                return Ok(Reply::PermanentNeedsDurable);
            }
            Presented::Unguarded(unguarded) => {
                let claim = unguarded.claim();
                inner.enter(&address, claim, post(unguarded.stamp)).await?
            }
            Presented::Guarded(home, stamp) => inner.apply_at(home, &address, &Command::Post(post(stamp))).await?,
        };
        if let Reply::Outcome { outcome: Outcome::Superseded { counted: true, double_runs, .. }, .. } = &reply {
            tracing::warn!(%id, double_runs, "suspected double run: a superseded attempt reports a success");
        }
        let is_success = matches!(&reply, Reply::Outcome { outcome: Outcome::Posted(posted), .. }
            if posted.report == Report::Success);
        if is_durable && is_success && !is_permanent {
            let inner = Arc::clone(inner);
            tokio::spawn(async move { inner.put_in_front(&address).await });
        }
        Ok(reply)
    }

    /// I am still at it.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn heartbeat(
        &self,
        app: &App,
        id: OperationId,
        stamp: &StampText,
        lease_ms: Option<u64>,
    ) -> Answer<Reply> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        match inner.signer.read(stamp) {
            Some(Presented::Guarded(home, stamp)) => {
                inner.cover_renewal(&address, lease_ms).await.map_err(failure_of)?;
                inner.apply_at(home, &address, &Command::Heartbeat { stamp, lease_ms }).await
            }
            // There is no lease to renew.
            Some(Presented::Unguarded(_)) => Ok(Reply::Outcome { outcome: Outcome::NotFound, now: inner.clock_now() }),
            None => self.mismatch(app, id).await,
        }
    }

    /// The record that counts, if there is one.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, app: &App, id: OperationId) -> Answer<Option<Shown>> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        let at = inner.get(&address).await.map_err(failure_of)?;
        Ok(at.map(|at| Shown { id, record: at.answer, now: at.now }))
    }

    /// A page of records, in an order of the stores' own: first the active engine's, then those that only the second store has.
    ///
    /// # Errors
    /// When a store does not answer, or the cursor is none of its own.
    pub async fn list(
        &self,
        app: &App,
        filter: &Filter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<ShownPage, ListFailure> {
        let inner = &self.inner;
        let is_second_active = inner.active().is_some_and(|active| !active.is_primary);
        let (side, letter, cursor) = match (cursor.map(|cursor| cursor.split_at_checked(1)), &inner.second) {
            (None, Some(second)) if is_second_active => (second, 's', None),
            // The gate was switched meanwhile: the listing begins anew.
            (Some(Some(("p", _))), Some(second)) if is_second_active => (second, 's', None),
            (None, _) => (&inner.primary, 'p', None),
            (Some(Some(("p", rest))), _) => (&inner.primary, 'p', Some(rest)),
            (Some(Some(("s", ""))), Some(second)) => (second, 's', None),
            (Some(Some(("s", rest))), Some(second)) => (second, 's', Some(rest)),
            _ => return Err(ListFailure::InvalidCursor),
        };
        let page = side.gate.list(app, filter, cursor, limit).await.map_err(|error| match error {
            ListError::InvalidCursor => ListFailure::InvalidCursor,
            ListError::Store(error) => ListFailure::Failure(failure_of(error)),
        })?;
        let now = side.gate.read_now().await.map_err(failure_of)?;
        // The primary has copies of durable records of the second store, which are shown from there unless a double run is
        // suspected: the copy may know more of it. The second store has copies that a switch has left behind.
        let is_copy = |record: &OperationRecord| {
            letter == 'p' && inner.second.is_some() && record.durability == Durability::Durable && !record.is_suspect()
        };
        let is_left_behind =
            |record: &OperationRecord| letter == 's' && !is_second_active && !apply::is_within(Fence::None, record);
        let records = page.records.into_iter().filter(|(_, record)| !is_copy(record) && !is_left_behind(record));
        let records = records.map(|(id, record)| Shown { id, record, now }).collect();
        let then = (letter == 'p' && inner.second.is_some()).then(|| "s".to_owned());
        Ok(ShownPage { records, next: page.next.map(|next| format!("{letter}{next}")).or(then) })
    }

    /// Forgets a record; one whose attempt runs, or may have run, only by `force`.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn forget(&self, app: &App, id: OperationId, force: bool) -> Answer<Reply> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        let forget = Command::Forget { force };
        // The copy in front goes last: until then it only refuses.
        let in_second = match &inner.second {
            Some(second) => Some(second.gate.apply(Fence::None, &address, &forget).await.map_err(failure_of)?),
            None => None,
        };
        let needs_force =
            |reply: &&apply::Reply| matches!(reply.outcome, Outcome::StillStarted { .. } | Outcome::Unknown { .. });
        if let Some(reply) = in_second.as_ref().filter(needs_force) {
            return Ok(Reply::Outcome { outcome: reply.outcome.clone(), now: reply.now });
        }
        let in_active = inner.apply_at_active(&address, &forget).await.map_err(failure_of)?;
        let found =
            in_second.filter(|reply| matches!(reply.outcome, Outcome::Forgotten { was } if was != State::Vacant));
        let reply = match in_active.outcome {
            Outcome::NotFound => found.unwrap_or(in_active),
            _ => in_active,
        };
        Ok(Reply::Outcome { outcome: reply.outcome, now: reply.now })
    }

    /// The outcome for a text that is no stamp, whether or not there is such an operation.
    async fn mismatch(&self, app: &App, id: OperationId) -> Answer<Reply> {
        let outcome = if self.get(app, id).await?.is_some() { Outcome::StampMismatch } else { Outcome::NotFound };
        Ok(Reply::Outcome { outcome, now: self.inner.clock_now() })
    }

    /// The kind of the store beside the primary.
    pub fn second_name(&self) -> Option<&'static str> {
        self.inner.second.as_ref().map(|side| side.gate.store().kind())
    }

    pub fn store_name(&self) -> &'static str {
        self.inner.primary.gate.store().kind()
    }
}

impl Inner {
    /// The engine in use; `None` while none is.
    fn active(&self) -> Option<Active<'_>> {
        let standing = self.engines.standing()?;
        let is_primary = standing.index == 0;
        let side = if is_primary { &self.primary } else { self.second.as_ref()? };
        let hold_off = HoldOff { until: standing.hold_off_until, forced_until: standing.forced_until };
        Some(Active { side, is_primary, epoch: standing.epoch, hold_off })
    }

    fn clock_now(&self) -> Timestamp {
        self.active().map_or(&self.primary, |active| active.side).gate.clock_now()
    }

    /// Calls the active engine, unless that is the primary and is known to be away; takes note if it is.
    async fn call<T>(
        &self,
        active: &Active<'_>,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !active.is_primary {
            return call.await;
        }
        if self.outage.is_down() {
            return Err(is_down());
        }
        call.await.inspect_err(|error| {
            if !matches!(error, StoreError::Contended(_) | StoreError::EpochOver) {
                self.outage.begin(error);
            }
        })
    }

    async fn apply_at_active(&self, address: &OperationAddress, command: &Command) -> Result<apply::Reply, StoreError> {
        for _ in 0..EPOCH_TRIES {
            let Some(active) = self.active() else { break };
            match self.call(&active, active.side.gate.apply(active.fence(), address, command)).await {
                Err(StoreError::EpochOver) => self.engines.refresh(active.epoch).await,
                reply => return reply,
            }
        }
        Err(self.engines.unavailable())
    }

    async fn get_at_active(&self, address: &OperationAddress) -> Result<At<Option<OperationRecord>>, StoreError> {
        for _ in 0..EPOCH_TRIES {
            let Some(active) = self.active() else { break };
            match self.call(&active, active.side.gate.get(active.fence(), address)).await {
                Err(StoreError::EpochOver) => self.engines.refresh(active.epoch).await,
                found => return found,
            }
        }
        Err(self.engines.unavailable())
    }

    /// Lets the primary refuse duplicates of a durable success. If that fails, the second store refuses them.
    async fn put_in_front(&self, address: &OperationAddress) {
        let Some(second) = &self.second else { return };
        let Some(active) = self.active().filter(|active| active.is_primary) else { return };
        let Ok(at) = second.gate.get(Fence::None, address).await else { return };
        if let Some(record) = at.answer {
            let copy = Command::CarryBack(Box::new(record));
            let _ = self.call(&active, self.primary.gate.apply(active.fence(), address, &copy)).await;
        }
    }

    /// Returns when a lease of `lease_ms` may be claimed in the active engine: see [`GateEngines::cover`].
    async fn cover(&self, active: &Active<'_>, lease_ms: u64) -> Result<(), StoreError> {
        if lease_ms <= LEASE_MS_SHORT {
            return Ok(());
        }
        let mut now = active.side.gate.clock_now();
        if now == Timestamp::default() {
            now = active.side.gate.read_now().await?;
        }
        let covered = self.engines.cover(lease_ms, now).await;
        let is_over = self.engines.standing().is_none_or(|standing| standing.epoch != active.epoch);
        if covered.is_err() && is_over { Err(StoreError::EpochOver) } else { covered }
    }

    /// As [`Inner::cover`], for a lease that is renewed, by its own length if the caller names none.
    async fn cover_renewal(&self, address: &OperationAddress, lease_ms: Option<u64>) -> Result<(), StoreError> {
        let Some(active) = self.active() else { return Ok(()) };
        let lease_ms = match lease_ms {
            Some(lease_ms) => lease_ms,
            None if !self.engines.may_need_cover(self.clock_now()) => return Ok(()),
            None => match self.get_at_active(address).await?.answer.map(|record| record.phase) {
                Some(Phase::Started(started)) => started.lease_ms,
                _ => return Ok(()),
            },
        };
        match self.cover(&active, lease_ms).await {
            // The heartbeat itself finds the engine in use.
            Err(StoreError::EpochOver) => Ok(()),
            covered => covered,
        }
    }

    async fn apply_at(&self, home: Home, address: &OperationAddress, command: &Command) -> Answer<Reply> {
        let reply = match (home, &self.second) {
            (Home::Durable | Home::Fallback, Some(second)) => self.apply_at_second(second, address, command).await,
            _ => self.apply_at_active(address, command).await,
        };
        let reply = reply.map_err(failure_of)?;
        Ok(Reply::Outcome { outcome: reply.outcome, now: reply.now })
    }

    /// An attempt that was claimed in the second store is still there, or was carried to the active engine: a record of the
    /// fallback also serves those of its attempts that request durability.
    async fn apply_at_second(
        &self,
        second: &Side,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<apply::Reply, StoreError> {
        let here = second.gate.apply(Fence::None, address, command).await;
        match here {
            Ok(reply) if !is_elsewhere(&reply) => Ok(reply),
            Ok(_) => self.apply_at_active(address, command).await,
            Err(error @ StoreError::Unavailable(_)) => {
                match self.apply_at_active(address, command).await {
                    Ok(reply) if !is_elsewhere(&reply) => Ok(reply),
                    // The attempt's record may be in the store that does not answer.
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Enters an unguarded run in the ledger: in the active engine, or for it in the second store if it is still away.
    async fn enter(&self, address: &OperationAddress, mut claim: Claim, post: Post) -> Answer<Reply> {
        let entry = Command::Enter { claim: claim.clone(), post: post.clone() };
        let mut reply = self.apply_at_active(address, &entry).await;
        if let (Err(StoreError::Unavailable(_)), Some(second)) = (&reply, &self.second) {
            claim.store = StoreRole::Fallback;
            reply = second.gate.apply(Fence::None, address, &Command::Enter { claim, post }).await;
        }
        let reply = reply.map_err(failure_of)?;
        Ok(Reply::Outcome { outcome: reply.outcome, now: reply.now })
    }

    /// The record that counts.
    async fn get(&self, address: &OperationAddress) -> Result<Option<At<OperationRecord>>, StoreError> {
        let mut failure = None;
        match self.get_at_active(address).await {
            Ok(At { now, answer: Some(answer) }) => return Ok(Some(At { now, answer })),
            Ok(At { answer: None, .. }) => {}
            Err(error) => failure = Some(error),
        }
        if let Some(second) = &self.second
            && let At { now, answer: Some(answer) } = second.gate.get(Fence::None, address).await?
        {
            return Ok(Some(At { now, answer }));
        }
        failure.map_or(Ok(None), Err)
    }

    fn sign(&self, address: &OperationAddress, claim: &Claim) -> StampText {
        self.signer.sign(&Unguarded {
            app: address.app.clone(),
            id: address.id,
            sha256: claim.sha256,
            operation: claim.operation.clone(),
            stamp: claim.stamp,
            at: self.clock_now(),
            lease_ms: claim.lease_ms,
            checked: claim.checked,
        })
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
            on_expiry: latchgate_core::gate::OnExpiry::default(),
            durability: Durability::Fast,
            store: StoreRole::Primary,
            waits_until: None,
            hold_off: HoldOff::default(),
            tentative: false,
        }
    }
}

/// The attempt is not one of this store's.
fn is_elsewhere(reply: &apply::Reply) -> bool {
    matches!(reply.outcome, Outcome::NotFound | Outcome::StampMismatch)
}

fn is_down() -> StoreError {
    StoreError::Unavailable("the gate's store is down".to_owned())
}

fn failure_of(error: StoreError) -> Failure {
    match error {
        StoreError::Unavailable(reason) => Failure::StoreUnavailable(reason),
        StoreError::OutcomeUnknown(reason) => Failure::OutcomeUnknown(reason),
        StoreError::Contended(what) => Failure::Overloaded(what),
        StoreError::EpochOver => Failure::StoreUnavailable(error.to_string()),
    }
}

/// Passes a store's notifications on. A store that does not answer yet is called again until it does.
async fn listen(
    store: Arc<dyn GateStore>,
    mut wake_ups: Result<tokio::sync::mpsc::Receiver<WakeUp>, StoreError>,
    waits: Arc<Waits>,
) {
    loop {
        if let Ok(wake_ups) = &mut wake_ups {
            while let Some(wake_up) = wake_ups.recv().await {
                waits.wake(&wake_up);
            }
            return;
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
        wake_ups = store.wake_ups().await;
    }
}

/// Removes finished records, a bounded number at a time.
async fn expire(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(EXPIRE_EVERY).await;
        for side in std::iter::once(&inner.primary).chain(&inner.second) {
            while let Ok(removed) = side.gate.expire(EXPIRE_MAX).await {
                if removed < EXPIRE_MAX as u64 {
                    break;
                }
            }
        }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
