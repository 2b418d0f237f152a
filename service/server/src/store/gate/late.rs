//! A gate's store that need not answer when the node starts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use latchgate_core::gate::{OperationAddress, OperationRecord};
use latchgate_core::{App, Timestamp};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{At, Board, Change, Claimed, Filter, GateStore, ListError, Page, Replaced, StoreError, Stored, WakeUp};

/// Opens the store.
pub type GateOpener = Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<Arc<dyn GateStore>>> + Send + Sync>;

/// Longest time that opening it takes, and between two tries.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
const WAKE_UPS_MAX: usize = 10_000;

/// Until it is open, it is a store that does not answer. Clones share it.
#[derive(Clone)]
pub struct LateGateStore {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    is_durable: bool,
    open: GateOpener,
    store: OnceLock<Arc<dyn GateStore>>,
    is_opening: AtomicBool,
}

impl LateGateStore {
    /// `name` and `is_durable` are those of the store.
    pub fn new(name: &'static str, is_durable: bool, open: GateOpener) -> Self {
        let (store, is_opening) = (OnceLock::new(), AtomicBool::new(false));
        Self { shared: Arc::new(Shared { name, is_durable, open, store, is_opening }) }
    }

    fn store(&self) -> Result<&Arc<dyn GateStore>, StoreError> {
        if let Some(store) = self.shared.store.get() {
            return Ok(store);
        }
        if !self.shared.is_opening.swap(true, Ordering::AcqRel) {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                match timeout(OPEN_TIMEOUT, (shared.open)()).await {
                    Ok(Ok(store)) => drop(shared.store.set(store)),
                    Ok(Err(error)) => {
                        tracing::warn!(error = format!("{error:#}"), "the gate's store cannot be used yet");
                        sleep(PAUSE).await;
                    }
                    Err(_) => tracing::warn!("the gate's store does not answer yet"),
                }
                shared.is_opening.store(false, Ordering::Release);
            });
        }
        Err(StoreError::Unavailable("it has not been reached yet".to_owned()))
    }
}

#[async_trait]
impl GateStore for LateGateStore {
    fn name(&self) -> &'static str {
        self.shared.name
    }

    fn is_durable(&self) -> bool {
        self.shared.is_durable
    }

    async fn claim(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        record: &OperationRecord,
    ) -> Result<At<Claimed>, StoreError> {
        self.store()?.claim(now, address, record).await
    }

    async fn load(&self, address: &OperationAddress) -> Result<At<Option<Stored>>, StoreError> {
        self.store()?.load(address).await
    }

    async fn replace(
        &self,
        now: Timestamp,
        address: &OperationAddress,
        change: Change<'_>,
    ) -> Result<At<Replaced>, StoreError> {
        self.store()?.replace(now, address, change).await
    }

    async fn list(&self, app: &App, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page, ListError> {
        self.store()?.list(app, filter, cursor, limit).await
    }

    async fn expire(&self, limit: usize) -> Result<u64, StoreError> {
        self.store()?.expire(limit).await
    }

    async fn fallbacks(&self, limit: usize) -> Result<Vec<(OperationAddress, Stored)>, StoreError> {
        self.store()?.fallbacks(limit).await
    }

    async fn board(&self) -> Result<Board, StoreError> {
        self.store()?.board().await
    }

    async fn write_board(&self, expected: u64, text: &str) -> Result<Option<u64>, StoreError> {
        self.store()?.write_board(expected, text).await
    }

    async fn wake_ups(&self) -> Result<mpsc::Receiver<WakeUp>, StoreError> {
        let (sender, receiver) = mpsc::channel(WAKE_UPS_MAX);
        let late = self.clone();
        tokio::spawn(async move {
            while !sender.is_closed() {
                let heard = match late.store() {
                    Ok(store) => store.wake_ups().await,
                    Err(error) => Err(error),
                };
                let Ok(mut heard) = heard else {
                    sleep(PAUSE).await;
                    continue;
                };
                let _ = sender.send(WakeUp::All).await;
                while let Some(wake_up) = heard.recv().await {
                    let _ = sender.send(wake_up).await;
                }
                // One that tells of none.
                sender.closed().await;
            }
        });
        Ok(receiver)
    }

    async fn ping(&self) -> Result<Timestamp, StoreError> {
        self.store()?.ping().await
    }
}
