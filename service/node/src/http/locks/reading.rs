//! `GET /v1/locks/{key}` and `GET /v1/locks`.

use latchgate_core::key::check_name;
use latchgate_core::lock::{LockState, OWNER_MAX_BYTES};
use latchgate_core::{Address, Timestamp};
use serde::Deserialize;

use super::closing::ClosingAnswer;
use super::json::{HOLDERS_SHOWN_MAX, Holder, holders};
use super::search::{Found, Search};
use crate::format::{DateTime, answers, queries, rfc3339};
use crate::http::answer;
use crate::http::call::{Answered, Call};
use crate::http::path::PathAddress;
use crate::http::problem::Problem;
use crate::http::query::{PAGE_MAX, Query, page_limit};
use crate::locks::Waiting;

answers! {
    /// A lock as it is now. One that was never taken is free.
    pub struct LockAnswer {
        /// Only in a listing of all apps.
        app?: Option<String>,
        key: String,
        held: bool,
        /// The highest token granted so far, to whichever lease; 0 if there is no record.
        last_token: u64,
        /// In the order of their grants. A listing names the first 16 of each lock.
        holders: Vec<Holder>,
        holders_count: usize,
        /// How many permits the key has, if a limit is in force.
        limit?: Option<u32>,
        /// How many permits are held, with those that are kept.
        permits_held?: Option<u32>,
        /// How many permits stay taken although their leases have ended, because of `min_hold_ms`.
        permits_kept?: Option<u32>,
        /// Set while the key is closed.
        closed?: Option<ClosingAnswer>,
        /// The lock is not granted before this, because of a lock-delay or a `min_hold_ms`.
        delayed_until?: Option<DateTime>,
        /// The highest token presented to `fence`.
        fence?: Option<u64>,
        /// How many requests wait for the lock.
        waiters: u64,
        /// The first 100 waiters of the node that answers, in the order of service; groups take turns beside that. Absent in a listing.
        waiting?: Option<Vec<WaitingAnswer>>,
        /// How many of the `waiters` are not in `waiting`, most of them at other nodes. Absent in a listing.
        waiting_elsewhere?: Option<u64>,
    }

    pub struct WaitingAnswer {
        /// Null if the request named none.
        #[schema(required)]
        owner: Option<String>,
        mode: &'static str,
        /// How many permits it waits for, if its mode is `permits`.
        permits?: Option<u32>,
        /// The group that the permits would count for.
        group?: Option<String>,
        priority: u8,
        /// When it arrived, by the store's clock.
        since: DateTime,
        /// It is a multilock that waits for this key among others.
        multilock?: bool,
    }
}

impl From<&Waiting> for WaitingAnswer {
    fn from(waiting: &Waiting) -> Self {
        Self {
            owner: waiting.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            mode: waiting.mode.as_str(),
            permits: Some(waiting.mode.permits()).filter(|permits| *permits > 0),
            group: waiting.group.as_ref().map(|group| group.as_str().to_owned()),
            priority: waiting.priority,
            since: rfc3339(waiting.since),
            multilock: waiting.is_multilock,
        }
    }
}

