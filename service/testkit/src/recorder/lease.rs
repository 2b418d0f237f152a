//! One lease: what it asks for, and the calls about it.

use std::time::Duration;

use latchgate_bench::http::lease_id;
use serde_json::{Value, json};

use super::{Recorder, Workload};
use crate::recorded::{Asked, Mode};

/// Of permits, and of a group.
const LIMIT: u64 = 4;
const GROUP_LIMIT: u64 = 2;
const GROUPS: u64 = 3;
const MIN_HOLD_MS: u64 = 300;
const MULTILOCK_MAX: u64 = 4;

/// Its acquire with all repetitions, its renewals and its release.
#[derive(Clone)]
pub(super) struct Lease {
    /// More than one for a multilock.
    pub keys: Vec<String>,
    pub id: String,
    pub owner: String,
    pub asked: Asked,
    pub ticket: Option<Value>,
}

impl Lease {
    /// `number` is the client's, and `sequence` that of the lease. The owner has no other lease.
    pub fn new(recorder: &Recorder, workload: Workload, number: u64, sequence: u64) -> Self {
        let ttl_ms = recorder.args.ttl_ms;
        let mut asked = Asked { ttl_ms, wait_ms: ttl_ms / 3, ..Asked::default() };
        let key = |number: u64| format!("{}{}-{number}", recorder.prefix(), workload.keys());
        let random = || key(rand::random_range(0..recorder.args.keys));
        let mut keys = vec![if workload == Workload::Exclusive { key(number % recorder.args.keys) } else { random() }];
        match workload {
            Workload::Shared if rand::random() => asked.mode = Mode::Shared,
            Workload::Permits | Workload::Groups | Workload::Rates => {
                asked.mode = Mode::Permits;
                asked.limit = LIMIT;
                asked.permits = if workload == Workload::Permits { rand::random_range(1..LIMIT) } else { 1 };
            }
            Workload::Tickets => {
                asked.wait_ms = ttl_ms / 12;
                asked.priority = rand::random_range(1..=10);
            }
            Workload::Multilock => {
                keys.extend((1..rand::random_range(2..=MULTILOCK_MAX)).map(|_| random()));
                keys.sort();
                keys.dedup();
                asked.multilock = true;
            }
            _ => {}
        }
        match workload {
            Workload::Groups => {
                asked.group = format!("group-{}", rand::random_range(0..GROUPS));
                asked.group_limit = GROUP_LIMIT;
            }
            Workload::Rates => asked.min_hold_ms = MIN_HOLD_MS,
            _ => {}
        }
        let id = lease_id(recorder.run, usize::try_from(number).unwrap_or(usize::MAX), sequence);
        // Owners are no secret, but lease ids are: so the owner is not the lease id.
        Self { keys, id, owner: format!("client-{number}-{sequence}"), asked, ticket: None }
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
        if !group.is_empty() {
            body["group"] = json!(group);
            body["group_limit"] = json!(group_limit);
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
