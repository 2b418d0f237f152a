//! Makes the calls that ../../python/tests/remote.py sends, which runs the scenarios.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use latchgate_client::{
    Attempt, AttemptState, Begun, Client, Error, Events, Lease, LeaseState, LockRequest, LossReason, OnExpiry,
    OnOutage, Operation, Revoke, Wanted,
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

/// How long a call waits unless it says so. That of the client is not at all.
const WAIT: Duration = Duration::from_secs(60);

/// By their numbers: the clients, what they hold, and the calls.
#[derive(Default)]
struct Agent {
    clients: Mutex<HashMap<u64, Client>>,
    held: Mutex<HashMap<u64, Held>>,
    events: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Events>>>>,
    works: Mutex<HashMap<u64, oneshot::Sender<Call>>>,
    calls: Mutex<HashMap<u64, AbortHandle>>,
}

enum Held {
    Lease(Box<Lease>),
    Attempt { state: watch::Receiver<AttemptState>, is_claimed: bool },
}

struct Call(Value);

#[tokio::main]
async fn main() {
    let agent = Arc::new(Agent::default());
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        // A text of Rust cannot have half of a surrogate pair.
        let call = Call(serde_json::from_str(&line.replace("\\ud800", "\\ufffd")).expect("a call"));
        let number = call.number("number");
        let running = tokio::spawn(make(agent.clone(), call));
        at(&agent.calls).insert(number, running.abort_handle());
        tokio::spawn(async move {
            let answer = match running.await {
                Ok(Ok(value)) => json!({ "value": value }),
                Ok(Err(error)) => json!({ "error": error }),
                Err(error) if error.is_cancelled() => json!({ "error": { "kind": "cancelled", "detail": "aborted" } }),
                Err(error) => json!({ "error": { "kind": "options", "detail": error.to_string() } }),
            };
            if number != 0 {
                say(number, answer);
            }
        });
    }
}

fn at<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no call panics with it")
}

fn say(number: u64, mut message: Value) {
    message["number"] = number.into();
    println!("{message}");
}

impl Call {
    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    fn some<T: TryFrom<u64>>(&self, name: &str) -> Option<T> {
        self.0[name].as_u64()?.try_into().ok()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0[name].as_str()
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.some(name).map(Duration::from_millis)
    }

    fn flag(&self, name: &str) -> Option<()> {
        (self.0[name] == true).then_some(())
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.0[name].as_array().into_iter().flatten()
    }

    fn key(&self) -> &str {
        self.text("key").expect("a key")
    }
}

/// With an option, if the call has it.
fn with<T, V>(target: T, value: Option<V>, set: impl FnOnce(T, V) -> T) -> T {
    match value {
        Some(value) => set(target, value),
        None => target,
    }
}

/// An error as the scenarios know it.
fn said(error: Error) -> Value {
    let kind = match &error {
        Error::NotAcquired(problem) if problem.code() == "wait-timeout" => "WaitTimeout",
        Error::NotAcquired(_) => "LockHeld",
        Error::LeaseLost(_) => "LeaseLost",
        Error::StaleToken(_) => "StaleToken",
        Error::InProgress(_) => "OperationInProgress",
        Error::OutcomeUnknown(_) => "OperationUnknown",
        Error::AttemptLost(_) => "AttemptLost",
        Error::Refused(_) => "Refused",
        Error::Unreachable(_) => "Unavailable",
        _ => "options",
    };
    let (code, detail) = (error.code().unwrap_or("no-answer"), error.to_string());
    let mut said = json!({ "kind": kind, "code": code, "detail": detail });
    if let Some(problem) = error.problem() {
        (said["status"], said["fields"]) = (problem.status().into(), json!(problem.fields()));
    }
    if let Error::LeaseLost(loss) = &error {
        let is_answered = loss.reason != LossReason::NotRenewed;
        let why = if is_answered { format!("{:?}", loss.reason).to_lowercase() } else { "unanswered".to_owned() };
        (said["status"], said["fields"]) = (json!(is_answered.then_some(410)), json!({ "why": why }));
    }
    said
}

