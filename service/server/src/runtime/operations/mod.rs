//! The gate as a node runs it: waiting, outages, two stores.
//!
//! The primary store serves what need not be durable. The second, if there is one, is the SQL store of the locks: it has
//! the durable records, and takes over from a primary that is away for those who ask for that (`fallback`). All nodes can
//! be switched to claim new operations in the second store, and back.

mod ask;
mod batch;
mod outage;
mod pre;
mod stamp;
mod switched;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{
    Claim, Command, Durability, OperationAddress, OperationId, OperationRecord, Outcome, Post, Report, Shelf, State,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::ask::{BatchTold, OnOutage, PostAsk, PreAsk, PreTold, Shown, ShownPage, Told};
use self::outage::Outage;
pub use self::stamp::StampText;
use self::stamp::{Home, Presented, Signer, Unguarded};
use self::waits::Waits;
use crate::runtime::gate::{Bounds, Gate};
use crate::runtime::{Answer, Failure};
use crate::store::StoreError;
use crate::store::engines::gate::GateEngines;
use crate::store::gate::{Filter, GateStore, ListError};

/// A waiting pre looks again this often even when nothing wakes it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often finished records are removed, and how many at a time.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
const EXPIRE_MAX: usize = 1_000;
/// How long a node waits at its start to learn which store is active.
const START_WAIT: Duration = Duration::from_secs(2);

/// How much the gate of a node takes on.
#[derive(Clone, Debug)]
pub struct GateLimits {
    /// Longest time for one command's dealings with a store.
    pub command_max: Duration,
    pub waiters_max: usize,
    /// How long a node claims in a store after it has seen that this is the active one, and the longest time for that.
    pub right: Duration,
    pub look_max: Duration,
}

impl Default for GateLimits {
    fn default() -> Self {
        Self {
            command_max: Duration::from_millis(450),
            waiters_max: 50_000,
            right: Duration::from_secs(3),
            look_max: Duration::from_millis(800),
        }
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
    primary: Side,
    second: Option<Side>,
    /// Which of the two has new operations.
    engines: Option<GateEngines>,
    outage: Outage,
    signer: Signer,
    limits: GateLimits,
    /// Ends all waits.
    closing: CancellationToken,
}

/// A store, with who waits for what is in it.
struct Side {
    gate: Gate,
    waits: Arc<Waits>,
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
    /// Starts the gate on its stores. `secret` signs the stamps of unguarded runs.
    ///
    /// # Errors
    /// When a store cannot be reached.
    pub async fn start(
        primary: Arc<dyn GateStore>,
        second: Option<Arc<dyn GateStore>>,
        secret: &[u8],
        limits: GateLimits,
    ) -> anyhow::Result<Self> {
        let running = CancellationToken::new();
        let side = async |store: Arc<dyn GateStore>| -> Result<Side, StoreError> {
            let bounds = Bounds { call_max: limits.command_max, command_max: limits.command_max };
            let waits = Waits::new(limits.waiters_max);
            let mut wake_ups = store.wake_ups().await?;
            let bells = Arc::clone(&waits);
            tokio::spawn(running.clone().run_until_cancelled_owned(async move {
                while let Some(wake_up) = wake_ups.recv().await {
                    bells.wake(&wake_up);
                }
            }));
            Ok(Side { gate: Gate::new(store, bounds), waits })
        };
        // They are told apart by their kinds.
        let other = second.as_ref().filter(|second| second.name() != primary.name());
        let engines = other.map(|second| {
            GateEngines::start([Arc::clone(&primary), Arc::clone(second)], limits.right, limits.look_max)
        });
        let primary = side(primary).await?;
        let second = match second {
            Some(store) => Some(side(store).await?),
            None => None,
        };
        if let Some(engines) = &engines {
            // Without it the node starts all the same, and claims nothing yet.
            if engines.confirmed_within(START_WAIT).await.is_none() {
                tracing::warn!(engines = ?engines.status().engines, "the gate's stores do not tell which of them is active");
            }
        }
        let inner = Arc::new(Inner {
            primary,
            second,
            engines,
            outage: Outage::default(),
            signer: Signer::new(secret),
            limits,
            closing: CancellationToken::new(),
        });
        tokio::spawn(running.clone().run_until_cancelled_owned(outage::look_after(Arc::clone(&inner))));
        tokio::spawn(running.clone().run_until_cancelled_owned(expire(Arc::clone(&inner))));
        Ok(Self { inner, _running: Arc::new(running.drop_guard()) })
    }

    /// Ends all waits.
    pub fn close(&self) {
        self.inner.closing.cancel();
    }

