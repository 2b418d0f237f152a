//! One client, and what it does after a call with an unknown outcome.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::lease::LeasePlan;
use super::{GIVEN_BACK_TTL_MS, Recorder, Workload, holders};
use crate::caller::{Answer, Caller};
use crate::recorded::{Asked, Call, Verb};

/// One in this many holders keeps the lock and renews.
const RENEW_ONE_IN: u64 = 4;
/// One in this many clients uses a lease that it was refused, to see that it has none.
const TRY_ONE_IN: u64 = 16;
const REVOKE_ONE_IN: u64 = 6;
/// One in this many clients that have hung up comes back for the same lease.
const RETURN_ONE_IN: u64 = 2;

pub(super) struct Client {
    pub(super) number: u64,
    pub(super) recorder: Arc<Recorder>,
    pub(super) caller: Caller,
    pub(super) sequence: u64,
    /// The highest token that it got for each key, and the one before.
    tokens: BTreeMap<String, (u64, u64)>,
    /// The store's clock in ms, as an answer showed it, and when that was.
    clock: Option<(Instant, u64)>,
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
        let caller = recorder.caller(number + 1);
        let (tokens, clock) = (BTreeMap::new(), None);
        Self { number, recorder: Arc::clone(recorder), caller, sequence: 0, tokens, clock }
    }

    pub(super) async fn run(mut self) -> io::Result<()> {
        while !self.recorder.is_over() {
            self.caller.hold().await;
            match *self.caller.one_of(&self.recorder.args.mix) {
                workload @ (Workload::Gate | Workload::Block) => self.operation(workload).await?,
                Workload::HangUp => self.hang_up().await?,
                Workload::Revoke if self.caller.one_in(REVOKE_ONE_IN) => self.intervene().await?,
                workload => self.lock(workload).await?,
            }
        }
        Ok(())
    }

    pub(super) fn lease(&mut self, workload: Workload) -> LeasePlan {
        self.sequence += 1;
        let lease = LeasePlan::new(&self.recorder, workload, self.number, self.sequence, &mut self.caller);
        let mut keys = self.recorder.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.extend(lease.keys.iter().cloned());
        drop(keys);
        lease
    }

    async fn lock(&mut self, workload: Workload) -> io::Result<()> {
        let lease = self.lease(workload);
        self.use_lease(workload, lease).await
    }

    async fn use_lease(&mut self, workload: Workload, lease: LeasePlan) -> io::Result<()> {
        match self.acquire(lease.clone()).await? {
            Acquired::Granted(until) => {
                if workload != Workload::HangUp && self.caller.one_in(self.recorder.args.abandon_one_in) {
                    if lease.is_varied && !lease.asked.multilock && self.caller.one_in(2) {
                        // It comes back too late: a lease that has ended is not granted again.
                        sleep(lease.wait() + Duration::from_millis(lease.asked.ttl_ms)).await;
                        self.send(&LeasePlan { ticket: None, ..lease.clone() }, false).await?;
                        return self.release(&lease).await;
                    }
                    return Ok(());
                }
                if workload == Workload::Reentrant {
                    self.nest(&lease).await?;
                }
                self.hold(&lease, until).await?;
                self.release(&lease).await
            }
            Acquired::Refused if self.caller.one_in(TRY_ONE_IN) => self.keep(Verb::Renew, &lease).await.map(drop),
            Acquired::Refused => {
                self.caller.pause().await;
                Ok(())
            }
            // So that no lease is left behind.
            Acquired::Unknown => self.release(&lease).await,
        }
    }

    /// Takes the lock once more as its owner, and gives that back before or after the first lease.
    async fn nest(&mut self, outer: &LeasePlan) -> io::Result<()> {
        let mut inner =
            LeasePlan { keys: outer.keys.clone(), owner: outer.owner.clone(), ..self.lease(Workload::Reentrant) };
        inner.asked.reentrant = true;
        match self.acquire(inner.clone()).await? {
            Acquired::Granted(until) => {
                if self.caller.one_in(2) {
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
    async fn acquire(&mut self, mut lease: LeasePlan) -> io::Result<Acquired> {
        let mut may_be_granted = false;
        loop {
            lease.asked.ticket = lease.ticket.is_some();
            let (answer, calls) = self.send(&lease, false).await?;
            if answer.is_success() {
                return Ok(Acquired::Granted(answer.until()));
            }
            may_be_granted |= calls.iter().any(Call::is_outcome_unknown);
            match (answer.status.as_ref().ok(), answer.code()) {
                (Some(423), Some("wait-timeout")) => lease.ticket = Some(answer.body["ticket"].clone()),
                (Some(400), Some("invalid-ticket")) => lease.ticket = None,
                (None | Some(423 | 500..), _) => self.caller.pause().await,
                _ => return Ok(Acquired::Refused),
            }
            // A long lease must not be left behind.
            if self.recorder.is_over() && lease.asked.ttl_ms < GIVEN_BACK_TTL_MS {
                return Ok(if may_be_granted { Acquired::Unknown } else { Acquired::Refused });
            }
        }
    }

    /// Holds the lock for one moment or several, with renewals in between. Returns at the end, or when the lease is lost or can no
    /// longer be relied on.
    async fn hold(&mut self, lease: &LeasePlan, mut until: Instant) -> io::Result<()> {
        let half = Duration::from_millis(self.recorder.args.ttl_ms / 2);
        // After a long wait little is left of the lease.
        let mut renews = until.saturating_duration_since(Instant::now()) < half;
        loop {
            if !renews {
                self.caller.hold().await;
                if lease.is_varied {
                    self.vary(lease).await?;
                }
                if !self.caller.one_in(RENEW_ONE_IN) {
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
                self.caller.pause().await;
            }
        }
    }

    /// Repeats the release until the lease is released or lost, or must have expired.
    async fn release(&mut self, lease: &LeasePlan) -> io::Result<()> {
        let expired_at = Instant::now() + Duration::from_millis(lease.asked.ttl_ms);
        loop {
            let answer = self.keep(Verb::Release, lease).await?;
            if !answer.is_undecided() || Instant::now() >= expired_at {
                return Ok(());
            }
            self.caller.pause().await;
        }
    }

    async fn keep(&mut self, verb: Verb, lease: &LeasePlan) -> io::Result<Answer> {
        let (path, body) = lease.keep(if verb == Verb::Renew { "renew" } else { "release" });
        let answer = self.caller.call(&path, &body, Duration::ZERO).await;
        self.record(&answer, verb, lease)?;
        Ok(answer)
    }

    /// What a holder does besides: it takes its time, repeats its request, or a resource presents its token or an older one.
    async fn vary(&mut self, lease: &LeasePlan) -> io::Result<()> {
        let key = &lease.keys[0];
        match self.caller.random.random_range(0..10) {
            0 => sleep(Duration::from_millis(self.caller.random.random_range(0..lease.asked.ttl_ms / 2))).await,
            1 if !lease.asked.multilock => drop(self.send(&LeasePlan { ticket: None, ..lease.clone() }, false).await?),
            2 => {
                let token = self.tokens.get(key).map(|(last, _)| *last);
                self.fence(key, token.filter(|_| !lease.asked.multilock), &lease.id).await?;
            }
            3 => self.fence(key, self.tokens.get(key).map(|(_, earlier)| *earlier), "").await?,
            _ => {}
        }
        Ok(())
    }

    async fn fence(&mut self, key: &str, token: Option<u64>, lease_id: &str) -> io::Result<()> {
        let Some(token) = token.filter(|token| *token > 0) else { return Ok(()) };
        let call = Call { verb: Verb::Fence, lease_id: lease_id.to_owned(), token: Some(token), ..Call::default() };
        self.order(key, "POST", "/fence", &json!({ "token": token }), call).await
    }

    /// Closes the connection while the node waits for the lock, or grants it.
    async fn hang_up(&mut self) -> io::Result<()> {
        let lease = self.lease(Workload::HangUp);
        let answer = self.send(&lease, true).await?.0;
        if answer.is_success() {
            return self.release(&lease).await;
        }
        self.caller.hold().await;
        // Perhaps the grant is being given back. What is given back then is not the grant that the client receives.
        // A client that has an answer, and knows that it may have the lease, must come back.
        let must_return = answer.status.is_ok() && answer.is_undecided();
        if must_return || answer.status.is_err() && self.caller.one_in(RETURN_ONE_IN) {
            return self.use_lease(Workload::HangUp, lease).await;
        }
        Ok(())
    }

    /// As an operator: ends the leases of a key, or closes it for a while.
    async fn intervene(&mut self) -> io::Result<()> {
        let ours = |workload: &&Workload| !matches!(workload, Workload::Gate | Workload::Block | Workload::Rates);
        let mix: Vec<Workload> = self.recorder.args.mix.iter().filter(ours).copied().collect();
        let workload = *self.caller.one_of(&mix);
        let key = self.lease(workload).keys.remove(0);
        let (verb, asked) = (|verb| Call { verb, ..Call::default() }, Asked::default());
        match self.caller.random.random_range(0..4) {
            0 => self.order(&key, "DELETE", "", &Value::Null, verb(Verb::Force)).await?,
            1 => {
                let for_ms = *self.caller.one_of(&[700, 4_000]);
                let (at, ms) = self.clock.unwrap_or((Instant::now(), 0));
                let until = UNIX_EPOCH + Duration::from_millis(ms + for_ms) + at.elapsed();
                let body =
                    json!({ "reason": "recorded", "until": humantime::format_rfc3339_millis(until).to_string() });
                let close = Call { asked: Asked { ttl_ms: for_ms, ..asked }, ..verb(Verb::Close) };
                self.order(&key, "PUT", "/closed", &body, close).await?;
                sleep(Duration::from_millis(self.caller.random.random_range(0..for_ms))).await;
                self.order(&key, "DELETE", "/closed", &Value::Null, verb(Verb::Open)).await?;
            }
            _ => {
                // Less than a second needs the scope admin.
                let grace_ms = *self.caller.one_of(&[0, 200, 1_000, 1_000]);
                let body = json!({ "grace_ms": grace_ms, "reason": "recorded" });
                let revoke = Call { asked: Asked { grace_ms, ..asked }, ..verb(Verb::Revoke) };
                self.order(&key, "POST", "/revoke", &body, revoke).await?;
            }
        }
        self.caller.pause().await;
        Ok(())
    }

    async fn order(&mut self, key: &str, method: &str, path: &str, body: &Value, call: Call) -> io::Result<()> {
        let call = Call { key: key.to_owned(), ..call };
        (self.recorder.recording.send)(&call);
        let answer = self.caller.call_by(method, &format!("/v1/locks/{key}{path}"), body).await;
        let answered = self.recorder.call(&answer, self.number, call.verb);
        let Call { key, lease_id, token, asked, .. } = call;
        self.recorder.write(&Call { key, lease_id, token, asked, ..answered })
    }

    /// Sends the request for a lease.
    async fn send(&mut self, lease: &LeasePlan, hangs_up: bool) -> io::Result<(Answer, Vec<Call>)> {
        let (path, body) = lease.acquire();
        for key in &lease.keys {
            let (key, lease_id, asked) = (key.clone(), lease.id.clone(), lease.asked.clone());
            (self.recorder.recording.send)(&Call { key, lease_id, asked, ..Call::default() });
        }
        let answer = match hangs_up {
            true => self.caller.hang_up(&path, &body).await,
            false => self.caller.call(&path, &body, lease.wait()).await,
        };
        let calls = self.record(&answer, Verb::Acquire, lease)?;
        for call in calls.iter().filter(|call| call.is_success()) {
            let Call { key, token: Some(token), expires_at_ms: Some(end_ms), ttl_ms: Some(ttl_ms), .. } = call else {
                continue;
            };
            self.clock = Some((answer.received, end_ms.saturating_sub(*ttl_ms)));
            let (last, earlier) = self.tokens.entry(key.clone()).or_default();
            if *last < *token {
                (*last, *earlier) = (*token, *last);
            }
        }
        Ok((answer, calls))
    }

    /// Writes a line for each key of the lease.
    fn record(&self, answer: &Answer, verb: Verb, lease: &LeasePlan) -> io::Result<Vec<Call>> {
        let call = Call {
            lease_id: lease.id.clone(),
            owner: lease.owner.clone(),
            asked: if verb == Verb::Acquire {
                lease.asked.clone()
            } else {
                Asked { multilock: lease.asked.multilock, ttl_ms: lease.asked.ttl_ms, ..Asked::default() }
            },
            ..self.recorder.call(answer, self.number, verb)
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
