//! Documents in Redis: for each a hash with its version and its text.

use async_trait::async_trait;

use super::RedisStore;
use super::layout::beginning;
use super::scripts::DOCUMENT;
use crate::store::StoreError;
use crate::store::documents::{DocumentStore, StoredDocument};
use crate::store::engine_record::{EngineState, Epoch};

#[async_trait]
impl DocumentStore for RedisStore {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        let (shared, key) = (&self.shared, self.shared.layout.document(name));
        let mut get = redis::cmd("HGET");
        get.arg(&key).arg("version");
        let version: Option<u64> = shared.link.get(&get).await?;
        if version.unwrap_or_default() == known {
            return Ok(StoredDocument { version: known, text: None });
        }
        // Both at once: the document may have changed meanwhile.
        let mut get = redis::cmd("HMGET");
        get.arg(&key).arg("version").arg("text");
        let (version, text): (Option<u64>, Option<String>) = shared.link.get(&get).await?;
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
        self.shared.link.write(&DOCUMENT, &keys, &arguments).await
    }
}
