//! Renews the leases of one client from one task. Leases that are due go in one request together.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::{self, Handle};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::{self, JoinSet};

use crate::clock::{Moment, sleep_until};
use crate::error::{Loss, Problem};
use crate::grant::{Grant, LeaseState, loss_by_the_clock};
use crate::transport::{ANSWER_MAX, ANSWER_MIN, Failure, Pause, Transport};

/// The most that a node accepts, and a proxy in front of it.
const LEASES_PER_CALL_MAX: usize = 500;
const BYTES_PER_CALL_MAX: usize = 500_000;
/// A request without an answer is repeated in so many parts.
const PARTS: usize = 16;
/// A lease that has more than so many times the time left of another one goes in another request: the shortest decides how long an
/// answer may take.
const SPREAD: u32 = 8;
/// Leases that were released are forgotten after this time at the latest.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two renewals.
const RENEW_MIN: Duration = Duration::from_millis(30);

/// The renewals of one client. There is a task for each runtime that the client is used in; it ends with the client and its leases.
#[derive(Debug, Default)]
pub(crate) struct Renewals(Mutex<Option<(runtime::Id, UnboundedSender<Kept>)>>);

impl Renewals {
    /// Renews the lease for as long as `state` says that it is held, and puts the loss there.
    pub(crate) fn keep(&self, transport: &Arc<Transport>, grant: Grant, state: watch::Sender<LeaseState>) {
        let mut kept = Kept::new(grant, state, transport.nodes());
        let runtime = Handle::current();
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((id, arrivals)) = &*running
            && *id == runtime.id()
        {
            match arrivals.send(kept) {
                Ok(()) => return,
                Err(SendError(refused)) => kept = refused,
            }
        }
        let (arrivals, arrived) = mpsc::unbounded_channel();
        let _ = arrivals.send(kept);
        runtime.spawn(Task::new(transport.clone()).run(arrived));
        *running = Some((runtime.id(), arrivals));
    }
}

/// A lease of one key or of several.
#[derive(Debug)]
struct Kept {
    grant: Grant,
    state: watch::Sender<LeaseState>,
    /// When it is renewed.
    due: Moment,
    /// From then on it goes with leases that are due, so that leases of one length soon go together.
    early: Moment,
    /// A request with it has no answer yet.
    is_sent: bool,
    /// With how many others it may go in one request. Less after a request without an answer, which may be the fault of one of them.
    together: usize,
    pause: Pause,
    /// The index of the node that was asked last and has not renewed it: each is asked in turn, whatever other calls have found meanwhile.
    asked: Option<usize>,
    /// Of its leases in a request.
    bytes: usize,
}

impl Kept {
    fn new(grant: Grant, state: watch::Sender<LeaseState>, nodes: usize) -> Self {
        let pause = Pause::of_renewal(nodes, grant.ttl);
        let (due, early, together) = (grant.sent, grant.sent, LEASES_PER_CALL_MAX);
        let bytes = named(&grant).map(|lease| lease.to_string().len() + 1).sum();
        let mut kept = Self { grant, state, due, early, is_sent: false, together, pause, asked: None, bytes };
        kept.plan(nodes);
        kept
    }

    /// After a renewal: when the next one is due.
    fn plan(&mut self, nodes: usize) {
        // A lease that must end soon, by a revocation or its longest hold, is renewed more often.
        let length = self.grant.until.since(self.grant.sent).min(self.grant.ttl);
        let period = (length / 3).mul_f64(rand::rng().random_range(0.8..1.0)).max(RENEW_MIN);
        let soonest = Moment::now().plus(RENEW_MIN);
        self.due = self.grant.sent.plus(period).max(soonest);
        self.early = self.grant.sent.plus(period / 2).max(soonest);
        self.together = LEASES_PER_CALL_MAX;
        self.pause = Pause::of_renewal(nodes, self.grant.ttl);
        self.asked = None;
    }

    fn is_held(&self) -> bool {
        matches!(*self.state.borrow(), LeaseState::Held { .. })
    }

