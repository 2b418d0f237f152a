//! One client: a random call after the other.

use std::sync::Arc;
use std::time::Duration;

use latchgate_bench::http::lease_id;
use serde_json::{Value, json};

use super::Shared;
use super::holders::Share;
use crate::caller::{Answer, Caller, hold, one_in, pause};

const WAIT_MS_MAX: u64 = 1_500;
const LIMIT: u64 = 4;
/// One in this many holders vanishes with what it holds.
const VANISH_ONE_IN: u64 = 20;
/// How often a client comes back with its ticket.
const TICKETS_MAX: usize = 3;
/// Contents of operations, of which each is soon repeated.
const CONTENTS: u64 = 40;
const RETENTION_MS: u64 = 1_000;

pub(super) struct Client {
    shared: Arc<Shared>,
    caller: Caller,
    number: u64,
    sequence: u64,
}

impl Client {
    pub(super) fn new(number: u64, shared: &Arc<Shared>) -> Self {
        Self { caller: Caller::new(&shared.targets), shared: Arc::clone(shared), number, sequence: 0 }
    }

    pub(super) async fn run(mut self) {
        while !self.shared.is_over() {
            match rand::random_range(0..10) {
                0..4 => self.lock(Share::Exclusive, Share::Shared, "lock").await,
                4..6 => {
                    let permits = Share::Permits { permits: rand::random_range(1..LIMIT), limit: LIMIT };
                    self.lock(permits, permits, "permits").await;
                }
                6 => self.several().await,
                7 => self.hang_up().await,
                _ => self.operation().await,
            }
        }
    }

    fn fresh_id(&mut self) -> String {
        self.sequence += 1;
        lease_id(self.shared.run, usize::try_from(self.number).unwrap_or(usize::MAX), self.sequence)
    }

    fn key(&self, kind: &str) -> String {
        let number = rand::random_range(0..self.shared.args.keys);
        format!("mixed-{:016x}-{kind}-{number}", self.shared.run)
    }

    /// The request of one lock.
    fn request(&self, lease_id: &str, share: Share, wait_ms: u64) -> Value {
        let mut request = json!({
            "lease_id": lease_id, "owner": format!("client-{}", self.number), "ttl_ms": self.shared.args.ttl_ms,
            "wait_ms": wait_ms, "priority": rand::random_range(1..=10), "reentrant": false,
        });
        match share {
            Share::Exclusive => {}
            Share::Shared => request["mode"] = json!("shared"),
            Share::Permits { permits, limit } => {
                request["mode"] = json!("permits");
                request["permits"] = json!(permits);
                request["limit"] = json!(limit);
            }
        }
        request
    }

    async fn lock(&mut self, one: Share, other: Share, kind: &str) {
        let share = if one_in(2) { one } else { other };
        let (key, id, wait_ms) = (self.key(kind), self.fresh_id(), rand::random_range(0..WAIT_MS_MAX));
        let path = format!("/v1/locks/{key}");
        let mut request = self.request(&id, share, wait_ms);
        let mut answer = self.call("acquire", &format!("{path}/acquire"), &request, wait_ms).await;
        for _ in 0..TICKETS_MAX {
            let ticket = answer.body["ticket"].clone();
            if answer.status != Ok(423) || ticket.is_null() {
                break;
            }
            request["ticket"] = ticket;
            answer = self.call("acquire", &format!("{path}/acquire"), &request, wait_ms).await;
        }
        if answer.is_success() {
            let entered = self.shared.holders.enter(&key, &id, share, answer.until());
            hold().await;
            if one_in(4) {
                self.call("renew", &format!("{path}/renew"), &json!({ "lease_id": id }), 0).await;
            }
            if one_in(VANISH_ONE_IN) {
                return;
            }
            self.shared.holders.leave(&key, entered);
        }
        self.end(&answer, "release", &format!("{path}/release"), &json!({ "lease_id": id })).await;
    }

