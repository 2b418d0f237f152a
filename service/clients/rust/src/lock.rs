//! Acquiring a lock, or several together.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::client::Client;
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Problem};
use crate::grant::{Grant, Target};
use crate::lease::Lease;
use crate::transport::{ANSWER_MAX, Failure, Pause, ms, new_id};

/// The first call of a wait is short: it returns a ticket, with which the position in the queue survives the node.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long each later call of a wait lasts: below the time-outs of proxies, and a node that freezes is noticed soon.
const NEXT_WAIT: Duration = Duration::from_secs(20);
const WAIT_MIN: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(30);

type OnWait = Arc<dyn Fn(&Problem) + Send + Sync>;

/// A key, and how it is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    key: String,
    mode: &'static str,
    permits: Option<u32>,
    limit: Option<u32>,
    group: Option<String>,
    group_limit: Option<u32>,
}

impl Wanted {
    /// No other lease at the same time.
    pub fn exclusive(key: impl Into<String>) -> Self {
        Self { key: key.into(), mode: "exclusive", permits: None, limit: None, group: None, group_limit: None }
    }

    /// Together with other shared leases.
    pub fn shared(key: impl Into<String>) -> Self {
        Self { mode: "shared", ..Self::exclusive(key) }
    }

    /// `permits` of a semaphore with `limit` permits; without `limit`, that of the key applies.
    pub fn permits(key: impl Into<String>, permits: u32, limit: Option<u32>) -> Self {
        Self { mode: "permits", permits: Some(permits), limit, ..Self::exclusive(key) }
    }

    /// The group that permits count for, for example a tenant: free permits go to the waiting group that has fewest. With `limit`, the
    /// lock is not granted if the group would have more permits.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>, limit: Option<u32>) -> Self {
        (self.group, self.group_limit) = (Some(group.into()), limit);
        self
    }

    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("mode".to_owned(), self.mode.into());
        for (name, number) in [("permits", self.permits), ("limit", self.limit), ("group_limit", self.group_limit)] {
            if let Some(number) = number {
                fields.insert(name.to_owned(), number.into());
            }
        }
        if let Some(group) = &self.group {
            fields.insert("group".to_owned(), group.as_str().into());
        }
        fields
    }
}

impl Client {
    /// A lock that is to be acquired.
    pub fn lock(&self, key: impl Into<String>) -> LockRequest {
        let key = key.into();
        // URLs lose these in a path.
        let is_multilock = [".", ".."].contains(&key.as_str());
        LockRequest::new(self.clone(), vec![Wanted::exclusive(key)], is_multilock)
    }

    /// Several locks that are to be acquired together, all or none.
    pub fn multilock(&self, wanted: impl IntoIterator<Item = Wanted>) -> LockRequest {
        LockRequest::new(self.clone(), wanted.into_iter().collect(), true)
    }
}

/// A lock that is to be acquired, or several together.
#[derive(Clone)]
#[must_use = "nothing is acquired before `acquire`"]
pub struct LockRequest {
    client: Client,
    wanted: Vec<Wanted>,
    is_multilock: bool,
    fields: Map<String, Value>,
    ttl: Duration,
    wait: Duration,
    on_wait: Option<OnWait>,
    resumed: Option<(String, Value)>,
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LockRequest")
            .field("wanted", &self.wanted)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

impl LockRequest {
    pub(crate) fn new(client: Client, wanted: Vec<Wanted>, is_multilock: bool) -> Self {
        let (fields, wait) = (Map::new(), Duration::ZERO);
        Self { client, wanted, is_multilock, fields, ttl: TTL, wait, on_wait: None, resumed: None }
    }

    /// Length of the lease between two renewals; 30 s unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for the lock; not at all unless set. There is no upper limit.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The holder's name, which refused clients see; unless set, `host:pid program/…` with an end of its own for each lease.
    pub fn owner(self, owner: impl Into<String>) -> Self {
        self.field("owner", owner.into())
    }

    /// Together with other shared leases.
    pub fn shared(mut self) -> Self {
        self.wanted = self.wanted.into_iter().map(|wanted| Wanted::shared(wanted.key)).collect();
        self
    }

