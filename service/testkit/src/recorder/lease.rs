//! One lease: what it asks for, and the calls about it.

use std::time::Duration;

use latchgate_bench::http::lease_id;
use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::{GIVEN_BACK_TTL_MS, Recorder, Workload};
use crate::caller::Caller;
use crate::recorded::{Asked, Mode};

/// Of permits, and of a group.
const LIMIT: u64 = 4;
const GROUPS: u64 = 3;
const MIN_HOLD_MS: u64 = 300;
const MULTILOCK_MAX: u64 = 4;
const BARGE_ONE_IN: u64 = 20;
const DELAY_ONE_IN: u64 = 12;
const DELAY_MS: u64 = 300;

/// How many permits a group may have.
pub fn group_limit(group: &str) -> Option<u64> {
    let number = group.strip_prefix("group-")?.parse().ok()?;
    Some(number).filter(|number| *number > 0)
}

/// Its acquire with all repetitions, its renewals and its release.
#[derive(Clone)]
pub(super) struct LeasePlan {
    /// More than one for a multilock.
    pub keys: Vec<String>,
    pub id: String,
    pub owner: String,
    pub asked: Asked,
    pub ticket: Option<Value>,
    /// Its holder does more than to hold it.
    pub is_varied: bool,
}

impl LeasePlan {
    /// `number` is the client's, and `sequence` that of the lease. The owner has no other lease.
    pub fn new(recorder: &Recorder, workload: Workload, number: u64, sequence: u64, caller: &mut Caller) -> Self {
        let ttl_ms = recorder.args.ttl_ms;
        let mut asked = Asked { ttl_ms, wait_ms: ttl_ms / 3, ..Asked::default() };
        let key = |number: u64| format!("{}{}-{number}", recorder.prefix(), workload.keys());
        let random = &mut caller.random;
        let any = |random: &mut StdRng| key(random.random_range(0..recorder.args.keys));
        let mut keys =
            vec![if workload == Workload::Exclusive { key(number % recorder.args.keys) } else { any(random) }];
        match workload {
            Workload::Shared if random.random() => asked.mode = Mode::Shared,
            Workload::Permits | Workload::Groups | Workload::Rates => {
                asked.mode = Mode::Permits;
                asked.limit = LIMIT;
                asked.permits = if workload == Workload::Permits { random.random_range(1..LIMIT) } else { 1 };
            }
            Workload::Tickets => {
                asked.wait_ms = ttl_ms / 12;
                asked.priority = random.random_range(1..=10);
            }
            // Of an owner that holds nothing, it is a request like others.
            Workload::Reentrant => asked.reentrant = random.random(),
            Workload::Multilock => {
                let count = random.random_range(2..=MULTILOCK_MAX);
                keys.extend((1..count).map(|_| any(random)));
                keys.sort();
                keys.dedup();
                asked.multilock = true;
            }
            _ => {}
        }
        match workload {
            Workload::Groups => {
                let number = random.random_range(0..=GROUPS);
                asked.group = format!("group-{number}");
                asked.group_limit = group_limit(&asked.group).unwrap_or(0);
            }
            Workload::Rates => asked.min_hold_ms = MIN_HOLD_MS,
            Workload::HangUp if recorder.args.must_give_back => asked.ttl_ms = GIVEN_BACK_TTL_MS,
            _ => {}
        }
        let is_varied = !matches!(workload, Workload::Exclusive | Workload::HangUp | Workload::Tickets);
        if is_varied {
            asked.ttl_ms = *caller.one_of(&[ttl_ms, ttl_ms, ttl_ms / 2]);
            asked.wait_ms = *caller.one_of(&[0, ttl_ms / 3, ttl_ms / 3, 2 * ttl_ms]);
            asked.barge = !asked.multilock && caller.one_in(BARGE_ONE_IN);
            asked.delay_ms = if caller.one_in(DELAY_ONE_IN) { DELAY_MS } else { 0 };
        }
        let id = lease_id(recorder.recording.run, usize::try_from(number).unwrap_or(usize::MAX), sequence);
        // Owners are no secret, but lease ids are: so the owner is not the lease id.
        Self { keys, id, owner: format!("client-{number}-{sequence}"), asked, ticket: None, is_varied }
    }

    pub fn wait(&self) -> Duration {
        Duration::from_millis(self.asked.wait_ms)
    }

    /// The path and the body of the acquire.
    pub fn acquire(&self) -> (String, Value) {
        let Asked { mode, permits, limit, ref group, group_limit, ttl_ms, wait_ms, priority, min_hold_ms, .. } =
            self.asked;
        let mut body = json!({
            "lease_id": self.id, "owner": self.owner, "ttl_ms": ttl_ms, "wait_ms": wait_ms,
            "reentrant": self.asked.reentrant,
        });
        if self.asked.delay_ms > 0 {
            body["delay_ms"] = json!(self.asked.delay_ms);
        }
        if let Some(ticket) = &self.ticket {
            body["ticket"] = ticket.clone();
        }
        if priority > 0 {
            body["priority"] = json!(priority);
        }
        if self.asked.multilock {
            body["locks"] = self.keys.iter().map(|key| json!({ "key": key })).collect();
            return ("/v1/multilocks/acquire".to_owned(), body);
        }
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => body["mode"] = json!("shared"),
            Mode::Permits => {
                body["mode"] = json!("permits");
                body["permits"] = json!(permits);
                body["limit"] = json!(limit);
            }
        }
        if self.asked.barge {
            body["barge"] = json!(true);
        }
        if !group.is_empty() {
            body["group"] = json!(group);
            if group_limit > 0 {
                body["group_limit"] = json!(group_limit);
            }
        }
        if min_hold_ms > 0 {
            body["min_hold_ms"] = json!(min_hold_ms);
        }
        (format!("/v1/locks/{}/acquire", self.keys[0]), body)
    }

    /// The path and the body of a call about the lease: `renew` or `release`.
    pub fn keep(&self, what: &str) -> (String, Value) {
        if self.asked.multilock {
            let leases: Vec<Value> = self.keys.iter().map(|key| json!({ "key": key, "lease_id": self.id })).collect();
            return (format!("/v1/leases/{what}"), json!({ "leases": leases }));
        }
        (format!("/v1/locks/{}/{what}", self.keys[0]), json!({ "lease_id": self.id }))
    }
}