    /// This is how it ended.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn post(&self, app: &App, id: OperationId, stamp: &StampText, ask: PostAsk) -> Answer<Told> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        let Some(presented) = inner.signer.read(stamp) else { return self.mismatch(app, id).await };
        let is_permanent = ask.permanent && ask.report == Report::Success;
        let is_durable = matches!(presented, Presented::Guarded(Home::Durable, _));
        let post = |stamp| Post {
            stamp,
            report: ask.report,
            result: ask.result.clone(),
            retention_ms: ask.retention_ms,
            permanent: ask.permanent,
        };
        let told = match presented {
            Presented::Unguarded(unguarded) if unguarded.app != *app || unguarded.id != id => {
                return self.mismatch(app, id).await;
            }
            Presented::Unguarded(unguarded) if unguarded.is_over(inner.primary.gate.clock_now()) => {
                return Ok(Told::Outcome { outcome: Outcome::StampMismatch, now: inner.primary.gate.clock_now() });
            }
            Presented::Unguarded(_) | Presented::Guarded(Home::Primary | Home::Fallback, _)
                if is_permanent && (inner.second.is_some() || !inner.primary.gate.store().is_durable()) =>
            {
                return Ok(Told::PermanentNeedsDurable);
            }
            Presented::Unguarded(unguarded) => {
                let claim = unguarded.claim();
                inner.enter(&address, claim, post(unguarded.stamp)).await?
            }
            Presented::Guarded(home, stamp) => inner.apply_at(home, &address, &Command::Post(post(stamp))).await?,
        };
        if let Told::Outcome { outcome: Outcome::Superseded { counted: true, double_runs, .. }, .. } = &told {
            tracing::warn!(%id, double_runs, "suspected double run: a superseded attempt reports a success");
        }
        let is_success = matches!(&told, Told::Outcome { outcome: Outcome::Posted(posted), .. }
            if posted.report == Report::Success);
        if is_durable && is_success && !is_permanent {
            let inner = Arc::clone(inner);
            tokio::spawn(async move { inner.put_in_front(&address).await });
        }
        Ok(told)
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
    ) -> Answer<Told> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        match inner.signer.read(stamp) {
            Some(Presented::Guarded(home, stamp)) => {
                inner.apply_at(home, &address, &Command::Heartbeat { stamp, lease_ms }).await
            }
            // There is no lease to renew.
            Some(Presented::Unguarded(_)) => {
                Ok(Told::Outcome { outcome: Outcome::NotFound, now: inner.primary.gate.clock_now() })
            }
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

    /// A page of records, in an order of the stores' own: the primary's first.
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
        let (side, letter, cursor) = match (cursor.map(|cursor| cursor.split_at_checked(1)), &inner.second) {
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
        let now = side.gate.now_or_ask().await.map_err(failure_of)?;
        // What stands in front of the second store is shown from there; of a suspicion the copy may know more.
        let is_copy = |record: &OperationRecord| {
            letter == 'p' && inner.second.is_some() && record.durability == Durability::Durable && !record.is_suspect()
        };
        let records = page.records.into_iter().filter(|(_, record)| !is_copy(record));
        let records = records.map(|(id, record)| Shown { id, record, now }).collect();
        let then = (letter == 'p' && inner.second.is_some()).then(|| "s".to_owned());
        Ok(ShownPage { records, next: page.next.map(|next| format!("{letter}{next}")).or(then) })
    }

    /// Forgets a record; one whose attempt runs, or may have run, only by `force`.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn forget(&self, app: &App, id: OperationId, force: bool) -> Answer<Told> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id };
        let forget = Command::Forget { force };
        // The copy in front goes last: until then it only refuses.
        let in_second = match &inner.second {
            Some(second) => Some(second.gate.apply(&address, &forget).await.map_err(failure_of)?),
            None => None,
        };
        let needs_force =
            |told: &&super::gate::Told| matches!(told.outcome, Outcome::StillStarted { .. } | Outcome::Unknown { .. });
        if let Some(told) = in_second.as_ref().filter(needs_force) {
            return Ok(Told::Outcome { outcome: told.outcome.clone(), now: told.now });
        }
        let in_primary = inner.ask_primary(inner.primary.gate.apply(&address, &forget)).await.map_err(failure_of)?;
        let found = in_second.filter(|told| matches!(told.outcome, Outcome::Forgotten { was } if was != State::Vacant));
        let told = match in_primary.outcome {
            Outcome::NotFound => found.unwrap_or(in_primary),
            _ => in_primary,
        };
        Ok(Told::Outcome { outcome: told.outcome, now: told.now })
    }

