//! One client: what it does, and what it does when it is not told what has become of it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_testkit::recorded::{Call, Verb};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{Args, Recorder};
use crate::http::{Connection, LeaseIds, post};

/// How long a lock is held between two calls, at most.
const HOLD_MAX: Duration = Duration::from_millis(20);
/// Of so many, one holds on and renews.
const RENEW_ONE_IN: u64 = 4;
/// How long a client pauses after a call that led to nothing, at most.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How much longer than it asked to wait a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Client {
    number: u64,
    recorder: Arc<Recorder>,
    /// One for each target, once it was called.
    connections: Vec<Option<Connection>>,
    ids: LeaseIds,
    leases: u64,
}

/// One acquire, with all of its repetitions, and what follows.
struct Lease {
    key: String,
    id: String,
}

/// What a client knows once it has stopped asking for a lease.
enum Asked {
    /// It has the lease until then.
    Granted(Instant),
    Refused,
    /// It may have been granted without its being told.
    Unknown,
}

struct Answer {
    call: Call,
    sent: Instant,
    body: Value,
}

impl Answer {
    /// Until when the client may count on the lease: from before it asked.
    fn counted_until(&self) -> Instant {
        self.sent + Duration::from_millis(self.call.expires_in_ms.unwrap_or(0))
    }

    /// Neither a go nor a no: to be asked again.
    fn is_open(&self) -> bool {
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
            // Each has its key: a lock that nobody gets for a while does not have them all wait for it in the end.
            let key = format!("recorded-{:016x}-{}", self.recorder.run, self.number % self.recorder.args.keys);
            let lease = Lease { key, id: self.ids.text(self.leases) };
            self.leases += 1;
            match self.acquire(&lease).await? {
                Asked::Granted(until) => {
                    if !one_in(self.recorder.args.abandon_one_in) {
                        self.hold(&lease, until).await?;
                        self.release(&lease).await?;
                    }
                }
                Asked::Refused => {}
                // Lest it be left behind.
                Asked::Unknown => self.release(&lease).await?,
            }
        }
        Ok(())
    }

    /// Repeats with the same lease id what may have been done, and goes on with its ticket, until there is an end to it or
    /// the time is up.
    async fn acquire(&mut self, lease: &Lease) -> io::Result<Asked> {
        let Args { ttl_ms, .. } = self.recorder.args;
        // Its leases are not to be nested: should one be left, it stands in the way of the next.
        let mut ask = json!({
            "lease_id": lease.id, "owner": format!("client-{}", self.number), "ttl_ms": ttl_ms, "wait_ms": ttl_ms / 3,
            "reentrant": false,
        });
        let mut may_be_granted = false;
        loop {
            let answer = self.call(Verb::Acquire, lease, &ask, Duration::from_millis(ttl_ms / 3)).await?;
            if answer.call.is_go() {
                return Ok(Asked::Granted(answer.counted_until()));
            }
            may_be_granted |= answer.call.is_outcome_unknown();
            match (answer.call.status, answer.call.code.as_deref()) {
                (Some(423), Some("wait-timeout")) => ask["ticket"] = answer.body["ticket"].clone(),
                (Some(400), Some("invalid-ticket")) => drop(ask.as_object_mut().and_then(|ask| ask.remove("ticket"))),
                (None | Some(423 | 500..), _) => pause().await,
                _ => return Ok(Asked::Refused),
            }
            if self.recorder.is_over() {
                return Ok(if may_be_granted { Asked::Unknown } else { Asked::Refused });
            }
        }
    }

    /// Holds the lock for a moment, or for some, and renews before the next. Returns when it has had enough, or has lost it,
    /// or can no longer count on it.
    async fn hold(&mut self, lease: &Lease, mut until: Instant) -> io::Result<()> {
        let half = Duration::from_millis(self.recorder.args.ttl_ms / 2);
        // Who has waited for long has little left.
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
                if answer.call.is_go() {
                    until = answer.counted_until();
                    break;
                }
                if !answer.is_open() || Instant::now() >= until {
                    return Ok(());
                }
                pause().await;
            }
        }
    }

    /// Until it is known to be released or lost; or until it must have run out.
    async fn release(&mut self, lease: &Lease) -> io::Result<()> {
        let has_run_out = Instant::now() + Duration::from_millis(self.recorder.args.ttl_ms);
        loop {
            let answer = self.call(Verb::Release, lease, &json!({ "lease_id": lease.id }), Duration::ZERO).await?;
            if !answer.is_open() || Instant::now() >= has_run_out {
                return Ok(());
            }
            pause().await;
        }
    }

    /// One call, to any target, and its line.
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
        let asked = timeout(wait + PATIENCE, self.exchange(index, request.as_bytes())).await;
        let received = Instant::now();
        let answered = asked.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let (status, body, error) = match answered {
            Ok((status, body)) => (Some(status), body, None),
            Err(error) => {
                self.connections[index] = None;
                (None, Value::Null, Some(error))
            }
        };
        let is_go = matches!(status, Some(200..300));
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
            // A refusal's token is another's.
            token: body["token"].as_u64().filter(|_| is_go),
            expires_in_ms: body["ttl_ms"].as_u64().filter(|_| is_go),
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
        let (status, body) = connection.ask(request).await.map_err(|error| error.to_string())?;
        Ok((status, serde_json::from_slice(body).unwrap_or_default()))
    }
}

/// Never, of none.
fn one_in(count: u64) -> bool {
    count > 0 && rand::random_range(0..count) == 0
}

/// Of random length, so that those who failed together do not come back together.
async fn pause() {
    sleep(PAUSE_MAX.mul_f64(rand::random())).await;
}
