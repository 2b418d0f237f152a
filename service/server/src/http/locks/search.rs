//! A walk over the locks of an app: of a listing, and of what an owner holds.

use latchgate_core::lock::LockState;
use latchgate_core::{Key, Timestamp};

use crate::http::call::Call;
use crate::http::problem::Problem;

/// Most states that one statement reads, because states can be long.
const READ_MAX: usize = 200;
/// Most states that one request reads to find matching ones.
const SCAN_MAX: usize = 1_000;

/// Where a walk goes.
pub struct Search {
    pub prefix: String,
    /// Only keys behind this one.
    after: Option<Key>,
}

pub struct Found<T> {
    pub locks: Vec<T>,
    /// Keys whose state in the store cannot be read.
    pub unreadable: Vec<String>,
    pub next_cursor: Option<String>,
}

impl Search {
    pub fn parse(call: &Call, prefix: Option<String>, cursor: Option<&str>) -> Result<Self, Problem> {
        let after = cursor.map(Key::parse).transpose().map_err(|error| Problem::field("cursor", error))?;
        Ok(Self { prefix: parse_prefix(call, prefix)?, after })
    }

    /// Up to `max` locks out of which `select` makes something, in the order of their keys. `is_filter`: `select` may drop most.
    pub async fn run<T>(
        self,
        call: &Call,
        max: usize,
        is_filter: bool,
        mut select: impl FnMut(&Key, LockState, Timestamp) -> Option<T>,
    ) -> Result<Found<T>, Problem> {
        let Self { prefix, mut after } = self;
        // One row more than requested shows whether there is another page.
        let rows_max = if is_filter { READ_MAX } else { max.saturating_add(1).min(READ_MAX) };
        let (mut locks, mut unreadable, mut scanned) = (Vec::new(), Vec::new(), 0);
        let has_more = 'pages: loop {
            let (page, now) = call.context.locks.list(call.app(), &prefix, after.as_ref(), rows_max).await?;
            let is_last = page.len() < rows_max;
            scanned += page.len();
            for (key, state) in page {
                if locks.len() == max {
                    break 'pages true;
                }
                match state {
                    Some(mut state) => {
                        let _ = state.settle(now);
                        locks.extend(select(&key, state, now));
                    }
                    None => unreadable.push(key.as_str().to_owned()),
                }
                after = Some(key);
            }
            if is_last || scanned >= SCAN_MAX {
                break !is_last;
            }
        };
        let next_cursor = after.filter(|_| has_more).map(|key| key.as_str().to_owned());
        Ok(Found { locks, unreadable, next_cursor })
    }
}

/// The text with which keys begin that the caller may use; empty for all of its app.
pub fn parse_prefix(call: &Call, prefix: Option<String>) -> Result<String, Problem> {
    let prefix = prefix.unwrap_or_default();
    if !prefix.is_empty() {
        Key::parse(&prefix).map_err(|error| Problem::field("prefix", error))?;
    }
    call.check_keys(&prefix)?;
    Ok(prefix)
}
