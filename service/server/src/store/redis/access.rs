//! The document of apps and API keys in Redis: a hash with its version and its text.

use super::layout::beginning;
use super::scripts::{ACCESS, read, unexpected};
use crate::store::engine_record::{EngineState, Epoch};
use crate::store::{AccessText, StoreError};

impl super::Shared {
    pub(super) async fn read_access(&self, known: u64) -> Result<AccessText, StoreError> {
        let key = self.layout.access();
        let mut get = redis::cmd("HGET");
        get.arg(&key).arg("version");
        let version = self.link.query(&get).await.map_err(|failed| failed.of_read())?;
        let version: Option<u64> = read(version).map_err(StoreError::of_reading)?;
        if version.unwrap_or_default() == known {
            return Ok(AccessText { version: known, text: None });
        }
        // Both at once: the document may have changed meanwhile.
        let mut get = redis::cmd("HMGET");
        get.arg(&key).arg("version").arg("text");
        let both = self.link.query(&get).await.map_err(|failed| failed.of_read())?;
        let (version, text): (Option<u64>, Option<String>) = read(both).map_err(StoreError::of_reading)?;
        Ok(AccessText { version: version.unwrap_or_default(), text })
    }

    pub(super) async fn write_access(
        &self,
        (state, epoch): (EngineState, Epoch),
        expected: u64,
        (version, text): (u64, &str),
    ) -> Result<bool, StoreError> {
        let keys = [self.layout.access(), self.layout.engine()];
        let arguments = [expected.to_string(), version.to_string(), text.to_owned(), beginning(state, epoch)];
        let answer = self.link.run(&ACCESS, &keys, &arguments).await.map_err(|failed| failed.of_write())?;
        match read::<u8>(answer)? {
            0 => Ok(false),
            1 => Ok(true),
            2 => Err(StoreError::EpochOver),
            _ => Err(unexpected()),
        }
    }
}
