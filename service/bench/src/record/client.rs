//! One client, and what it does after a call with an unknown outcome.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_testkit::recorded::{Call, Verb};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{Args, Recorder};
use latchgate_load::http::{Connection, LeaseIds, post};

/// Longest time that a lock is held between two calls.
const HOLD_MAX: Duration = Duration::from_millis(20);
/// One in this many holders keeps the lock and renews.
const RENEW_ONE_IN: u64 = 4;
/// Longest pause after a call without a result.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How long a client waits for an answer, in addition to `wait_ms`.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Client {
    number: u64,
    recorder: Arc<Recorder>,
    /// One for each target, opened by the first call.
    connections: Vec<Option<Connection>>,
    ids: LeaseIds,
    leases: u64,
}

/// One lease: its acquire with all repetitions, its renewals and its release.
struct Lease {
    key: String,
    id: String,
}

/// The result of an acquire with all its repetitions.
enum Acquired {
    /// The client holds the lease until then.
    Granted(Instant),
    Refused,
    /// The lease may have been granted.
    Unknown,
}

struct Answer {
    call: Call,
    sent: Instant,
    body: Value,
}

impl Answer {
    /// Until when the client may rely on the lease, counted from before the request.
    fn counted_until(&self) -> Instant {
        self.sent + Duration::from_millis(self.call.expires_in_ms.unwrap_or(0))
    }

    /// Neither success nor refusal: the call must be repeated.
    fn is_undecided(&self) -> bool {
        matches!(self.call.status, None | Some(500..))
    }
}

impl Client {
    pub(super) fn new(number: u64, recorder: &Arc<Recorder>) -> Self {
        Self {
            number,
            recorder: Arc::clone(recorder),
            connections: recorder.targets.iter().map(|_| None).collect(),
            ids: LeaseIds::new(recorder.run, usize::try_from(number).unwrap_or(usize::MAX)),
            leases: 0,
        }
    }

    pub(super) async fn run(mut self) -> io::Result<()> {
        while !self.recorder.is_over() {
            // Each client has one key, so that one lock that is not granted for a while does not stop all clients.
            let key = format!("recorded-{:016x}-{}", self.recorder.run, self.number % self.recorder.args.keys);
            let lease = Lease { key, id: self.ids.text(self.leases) };
            self.leases += 1;
            match self.acquire(&lease).await? {
                Acquired::Granted(until) => {
                    if !one_in(self.recorder.args.abandon_one_in) {
                        self.hold(&lease, until).await?;
                        self.release(&lease).await?;
                    }
                }
                Acquired::Refused => {}
                // So that no lease is left behind.
                Acquired::Unknown => self.release(&lease).await?,
            }
        }
        Ok(())
    }

    /// Repeats the request with the same lease id after an unknown outcome, and with its ticket after a wait, until it is granted or
    /// refused or the time is up.
    async fn acquire(&mut self, lease: &Lease) -> io::Result<Acquired> {
        let Args { ttl_ms, .. } = self.recorder.args;
        // Not reentrant: a lease that was left behind must block the next one.
        let mut ask = json!({
            "lease_id": lease.id, "owner": format!("client-{}", self.number), "ttl_ms": ttl_ms, "wait_ms": ttl_ms / 3,
            "reentrant": false,
        });
        let mut may_be_granted = false;
        loop {
            let answer = self.call(Verb::Acquire, lease, &ask, Duration::from_millis(ttl_ms / 3)).await?;
            if answer.call.is_success() {
                return Ok(Acquired::Granted(answer.counted_until()));
            }
            may_be_granted |= answer.call.is_outcome_unknown();
            match (answer.call.status, answer.call.code.as_deref()) {
                (Some(423), Some("wait-timeout")) => ask["ticket"] = answer.body["ticket"].clone(),
                (Some(400), Some("invalid-ticket")) => drop(ask.as_object_mut().and_then(|ask| ask.remove("ticket"))),
                (None | Some(423 | 500..), _) => pause().await,
                _ => return Ok(Acquired::Refused),
            }
            if self.recorder.is_over() {
                return Ok(if may_be_granted { Acquired::Unknown } else { Acquired::Refused });
            }
        }
    }

