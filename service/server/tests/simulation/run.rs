//! One run: a storm of requests and faults, then calm, in which every waiter must be served in time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::time::Duration;

use futures::FutureExt as _;
use latchgate_core::lock::{LeaseId, Outcome};
use latchgate_core::{Address, CLOCK_BOUND_MS, Timestamp};
use latchgate_node::locks::{Acquired, LockRequest};
use latchgate_testkit::recorded::{Asked, Call, Options, Verb};
use latchgate_testkit::recorder::{self, Args, Recording, Workload};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::chaos::disturb;
use crate::database::{Database, EPOCH};
use crate::log::{Log, STARTED_US, Seen};
use crate::operator::Operator;
use crate::reach;
use crate::reader::Reader;
use crate::world::World;

/// What a batch of runs of any kind must have seen.
const FAULTS: &[&str] =
    &["promotion", "last second lost", "clock stepped ahead", "clock stepped back", "frozen node", "dead node"];

/// What a batch of runs must have seen: answers, by their status or their code, and what happened.
const SITUATIONS: &[&str] = &[
    "Acquire 200",
    "Acquire lock-held",
    "Acquire lock-reserved",
    "Acquire lock-delayed",
    "Acquire lock-closed",
    "Acquire wait-timeout",
    "Acquire lease-lost",
    "Acquire store-unavailable",
    "Acquire outcome-unknown",
    "Acquire unanswered",
    "Renew 200",
    "Renew lease-lost",
    "Release 200",
    "Release lease-lost",
    "Revoke 200",
    "Force 200",
    "Close 200",
    "Open 200",
    "Fence 200",
    "Fence stale-token",
    "given back",
    "executed after the caller gave up",
    "LostRequest",
    "LostAnswer",
    "Duplicated",
    "Overtaken",
    "Unavailable",
    "Contended",
    "lost notification",
    "lost race",
    "locked states",
    "clock off",
    "skewed clock",
    "store that refuses writes",
    "granted ahead of an earlier request of another group",
    "permits kept",
    "reader went on at another node",
    "end that was answered and written",
];

/// What a batch of runs with operations must have seen: answers, by their status or their code.
const ANSWERS_OF_THE_GATE: &[&str] = &[
    "Pre 201",
    "Pre operation-in-progress",
    "Pre operation-duplicate",
    "Pre operation-unknown",
    "Pre store-unavailable",
    "Pre outcome-unknown",
    "Pre unanswered",
    "Heartbeat 200",
    "Heartbeat operation-ended",
    "Heartbeat operation-superseded",
    "Post 200",
    "Post outcome-conflict",
    "Post operation-superseded",
    "Post operation-not-found",
    "Enter 200",
    "Forget 200",
];

/// What a batch of runs of a pair must have seen besides.
const SITUATIONS_OF_A_PAIR: &[&str] = &[
    "operation copied",
    "planned switch",
    "switch given up",
    "switch during a hold-off",
    "node cut off from an engine",
    "copier frozen",
    "copier killed",
    "raced orders",
    "target lost during a copy",
    "source lost during a copy",
    "engine emptied during a copy",
    "engine stopped",
    "forced later",
    "engine emptied",
    "hold-off ordered",
    "engine beside refuses writes",
    "active engine refuses writes",
    "reader followed a switch",
    // What nodes make of the engine records: see `engines/decide.rs`.
    "all states are copied",
    "the engine has lost its record",
    "the engine is new to the pair",
    "the engine to copy to has lost its record",
    "the idle engine is to know of the active one",
    "the other engine is active in a later epoch",
    "the other engine of the pair has lost what it had, and may have been used since",
    "the other engine of the pair has lost what it had: this one was not left for it",
    "the other engine of the pair is in order again",
    "the store has failed over: a hold-off begins",
    "the store has lost what it had: a hold-off begins",
    "the store is new",
    "the store is one of a pair from now on",
];

/// A run at a slow pace takes some hours.
const RUN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// After the last fault, the nodes find the active engine within this time, and grants go on a hold-off later.
const SETTLE_MAX: Duration = Duration::from_secs(4);

