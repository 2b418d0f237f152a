//! Engine records in Redis: one string each, which every commit's script looks at: `STATE EPOCH RUN_ID PROMOTED_FROM REVISION COPIED JSON`.
//! A server that has lost its data has lost the record too, so the next commit is refused. So it is on another server than the one that
//! the record names by its run id: commits that were acknowledged may be missing there.

use super::checks;
use super::info::{Info, RUN_ID_MAX, is_another};
use super::layout::{Time, beginning, timestamp};
use super::link::Link;
use super::scripts::RECORD;
use crate::store::engine_record::{EngineRecord, EngineState, Epoch, Reading};
use crate::store::{StoreError, random_number};

/// The range of a record that [`is_in_force`] needs.
pub(in crate::store) const HEAD: (usize, usize) = (0, RUN_ID_MAX + 64);

/// Whether a record that begins with `head` is in this state and epoch, on the server with this run id.
pub(in crate::store) fn is_in_force((state, epoch): (EngineState, Epoch), run_id: &str, head: &str) -> bool {
    head.strip_prefix(&beginning(state, epoch))
        .and_then(|rest| rest.split_once(' '))
        .is_some_and(|(on, _)| on == run_id)
}

/// # Errors
/// When another program has written to the key.
fn decode(value: &str, reading: Reading, info: &Info) -> Result<Reading, StoreError> {
    let foreign = || StoreError::Unavailable("the key of the engine record holds something else".to_owned());
    let fields: Vec<&str> = value.splitn(7, ' ').collect();
    let [_, _, run_id, promoted_from, revision, copied, body] = fields[..] else { return Err(foreign()) };
    let record: EngineRecord = serde_json::from_str(body).map_err(|_| foreign())?;
    Ok(Reading {
        record: Some(record),
        revision: revision.parse().map_err(|_| foreign())?,
        copied: copied.parse().map_err(|_| foreign())?,
        is_after_fail_over: is_another((run_id, promoted_from), info),
        ..reading
    })
}

pub(in crate::store) async fn read(link: &Link, key: &str, allow_eviction: bool) -> Result<Reading, StoreError> {
    let mut commands = redis::pipe();
    // The record first: what it says was so before the clock shows `now`.
    commands.cmd("GET").arg(key).cmd("TIME").cmd("INFO").arg(&["server", "replication", "memory"]);
    let ((value, time, info), _): ((Option<String>, Time, String), _) = link.get_all(&commands).await?;
    let info = Info(info);
    let run_id = info.run_id_of_master().map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let reading = Reading {
        server: format!("{run_id} {}", info.promoted_from()),
        now: timestamp(time),
        risk: checks::eviction(&info, allow_eviction),
        ..Reading::default()
    };
    match value {
        Some(value) => decode(&value, reading, &info),
        None => Ok(reading),
    }
}

pub(in crate::store) async fn write(
    link: &Link,
    key: String,
    read: &Reading,
    next: &EngineRecord,
) -> Result<bool, StoreError> {
    let body = serde_json::to_string(next).map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let head = beginning(next.state, next.epoch);
    let (revision, read_at) = (read.revision.to_string(), read.now.as_ms().to_string());
    let arguments = [revision, read.server.clone(), head, format!("{} 0 {body}", random_number()), read_at];
    link.write(&RECORD, &[key], &arguments).await
}
