//! One client: a random call after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::Shared;
use super::holders::Share;
use latchgate_load::http::{Connection, LeaseIds, post};

const HOLD_MAX: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long a client waits for an answer, in addition to `wait_ms`.
const PATIENCE: Duration = Duration::from_secs(10);
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
    connections: Vec<Option<Connection>>,
    ids: LeaseIds,
    number: u64,
    sequence: u64,
}

struct Answer {
    sent: Instant,
    status: Option<u16>,
    body: Value,
}

impl Answer {
    fn is_success(&self) -> bool {
        matches!(self.status, Some(200..300))
    }

    fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// Until when the client may rely on it, counted from before the request.
    fn until(&self, field: &str) -> Instant {
        self.sent + Duration::from_millis(self.body[field].as_u64().unwrap_or(0))
    }
}

impl Client {
    pub(super) fn new(number: u64, shared: &Arc<Shared>) -> Self {
        Self {
            connections: shared.targets.iter().map(|_| None).collect(),
            ids: LeaseIds::new(shared.run, usize::try_from(number).unwrap_or(usize::MAX)),
            shared: Arc::clone(shared),
            number,
            sequence: 0,
        }
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
        self.ids.text(self.sequence)
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
            if answer.status != Some(423) || ticket.is_null() {
                break;
            }
            request["ticket"] = ticket;
            answer = self.call("acquire", &format!("{path}/acquire"), &request, wait_ms).await;
        }
        if answer.is_success() {
            let entered = self.shared.holders.enter(&key, &id, share, answer.until("ttl_ms"));
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
            let until = answer.until("ttl_ms");
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
        if answer.is_success() || matches!(answer.status, None | Some(500..)) {
            self.call(name, path, release, 0).await;
        }
        if !answer.is_success() {
            pause().await;
        }
    }

    /// Closes the connection while the node waits for the lock.
    async fn hang_up(&mut self) {
        let (key, id) = (self.key("lock"), self.fresh_id());
        let request = self.request(&id, Share::Exclusive, 2 * WAIT_MS_MAX).to_string();
        let index = rand::random_range(0..self.shared.targets.len());
        let target = &self.shared.targets[index];
        let Ok(mut connection) = Connection::open(target).await else { return pause().await };
        let bytes = post(target, &format!("/v1/locks/{key}/acquire"), &request);
        let _ = timeout(PAUSE_MAX.mul_f64(rand::random()), connection.send(bytes.as_bytes())).await;
        self.shared.count("hang up".to_owned());
    }

    async fn operation(&mut self) {
        let contents = format!("{:016x}-{}", self.shared.run, rand::random_range(0..CONTENTS));
        let durability = if one_in(3) { "durable" } else { "fast" };
        // A durable and a fast operation are different ones.
        let request = json!({
            "operation": format!("mixed-{durability}"), "contents": contents, "attempt_id": self.fresh_id(),
            "ttl_ms": self.shared.args.ttl_ms, "wait_ms": rand::random_range(0..WAIT_MS_MAX),
            "durability": durability,
        });
        let answer = self.call("pre", "/v1/operations/pre", &request, WAIT_MS_MAX).await;
        let (true, Some(id)) = (answer.is_success(), answer.body["id"].as_str()) else { return pause().await };
        let stamp = answer.body["stamp"].to_string();
        let entered = self.shared.holders.enter(id, &stamp, Share::Exclusive, answer.until("ttl_ms"));
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

    /// Calls a random target.
    async fn call(&mut self, name: &str, path: &str, body: &Value, wait_ms: u64) -> Answer {
        let index = rand::random_range(0..self.shared.targets.len());
        let request = post(&self.shared.targets[index], path, &body.to_string());
        let sent = Instant::now();
        let patience = Duration::from_millis(wait_ms) + PATIENCE;
        let answered = timeout(patience, self.exchange(index, request.as_bytes())).await.unwrap_or(None);
        if answered.is_none() {
            self.connections[index] = None;
        }
        let (status, body) = answered.map_or((None, Value::Null), |(status, body)| (Some(status), body));
        let answer = Answer { sent, status, body };
        let status = status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        self.shared.count(format!("{name} {status} {}", answer.code()).trim_end().to_owned());
        answer
    }

    async fn exchange(&mut self, index: usize, request: &[u8]) -> Option<(u16, Value)> {
        let connection = match &mut self.connections[index] {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.shared.targets[index]).await.ok()?),
        };
        let (status, body) = connection.send(request).await.ok()?;
        Some((status, serde_json::from_slice(body).unwrap_or_default()))
    }
}

fn one_in(count: u64) -> bool {
    rand::random_range(0..count) == 0
}

async fn hold() {
    sleep(HOLD_MAX.mul_f64(rand::random())).await;
}

/// Of random length, so that clients that fail together do not return together.
async fn pause() {
    sleep(PAUSE_MAX.mul_f64(rand::random())).await;
}