    /// `permits` of a semaphore with `limit` permits.
    pub fn permits(mut self, permits: u32, limit: u32) -> Self {
        self.wanted = self.wanted.into_iter().map(|wanted| Wanted::permits(wanted.key, permits, Some(limit))).collect();
        self
    }

    /// The group that the permits count for: see [`Wanted::group`]. After [`LockRequest::permits`].
    pub fn group(mut self, group: impl Into<String>, limit: Option<u32>) -> Self {
        let group = group.into();
        self.wanted = self.wanted.into_iter().map(|wanted| wanted.group(group.clone(), limit)).collect();
        self
    }

    /// Nested in `outer`, a lease of this client for the same key: it has the same token, and is granted at once while `outer` is held.
    pub fn within(self, outer: &Lease) -> Self {
        self.reentrant(outer.owner())
    }

    /// 1 to 10, higher first; 1 unless set.
    pub fn priority(self, priority: u8) -> Self {
        self.field("priority", priority)
    }

    /// If `owner` holds the lock already, it gets another lease with the same token. Use a name that no other client uses.
    pub fn reentrant(self, owner: impl Into<String>) -> Self {
        self.owner(owner).field("reentrant", true)
    }

    /// Takes a free lock ahead of the queue.
    pub fn barge(self) -> Self {
        self.field("barge", true)
    }

    /// If the lease expires, the lock is not granted for this long.
    pub fn delay(self, delay: Duration) -> Self {
        self.field("delay_ms", ms(delay))
    }

    /// If the lock is released sooner than this after its grant, it is not granted until then. Permits stay taken for so long however
    /// the lease ends: at most `limit` of them are granted in any such time. Not for shared locks.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.field("min_hold_ms", ms(min_hold))
    }