    /// Replaces the state, unless the lease was released meanwhile.
    fn set(&self, next: LeaseState) {
        self.state.send_if_modified(|state| {
            let is_held = matches!(state, LeaseState::Held { .. });
            if is_held {
                *state = next;
            }
            is_held
        });
    }

    fn lose(&self, loss: Loss) {
        tracing::warn!(keys = ?self.grant.target, %loss, "a lease is lost");
        self.set(LeaseState::Lost(loss));
    }

    /// Not a loss yet: that is reported when the lease has ended.
    fn failed(&mut self, failure: &Failure) {
        let now = Moment::now();
        let pause = self.pause.next(failure).min(self.grant.until.since(now) / 4);
        self.due = now.plus(pause);
        self.early = self.due;
    }

    /// What a node says of each of its keys.
    fn settle(&mut self, sent: Moment, results: &[Value], nodes: usize) {
        let is_renewed = |result: &Value| result["status"] == 200 && result["ttl_ms"].is_u64();
        if results.iter().all(is_renewed) {
            self.grant.extend(sent, &json!({ "results": results }));
            self.plan(nodes);
            let (until, revocation) = (self.grant.until, self.grant.revocation.clone());
            return self.set(LeaseState::Held { until, revocation });
        }
        // A loss is more serious than what is not known of another key.
        let lost = results.iter().find(|result| result["status"] == 410);
        let worst = lost.or_else(|| results.iter().find(|result| !is_renewed(result)));
        let problem = Problem::new(503, worst.and_then(Value::as_object).cloned().unwrap_or_default());
        match lost {
            Some(_) => self.lose(Loss::of(&problem)),
            None => self.failed(&Failure::Later(problem)),
        }
    }
}

/// When the call was sent, its answer, and the index of the node that was asked.
type TimedAnswer = (Moment, Result<Value, Failure>, Option<usize>);

struct Task {
    transport: Arc<Transport>,
    kept: BTreeMap<u64, Kept>,
    next_id: u64,
    calls: JoinSet<TimedAnswer>,
    /// Which leases each call is about.
    batches: HashMap<task::Id, Vec<u64>>,
    wakes_at: Moment,
}

impl Task {
    fn new(transport: Arc<Transport>) -> Self {
        let (kept, calls, batches) = (BTreeMap::new(), JoinSet::new(), HashMap::new());
        Self { transport, kept, next_id: 0, calls, batches, wakes_at: Moment::now() }
    }

    async fn run(mut self, mut arrivals: UnboundedReceiver<Kept>) {
        let mut is_open = true;
        while is_open || !self.kept.is_empty() {
            tokio::select! {
                arrived = arrivals.recv(), if is_open => match arrived {
                    Some(kept) => {
                        let first = kept.due.min(kept.grant.until).min(Moment::now().plus(LOOK_EVERY));
                        self.wakes_at = if self.kept.is_empty() { first } else { self.wakes_at.min(first) };
                        self.kept.insert(self.next_id, kept);
                        self.next_id += 1;
                    }
                    None => is_open = false,
                },
                Some(ended) = self.calls.join_next_with_id() => {
                    let (id, answer) = match ended {
                        Ok((id, answer)) => (id, Some(answer)),
                        Err(error) => (error.id(), None),
                    };
                    self.settle(id, answer);
                    self.look();
                }
                () = sleep_until(self.wakes_at), if !self.kept.is_empty() => self.look(),
            }
        }
    }

    /// Reports leases that have ended, forgets those that were released, and sends what is due.
    fn look(&mut self) {
        for kept in self.kept.values().filter(|kept| kept.grant.until.has_passed() && kept.is_held()) {
            kept.lose(loss_by_the_clock(kept.grant.revocation.as_ref()));
        }
        self.kept.retain(|_, kept| kept.is_held());
        for batch in batches(&self.kept, Moment::now()) {
            self.send(batch);
        }
        let next = |kept: &Kept| if kept.is_sent { kept.grant.until } else { kept.due.min(kept.grant.until) };
        let soonest = Moment::now().plus(LOOK_EVERY);
        self.wakes_at = self.kept.values().map(next).fold(soonest, Moment::min);
    }

