//! All records, read page by page for a switch, and removed before the store is filled: both walk the key space with `SCAN`.

use latchgate_core::gate::{OperationAddress, OperationRecord};
use std::sync::LazyLock;

use super::{RedisGateStore, layout};
use crate::store::StoreError;
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::gate::{DumpPage, copied};
use crate::store::redis::begins_with;
use crate::store::redis::layout::beginning;
use crate::store::redis::scripts::{Program, program};

/// How many keys one `SCAN` looks at when keys are removed.
const CLEAR_COUNT: usize = 1_000;

static CLEAR: LazyLock<Program> = program!("clear.lua");

impl RedisGateStore {
    /// The place is the cursor of `SCAN`. A key that is there from the first page to the last is found, perhaps twice.
    pub(super) async fn dump_page(&self, from: Option<&str>, limit: usize) -> Result<DumpPage, StoreError> {
        let [records, _] = self.layout.all();
        let (next, keys) = self.scan(from.unwrap_or("0"), &records, limit).await?;
        let addresses = keys.iter().map(|key| self.layout.address_of(key).ok_or_else(foreign));
        let addresses = addresses.collect::<Result<Vec<OperationAddress>, _>>()?;
        let mut values: Vec<Option<Vec<u8>>> = Vec::new();
        if !keys.is_empty() {
            values = self.link.get(redis::cmd("MGET").arg(&keys)).await?;
        }
        let mut page = Vec::with_capacity(addresses.len());
        for (address, value) in addresses.into_iter().zip(values) {
            // A record whose time is over may have gone since it was found.
            let Some(value) = value else { continue };
            let record = layout::decode(&value).ok().map(|stored| stored.record);
            if record.as_ref().is_none_or(OperationRecord::is_moved_by_a_switch) {
                page.push(copied(address, record));
            }
        }
        Ok(DumpPage::of(page, next))
    }

    /// Removes everything but the engine record: durable operations live in the second store.
    pub(super) async fn clear_all(&self, epoch: Epoch) -> Result<bool, StoreError> {
        for prefix in self.layout.all() {
            let mut place = "0".to_owned();
            loop {
                let (next, keys) = self.scan(&place, &prefix, CLEAR_COUNT).await?;
                let keys: Vec<String> = std::iter::once(self.layout.engine()).chain(keys).collect();
                let is_filling: bool =
                    self.link.write(&CLEAR, &keys, &[beginning(EngineState::Filling, epoch)]).await?;
                match next {
                    Some(next) if is_filling => place = next,
                    _ if is_filling => break,
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    async fn scan(&self, place: &str, prefix: &str, count: usize) -> Result<(Option<String>, Vec<String>), StoreError> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(place).arg("MATCH").arg(begins_with(prefix)).arg("COUNT").arg(count);
        let (next, keys): (String, Vec<String>) = self.link.get(&scan).await?;
        Ok(((next != "0").then_some(next), keys))
    }
}

/// To leave it out would be to lose a record.
fn foreign() -> StoreError {
    StoreError::Unavailable("a key of the gate has no name that this program gives".to_owned())
}