/// How long clients go on when the last fault is over.
const CALM: Duration = Duration::from_secs(6);

/// How much slower the recorder's clients are than against real nodes.
const PACE: u32 = 5;

/// A hold-off lasts longer by what the clock was set back meanwhile.
const SET_BACK_MAX: Duration = Duration::from_secs(12);

pub struct Report {
    pub seed: u64,
    pub violations: Vec<String>,
    pub lines: Vec<String>,
    pub seen: Seen,
}

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Locks on one database.
    Locks,
    /// Locks and operations on one database.
    Gate,
    /// Locks and operations on a pair.
    Pair,
}

impl Kind {
    /// What a batch of runs must have seen.
    pub fn situations(self) -> impl Iterator<Item = &'static str> {
        let situations = match self {
            Self::Locks => SITUATIONS,
            Self::Gate => ANSWERS_OF_THE_GATE,
            Self::Pair => SITUATIONS_OF_A_PAIR,
        };
        [FAULTS, situations].concat().into_iter()
    }
}

pub fn run(seed: u64, kind: Kind, has_log: bool) -> Report {
    name_the_seed_of_a_panic(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (violations, (lines, seen)) = runtime.block_on(async {
        let log = Arc::new(Log::new(has_log));
        reach::count_in(&log);
        let world = World::new(seed, kind, Arc::clone(&log)).await;
        if timeout(RUN_MAX, play(&world)).await.is_err() {
            world.checker.broken("the run does not end");
        }
        (world.checker.facts().violations.clone(), log.take())
    });
    Report { seed, violations, lines, seen }
}

async fn play(world: &Arc<World>) {
    let end = Instant::now() + world.plan.stormy;
    let reader = if world.plan.has_history { Some(Reader::start(world).await) } else { None };
    let chaos = if world.plan.apart_ms.is_some() {
        tokio::spawn(Operator::new(world).run(end))
    } else {
        tokio::spawn(disturb(Arc::clone(world), end))
    };
    let (over, mut recording) = record(world);
    chaos.await.unwrap();
    world.calm_down();
    if world.plan.has_hold_offs() {
        settle(world, SET_BACK_MAX).await;
    }
    let monitor = tokio::spawn(watch_waiters(Arc::clone(world)));
    sleep(CALM * world.plan.pace).await;
    drop(over);
    if timeout(Duration::from_secs(200) * world.plan.pace, &mut recording).await.is_err() {
        world.checker.broken("the clients never came to an end");
    }
    monitor.abort();
    // By now no lease of the storm is left, and no reservation.
    sleep(Duration::from_secs(8) * world.plan.pace).await;
    for node in world.nodes() {
        if node.locks.waiters() > 0 {
            world.checker.broken(format!("{} has {} waiters left", node.name, node.locks.waiters()));
        }
    }
    hand_over(world).await;
    if let Some(reader) = reader {
        reader.has_seen_all(world).await;
    }
    let clocks_differ = world.plan.has_hold_offs() || world.plan.skews;
    world.checker.check_history(&Options { clocks_differ, ..Options::default() });
}

/// Starts the recorder's clients. They end when the sender is dropped.
fn record(world: &Arc<World>) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let plan = world.plan;
    let urls = (0..plan.nodes).map(|index| format!("http://node-{index}")).collect();
    let mut mix = MIXES[world.random.below(MIXES.len() - usize::from(plan.apart_ms.is_some()))].to_vec();
    // A hold-off would be as long as the leases of these clients.
    if !plan.has_hold_offs() {
        mix.extend([Workload::HangUp; 3]);
    }
    if plan.has_gate {
        mix.extend([Workload::Gate, Workload::Gate, Workload::Block]);
    }
    let endpoints = (0..plan.nodes).map(|index| world.endpoint(index)).collect();
    let args = Args {
        keys: plan.keys,
        clients: plan.clients,
        ttl_ms: 1_000 * u64::from(plan.pace),
        pace: PACE * plan.pace,
        abandon_one_in: 10,
        mix,
        until_quiet: true,
        must_give_back: !plan.has_hold_offs() && !plan.deaths,
        ..Args::new(urls, "not written".into())
    };
    let (checker, sending) = (Arc::clone(&world.checker), Arc::downgrade(world));
    let send: Box<dyn Fn(&Call) + Send + Sync> = Box::new(move |call| {
        let world = sending.upgrade().unwrap();
        world.checker.sends(call, world.now().now_or_never().unwrap());
    });
    let databases = world.databases.clone();
    let write = move |call: &Call| {
        checker.record(&if plan.skews { cautious(call, &databases[0]) } else { call.clone() });
        // Clients ask for nothing that is wrong, but for a ticket of earlier and a time that the clock has passed meanwhile.
        let may_be_wrong = call.verb == Verb::Close || call.code.as_deref() == Some("invalid-ticket");
        if call.status == Some(400) && !may_be_wrong {
            checker.broken(format!("a request that is not wrong was refused: {call:?}"));
        }
        let fence = |database: &Arc<Database>| database.fence(&call.key);
        let has_passed = call.verb == Verb::Fence && call.is_success() && checker.facts().lost_us < call.sent_us;
        if has_passed && databases.iter().map(fence).max() < call.token {
            checker.broken(format!("the fence does not remember {call:?}"));
        }
        Ok(())
    };
    let recording = Recording {
        run: world.random.between(0..=1 << 40),
        started_us: world.log.now_us(),
        send,
        write: Box::new(write),
    };
    let (over, is_over) = oneshot::channel();
    let recorded = async move {
        let end = async move { drop(is_over.await) };
        recorder::record(end, &args, endpoints, recording).await.unwrap();
    };
    (over, tokio::spawn(recorded))
}

