//! Short functions to call a node and to wait for a state.

use futures::poll;
use latchgate_core::lock::{Command, EndReason, Grant, Lease, LeaseId, LeaseTerms, Mode, Outcome, Owner};
use latchgate_core::{Address, App, Key, Timestamp};
use latchgate_node::locks::{Acquired, CallResult, Inspected, LockRequest, Locks, Refused};
use latchgate_testkit::eventually;
use tokio::task::{JoinHandle, consume_budget};

use crate::many::{holder_at, until_waiting_at};
use crate::worlds::PATIENCE;

pub fn key() -> Address {
    at("key")
}

pub fn at(key: &str) -> Address {
    Address { app: App::default(), key: Key::parse(key).unwrap() }
}

pub fn id(lease: &str) -> LeaseId {
    LeaseId::parse(lease).unwrap()
}

pub fn owner(name: &str) -> Option<Owner> {
    Some(Owner::parse(name).unwrap())
}

/// A request for a long lease, without waiting. The owner has the name of the lease.
pub fn request(lease: &str) -> LockRequest {
    with(LockRequest::new(id(lease), 60_000), |terms| terms.owner = owner(lease))
}

/// The same request, with a long wait.
pub fn wait(lease: &str) -> LockRequest {
    LockRequest { wait: 2 * PATIENCE, ..request(lease) }
}

/// The same request with other terms.
pub fn with(mut request: LockRequest, change: impl FnOnce(&mut LeaseTerms)) -> LockRequest {
    change(&mut request.lease);
    request
}

/// The request with another owner.
pub fn by(name: &str, request: LockRequest) -> LockRequest {
    with(request, |terms| terms.owner = owner(name))
}

/// The request of another owner that may take the lock again while it holds it.
pub fn again(name: &str, request: LockRequest) -> LockRequest {
    with(by(name, request), |terms| terms.reentrant = true)
}

pub fn shared(request: LockRequest) -> LockRequest {
    with(request, |terms| terms.demand.mode = Mode::Shared)
}

pub fn permits(permits: u32, limit: impl Into<Option<u32>>, request: LockRequest) -> LockRequest {
    with(request, |terms| (terms.demand.mode, terms.demand.limit) = (Mode::Permits(permits), limit.into()))
}

pub async fn take(node: &Locks, address: &Address, request: LockRequest) -> Grant {
    granted(node.acquire(address, request).await)
}

pub async fn hold(node: &Locks, lease: &str) -> Grant {
    take(node, &key(), request(lease)).await
}

pub fn granted(answer: CallResult<Acquired>) -> Grant {
    match answer {
        Ok(Acquired::Outcome(Outcome::Granted(granted), _)) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn refused(answer: CallResult<Acquired>) -> Refused {
    match answer {
        Ok(Acquired::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

/// The reason why the lease is lost.
pub fn why_lost(outcome: Outcome) -> Option<EndReason> {
    match outcome {
        Outcome::LeaseLost(lost) => lost.why,
        other => panic!("not lost: {other:?}"),
    }
}

pub async fn release(node: &Locks, lease: &str) {
    let released = node.release(&key(), id(lease)).await.unwrap();
    assert!(matches!(released, Outcome::Released { still_held: 0 }), "{released:?}");
}

pub async fn renew(node: &Locks, lease: &str, ttl_ms: Option<u64>) -> Lease {
    match node.renew(&key(), id(lease), ttl_ms, None).await {
        Ok((Outcome::Renewed(lease), _)) => lease,
        other => panic!("not renewed: {other:?}"),
    }
}

pub async fn command(node: &Locks, command: Command) -> Outcome {
    node.command(&key(), command).await.unwrap().0
}

/// Joins the queue behind all earlier requests of this task to this node.
pub async fn join(node: &Locks, request: LockRequest) -> JoinHandle<CallResult<Acquired>> {
    let node = node.clone();
    let mut acquire = Box::pin(async move { node.acquire(&key(), request).await });
    // The first poll sends the call.
    match poll!(&mut acquire) {
        std::task::Poll::Pending => tokio::spawn(acquire),
        std::task::Poll::Ready(answer) => tokio::spawn(std::future::ready(answer)),
    }
}

/// Sends a call and does not read its answer, even if it is there at once.
pub async fn send_unread(call: &mut (impl Future + Unpin)) {
    // When a task has used up its budget, every poll is pending.
    while poll!(Box::pin(consume_budget())).is_ready() {}
    assert!(poll!(call).is_pending());
}

pub async fn joined<T>(waiting: JoinHandle<T>) -> T {
    tokio::time::timeout(PATIENCE, waiting).await.expect("an answer in time").unwrap()
}

/// An acquire that was granted and whose answer its client has not read.
pub async fn unread(node: &Locks, lease: &str) -> impl Future + use<> {
    let (locks, address, request) = (node.clone(), key(), wait(lease));
    let mut unread = Box::pin(async move { locks.acquire(&address, request).await });
    send_unread(&mut unread).await;
    until_held_by(node, lease).await;
    unread
}

pub async fn inspect(node: &Locks) -> Inspected {
    node.inspect(&key()).await.unwrap()
}

pub async fn holder(node: &Locks) -> Option<String> {
    holder_at(node, "key").await
}

/// The owners of all leases, in the order of their grants.
pub async fn holders(node: &Locks) -> Vec<String> {
    let state = inspect(node).await.state;
    state.holders().iter().map(|lease| lease.owner.as_str().to_owned()).collect()
}

pub async fn until_waiting(node: &Locks, waiters: u64) {
    until_waiting_at(node, "key", waiters).await;
}

pub async fn until_held_by(node: &Locks, name: &str) {
    let is_held = || async { holder(node).await.as_deref() == Some(name) };
    assert!(eventually(PATIENCE, is_held).await, "{:?}", inspect(node).await);
}

/// Waits until the store's clock is past `time`.
pub async fn until_past(node: &Locks, time: Timestamp) {
    let is_past = || async { inspect(node).await.now > time };
    assert!(eventually(PATIENCE, is_past).await);
}
