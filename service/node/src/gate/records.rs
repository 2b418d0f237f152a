//! Reading, listing and deleting records of either store.

use std::time::Duration;

use latchgate_core::gate::{Command, OperationAddress, Outcome, State};
use latchgate_core::{Address, App};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::machine::{Machine, row_of};
use super::{Operations, Reply, Shown, ShownPage};
use crate::failure::{CallResult, Failure};
use crate::store::{Filter, Listing};

/// A sorted listing looks at so many pages of the stores, each of which examines a bounded number of records, ...
const SORTED_PAGES_MAX: usize = 40;
const SORTED_PAGE: usize = 500;
/// ... and takes no longer than this, but for its last page.
const SORTED_TIME_MAX: Duration = Duration::from_secs(2);

/// In which order a sorted listing has the operations: by the time at which their present state began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ByTime {
    Oldest,
    Newest,
}

/// Why there is no listing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ListFailure {
    #[error("the cursor is not one of this listing")]
    InvalidCursor,
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl Operations {
    /// The record that counts, if there is one.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, address: &OperationAddress) -> CallResult<Option<Shown>> {
        let mut failure = None;
        for set in self.inner.sets() {
            match set.get(address).await {
                Ok(Some(record)) => return Ok(Some(Shown { address: address.clone(), record, now: set.now() })),
                Ok(None) => {}
                // The record may be in the store that does not answer.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// A page of records, in the order of apps and ids: first those of the gate's own set.
    ///
    /// # Errors
    /// When a store does not answer, or the cursor is none of its own.
    pub async fn list(&self, listing: &Listing) -> Result<ShownPage, ListFailure> {
        let inner = &self.inner;
        let cursor = listing.cursor.as_deref().map(|cursor| cursor.split_at_checked(1));
        let (set, letter, cursor) = match (cursor, &inner.own) {
            (None, Some(own)) => (own, 'o', None),
            (Some(Some(("o", rest))), Some(own)) => (own, 'o', Some(rest)),
            (None, None) => (&inner.main, 'm', None),
            (Some(Some(("m", rest))), _) => (&inner.main, 'm', Some(rest).filter(|rest| !rest.is_empty())),
            _ => return Err(ListFailure::InvalidCursor),
        };
        let wanted = Listing { cursor: cursor.map(str::to_owned), ..listing.clone() };
        if !wanted.is_valid() {
            return Err(ListFailure::InvalidCursor);
        }
        let page = set.list(|used| async move { used.store.list_operations(&wanted).await }).await?;
        let now = set.now();
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for (row, record) in page.records {
            // Another program has written it.
            let Some(address) = address_of(&row) else { continue };
            match record {
                Some(record) if now.ms_since(record.since()) < listing.filter.older_than_ms => {}
                Some(record) => records.push(Shown { address, record, now }),
                None => unreadable.push(address),
            }
        }
        inner.metrics.unreadable.inc_by(unreadable.len() as u64);
        let then = (letter == 'o').then(|| "m".to_owned());
        let next = page.next.map(|next| format!("{letter}{next}")).or(then);
        Ok(ShownPage { records, unreadable, next, is_incomplete: false })
    }

    /// The first `limit` records by time, of those that a bounded walk along the stores finds: no store has an index by time, which each
    /// claim would have to pay for.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn list_by_time(&self, listing: &Listing, order: ByTime) -> Result<ShownPage, ListFailure> {
        let permit = self.inner.walks.try_acquire();
        let _walks = permit.map_err(|_| Failure::Overloaded("too many listings by time at once"))?;
        let began = Instant::now();
        let mut found = ShownPage { records: Vec::new(), unreadable: Vec::new(), next: None, is_incomplete: false };
        for _ in 0..SORTED_PAGES_MAX {
            let page = Listing { cursor: found.next.take(), limit: SORTED_PAGE, ..listing.clone() };
            let page = self.list(&page).await?;
            found.records.extend(page.records);
            found.unreadable.extend(page.unreadable);
            found.next = page.next;
            found.records.sort_by_key(|shown| (shown.record.since(), shown.address.id));
            // A store may have listed one twice.
            found.records.dedup_by_key(|shown| shown.address.id);
            if order == ByTime::Newest {
                found.records.reverse();
            }
            found.records.truncate(listing.limit);
            if found.next.is_none() || began.elapsed() > SORTED_TIME_MAX {
                break;
            }
        }
        found.is_incomplete = found.next.take().is_some();
        Ok(found)
    }

    /// Whether the app has operations; also if it has too many records to look through.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn has_records(&self, app: &App) -> CallResult<bool> {
        let mut next: Option<String> = None;
        for _ in 0..SORTED_PAGES_MAX {
            let listing =
                Listing { app: Some(app.clone()), filter: Filter::default(), cursor: next, limit: SORTED_PAGE };
            let page = match self.list(&listing).await {
                Ok(page) => page,
                Err(ListFailure::Failure(failure)) => return Err(failure),
                Err(ListFailure::InvalidCursor) => return Ok(true),
            };
            if !page.records.is_empty() || !page.unreadable.is_empty() {
                return Ok(true);
            }
            next = page.next;
            if next.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Forgets a record; one whose attempt runs, or may have run, or that cannot be decoded, only by `force`.
    ///
    /// # Errors
    /// When there is no answer: repeat it, it is safe.
    pub async fn forget(&self, address: &OperationAddress, force: bool) -> CallResult<Reply> {
        let mut found: Option<Reply> = None;
        for set in self.inner.sets() {
            let reply = forget_in(set, address, force).await?;
            if matches!(reply.outcome, Outcome::StillStarted { .. } | Outcome::Unknown { .. }) {
                return Ok(reply);
            }
            let was_there = |reply: &Reply| reply.outcome != Outcome::NotFound;
            if found.as_ref().is_none_or(|found| !was_there(found) && was_there(&reply)) {
                found = Some(reply);
            }
        }
        found.ok_or(Failure::Overloaded("there is no store"))
    }
}

async fn forget_in(set: &Machine, address: &OperationAddress, force: bool) -> CallResult<Reply> {
    let unreadable = match set.apply(address, &Command::Forget { force }).await {
        Err(error @ Failure::Unreadable { .. }) if force => error,
        reply => return reply,
    };
    let used = set.engines().in_use()?;
    let row = row_of(address);
    let discard = set.engines().checked(used.epoch, used.store.discard(used.epoch, &row));
    if !set.engines().in_time(discard).await? {
        return Err(unreadable);
    }
    tracing::warn!(app = address.app.as_str(), id = %address.id, "a record that cannot be decoded was deleted");
    Ok(set.reply(Outcome::Forgotten { was: State::Unknown }))
}

fn address_of(row: &Address) -> Option<OperationAddress> {
    Some(OperationAddress { app: row.app.clone(), id: row.key.as_str().parse().ok()? })
}