/// What a client may rely on where the clocks of nodes are off: on a lock until its expiry by the store's clock, and on an operation for less
/// by twice the bound.
fn cautious(call: &Call, database: &Database) -> Call {
    let sent = EPOCH.plus_ms((call.sent_us - STARTED_US) / 1_000);
    let ends = call.expires_at_ms.map(|end| database.true_time(Timestamp::from_ms(end)).ms_since(sent));
    let ttl_ms = call.ttl_ms.map(|ttl_ms| ends.unwrap_or(ttl_ms.saturating_sub(2 * CLOCK_BOUND_MS)).min(ttl_ms));
    let retention_ms = call.asked.retention_ms.saturating_sub(2 * CLOCK_BOUND_MS);
    Call { ttl_ms, asked: Asked { retention_ms, ..call.asked.clone() }, ..call.clone() }
}

/// What clients do in one run, beside what is added. With the last one, permits are kept, which the check knows of one store only.
const MIXES: &[&[Workload]] = &[
    &[Workload::Shared, Workload::Multilock, Workload::Reentrant, Workload::Tickets, Workload::Revoke],
    &[Workload::Shared, Workload::Revoke],
    &[Workload::Exclusive, Workload::Tickets, Workload::Revoke],
    &[Workload::Permits, Workload::Revoke],
    &[Workload::Groups, Workload::Revoke],
    &[Workload::Rates, Workload::Permits, Workload::Revoke],
];

