//! A walk over the locks of an app or of all apps: of a listing, and of what an owner holds.

use std::fmt::Display;

use latchgate_core::lock::LockState;
use latchgate_core::{Address, App, Key, Timestamp};

use crate::http::call::Call;
use crate::http::problem::Problem;
use crate::store::{position_after, read_position};

/// Most states that one statement reads, because states can be long.
const READ_MAX: usize = 200;
/// Most states that one request reads to find matching ones.
const SCAN_MAX: usize = 1_000;
/// An app counts as at least so many of them, because each has statements of its own.
const SCANNED_PER_APP: usize = 5;

/// Where a walk goes.
pub struct Search {
    pub prefix: String,
    /// The first app; `None` if it is to be found.
    app: Option<App>,
    /// Only keys of it behind this one.
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
        let prefix = parse_prefix(call, prefix)?;
        let invalid = |error: &dyn Display| Problem::field("cursor", error);
        let key = |key: &str| Key::parse(key).map_err(|error| invalid(&error));
        let (app, after) = match (call.apps(), cursor) {
            (Some(app), cursor) => (Some(app.clone()), cursor.map(key).transpose()?),
            (None, None) => (None, None),
            (None, Some(cursor)) => {
                let position = read_position(Some(cursor));
                let (app, after) = position.map_err(|_| invalid(&"must be the next_cursor of a page of all apps"))?;
                // Without a key, the page begins with the app.
                let after = Some(after).filter(|after| !after.is_empty()).map(|after| key(&after)).transpose()?;
                (Some(App::parse(&app).map_err(|error| invalid(&error))?), after)
            }
        };
        Ok(Self { prefix, app, after })
    }

    /// Up to `max` locks out of which `select` makes something, in the order of their apps and keys. `is_filter`: `select` may drop most.
    pub async fn run<T>(
        self,
        call: &Call,
        max: usize,
        is_filter: bool,
        mut select: impl FnMut(&Address, LockState, Timestamp) -> Option<T>,
    ) -> Result<Found<T>, Problem> {
        let Self { prefix, app, mut after } = self;
        // One row more than requested shows whether there is another page.
        let rows_max = if is_filter { READ_MAX } else { max.saturating_add(1).min(READ_MAX) };
        let (mut locks, mut unreadable, mut scanned) = (Vec::new(), Vec::new(), 0);
        let store = &call.context.locks;
        let mut app = if app.is_some() { app } else { store.app_after("").await? };
        'pages: while let Some(of) = &app
            && scanned < SCAN_MAX
        {
            let (page, now) = store.list(of, &prefix, after.as_ref(), rows_max).await?;
            let is_last = page.len() < rows_max;
            scanned += page.len().max(SCANNED_PER_APP);
            for (key, state) in page {
                if locks.len() == max {
                    break 'pages;
                }
                let address = Address { app: of.clone(), key };
                match state {
                    Some(mut state) => {
                        let _ = state.settle(now, 0);
                        locks.extend(select(&address, state, now));
                    }
                    None => unreadable.push(call.shown_name(of, address.key.as_str())),
                }
                after = Some(address.key);
            }
            if is_last {
                let next = if call.apps().is_none() { store.app_after(of.as_str()).await? } else { None };
                (app, after) = (next, None);
            }
        }
        let after = after.as_ref().map_or("", Key::as_str);
        let is_of_all = call.apps().is_none();
        let next_cursor = app.map(|app| if is_of_all { position_after(app.as_str(), after) } else { after.to_owned() });
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
