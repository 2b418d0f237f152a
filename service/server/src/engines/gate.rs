//! The engines of the gate. A switch puts each record into the other store unless it is there already, so it can be repeated, and several nodes
//! may copy at once.

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use latchgate_core::gate::{Command, OperationAddress, OperationRecord, step};
use tokio::time::Instant;

use super::engine::Engine;
use super::pair::Engines;
use crate::store::engine_record::Epoch;
use crate::store::gate::{At, Change, Fence, GateStore, Stored, Write, Written};
use crate::store::store_clock::StoreClock;
use crate::store::{DumpPage, StoreError};

/// One store of the gate, or a pair.
pub type GateEngines = Engines<dyn GateStore>;

/// Records that are written at the same time.
const WRITES: usize = 32;
/// Tries to put one record, against other nodes that copy it too.
const TRIES: usize = 16;

#[async_trait]
impl Engine for dyn GateStore {
    type Item = (OperationAddress, OperationRecord);

    async fn dump_page(&self, from: Option<&str>, limit: usize) -> Result<DumpPage<Self::Item>, StoreError> {
        self.dump(from, limit).await
    }

    async fn clear_for(&self, epoch: Epoch) -> Result<bool, StoreError> {
        self.clear(epoch).await
    }

    async fn write_page(
        &self,
        epoch: Epoch,
        items: Vec<Self::Item>,
        by_ms: i64,
        copied: u64,
    ) -> Result<bool, StoreError> {
        let clock = StoreClock::default();
        let writes = items.into_iter().map(|(address, record)| {
            let clock = &clock;
            async move {
                let id = address.id;
                match put(self, clock, epoch, &address, record.moved(by_ms)).await {
                    // Until it is deleted, it refuses every pre of the operation.
                    Err(StoreError::Unreadable { reason, .. }) => {
                        tracing::error!(%id, reason, "the record that is there cannot be decoded, and is not replaced");
                        Ok(())
                    }
                    put => put,
                }
            }
        });
        match stream::iter(writes).buffer_unordered(WRITES).try_collect::<Vec<()>>().await {
            Err(StoreError::EpochOver) => Ok(false),
            Err(error) => Err(error),
            Ok(_) => self.count(epoch, copied).await,
        }
    }
}

async fn put(
    store: &dyn GateStore,
    clock: &StoreClock,
    epoch: Epoch,
    address: &OperationAddress,
    record: OperationRecord,
) -> Result<(), StoreError> {
    let (fence, command) = (Fence::Filling(epoch), Command::Copy(Box::new(record)));
    let mut seen: Option<Stored> = None;
    for _ in 0..TRIES {
        let now = match clock.now() {
            Some(now) => now,
            None => learned(clock, async { store.ping().await.map(|now| At { now, answer: now }) }).await?,
        };
        let step = step(seen.as_ref().map(|stored| stored.record.clone()), command.clone(), now);
        if !step.changed {
            return Ok(());
        }
        if seen.is_none() && step.record.is_none() {
            return Ok(());
        }
        let expected = seen.as_ref().map(|stored| stored.version);
        let change = Change { expected, record: step.record.as_ref(), wakes: false };
        match learned(clock, store.write(Write { fence, now, address, change })).await? {
            Written::Done(_) => return Ok(()),
            Written::Exists(stored) => seen = Some(*stored),
            Written::Moved => seen = None,
            Written::ClockOff => {}
        }
    }
    Err(StoreError::Contended("for an operation that is copied"))
}

/// Learns the store's clock from an answer.
async fn learned<T>(
    clock: &StoreClock,
    call: impl Future<Output = Result<At<T>, StoreError>>,
) -> Result<T, StoreError> {
    let asked = Instant::now();
    let At { now, answer } = call.await?;
    clock.learn((0, 0), now, asked, Instant::now());
    Ok(answer)
}
