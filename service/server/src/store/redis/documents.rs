//! Documents in Redis: for each a hash with its version and its text.

use async_trait::async_trait;

use super::RedisStore;
use super::layout::beginning;
use super::scripts::{DOCUMENT, read, unexpected};
use crate::store::StoreError;
use crate::store::documents::{DocumentStore, StoredDocument};
use crate::store::engine_record::{EngineState, Epoch};

#[async_trait]
impl DocumentStore for RedisStore {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        let (shared, key) = (&self.shared, self.shared.layout.document(name));
        let mut get = redis::cmd("HGET");
        get.arg(&key).arg("version");
        let version = shared.link.query(&get).await.map_err(|failed| failed.of_read())?;
        let version: Option<u64> = read(version).map_err(StoreError::of_reading)?;
        if version.unwrap_or_default() == known {
            return Ok(StoredDocument { version: known, text: None });
        }
        // Both at once: the document may have changed meanwhile.
        let mut get = redis::cmd("HMGET");
        get.arg(&key).arg("version").arg("text");
        let both = shared.link.query(&get).await.map_err(|failed| failed.of_read())?;
        let (version, text): (Option<u64>, Option<String>) = read(both).map_err(StoreError::of_reading)?;
        Ok(StoredDocument { version: version.unwrap_or_default(), text })
    }

    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        (version, text): (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError> {
        let mut keys = vec![self.shared.layout.document(name)];
        let mut arguments = vec![expected.to_string(), version.to_string(), text.to_owned()];
        if let Some((state, epoch)) = fence {
            keys.push(self.shared.layout.engine());
            arguments.push(beginning(state, epoch));
        }
        let answer = self.shared.link.run(&DOCUMENT, &keys, &arguments).await.map_err(|failed| failed.of_write())?;
        match read::<u8>(answer)? {
            0 => Ok(false),
            1 => Ok(true),
            2 => Err(StoreError::EpochOver),
            _ => Err(unexpected()),
        }
    }
}
