//! Engine records in Redis: one string each, which every commit's script looks at: `STATE EPOCH REVISION COPIED JSON`. A server
//! that has lost its data has lost the record too, so the next commit is refused.

use latchgate_core::Timestamp;

use super::checks;
use super::layout::beginning;
use super::scripts::{Program, RECORD, read as read_answer};
use crate::store::engine_record::{EngineRecord, Reading};
use crate::store::{StoreError, random_number};

/// # Errors
/// When another program has written to the key.
pub(in crate::store) fn decode(value: Option<&str>, now: Timestamp) -> Result<Reading, StoreError> {
    let reading = Reading { now, ..Reading::default() };
    let Some(value) = value else { return Ok(reading) };
    let foreign = || StoreError::Unavailable("the key of the engine record holds something else".to_owned());
    let mut fields = value.splitn(5, ' ').skip(2);
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (revision, copied) = (number().ok_or_else(foreign)?, number().ok_or_else(foreign)?);
    let body = fields.next().ok_or_else(foreign)?;
    let record: EngineRecord = serde_json::from_str(body).map_err(|_| foreign())?;
    Ok(Reading { record: Some(record), revision, copied, ..reading })
}

/// The script, and its arguments.
pub(in crate::store) fn replacement(
    read: &Reading,
    next: &EngineRecord,
) -> Result<(&'static Program, [String; 2]), StoreError> {
    let body = serde_json::to_string(next).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let value = format!("{}{} 0 {body}", beginning(next.state, next.epoch), random_number());
    Ok((&RECORD, [read.revision.to_string(), value]))
}

impl super::Shared {
    pub(super) async fn read_record(&self) -> Result<Reading, StoreError> {
        let key = self.layout.engine();
        let mut get = redis::cmd("GET");
        get.arg(&key);
        // The record first: what it says was so before the clock shows `now`.
        let value = self.link.query(&get).await.map_err(|failed| failed.of_read())?;
        let value: Option<String> = read_answer(value).map_err(StoreError::of_reading)?;
        let mut reading = decode(value.as_deref(), self.clock().await?)?;
        reading.risk = checks::eviction(&self.link, self.allow_eviction).await;
        Ok(reading)
    }

    pub(super) async fn write_record(&self, read: &Reading, next: &EngineRecord) -> Result<bool, StoreError> {
        let (program, arguments) = replacement(read, next)?;
        let answer = self.link.run(program, &[self.layout.engine()], &arguments).await;
        read_answer(answer.map_err(|failed| failed.of_write())?)
    }
}
