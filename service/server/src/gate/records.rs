//! Reading, listing and deleting records of either store.

use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Command, Durability, OperationAddress, OperationRecord, Outcome, State};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::active::Home;
use super::{Inner, Operations, Reply, Shown, ShownPage};
use crate::failure::{Answer, Failure};
use crate::store::StoreError;
use crate::store::gate::{At, Filter, ListError, Listing};

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
    pub async fn get(&self, address: &OperationAddress) -> Answer<Option<Shown>> {
        let at = self.inner.get(address).await?;
        Ok(at.map(|at| Shown { address: address.clone(), record: at.answer, now: at.now }))
    }

    /// A page of records, in an order of the stores' own: first the active engine's, then those that only the second store has.
    ///
    /// # Errors
    /// When a store does not answer, or the cursor is none of its own.
    pub async fn list(&self, listing: Listing<'_>) -> Result<ShownPage, ListFailure> {
        let inner = &self.inner;
        let is_second_active = inner.engines.standing().is_some_and(|standing| standing.index > 0);
        let (target, letter, cursor) = match (listing.cursor.map(|cursor| cursor.split_at_checked(1)), &inner.second) {
            (None, Some(second)) if is_second_active => (&second.engine, 's', None),
            // The gate was switched meanwhile: the listing begins anew.
            (Some(Some(("p", _))), Some(second)) if is_second_active => (&second.engine, 's', None),
            (None, _) => (&inner.primary, 'p', None),
            (Some(Some(("p", rest))), _) => (&inner.primary, 'p', Some(rest)),
            (Some(Some(("s", ""))), Some(second)) => (&second.engine, 's', None),
            (Some(Some(("s", rest))), Some(second)) => (&second.engine, 's', Some(rest)),
            _ => return Err(ListFailure::InvalidCursor),
        };
        let page = target.gate.list(Listing { cursor, ..listing }).await.map_err(|error| match error {
            ListError::InvalidCursor => ListFailure::InvalidCursor,
            ListError::Store(error) => ListFailure::Failure(error.into()),
        })?;
        let now = target.gate.read_now().await.map_err(Failure::from)?;
        // The second store has copies that a switch has left behind.
        let is_left_behind =
            |record: &OperationRecord| letter == 's' && !is_second_active && record.durability == Durability::Fast;
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        for (address, record) in page.records {
            match record {
                Some(record) if is_left_behind(&record) => {}
                Some(record) if now.ms_since(record.since()) < listing.filter.older_than_ms => {}
                Some(record) => records.push(Shown { address, record, now }),
                None => unreadable.push(address),
            }
        }
        inner.metrics.unreadable.inc_by(unreadable.len() as u64);
        let then = (letter == 'p' && inner.second.is_some()).then(|| "s".to_owned());
        let next = page.next.map(|next| format!("{letter}{next}")).or(then);
        Ok(ShownPage { records, unreadable, next, is_incomplete: false })
    }

    /// The first `limit` records by time, of those that a bounded walk along the stores finds: no store has an index by time, which each
    /// claim would have to pay for.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn list_by_time(&self, listing: Listing<'_>, order: ByTime) -> Result<ShownPage, ListFailure> {
        let permit = self.inner.walks.try_acquire();
        let _walks = permit.map_err(|_| Failure::Overloaded("too many listings by time at once"))?;
        let began = Instant::now();
        let mut found = ShownPage { records: Vec::new(), unreadable: Vec::new(), next: None, is_incomplete: false };
        for _ in 0..SORTED_PAGES_MAX {
            let page = Listing { cursor: found.next.as_deref(), limit: SORTED_PAGE, ..listing };
            let page = self.list(page).await?;
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
    pub async fn has_records(&self, app: &App) -> Answer<bool> {
        let mut next: Option<String> = None;
        for _ in 0..SORTED_PAGES_MAX {
            let listing =
                Listing { app: Some(app), filter: &Filter::default(), cursor: next.as_deref(), limit: SORTED_PAGE };
            let page = match self.list(listing).await {
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
    pub async fn forget(&self, address: &OperationAddress, force: bool) -> Answer<Reply> {
        let inner = &self.inner;
        let in_second = match &inner.second {
            Some(_) => Some(inner.forget_at(Home::Durable, address, force).await?),
            None => None,
        };
        let needs_force =
            |reply: &&Reply| matches!(reply.outcome, Outcome::StillStarted { .. } | Outcome::Unknown { .. });
        if let Some(reply) = in_second.as_ref().filter(needs_force) {
            return Ok(reply.clone());
        }
        let in_active = inner.forget_at(Home::Fast, address, force).await?;
        let found =
            in_second.filter(|reply| matches!(reply.outcome, Outcome::Forgotten { was } if was != State::Vacant));
        Ok(match in_active.outcome {
            Outcome::NotFound => found.unwrap_or(in_active),
            _ => in_active,
        })
    }
}

impl Inner {
    async fn forget_at(&self, home: Home, address: &OperationAddress, force: bool) -> Result<Reply, StoreError> {
        let unreadable = match self.apply(home, address, &Command::Forget { force }).await {
            Err(error @ StoreError::Unreadable { .. }) if force => error,
            reply => return reply,
        };
        let Some(active) = self.active(home) else { return Err(self.engines(home).unavailable()) };
        if !active.target.gate.discard(active.fence(), address).await? {
            return Err(unreadable);
        }
        tracing::warn!(app = address.app.as_str(), id = %address.id, "a record that cannot be decoded was deleted");
        let gate = &active.target.gate;
        Ok(gate.reply(Outcome::Forgotten { was: State::Unknown }, gate.clock_now(), None))
    }

    /// The record that counts.
    async fn get(&self, address: &OperationAddress) -> Result<Option<At<OperationRecord>>, StoreError> {
        let mut failure = None;
        match self.record_at(Home::Fast, address).await {
            Ok(At { now, answer: Some(answer) }) => return Ok(Some(At { now, answer })),
            Ok(At { answer: None, .. }) => {}
            Err(error) => failure = Some(error),
        }
        if self.second.is_some()
            && let At { now, answer: Some(answer) } = self.record_at(Home::Durable, address).await?
        {
            return Ok(Some(At { now, answer }));
        }
        failure.map_or(Ok(None), Err)
    }
}
