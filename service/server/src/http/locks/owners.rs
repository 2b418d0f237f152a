//! `GET /v1/owners/{owner}`: what an owner holds, and what it waits for.

use std::collections::BTreeSet;

use latchgate_core::Address;
use latchgate_core::lock::{Blocked, Lease, LockState, Owner};

use super::answers::{HOLDERS_SHOWN_MAX, Holder, holders};
use super::reading::WaitingAnswer;
use super::search::{Found, Search};
use crate::format::{answers, queries};
use crate::http::answer;
use crate::http::call::{Answered, Call};
use crate::http::path::PathText;
use crate::http::problem::Problem;
use crate::http::query::Query;
use crate::locks::{Inspected, Queues};

/// Most keys that are shown for which an owner waits.
const WAITS_SHOWN_MAX: usize = 100;

queries! {
    pub struct OwnerQuery {
        /// Only keys that begin with this.
        #[param(max_length = 512)]
        prefix: Option<String>,
        /// `next_cursor` of the answer before.
        #[param(min_length = 1, max_length = 2_048)]
        cursor: Option<String>,
    }
}

answers! {
    /// What this node knows of the owner. One that it knows nothing of holds nothing and waits for nothing.
    pub struct OwnerAnswer {
        owner: String,
        /// The keys that the owner holds, among those that were looked through.
        holds: Vec<HeldKey>,
        /// The keys that it waits for at the node that answers, at most 100.
        waits_for: Vec<AwaitedKey>,
        /// The owner waits in a circle of up to 16 owners: each waits for the next, and the last for the first. A circle with a waiter at
        /// another node is not seen.
        cycle?: Vec<Blocked>,
        /// The app of all keys of `cycle`. Only in the answer about all apps.
        cycle_app?: Option<String>,
        /// How many requests wait at other nodes for the keys that were looked through: their owners are not known here.
        waiting_elsewhere: u64,
        /// The node has looked through 1 000 keys, and there are more: send it as `cursor` for what the owner holds of them.
        next_cursor?: Option<String>,
    }

    pub struct HeldKey {
        /// Only in the answer about all apps.
        app?: Option<String>,
        key: String,
        /// Its leases of the key.
        leases: Vec<Holder>,
    }

    pub struct AwaitedKey {
        /// Only in the answer about all apps.
        app?: Option<String>,
        key: String,
        /// The owner's requests.
        waiting: Vec<WaitingAnswer>,
        /// The first 16 holders of the key.
        holders: Vec<Holder>,
    }
}

/// Show what an owner holds and what it waits for.
///
/// So a person sees who blocks whom. A node knows the holders of all keys, and the owners of the requests that wait at itself.
#[utoipa::path(
    get, path = "/v1/owners/{owner}", tag = "locks",
    params(("owner" = String, Path, min_length = 1, max_length = 256, description = "The owner as plain text, percent-encoded by the client", example = "billing-7"), OwnerQuery),
    responses((status = 200, body = OwnerAnswer))
)]
pub async fn owner(call: Call, PathText(owner): PathText, Query(query): Query<OwnerQuery>) -> Answered {
    // Names that the server has made can be looked for, too.
    let owner = Owner::of_any(&owner).map_err(|error| Problem::field("owner", error))?;
    let search = Search::parse(&call, query.prefix, query.cursor.as_deref())?;
    let prefix = search.prefix.clone();
    let locks = &call.context.locks;
    let mut queues = locks.queues(call.apps()).await;
    queues.0.retain(|queued| queued.address.key.as_str().starts_with(&prefix));
    let waits_for = waits_for(&call, &owner, &queues).await?;
    let cycle = if waits_for.is_empty() { None } else { locks.cycle_of(&owner, &queues).await? };
    let mut waiting_elsewhere = 0;
    let held = |address: &Address, state: LockState, now| {
        waiting_elsewhere += state.waiting_elsewhere(locks.node_id());
        let leases: Vec<&Lease> = state.holders().iter().filter(|lease| lease.owner == owner).collect();
        let (app, key) = (call.shown_app(&address.app), address.key.as_str().to_owned());
        (!leases.is_empty()).then(|| HeldKey { app, key, leases: holders(leases, now) })
    };
    let Found { locks: holds, next_cursor, .. } = search.run(&call, usize::MAX, true, held).await?;
    let (cycle_app, cycle) = cycle.map_or_else(Default::default, |(app, cycle)| (call.shown_app(&app), cycle));
    let owner = owner.as_str().to_owned();
    Ok(answer::ok(&OwnerAnswer { owner, holds, waits_for, cycle, cycle_app, waiting_elsewhere, next_cursor }))
}

/// The keys for which the owner waits at this node, each as it is now.
async fn waits_for(call: &Call, owner: &Owner, queues: &Queues) -> Result<Vec<AwaitedKey>, Problem> {
    let is_of = |waiting: &&crate::locks::Waiting| waiting.owner.as_ref() == Some(owner);
    let awaited = queues.0.iter().filter(|queued| queued.waiting.iter().any(|waiting| is_of(&waiting)));
    let addresses: BTreeSet<&Address> = awaited.map(|queued| &queued.address).collect();
    let mut keys = Vec::new();
    for address in addresses.into_iter().take(WAITS_SHOWN_MAX) {
        let Inspected { state, waiting, now, .. } = call.context.locks.inspect(address).await?;
        let waiting: Vec<_> = waiting.iter().filter(is_of).map(WaitingAnswer::from).collect();
        // It may have been granted the lock meanwhile.
        if !waiting.is_empty() {
            keys.push(AwaitedKey {
                app: call.shown_app(&address.app),
                key: address.key.as_str().to_owned(),
                waiting,
                holders: holders(state.holders().iter().take(HOLDERS_SHOWN_MAX), now),
            });
        }
    }
    Ok(keys)
}