async fn make(agent: Arc<Agent>, call: Call) -> Result<Value, Value> {
    let client = at(&agent.clients).get(&call.number("client")).cloned();
    let client = || client.expect("a client");
    let lease = call.number("lease");
    match call.text("do").expect("a call") {
        "client" => {
            let client = client_of(&call).map_err(said)?;
            at(&agent.clients).insert(call.number("client"), client);
        }
        "lock" => {
            let mut request = client().lock(call.key());
            request = with(request, call.flag("shared"), |request, ()| request.shared());
            let permits = call.some("permits").unwrap_or(1);
            request = with(request, call.some("limit"), |request, limit| request.permits(permits, limit));
            let limit = call.some("groupLimit");
            request = with(request, call.text("group"), |request, group| request.group(group, limit));
            return agent.acquire(request, &call, &[call.key()]).await;
        }
        "multilock" => {
            let keys: Vec<Call> = call.all("keys").cloned().map(Call).collect();
            let request = client().multilock(keys.iter().map(wanted));
            let keys: Vec<&str> = keys.iter().map(Call::key).collect();
            return agent.acquire(request, &call, &keys).await;
        }
        "fence" => client().fence(call.key(), call.number("token")).await.map_err(said)?,
        "revoke" => {
            let (reason, by) = (call.text("reason").map(str::to_owned), call.text("by").map(str::to_owned));
            let revoke = Revoke { reason, by, grace: call.time("graceMs"), token: call.some("token") };
            let revoking = client().revoke(call.key(), &revoke).await.map_err(said)?;
            return Ok(json!({ "leases": revoking.leases, "deadline": revoking.deadline }));
        }
        "state" => return Ok(agent.state(lease)),
        "lost" => {
            let mut state = match &at(&agent.held)[&lease] {
                Held::Lease(lease) => lease.state(),
                Held::Attempt { .. } => panic!("it is an attempt"),
            };
            let _ = state.wait_for(|state| matches!(state, LeaseState::Lost(_))).await;
            return Ok(agent.state(lease)["lost"].take());
        }
        "release" => {
            let held = at(&agent.held).remove(&lease);
            if let Some(Held::Lease(lease)) = held {
                lease.release().await.map_err(said)?;
            }
        }
        "forget" => drop(at(&agent.held).remove(&lease)),
        "events" => {
            let events = client().watch(call.key());
            let events = if let Some(id) = call.text("after") { events.after(id) } else { events };
            at(&agent.events).insert(call.number("number"), Arc::new(events.into()));
            return Ok(call.0["number"].clone());
        }
        "next" => {
            let events = at(&agent.events)[&call.number("events")].clone();
            let event = events.lock().await.next().await.map_err(said)?;
            return Ok(json!({ "id": event.id, "kind": event.kind, "data": event.data }));
        }
        "once" => return agent.once(&client(), &call).await,
        "ended" => {
            let work = at(&agent.works).remove(&call.number("call"));
            let _ = work.expect("a work").send(call);
        }
        "cancel" => at(&agent.calls)[&call.number("call")].abort(),
        other => panic!("no call is {other}"),
    }
    Ok(Value::Null)
}

/// Begins with the first node, as other clients do.
fn client_of(call: &Call) -> Result<Client, Error> {
    let urls: Vec<&str> = call.all("urls").filter_map(Value::as_str).collect();
    let mut client = Client::new(&urls)?;
    while urls.len() > 1 && !client.prefers(urls[0]) {
        client = Client::new(&urls)?;
    }
    if let Some(api_key) = call.text("apiKey") {
        client = client.api_key(api_key)?;
    }
    client = with(client, call.time("retryForMs"), Client::patience);
    Ok(with(client, call.time("timeoutMs"), Client::answer_max))
}

fn wanted(key: &Call) -> Wanted {
    let wanted = match key.some("limit") {
        Some(limit) => Wanted::permits(key.key(), key.some("permits").unwrap_or(1), Some(limit)),
        None if key.flag("shared").is_some() => Wanted::shared(key.key()),
        None => Wanted::exclusive(key.key()),
    };
    with(wanted, key.text("group"), |wanted, group| wanted.group(group, key.some("groupLimit")))
}

