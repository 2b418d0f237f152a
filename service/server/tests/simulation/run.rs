//! One run: a storm of requests and faults, then calm, in which every waiter must be served in time.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Once};
use std::time::Duration;

use latchgate_core::lock::{LeaseId, Outcome};
use latchgate_node::locks::{Acquired, LockRequest};
use tokio::time::{Instant, sleep, timeout};

use crate::caller::Caller;
use crate::chaos::disturb;
use crate::client::{Client, Flavour};
use crate::leaver::{Leaver, nothing_is_left};
use crate::log::Log;
use crate::operator::Operator;
use crate::reach;
use crate::reader::Reader;
use crate::world::World;

/// What a batch of runs of any kind must have seen.
const FAULTS: &[&str] =
    &["promotion", "last second lost", "clock stepped ahead", "clock stepped back", "frozen node", "dead node"];

/// What a batch of runs must have seen, besides the answers of the rules: see `reach`.
const SITUATIONS: &[&str] = &[
    "granted after a wait",
    "resumed wait",
    "repeated acquire",
    "another acquire by the holder",
    "client that hung up",
    "client gone for good",
    "given back",
    "unknown outcome",
    "store unavailable",
    "executed after the caller gave up",
    "lost request",
    "lost answer",
    "duplicated request",
    "broken connection",
    "unavailable",
    "contended",
    "lost notification",
    "lost race",
    "locked states",
    "clock off",
    "skewed clock",
    "store that refuses writes",
    "grant with numbers",
    "grant for a group",
    "granted ahead of an earlier request of another group",
    "permits kept",
    "grant under a limit that was set",
    "reader went on at another node",
    "end that was answered and written",
];

/// What a batch of runs with operations must have seen.
const SITUATIONS_OF_THE_GATE: &[&str] = &[
    "go after a wait",
    "entered run",
    "success",
    "failure",
    "left unknown",
    "forgotten",
    "no answer",
    "caller that hung up",
    "claim given back",
    "store that refuses writes",
    "success kept to the end",
];

/// What a batch of runs of a pair must have seen besides.
const SITUATIONS_OF_A_PAIR: &[&str] = &[
    "go after a wait",
    "operations lost",
    "operation copied",
    "success kept to the end",
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
    "forced grant",
    "engine emptied",
    "hold-off ordered",
    "engine beside refuses writes",
    "active engine refuses writes",
    "lease as long as is allowed",
    "grant under a limit that was set",
    "grant with numbers",
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

/// A hold-off lasts longer by what the clock was set back meanwhile.
const SET_BACK_MAX: Duration = Duration::from_secs(12);

pub struct Report {
    pub seed: u64,
    pub violations: Vec<String>,
    pub lines: Vec<String>,
    pub seen: BTreeMap<&'static str, u64>,
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
        let gate = [reach::PRE, reach::REPORTED];
        let locks = [reach::ACQUIRED, reach::RENEWED, reach::RELEASED, reach::COMMANDED];
        let answers = match self {
            Self::Locks => locks.concat(),
            Self::Gate => gate.concat(),
            Self::Pair => [locks.concat(), gate.concat()].concat(),
        };
        let situations = match self {
            Self::Locks => SITUATIONS,
            Self::Gate => SITUATIONS_OF_THE_GATE,
            Self::Pair => SITUATIONS_OF_A_PAIR,
        };
        answers.into_iter().chain([FAULTS, situations].concat())
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
    let keys = keys(world);
    let reader = if world.plan.has_history { Some(Reader::start(world).await) } else { None };
    let chaos = if world.plan.apart_ms.is_some() {
        tokio::spawn(Operator::new(world).run(end))
    } else {
        tokio::spawn(disturb(Arc::clone(world), end))
    };
    let clients = (0..world.plan.clients).map(|number| tokio::spawn(Client::new(world, number, keys.clone()).run(end)));
    let mut clients: Vec<_> = clients.collect();
    clients.extend((0..world.plan.callers).map(|number| tokio::spawn(Caller::new(world, number).run(end))));
    // A hold-off would be as long as the leases of these clients.
    if !world.plan.has_hold_offs() {
        clients.extend((0..2).map(|number| tokio::spawn(Leaver::new(world, number).run(end))));
    }
    chaos.await.unwrap();
    world.calm_down();
    if world.plan.has_hold_offs() {
        settle(world, SET_BACK_MAX).await;
    }
    let monitor = tokio::spawn(watch_waiters(Arc::clone(world), keys.clone()));
    for client in clients {
        if timeout(Duration::from_secs(200) * world.plan.pace, client).await.is_err() {
            world.checker.broken("a client never came to an end");
        }
    }
    monitor.abort();
    // By now no lease of the storm is left, and no reservation.
    sleep(Duration::from_secs(8) * world.plan.pace).await;
    for node in world.nodes() {
        if node.locks.waiters() > 0 {
            world.checker.broken(format!("{} has {} waiters left", node.name, node.locks.waiters()));
        }
    }
    nothing_is_left(world).await;
    Caller::new(world, 99).finds_successes().await;
    hand_over(world).await;
    if let Some(reader) = reader {
        reader.has_seen_all(world).await;
    }
}

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

fn keys(world: &World) -> Vec<(String, Flavour)> {
    let flavour = |index: usize| {
        let flavour =
            *world.random.one_of(&[Flavour::Exclusive, Flavour::Exclusive, Flavour::Shared, Flavour::Permits(3)]);
        let limit = if let Flavour::Permits(limit) = flavour { limit } else { 0 };
        let key = format!("key-{index}");
        // An operator may set a limit that is higher by one.
        let limit_max = if limit > 0 { limit + 1 } else { 0 };
        world.checker.expect_key(&key, matches!(flavour, Flavour::Exclusive), limit_max);
        (key, flavour)
    };
    (0..world.plan.keys).map(flavour).collect()
}

/// After the storm, no key with waiters may stay free for longer than a dead node's turn lasts.
async fn watch_waiters(world: Arc<World>, keys: Vec<(String, Flavour)>) {
    const STEP: Duration = Duration::from_millis(100);
    let bound = Duration::from_millis(if world.plan.deaths { 5_500 } else { 2_500 }) + Duration::from_millis(500);
    // A node that was frozen or whose store was down notices within this time that all is well.
    sleep(Duration::from_secs(2)).await;
    let mut free_for: BTreeMap<&str, Duration> = BTreeMap::new();
    loop {
        sleep(STEP).await;
        let Some(database) = world.active().map(|active| &world.databases[active]) else { continue };
        let now = database.now().await;
        for (key, _) in &keys {
            let address = World::address(key);
            let state = database.state(&address);
            let is_held = state.holders().iter().any(|lease| now < lease.ends_at().plus_ms(200 + lease.delay_ms));
            let is_kept = state.kept().iter().any(|kept| now < kept.until.plus_ms(200));
            let is_closed = state.closing(now).is_some();
            let is_delayed = state.delayed_until(now).is_some() || is_kept || is_closed;
            let has_waiters = state.turns().iter().any(|turn| turn.until > now);
            let free_for = free_for.entry(key).or_default();
            *free_for = if !is_held && !is_delayed && has_waiters { *free_for + STEP } else { Duration::ZERO };
            if *free_for > bound {
                return world.checker.broken(format!("{key} stays free at {now:?} with waiters: {state:?}"));
            }
        }
    }
}

/// Waiters at all nodes take one lock in turns. Each hand-over must be quick: at once if notifications arrive, and within
/// the refresh of turns if none does.
async fn hand_over(world: &Arc<World>) {
    const WAITERS: usize = 6;
    world.checker.expect_key("calm", true, 0);
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
