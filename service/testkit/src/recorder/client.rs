//! One client, and what it does after a call with an unknown outcome.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};

use super::lease::Lease;
use super::{Recorder, Workload, holders};
use crate::caller::{Answer, Caller, hold, one_in, pause};
use crate::recorded::{Asked, Call, Verb};

/// One in this many holders keeps the lock and renews.
const RENEW_ONE_IN: u64 = 4;
/// One in this many clients uses a lease that it was refused, to see that it has none.
const TRY_ONE_IN: u64 = 16;
const REVOKE_ONE_IN: u64 = 6;
/// Less needs the scope admin.
const GRACE_MS: u64 = 1_000;

pub(super) struct Client {
    pub(super) number: u64,
    pub(super) recorder: Arc<Recorder>,
    pub(super) caller: Caller,
    /// The index of its app.
    pub(super) app: usize,
    pub(super) sequence: u64,
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
        let app = usize::try_from(number).unwrap_or(0) % recorder.apps.len();
        let caller = Caller::new(&recorder.apps[app].targets);
        Self { number, recorder: Arc::clone(recorder), caller, app, sequence: 0 }
    }

    pub(super) async fn run(mut self) -> io::Result<()> {
        while !self.recorder.is_over() {
            let mix = &self.recorder.args.mix;
            match mix[rand::random_range(0..mix.len())] {
                workload @ (Workload::Gate | Workload::Block) => self.operation(workload).await?,
                Workload::HangUp => self.hang_up().await?,
                Workload::Revoke if one_in(REVOKE_ONE_IN) => self.revoke().await?,
                workload => self.lock(workload).await?,
            }
        }
        Ok(())
    }

    pub(super) fn lease(&mut self, workload: Workload) -> Lease {
        self.sequence += 1;
        let lease = Lease::new(&self.recorder, workload, self.number, self.sequence);
        let mut keys = self.recorder.apps[self.app].keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.extend(lease.keys.iter().cloned());
        drop(keys);
        lease
    }

    async fn lock(&mut self, workload: Workload) -> io::Result<()> {
        let lease = self.lease(workload);
        match self.acquire(lease.clone()).await? {
            Acquired::Granted(until) => {
                if one_in(self.recorder.args.abandon_one_in) {
                    return Ok(());
                }
                if workload == Workload::Reentrant {
                    self.nest(&lease).await?;
                }
                self.hold(&lease, until).await?;
                self.release(&lease).await
            }
            Acquired::Refused if one_in(TRY_ONE_IN) => self.keep(Verb::Renew, &lease).await.map(drop),
            Acquired::Refused => Ok(()),
            // So that no lease is left behind.
            Acquired::Unknown => self.release(&lease).await,
        }
    }

    /// Takes the lock once more as its owner, and gives that back before or after the first lease.
    async fn nest(&mut self, outer: &Lease) -> io::Result<()> {
        let mut inner =
            Lease { keys: outer.keys.clone(), owner: outer.owner.clone(), ..self.lease(Workload::Reentrant) };
        inner.asked.reentrant = true;
        match self.acquire(inner.clone()).await? {
            Acquired::Granted(until) => {
                if one_in(2) {
                    self.release(outer).await?;
                }
                self.hold(&inner, until).await?;
                self.release(&inner).await
            }
            Acquired::Refused => Ok(()),
            Acquired::Unknown => self.release(&inner).await,
        }
    }

    /// Repeats the request with the same lease id after an unknown outcome, and with its ticket after a wait, until it is granted or
    /// refused or the time is up.
    async fn acquire(&mut self, mut lease: Lease) -> io::Result<Acquired> {
        let mut may_be_granted = false;
        loop {
            let (path, body) = lease.acquire();
            lease.asked.ticket = lease.ticket.is_some();
            let answer = self.caller.call(&path, &body, lease.wait()).await;
            let calls = self.record(&answer, Verb::Acquire, &lease)?;
            if answer.is_success() {
                return Ok(Acquired::Granted(answer.until()));
            }
            may_be_granted |= calls.iter().any(Call::is_outcome_unknown);
            match (answer.status.as_ref().ok(), answer.code()) {
                (Some(423), Some("wait-timeout")) => lease.ticket = Some(answer.body["ticket"].clone()),
                (Some(400), Some("invalid-ticket")) => lease.ticket = None,
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
                let answer = self.keep(Verb::Renew, lease).await?;
                if answer.is_success() {
                    let results = answer.body["results"].as_array().into_iter().flatten();
                    let shortest = results.filter_map(|result| result["ttl_ms"].as_u64()).min();
                    until = shortest.map_or(answer.until(), |ttl_ms| answer.sent + Duration::from_millis(ttl_ms));
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
            let answer = self.keep(Verb::Release, lease).await?;
            if !answer.is_undecided() || Instant::now() >= expired_at {
                return Ok(());
            }
            pause().await;
        }
    }

    async fn keep(&mut self, verb: Verb, lease: &Lease) -> io::Result<Answer> {
        let (path, body) = lease.keep(if verb == Verb::Renew { "renew" } else { "release" });
        let answer = self.caller.call(&path, &body, Duration::ZERO).await;
        self.record(&answer, verb, lease)?;
        Ok(answer)
    }

    /// Closes the connection while the node waits for the lock, or grants it.
    async fn hang_up(&mut self) -> io::Result<()> {
        let lease = self.lease(Workload::HangUp);
        let (path, body) = lease.acquire();
        let answer = self.caller.hang_up(&path, &body).await;
        self.record(&answer, Verb::Acquire, &lease)?;
        if answer.is_success() { self.release(&lease).await } else { Ok(()) }
    }

    async fn revoke(&mut self) -> io::Result<()> {
        let key = self.lease(Workload::Revoke).keys.remove(0);
        let body = json!({ "grace_ms": GRACE_MS, "reason": "recorded" });
        let answer = self.caller.call(&format!("/v1/locks/{key}/revoke"), &body, Duration::ZERO).await;
        let call = self.recorder.call(&answer, self.number, self.app, Verb::Revoke);
        let asked = Asked { grace_ms: GRACE_MS, ..Asked::default() };
        self.recorder.write(&Call { key, asked, ..call })?;
        pause().await;
        Ok(())
    }

    /// Writes a line for each key of the lease.
    fn record(&self, answer: &Answer, verb: Verb, lease: &Lease) -> io::Result<Vec<Call>> {
        let call = Call {
            lease_id: lease.id.clone(),
            owner: lease.owner.clone(),
            asked: if verb == Verb::Acquire {
                lease.asked.clone()
            } else {
                Asked { multilock: lease.asked.multilock, ttl_ms: lease.asked.ttl_ms, ..Asked::default() }
            },
            ..self.recorder.call(answer, self.number, self.app, verb)
        };
        let mut calls = Vec::new();
        for (index, key) in lease.keys.iter().enumerate() {
            let call = with_answer(Call { key: key.clone(), ..call.clone() }, &answer.body, index);
            self.recorder.write(&call)?;
            calls.push(call);
        }
        Ok(calls)
    }
}

/// What the answer says about one key of a lease.
fn with_answer(mut call: Call, body: &Value, index: usize) -> Call {
    let result = &body["results"][index];
    if let Some(status) = result["status"].as_u64() {
        call.status = u16::try_from(status).ok();
        call.code = result["code"].as_str().map(str::to_owned);
    }
    let lock = [result, &body["locks"][index]].into_iter().find(|part| part.is_object()).unwrap_or(body);
    let field = |name: &str| if lock[name].is_null() { &body[name] } else { &lock[name] };
    call.why = field("why").as_str().map(str::to_owned);
    call.waited_ms = field("waited_ms").as_u64();
    if call.is_success() {
        call.token = field("token").as_u64();
        call.ttl_ms = field("ttl_ms").as_u64();
        call.expires_at_ms = field("expires_at").as_str().and_then(ms_of);
        call.slots = field("slots").as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    } else if body["key"].as_str().is_none_or(|refusing| refusing == call.key) {
        // The other fields in a refusal belong to other leases. That of a multilock names the key that refuses.
        call.holders = holders(body);
    }
    call
}

/// A time in RFC 3339.
fn ms_of(text: &str) -> Option<u64> {
    let at = humantime::parse_rfc3339(text).ok()?;
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}