impl Agent {
    async fn acquire(&self, mut request: LockRequest, call: &Call, keys: &[&str]) -> Result<Value, Value> {
        request = request.wait(call.time("waitMs").unwrap_or(WAIT));
        request = with(request, call.time("ttlMs"), LockRequest::ttl);
        request = with(request, call.time("minHoldMs"), LockRequest::min_hold);
        request = with(request, call.text("owner"), LockRequest::owner);
        let lease = request.acquire().await.map_err(said)?;
        let tokens: Map<String, Value> =
            keys.iter().map(|key| (*key).to_owned()).zip(lease.tokens().iter().map(|token| json!(token))).collect();
        let number = call.number("number");
        let about = json!({
            "lease": number, "key": keys[0], "lease_id": lease.id(), "token": lease.token(), "tokens": tokens,
            "owner": lease.owner(), "slots": lease.slots()[0],
        });
        at(&self.held).insert(number, Held::Lease(Box::new(lease)));
        Ok(about)
    }

    fn state(&self, number: u64) -> Value {
        let held = at(&self.held);
        let (left, revocation, lost) = match &held[&number] {
            Held::Lease(lease) => (lease.remaining(), lease.revocation(), lease.check().err().map(Error::from)),
            Held::Attempt { state, is_claimed } => match &*state.borrow() {
                AttemptState::Running { until: Some(until) } => (until.left(), None, None),
                // No other attempt begins before a person has decided.
                AttemptState::Running { until: None } if *is_claimed => (WAIT, None, None),
                AttemptState::Lost(Some(problem)) => (Duration::ZERO, None, Some(Error::AttemptLost(problem.clone()))),
                _ => (Duration::ZERO, None, None),
            },
        };
        let revocation =
            revocation.map(|asked| json!({ "deadline": asked.deadline, "reason": asked.reason, "by": asked.by }));
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        json!({ "remaining_ms": left_ms, "revocation": revocation, "lost": lost.map(said) })
    }

    async fn once(&self, client: &Client, call: &Call) -> Result<Value, Value> {
        let mut operation = client.operation(call.text("operation").expect("a name"));
        operation = operation.wait(call.time("waitMs").unwrap_or(WAIT));
        operation = with(operation, call.time("ttlMs"), Operation::ttl);
        operation = with(operation, call.time("retentionMs"), Operation::retention);
        operation = with(operation, call.flag("permanent"), |operation, ()| operation.permanent());
        operation = with(operation, call.0.get("checked").cloned(), Operation::checked);
        operation = with(operation, call.text("label"), Operation::label);
        operation = with(operation, call.text("onExpiry"), |operation, _| operation.on_expiry(OnExpiry::Retry));
        operation = with(operation, call.text("onOutage"), |operation, _| operation.on_outage(OnOutage::Proceed));
        match operation.begin(&call.0["contents"]).await.map_err(said)? {
            Begun::Go(attempt) => self.work(attempt, call).await,
            Begun::Duplicate(done) => {
                let is_omitted = done.problem.field("result_omitted") == true;
                Ok(json!({ "result": done.result, "duplicate": true, "result_omitted": is_omitted }))
            }
        }
    }

    async fn work(&self, attempt: Attempt, call: &Call) -> Result<Value, Value> {
        let ((end, ended), number) = (oneshot::channel(), call.number("number"));
        at(&self.works).insert(number, end);
        let (state, is_claimed) = (attempt.state(), attempt.is_claimed());
        at(&self.held).insert(number, Held::Attempt { state, is_claimed });
        let id = is_claimed.then(|| attempt.id());
        say(number, json!({ "work": { "lease": number, "guarded": is_claimed, "id": id } }));
        let ended = ended.await.expect("an end");
        let may_run_again = ended.text("notDone").is_some() || call.text("onExpiry") == Some("retry");
        let Some(result) = ended.0.get("result") else {
            let _ = match ended.text("failed") {
                Some(why) if !may_run_again => attempt.leave_unknown(why).await,
                _ => attempt.fail().await,
            };
            return Err(json!({ "kind": "work" }));
        };
        let recorded = attempt.succeed(result).await.map_err(|error| {
            let mut not_recorded = said(error);
            (not_recorded["kind"], not_recorded["result"]) = ("NotRecorded".into(), result.clone());
            not_recorded
        })?;
        let is_omitted = recorded["result_omitted"] == true;
        Ok(json!({ "result": result, "duplicate": false, "result_omitted": is_omitted }))
    }
}