queries! {
    pub struct ListQuery {
        /// Only keys that begin with this.
        #[param(max_length = 512)]
        prefix: Option<String>,
        /// Only keys that this owner holds.
        #[param(min_length = 1, max_length = 256)]
        owner: Option<String>,
        /// Only keys that are held (`true`) or free (`false`).
        held: Option<bool>,
        /// Only keys that are closed (`true`) or open (`false`).
        closed: Option<bool>,
        /// With `waiters`: only keys that requests wait for, those with the most first. With `held_since`: only held keys, in the order in which
        /// their oldest leases were granted. The order is that of one page: a page looks through 1 000 keys, and through 200 apps if `app` is `*`.
        #[param(inline)]
        sort: Option<Sort>,
        /// Most keys in the answer: 1 to 1 000; 100 if absent.
        #[param(minimum = 1, maximum = 1_000)]
        limit: Option<usize>,
        /// `next_cursor` of the page before.
        #[param(min_length = 1, max_length = 2_048)]
        cursor: Option<String>,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sort {
    Waiters,
    HeldSince,
}

answers! {
    /// One page of locks.
    pub struct ListAnswer {
        locks: Vec<LockAnswer>,
        /// Keys between those of `locks` whose state in the store cannot be read: see the error `state-unreadable`. If `app` is `*`, each
        /// is a JSON list of the app and the key: `["billing","k"]`.
        unreadable?: Vec<String>,
        /// Send it as `cursor` for the next page; absent on the last. Pages before the last may be short or empty.
        next_cursor?: Option<String>,
    }
}

/// Show a lock.
#[utoipa::path(get, path = "/v1/locks/{key}", tag = "locks", responses((status = 200, body = LockAnswer)))]
pub async fn inspect(call: Call, PathAddress(address): PathAddress) -> Answered {
    let inspected = call.context.locks.inspect(&address).await?;
    let answer = lock_answer(&address, &inspected.state, usize::MAX, inspected.waiters, inspected.now);
    let waiting = inspected.waiting.iter().map(WaitingAnswer::from).collect();
    let waiting_elsewhere = Some(inspected.waiting_elsewhere);
    Ok(answer::ok(&LockAnswer { waiting: Some(waiting), waiting_elsewhere, ..answer }))
}

/// List locks, in the order of their apps and keys, of their waiters, or of how long they are held.
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(ListQuery), responses((status = 200, body = ListAnswer)))]
pub async fn list(call: Call, Query(query): Query<ListQuery>) -> Answered {
    if let Some(owner) = &query.owner {
        check_name(owner, OWNER_MAX_BYTES).map_err(|error| Problem::field("owner", error))?;
    }
    let limit = page_limit(query.limit)?;
    call.count_listed(if query.sort.is_some() { PAGE_MAX } else { limit })?;
    let search = Search::parse(&call, query.prefix, query.cursor.as_deref())?;
    let ListQuery { owner, held, closed, sort, .. } = query;
    let listed = |address: &Address, state: LockState, now| {
        let is_owned = |owner: &String| state.holders().iter().any(|lease| lease.owner.as_str() == owner);
        if held.is_some_and(|held| held == state.holders().is_empty()) || !owner.as_ref().is_none_or(is_owned) {
            return None;
        }
        if closed.is_some_and(|closed| closed != state.closing(now).is_some()) {
            return None;
        }
        let waiters = state.turns().iter().map(|turn| u64::from(turn.waiting)).sum();
        let rank = match sort {
            None => 0,
            Some(Sort::Waiters) if waiters == 0 => return None,
            Some(Sort::Waiters) => u64::MAX - waiters,
            Some(Sort::HeldSince) => state.holders().iter().map(|lease| lease.granted_at.as_ms()).min()?,
        };
        let app = call.shown_app(&address.app);
        Some((rank, LockAnswer { app, ..lock_answer(address, &state, HOLDERS_SHOWN_MAX, waiters, now) }))
    };
    // All that one request looks through is ordered, and then cut.
    let max = if sort.is_some() { usize::MAX } else { limit };
    let is_filter = sort.is_some() || owner.is_some() || held.is_some() || closed.is_some();
    let Found { locks: mut ranked, unreadable, next_cursor } = search.run(&call, max, is_filter, listed).await?;
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(limit);
    let locks = ranked.into_iter().map(|(_, lock)| lock).collect();
    Ok(answer::ok(&ListAnswer { locks, unreadable, next_cursor }))
}

fn lock_answer(address: &Address, state: &LockState, holders_max: usize, waiters: u64, now: Timestamp) -> LockAnswer {
    let limit = state.limit_in_force();
    LockAnswer {
        app: None,
        key: address.key.as_str().to_owned(),
        held: !state.holders().is_empty(),
        last_token: state.token(),
        holders: holders(state.holders().iter().take(holders_max), now),
        holders_count: state.holders().len(),
        limit,
        permits_held: limit.map(|_| state.permits_held()),
        permits_kept: Some(state.permits_kept()).filter(|permits| *permits > 0),
        closed: state.closing(now).map(|closing| ClosingAnswer::of(closing, now)),
        delayed_until: state.delayed_until(now).map(rfc3339),
        fence: Some(state.fence()).filter(|fence| *fence > 0),
        waiters,
        waiting: None,
        waiting_elsewhere: None,
    }
}