    /// Several locks at once.
    async fn several(&mut self) {
        let (id, wait_ms) = (self.fresh_id(), rand::random_range(0..WAIT_MS_MAX));
        let mut keys: Vec<String> = (0..rand::random_range(2..=4)).map(|_| self.key("lock")).collect();
        keys.sort();
        keys.dedup();
        let locks: Vec<Value> = keys.iter().map(|key| json!({ "key": key })).collect();
        let request = json!({
            "locks": locks, "lease_id": id, "owner": format!("client-{}", self.number),
            "ttl_ms": self.shared.args.ttl_ms, "wait_ms": wait_ms, "reentrant": false,
        });
        let answer = self.call("acquire-many", "/v1/multilocks/acquire", &request, wait_ms).await;
        if answer.is_success() {
            let until = answer.until();
            let enter = |key: &String| self.shared.holders.enter(key, &id, Share::Exclusive, until);
            let entered: Vec<u64> = keys.iter().map(enter).collect();
            hold().await;
            if one_in(VANISH_ONE_IN) {
                return;
            }
            keys.iter().zip(entered).for_each(|(key, entered)| self.shared.holders.leave(key, entered));
        }
        let leases: Vec<Value> = keys.iter().map(|key| json!({ "key": key, "lease_id": id })).collect();
        self.end(&answer, "release-many", "/v1/leases/release", &json!({ "leases": leases })).await;
    }

    /// Gives back what was granted, or may have been.
    async fn end(&mut self, answer: &Answer, name: &str, path: &str, release: &Value) {
        if answer.is_success() || answer.is_undecided() {
            self.call(name, path, release, 0).await;
        }
        if !answer.is_success() {
            pause().await;
        }
    }

    /// Closes the connection while the node waits for the lock.
    async fn hang_up(&mut self) {
        let (key, id) = (self.key("lock"), self.fresh_id());
        let request = self.request(&id, Share::Exclusive, 2 * WAIT_MS_MAX);
        self.caller.hang_up(&format!("/v1/locks/{key}/acquire"), &request).await;
        self.shared.count("hang up".to_owned());
    }

    async fn operation(&mut self) {
        let contents = format!("{:016x}-{}", self.shared.run, rand::random_range(0..CONTENTS));
        let durability = if one_in(3) { "durable" } else { "fast" };
        // A durable and a fast operation are different ones.
        let request = json!({
            "operation": format!("mixed-{durability}"), "contents": contents, "attempt_id": self.fresh_id(),
            "ttl_ms": self.shared.args.ttl_ms, "wait_ms": rand::random_range(0..WAIT_MS_MAX),
            "durability": durability, "on_expiry": "retry",
        });
        let answer = self.call("pre", "/v1/operations/pre", &request, WAIT_MS_MAX).await;
        let (true, Some(id)) = (answer.is_success(), answer.body["id"].as_str()) else { return pause().await };
        let stamp = answer.body["stamp"].to_string();
        let entered = self.shared.holders.enter(id, &stamp, Share::Exclusive, answer.until());
        hold().await;
        if one_in(VANISH_ONE_IN) {
            return;
        }
        let mut report = json!({ "stamp": answer.body["stamp"], "outcome": "failure" });
        if one_in(2) {
            report["outcome"] = json!("success");
            report["retention_ms"] = json!(RETENTION_MS);
        }
        self.shared.holders.leave(id, entered);
        self.call("post", &format!("/v1/operations/{id}/post"), &report, 0).await;
    }

    /// Calls a random node, and counts the answer.
    async fn call(&mut self, name: &str, path: &str, body: &Value, wait_ms: u64) -> Answer {
        let answer = self.caller.call(path, body, Duration::from_millis(wait_ms)).await;
        let status = answer.status.as_ref().map_or_else(|_| "no answer".to_owned(), u16::to_string);
        self.shared.count(format!("{name} {status} {}", answer.code().unwrap_or_default()).trim_end().to_owned());
        answer
    }
}