    /// Renewals extend the lease no further than this after the grant.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.field("max_hold_ms", ms(max_hold))
    }

    /// A JSON object of at most 1 KiB, which refused clients see.
    pub fn metadata(self, metadata: Map<String, Value>) -> Self {
        self.field("metadata", metadata)
    }

    /// The id of the lease, if it is granted at once. Each request needs a new one. With the `ticket` of a refusal and the id of the request
    /// that got it, the same request returns to its position in the queue, for a minute after the refusal.
    pub fn resume(mut self, lease_id: impl Into<String>, ticket: Option<Value>) -> Self {
        self.resumed = Some((lease_id.into(), ticket.unwrap_or_default()));
        self
    }

    /// Called with each refusal while the wait goes on: it has the `holders`, the `position` and the `waiters`.
    pub fn on_wait(mut self, notice: impl Fn(&Problem) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(notice));
        self
    }

    fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Acquires the lock. The lease is renewed until it is released or dropped.
    ///
    /// If the future is dropped, nothing stays behind: the waiter leaves, and a lease that was granted meanwhile is released.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if the client could not get the lock within the wait.
    pub async fn acquire(mut self) -> Result<Lease, Error> {
        if !self.fields.contains_key("owner") {
            self.fields.insert("owner".to_owned(), new_owner().into());
        }
        let target = if self.is_multilock {
            Target::Many(self.wanted.iter().map(|wanted| wanted.key.clone()).collect())
        } else {
            Target::One(self.wanted[0].key.clone())
        };
        let started = Moment::now();
        let wait_until = started.plus(self.wait);
        let (lease_id, mut ticket) = self.resumed.take().unwrap_or_else(|| (new_id(), Value::Null));
        let mut pending = Pending::new(&self.client, target, lease_id);
        let mut next_wait = FIRST_WAIT;
        let mut silent_since: Option<Moment> = None;
        let mut was_answered = false;
        let (mut pause, mut index) = (self.pause(), self.client.transport.preferred());
        loop {
            let ends = self.client.ends(wait_until, silent_since, was_answered);
            let longest = if was_answered { next_wait } else { next_wait.min(ends.left() / 4) };
            // A call that waits gets the answer of a wait, also if an outage has taken all of its time.
            let wait = wait_until.left().min(longest).max(self.wait.min(WAIT_MIN));
            let body = self.body(&pending.lease_id, wait, &ticket);
            let sent = Moment::now();
            let might_be_granted = std::mem::replace(&mut pending.is_in_doubt, true);
            let path = pending.target.path("acquire");
            let answer_max = wait + self.client.transport.share(ANSWER_MAX, ends.minus(wait));
            let failure = match self.call(&mut index, &path, &body, answer_max).await {
                Ok(answer) => {
                    let grant = Grant::of(&pending.target, &pending.lease_id, sent, self.ttl, &answer)?;
                    match self.confirmed(grant, ends).await {
                        Ok(Some(grant)) => {
                            pending.is_over = true;
                            tracing::debug!(keys = ?grant.target, waited = ?started.elapsed(), "acquired");
                            return Ok(Lease::keep(self.client, grant));
                        }
                        // It ended before this client knew of it.
                        Ok(None) if wait_until.has_passed() => {
                            return Err(Error::Unreachable("the lease ended before its grant arrived".to_owned()));
                        }
                        Ok(None) => {
                            pending.begin_again();
                            ticket = Value::Null;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(failure) => failure,
            };
            let may_be_granted = might_be_granted || failure.may_have_run();
            match failure {
                Failure::Decided(problem) => {
                    was_answered = true;
                    let was_in_doubt = silent_since.take().is_some();
                    // Another refusal, such as that of an API key, says nothing about an earlier call without an answer.
                    pending.is_in_doubt = may_be_granted && ![409, 410, 423].contains(&problem.status());
                    let is_early = sent.elapsed() < wait / 2;
                    if !is_early {
                        pause = self.pause();
                    }
                    match problem.code() {
                        _ if problem.status() == 423 && wait_until.has_passed() => {
                            return Err(Error::NotAcquired(problem));
                        }
                        _ if problem.status() == 423 => {
                            if let Some(notice) = &self.on_wait {
                                notice(&problem);
                            }
                            ticket = problem.field("ticket").clone();
                            next_wait = NEXT_WAIT;
                            if ticket.is_null() {
                                let retry_after =
                                    Duration::from_millis(problem.field("retry_after_ms").as_u64().unwrap_or(100));
                                sleep_until(Moment::now().plus(retry_after.min(wait_until.left()))).await;
                            } else if is_early {
                                // A node that is about to stop ends waits early.
                                self.client.transport.avoid(&mut index);
                                let before_next = pause.next(&Failure::Decided(problem));
                                sleep_until(Moment::now().plus(before_next.min(wait_until.left()))).await;
                            }
                        }
                        "invalid-ticket" if !ticket.is_null() => ticket = Value::Null,
                        // It was granted in an answer that was lost, and has ended.
                        "lease-lost" if was_in_doubt || !ticket.is_null() => {
                            pending.begin_again();
                            ticket = Value::Null;
                        }
                        _ => return Err(Error::Refused(problem)),
                    }
                }
                failure => {
                    if let Failure::Later(problem) = &failure
                        && !problem.field("ticket").is_null()
                    {
                        ticket = problem.field("ticket").clone();
                    }
                    pending.is_in_doubt = may_be_granted;
                    if let (Failure::Later(problem), Some(notice)) = (&failure, &self.on_wait)
                        && failure.is_of_quota()
                    {
                        notice(problem);
                    }
                    if !pause
                        .after(
                            &failure,
                            self.client.failed(&failure, sent, wait_until, &mut silent_since, was_answered),
                        )
                        .await
                    {
                        return Err(pause.last(failure).into_error());
                    }
                }
            }
        }
    }

    /// A grant that surely has most of its length left: it is renewed after a wait, because it began at an unknown time.
    /// `None` if it has ended.
    async fn confirmed(&self, mut grant: Grant, give_up: Moment) -> Result<Option<Grant>, Error> {
        if grant.sent.elapsed() <= self.ttl / 10 {
            return Ok(Some(grant));
        }
        let path = grant.target.path("renew");
        let body = grant.target.body(&grant.lease_id);
        let (mut pause, mut index) = (self.pause(), self.client.transport.preferred());
        let give_up = give_up.min(Moment::now().plus(self.ttl.min(self.client.patience)));
        loop {
            let sent = Moment::now();
            let failure = match self
                .call(&mut index, &path, &body, self.client.transport.share((self.ttl / 2).min(ANSWER_MAX), give_up))
                .await
            {
                Ok(answer) => {
                    grant.extend(sent, &answer);
                    if !grant.until.has_passed() {
                        return Ok(Some(grant));
                    }
                    self.client.transport.avoid(&mut index);
                    Failure::NoAnswer("the answer to a renewal does not say how long the lease lasts".to_owned())
                }
                Err(Failure::Decided(problem)) if problem.status() == 410 => return Ok(None),
                Err(failure) => failure,
            };
            if matches!(failure, Failure::Decided(_)) || !pause.after(&failure, give_up).await {
                return Err(failure.into_error());
            }
        }
    }

    async fn call(&self, index: &mut usize, path: &str, body: &Value, answer_max: Duration) -> Result<Value, Failure> {
        self.client.transport.call(index, &Method::POST, path, Some(body), answer_max).await
    }

    fn pause(&self) -> Pause {
        Pause::new(self.client.transport.nodes())
    }

    fn body(&self, lease_id: &str, wait: Duration, ticket: &Value) -> Value {
        let mut body = self.fields.clone();
        if self.is_multilock {
            let locks = self.wanted.iter().map(|wanted| {
                let mut lock = wanted.fields();
                lock.insert("key".to_owned(), wanted.key.clone().into());
                Value::Object(lock)
            });
            body.insert("locks".to_owned(), locks.collect());
        } else {
            body.extend(self.wanted[0].fields());
        }
        body.insert("lease_id".to_owned(), lease_id.into());
        body.insert("ttl_ms".to_owned(), ms(self.ttl).into());
        body.insert("wait_ms".to_owned(), ms(wait).into());
        if !ticket.is_null() {
            body.insert("ticket".to_owned(), ticket.clone());
        }
        Value::Object(body)
    }
}

/// A lease that may have been granted. When the acquire ends without it, or its future is dropped, it is released.
struct Pending {
    client: Client,
    target: Target,
    lease_id: String,
    /// The last call has no answer: a lease may have been granted.
    is_in_doubt: bool,
    is_over: bool,
    runtime: Handle,
}

impl Pending {
    fn new(client: &Client, target: Target, lease_id: String) -> Self {
        let (client, runtime) = (client.clone(), Handle::current());
        Self { client, target, lease_id, is_in_doubt: false, is_over: false, runtime }
    }

    fn begin_again(&mut self) {
        self.lease_id = new_id();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_over || !self.is_in_doubt {
            return;
        }
        let (client, target, lease_id) = (self.client.clone(), self.target.clone(), self.lease_id.clone());
        self.client.background.spawn(&self.runtime, async move {
            let (path, body) = (target.path("release"), target.body(&lease_id));
            let until = Moment::now().plus(client.patience);
            match client.transport.repeat(&Method::POST, &path, Some(&body), ANSWER_MAX, until).await {
                Ok(_) => {}
                Err(Error::Refused(problem)) if problem.status() == 410 => {}
                Err(_) => client.background.give_up(),
            }
        });
    }
}

/// This machine and process, as `host:pid`.
#[must_use]
pub fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    let host = host.as_deref().map_or("client", str::trim);
    let host: String = host.chars().filter(|letter| !letter.is_control()).take(60).collect();
    format!("{host}:{}", std::process::id())
}

/// The last part of a program's path, as it fits into a name that people read.
#[must_use]
pub fn program_name(program: &OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    name.chars().filter(|letter| !letter.is_control()).take(40).collect()
}

/// The owner of a lease whose request names none: `host:pid program/…`. A nested lease has its owner, and must not open a lock that other code of this process
/// holds.
fn new_owner() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    let program = std::env::args_os().next().unwrap_or_default();
    format!("{} {}/{}", process_name(), program_name(&program), &id[..12])
}