/// After faults of engines, each node grants locks again when a hold-off is over.
pub async fn settle(world: &Arc<World>, restless: Duration) {
    let bound = SETTLE_MAX + restless + world.stepped() + Duration::from_millis(world.plan.lease_ms_max + 200);
    let calm = Instant::now();
    for node in world.nodes() {
        let address = World::address(&format!("settle-{}-{}", node.name, world.random.between(0..=1 << 40)));
        loop {
            let lease_id = LeaseId::parse("settle").unwrap();
            let answer = node.locks.acquire(&address, LockRequest::new(lease_id, 1_000)).await;
            // An earlier call may have been granted the lease, with an answer that was lost.
            if matches!(answer, Ok(Acquired::Outcome(Outcome::Granted(_) | Outcome::LeaseLost(_), _))) {
                break;
            }
            if calm.elapsed() > bound {
                return world.checker.broken(format!("{} grants nothing: {answer:?}", node.name));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
    world.log.line(|| format!("settled after {} ms", calm.elapsed().as_millis()));
}

/// After the storm, no key with waiters may stay free for longer than a dead node's turn lasts.
async fn watch_waiters(world: Arc<World>) {
    const STEP: Duration = Duration::from_millis(100);
    let bound = Duration::from_millis(if world.plan.deaths { 5_500 } else { 2_500 }) + Duration::from_millis(500);
    // A node that was frozen or whose store was down notices within this time that all is well.
    sleep(Duration::from_secs(2)).await;
    let mut free_for: BTreeMap<Address, Duration> = BTreeMap::new();
    loop {
        sleep(STEP).await;
        let Some(database) = world.active().map(|active| &world.databases[active]) else { continue };
        let now = database.now().await;
        let states = database.states.lock().unwrap().clone();
        for (address, state) in states {
            let is_held = state.holders().iter().any(|lease| now < lease.live_until().plus_ms(200 + lease.delay_ms));
            let is_kept = state.kept().iter().any(|kept| now < kept.until.plus_ms(200));
            let is_closed = state.closing(now).is_some();
            let is_delayed = state.delayed_until(now).is_some() || is_kept || is_closed;
            let has_waiters = state.turns().iter().any(|turn| turn.until > now);
            let free_for = free_for.entry(address.clone()).or_default();
            *free_for = if !is_held && !is_delayed && has_waiters { *free_for + STEP } else { Duration::ZERO };
            if *free_for > bound {
                return world.checker.broken(format!("{address:?} stays free at {now:?} with waiters: {state:?}"));
            }
        }
    }
}

/// Waiters at all nodes take one lock in turns. Each hand-over must be quick: at once if notifications arrive, and within
/// the refresh of turns if none does.
async fn hand_over(world: &Arc<World>) {
    const WAITERS: usize = 6;
    let bound = Duration::from_millis(if world.plan.is_silent { 2_500 } else { 300 });
    let (sender, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..WAITERS {
        let (node, sender) = (world.node(number), sender.clone());
        tokio::spawn(async move {
            let address = World::address("calm");
            let lease_id = LeaseId::parse(&format!("calm-{number}")).unwrap();
            let wait = Duration::from_secs(50);
            let request = LockRequest { wait, ..LockRequest::new(lease_id.clone(), 30_000) };
            let answer = node.locks.acquire(&address, request).await;
            sleep(Duration::from_millis(200)).await;
            let is_released = node.locks.release(&address, lease_id).await.is_ok();
            let _ = sender.send((number, answer, is_released, Instant::now()));
        });
    }
    let mut last = Instant::now();
    for _ in 0..WAITERS {
        let Ok(Some((number, answer, is_released, at))) = timeout(Duration::from_secs(60), grants.recv()).await else {
            return world.checker.broken("a waiter of the hand-over was not served");
        };
        let took = (at - last).saturating_sub(Duration::from_millis(200));
        world.log.line(|| format!("hand-over to {number} took {} ms", took.as_millis()));
        let Ok(Acquired::Outcome(Outcome::Granted(granted), _)) = &answer else {
            return world.checker.broken(format!("hand-over to {number}: {answer:?}"));
        };
        if !is_released {
            return world.checker.broken(format!("hand-over to {number}: it was not released"));
        }
        // One that has arrived after the release before it takes a free lock.
        if took.min(Duration::from_millis(granted.lease.waited_ms)) > bound {
            world.checker.broken(format!("the hand-over to {number} took {} ms", took.as_millis()));
        }
        last = at;
    }
}

/// A committer that panics ends the process, and the test harness would lose its output.
fn name_the_seed_of_a_panic(seed: u64) {
    thread_local!(static SEED: Cell<u64> = const { Cell::new(0) });
    static HOOK: Once = Once::new();
    SEED.set(seed);
    HOOK.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            use std::io::Write;
            let _ = writeln!(std::io::stderr().lock(), "seed {}: {panic}", SEED.get());
            default(panic);
        }));
    });
}
