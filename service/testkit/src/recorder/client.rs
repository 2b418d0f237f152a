//! One client, and what it does after a call with an unknown outcome.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_bench::http::lease_id;
use serde_json::{Value, json};

use super::{Args, Recorder};
use crate::caller::{Answer, Caller, hold, one_in, pause};
use crate::recorded::{Call, Verb};

/// One in this many holders keeps the lock and renews.
const RENEW_ONE_IN: u64 = 4;

pub(super) struct Client {
    number: u64,
    recorder: Arc<Recorder>,
    caller: Caller,
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

impl Client {
    pub(super) fn new(number: u64, recorder: &Arc<Recorder>) -> Self {
        Self { number, recorder: Arc::clone(recorder), caller: Caller::new(&recorder.targets), leases: 0 }
    }

    pub(super) async fn run(mut self) -> io::Result<()> {
        while !self.recorder.is_over() {
            // Each client has one key, so that one lock that is not granted for a while does not stop all clients.
            let key = format!("recorded-{:016x}-{}", self.recorder.run, self.number % self.recorder.args.keys);
            let id = lease_id(self.recorder.run, usize::try_from(self.number).unwrap_or(usize::MAX), self.leases);
            let lease = Lease { key, id };
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
            let (answer, call) = self.call(Verb::Acquire, lease, &ask, Duration::from_millis(ttl_ms / 3)).await?;
            if answer.is_success() {
                return Ok(Acquired::Granted(answer.until()));
            }
            may_be_granted |= call.is_outcome_unknown();
            match (call.status, answer.code()) {
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
                hold().await;
                if !one_in(RENEW_ONE_IN) {
                    return Ok(());
                }
            }
            renews = false;
            loop {
                let (answer, _) =
                    self.call(Verb::Renew, lease, &json!({ "lease_id": lease.id }), Duration::ZERO).await?;
                if answer.is_success() {
                    until = answer.until();
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
            let (answer, _) = self.call(Verb::Release, lease, &json!({ "lease_id": lease.id }), Duration::ZERO).await?;
            if !answer.is_undecided() || Instant::now() >= expired_at {
                return Ok(());
            }
            pause().await;
        }
    }

    /// Calls a random node, and records the call.
    async fn call(&mut self, verb: Verb, lease: &Lease, body: &Value, wait: Duration) -> io::Result<(Answer, Call)> {
        let path = match verb {
            Verb::Acquire => "acquire",
            Verb::Renew => "renew",
            Verb::Release => "release",
        };
        let answer = self.caller.call(&format!("/v1/locks/{}/{path}", lease.key), body, wait).await;
        // The fields in a refusal belong to another lease.
        let number = |field: &str| answer.body[field].as_u64().filter(|_| answer.is_success());
        let call = Call {
            client: self.number,
            verb,
            key: lease.key.clone(),
            lease_id: lease.id.clone(),
            url: self.recorder.args.urls[answer.node].clone(),
            sent_us: self.recorder.us(answer.sent),
            received_us: self.recorder.us(answer.received),
            status: answer.status.as_ref().ok().copied(),
            error: answer.status.as_ref().err().cloned(),
            code: answer.code().map(str::to_owned),
            token: number("token"),
            expires_in_ms: number("ttl_ms"),
        };
        self.recorder.write(&call)?;
        Ok((answer, call))
    }
}