    fn send(&mut self, batch: Vec<u64>) {
        let (mut leases, mut until) = (Vec::new(), None::<Moment>);
        for id in &batch {
            let Some(kept) = self.kept.get_mut(id) else { continue };
            kept.is_sent = true;
            leases.extend(named(&kept.grant));
            until = Some(until.map_or(kept.grant.until, |until| until.min(kept.grant.until)));
        }
        // Other nodes can be tried before the first of them ends.
        let answer_max = (until.map_or(Duration::ZERO, Moment::left) / 4).clamp(ANSWER_MIN, ANSWER_MAX);
        let asked = batch.first().and_then(|id| self.kept.get(id)?.asked);
        let (transport, body) = (self.transport.clone(), json!({ "leases": leases }));
        let call = self.calls.spawn(async move {
            let index = asked.map_or_else(|| transport.preferred(), |asked| transport.after(asked));
            let (sent, mut next) = (Moment::now(), index);
            let answer = transport.call(&mut next, &Method::POST, "/v1/leases/renew", Some(&body), answer_max).await;
            (sent, answer, Some(index))
        });
        self.batches.insert(call.id(), batch);
    }

    /// Each lease of a call gets its own result; if there are none, all have failed.
    fn settle(&mut self, call: task::Id, answer: Option<TimedAnswer>) {
        let batch = self.batches.remove(&call).unwrap_or_default();
        let nodes = self.transport.nodes();
        let ended = || (Moment::now(), Err(Failure::NoAnswer("the call has ended".to_owned())), None);
        let (sent, answer, asked) = answer.unwrap_or_else(ended);
        let answer = match answer {
            Ok(body) => Ok(body),
            Err(Failure::Decided(problem) | Failure::Later(problem)) if problem.field("results").is_array() => {
                Ok(Value::Object(problem.fields().clone()))
            }
            Err(failure) => Err(failure),
        };
        let results = answer.as_ref().ok().and_then(|body| self.results_of(&batch, body));
        let failure = match answer {
            Err(failure) => failure,
            Ok(_) => Failure::NoAnswer("the answer does not have a result for each lease".to_owned()),
        };
        let apart = self.refused_key(&batch, &failure);
        let mut results = results.as_ref().map(|results| results.iter());
        for id in &batch {
            let Some(kept) = self.kept.get_mut(id) else { continue };
            kept.is_sent = false;
            kept.asked = asked.filter(|_| apart.is_none());
            match (&mut results, apart) {
                (Some(results), _) => {
                    let own: Vec<Value> = results.by_ref().take(kept.grant.keys().len()).cloned().collect();
                    kept.settle(sent, &own, nodes);
                }
                // The others are sent again without it.
                (None, Some(apart)) => kept.together = if *id == apart { 1 } else { kept.together },
                (None, None) => {
                    if matches!(failure, Failure::NoAnswer(_)) {
                        kept.together = (batch.len() / PARTS).max(1);
                    }
                    kept.failed(&failure);
                }
            }
        }
    }

    /// The results, if there is one for each lease of the batch, in their order.
    fn results_of(&self, batch: &[u64], body: &Value) -> Option<Vec<Value>> {
        let results = body["results"].as_array()?;
        let names: Vec<Value> = self.grants(batch).flat_map(named).collect();
        let fits =
            |(result, name): (&Value, &Value)| result["key"] == name["key"] && result["lease_id"] == name["lease_id"];
        (results.len() == names.len() && results.iter().zip(&names).all(fits)).then(|| results.clone())
    }

    /// A request is refused as a whole if the API key may not use one of its keys: whose key that is.
    fn refused_key(&self, batch: &[u64], failure: &Failure) -> Option<u64> {
        let Failure::Decided(problem) = failure else { return None };
        let index = usize::try_from(problem.field("index").as_u64()?).ok()?;
        let owners = batch.iter().filter_map(|id| self.kept.get(id).map(|kept| (*id, kept.grant.keys().len())));
        let mut ids = owners.flat_map(|(id, keys)| std::iter::repeat_n(id, keys));
        ids.nth(index).filter(|_| batch.len() > 1)
    }

    fn grants(&self, batch: &[u64]) -> impl Iterator<Item = &Grant> {
        batch.iter().filter_map(|id| self.kept.get(id).map(|kept| &kept.grant))
    }
}