    /// Holds the lock for one moment or several, with renewals in between. Returns at the end, or when the lease is lost or can no
    /// longer be relied on.
    async fn hold(&mut self, lease: &Lease, mut until: Instant) -> io::Result<()> {
        let half = Duration::from_millis(self.recorder.args.ttl_ms / 2);
        // After a long wait little is left of the lease.
        let mut renews = until.saturating_duration_since(Instant::now()) < half;
        loop {
            if !renews {
                sleep(HOLD_MAX.mul_f64(rand::random())).await;
                if !one_in(RENEW_ONE_IN) {
                    return Ok(());
                }
            }
            renews = false;
            loop {
                let answer = self.call(Verb::Renew, lease, &json!({ "lease_id": lease.id }), Duration::ZERO).await?;
                if answer.call.is_success() {
                    until = answer.counted_until();
                    break;
                }
                if !answer.is_undecided() || Instant::now() >= until {
                    return Ok(());
                }
                pause().await;
            }
        }
    }

    /// Repeats the release until the lease is released or lost, or must have expired.
    async fn release(&mut self, lease: &Lease) -> io::Result<()> {
        let expired_at = Instant::now() + Duration::from_millis(self.recorder.args.ttl_ms);
        loop {
            let answer = self.call(Verb::Release, lease, &json!({ "lease_id": lease.id }), Duration::ZERO).await?;
            if !answer.is_undecided() || Instant::now() >= expired_at {
                return Ok(());
            }
            pause().await;
        }
    }

    /// Calls a random target, and records the call.
    async fn call(&mut self, verb: Verb, lease: &Lease, body: &Value, wait: Duration) -> io::Result<Answer> {
        let index = rand::random_range(0..self.recorder.targets.len());
        let path = match verb {
            Verb::Acquire => "acquire",
            Verb::Renew => "renew",
            Verb::Release => "release",
        };
        let request =
            post(&self.recorder.targets[index], &format!("/v1/locks/{}/{path}", lease.key), &body.to_string());
        let sent = Instant::now();
        let answered = timeout(wait + PATIENCE, self.exchange(index, request.as_bytes())).await;
        let received = Instant::now();
        let answered = answered.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let (status, body, error) = match answered {
            Ok((status, body)) => (Some(status), body, None),
            Err(error) => {
                self.connections[index] = None;
                (None, Value::Null, Some(error))
            }
        };
        let is_success = matches!(status, Some(200..300));
        let call = Call {
            client: self.number,
            verb,
            key: lease.key.clone(),
            lease_id: lease.id.clone(),
            url: self.recorder.args.urls[index].clone(),
            sent_us: self.recorder.us(sent),
            received_us: self.recorder.us(received),
            status,
            error,
            code: body["code"].as_str().map(str::to_owned),
            // The token in a refusal belongs to another lease.
            token: body["token"].as_u64().filter(|_| is_success),
            expires_in_ms: body["ttl_ms"].as_u64().filter(|_| is_success),
        };
        self.recorder.write(&call)?;
        Ok(Answer { call, sent, body })
    }

    async fn exchange(&mut self, index: usize, request: &[u8]) -> Result<(u16, Value), String> {
        let connection = match &mut self.connections[index] {
            Some(connection) => connection,
            none => {
                let opened = Connection::open(&self.recorder.targets[index]).await;
                none.insert(opened.map_err(|error| format!("{error:#}"))?)
            }
        };
        let (status, body) = connection.send(request).await.map_err(|error| error.to_string())?;
        Ok((status, serde_json::from_slice(body).unwrap_or_default()))
    }
}

/// Never, if `count` is 0.
fn one_in(count: u64) -> bool {
    count > 0 && rand::random_range(0..count) == 0
}

/// Of random length, so that clients that fail together do not return together.
async fn pause() {
    sleep(PAUSE_MAX.mul_f64(rand::random())).await;
}