    /// What is no stamp of this operation proves nothing, whether or not there is such an operation.
    async fn mismatch(&self, app: &App, id: OperationId) -> Answer<Told> {
        let outcome = if self.get(app, id).await?.is_some() { Outcome::StampMismatch } else { Outcome::NotFound };
        Ok(Told::Outcome { outcome, now: self.inner.primary.gate.clock_now() })
    }

    /// The kind of the store beside the primary.
    pub fn second_name(&self) -> Option<&'static str> {
        self.inner.second.as_ref().map(|side| side.gate.store().name())
    }

    pub fn store_name(&self) -> &'static str {
        self.inner.primary.gate.store().name()
    }
}

impl Inner {
    /// Lets the primary refuse duplicates of a durable success. If that fails, the second store refuses them.
    async fn put_in_front(&self, address: &OperationAddress) {
        let Some(second) = &self.second else { return };
        let Ok(at) = second.gate.get(address).await else { return };
        if let Some(record) = at.answer {
            let copy = Command::CarryBack(Box::new(record));
            let _ = self.ask_primary(self.primary.gate.apply(address, &copy)).await;
        }
    }

    /// Asks the primary unless it is known to be away, and takes note if it is.
    async fn ask_primary<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        if self.outage.is_down() {
            return Err(is_down());
        }
        call.await.inspect_err(|error| {
            if !matches!(error, StoreError::Contended(_)) {
                self.outage.begin(error);
            }
        })
    }

    async fn apply_at(&self, home: Home, address: &OperationAddress, command: &Command) -> Answer<Told> {
        let told = match (home, &self.second) {
            (Home::Primary, Some(second)) => self.apply_at_first(second, address, command).await,
            (Home::Durable | Home::Fallback | Home::Second, Some(second)) => {
                self.apply_at_second(second, address, command).await
            }
            (_, None) => self.ask_primary(self.primary.gate.apply(address, command)).await,
        };
        let told = told.map_err(failure_of)?;
        Ok(Told::Outcome { outcome: told.outcome, now: told.now })
    }

    /// An attempt that was claimed in the second store is still there, or was carried back: a record of the fallback also
    /// serves those of its attempts who ask for durability.
    async fn apply_at_second(
        &self,
        second: &Side,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<super::gate::Told, StoreError> {
        let here = second.gate.apply(address, command).await;
        match here {
            Ok(told) if !is_elsewhere(&told) => Ok(told),
            Ok(_) => self.ask_primary(self.primary.gate.apply(address, command)).await,
            Err(error @ StoreError::Unavailable(_)) => {
                match self.ask_primary(self.primary.gate.apply(address, command)).await {
                    Ok(told) if !is_elsewhere(&told) => Ok(told),
                    // The attempt's record may be in the store that does not answer.
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Enters an unguarded run in the ledger: in the primary, or for it in the second store if it is still away.
    async fn enter(&self, address: &OperationAddress, mut claim: Claim, post: Post) -> Answer<Told> {
        if let Some(told) = self.enter_switched(address, &claim, &post).await? {
            return Ok(told);
        }
        let entry = Command::Enter { claim: claim.clone(), post: post.clone() };
        let mut told = self.ask_primary(self.primary.gate.apply(address, &entry)).await;
        if let (Err(StoreError::Unavailable(_)), Some(second)) = (&told, &self.second) {
            claim.shelf = Shelf::Fallback;
            told = second.gate.apply(address, &Command::Enter { claim, post }).await;
        }
        let told = told.map_err(failure_of)?;
        Ok(Told::Outcome { outcome: told.outcome, now: told.now })
    }

    fn sign(&self, address: &OperationAddress, claim: &Claim) -> StampText {
        self.signer.sign(&Unguarded {
            app: address.app.clone(),
            id: address.id,
            sha256: claim.sha256,
            operation: claim.operation.clone(),
            stamp: claim.stamp,
            at: self.primary.gate.clock_now(),
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
            shelf: Shelf::Primary,
            waits_until: None,
        }
    }
}

/// The attempt is not one of this store's.
fn is_elsewhere(told: &super::gate::Told) -> bool {
    matches!(told.outcome, Outcome::NotFound | Outcome::StampMismatch)
}

fn is_down() -> StoreError {
    StoreError::Unavailable("the gate's store is down".to_owned())
}

fn failure_of(error: StoreError) -> Failure {
    match error {
        StoreError::Unavailable(reason) => Failure::StoreUnavailable(reason),
        StoreError::OutcomeUnknown(reason) => Failure::OutcomeUnknown(reason),
        StoreError::Contended(what) => Failure::Overloaded(what),
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