/// The leases of a grant, one for each key, as requests name them.
fn named(grant: &Grant) -> impl Iterator<Item = Value> {
    grant.keys().iter().map(|key| json!({ "key": key, "lease_id": grant.lease_id }))
}

/// What to send now: each lease that is due, with others that soon are.
fn batches(kept: &BTreeMap<u64, Kept>, now: Moment) -> Vec<Vec<u64>> {
    let mut going: Vec<(&u64, &Kept)> = kept.iter().filter(|(_, kept)| !kept.is_sent && kept.early <= now).collect();
    going.sort_by_key(|(_, kept)| kept.grant.until);
    let mut all: Vec<Vec<(&u64, &Kept)>> = Vec::new();
    let (mut keys, mut bytes) = (0, 0);
    for (id, kept) in going {
        let joins = all.last().is_some_and(|batch| {
            let (first, last) = (batch[0].1, batch[batch.len() - 1].1);
            keys + kept.grant.keys().len() <= LEASES_PER_CALL_MAX
                && bytes + kept.bytes <= BYTES_PER_CALL_MAX
                && batch.len() < kept.together.min(last.together)
                && kept.grant.until.since(now) <= first.grant.until.since(now) * SPREAD
        });
        if !joins {
            all.push(Vec::new());
            (keys, bytes) = (0, 0);
        }
        keys += kept.grant.keys().len();
        bytes += kept.bytes;
        if let Some(batch) = all.last_mut() {
            batch.push((id, kept));
        }
    }
    all.retain(|batch| batch.iter().any(|(_, kept)| kept.due <= now));
    all.into_iter().map(|batch| batch.into_iter().map(|(id, _)| *id).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::Target;

    /// A lease of so many keys that was just granted for so many seconds.
    fn kept(keys: usize, seconds: u64) -> Kept {
        let target = Target::Many((0..keys).map(|key| format!("k{key}")).collect());
        let locks: Vec<Value> = (0..keys).map(|key| json!({ "key": format!("k{key}"), "token": 7 })).collect();
        let answer = json!({ "ttl_ms": seconds * 1_000, "locks": locks });
        let grant = Grant::of(&target, "id", Moment::now(), Duration::from_secs(seconds), &answer).unwrap();
        let held = LeaseState::Held { until: grant.until, revocation: None };
        Kept::new(grant, watch::Sender::new(held), 1)
    }

    fn all_due(leases: Vec<Kept>) -> Vec<Vec<u64>> {
        let mut kept: BTreeMap<u64, Kept> = (0..).zip(leases).collect();
        let now = Moment::now();
        for lease in kept.values_mut() {
            (lease.due, lease.early) = (now, now);
        }
        batches(&kept, now)
    }

    #[test]
    fn a_short_lease_does_not_cut_the_time_of_a_long_one() {
        assert_eq!(all_due(vec![kept(1, 600), kept(1, 1), kept(1, 3)]), [vec![1, 2], vec![0]]);
    }

    #[test]
    fn a_renewed_lease_counts_from_the_request_for_as_long_as_the_node_says() {
        // An undecided key changes nothing, and a lost key ends the lease.
        let mut lease = kept(2, 30);
        let sent = Moment::now().minus(Duration::from_secs(5));
        let renewed = |ttl_ms: u64| json!({ "status": 200, "ttl_ms": ttl_ms, "revocation": null });
        lease.settle(sent, &[renewed(30_000), renewed(20_000)], 1);
        assert_eq!(lease.grant.until, sent.plus(Duration::from_secs(20)));
        // A key that is not decided about: the lease is neither renewed nor lost.
        lease.settle(Moment::now(), &[renewed(30_000), json!({ "status": 503 })], 1);
        assert_eq!(lease.grant.until, sent.plus(Duration::from_secs(20)));
        assert!(lease.is_held());
        lease.settle(Moment::now(), &[json!({ "status": 503 }), json!({ "status": 410, "why": "forced" })], 1);
        assert!(matches!(&*lease.state.borrow(), LeaseState::Lost(loss) if loss.reason == crate::LossReason::Forced));
    }
}
