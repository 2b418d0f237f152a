//! What happens to the tier, as values that shrink and read well.

use std::fmt;

use latchgate_core::CLOCK_BOUND_MS;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Lease ids are few, so that they are repeated, at other nodes and after their end.
const LEASES: usize = 14;
const NODES_MAX: usize = 4;

#[derive(Clone, Debug)]
pub struct History {
    /// How far each node's clock is from the store's at the start, in ms.
    pub offsets_ms: Vec<i64>,
    pub events: Vec<Event>,
}

#[derive(Clone)]
pub enum Event {
    Pass {
        ms: u64,
    },
    /// A node's clock moves, within the bound.
    Drift {
        node: usize,
        offset_ms: i64,
    },
    Batch(Batch),
    /// The node vanishes, with its waiters and what it had not yet answered.
    Crash {
        node: usize,
    },
}

/// What arrives together at one node.
#[derive(Clone)]
pub struct Batch {
    pub node: usize,
    pub calls: Vec<Call>,
    /// Begin with the state that the node remembers, however old.
    pub from_cache: bool,
    /// Between the decision and the commit.
    pub takes_ms: u64,
    pub fate: Fate,
}

#[derive(Clone, Debug)]
pub enum Call {
    Acquire {
        lease: usize,
        owner: Asker,
        ttl_ms: u64,
        priority: u8,
        waits: bool,
    },
    Renew {
        lease: usize,
        ttl_ms: Option<u64>,
    },
    Release {
        lease: usize,
    },
    /// A waiter's client goes away.
    Leave {
        lease: usize,
    },
    /// One of the node's give-backs that are under way arrives; perhaps not for the last time.
    GiveBackArrives {
        nth: usize,
        again: bool,
    },
    /// A timer: a refresh, or an expiry.
    Look,
}

#[derive(Clone, Copy, Debug)]
pub enum Asker {
    Itself,
    Anonymous,
    Somebody,
}

/// What becomes of a batch's commit and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Fine,
    /// The commit never reaches the store.
    LostBefore,
    /// The commit is made and nobody is answered.
    LostAfter,
    /// New grants find their clients gone, and are to be given back.
    Unheard,
}

pub fn histories() -> impl Strategy<Value = History> {
    let nodes = vec(offset_ms(), 2..=NODES_MAX);
    (nodes, vec(event(), 1..70)).prop_map(|(offsets_ms, events)| History { offsets_ms, events })
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0..NODES_MAX;
    prop_oneof![
        30 => batch().prop_map(Event::Batch),
        8 => prop_oneof![3 => 1..150_u64, 2 => 150..1_500_u64, 1 => 1_500..7_000_u64].prop_map(|ms| Event::Pass { ms }),
        2 => (node.clone(), offset_ms()).prop_map(|(node, offset_ms)| Event::Drift { node, offset_ms }),
        1 => node.prop_map(|node| Event::Crash { node }),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    let takes_ms = prop_oneof![4 => Just(0), 2 => 1..60_u64, 1 => 60..400_u64];
    let fate = prop_oneof![
        8 => Just(Fate::Fine),
        1 => Just(Fate::LostBefore),
        1 => Just(Fate::LostAfter),
        2 => Just(Fate::Unheard),
    ];
    (0..NODES_MAX, vec(call(), 1..4), any::<bool>(), takes_ms, fate)
        .prop_map(|(node, calls, from_cache, takes_ms, fate)| Batch { node, calls, from_cache, takes_ms, fate })
}

fn call() -> impl Strategy<Value = Call> {
    let lease = 0..LEASES;
    let owner = prop_oneof![8 => Just(Asker::Itself), 1 => Just(Asker::Anonymous), 1 => Just(Asker::Somebody)];
    let priority = prop_oneof![3 => Just(1_u8), 1 => 2..=3_u8];
    let acquire = (lease.clone(), owner, ttl_ms(), priority, prop_oneof![3 => Just(true), 1 => Just(false)])
        .prop_map(|(lease, owner, ttl_ms, priority, waits)| Call::Acquire { lease, owner, ttl_ms, priority, waits });
    prop_oneof![
        8 => acquire,
        4 => (lease.clone(), option::of(ttl_ms())).prop_map(|(lease, ttl_ms)| Call::Renew { lease, ttl_ms }),
        5 => lease.clone().prop_map(|lease| Call::Release { lease }),
        1 => lease.prop_map(|lease| Call::Leave { lease }),
        3 => (0..3_usize, any::<bool>()).prop_map(|(nth, again)| Call::GiveBackArrives { nth, again }),
        3 => Just(Call::Look),
    ]
}

fn ttl_ms() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(100_u64), 3 => 100..1_000_u64, 2 => 1_000..6_000_u64]
}

fn offset_ms() -> impl Strategy<Value = i64> {
    let bound = CLOCK_BOUND_MS.cast_signed();
    prop_oneof![1 => Just(-bound), 1 => Just(bound), 1 => Just(0), 3 => -bound..=bound]
}

/// One line for each event: a shrunk history is to be read.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass { ms } => write!(f, "{ms} ms pass"),
            Self::Drift { node, offset_ms } => write!(f, "the clock of node {node} goes {offset_ms:+} ms off"),
            Self::Crash { node } => write!(f, "node {node} crashes"),
            Self::Batch(batch) => fmt::Debug::fmt(batch, f),
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(|call| format!("{call:?}")).collect();
        let base = if self.from_cache { ", from its cache" } else { "" };
        let Self { node, takes_ms, fate, .. } = self;
        write!(f, "node {node}: {}{base}, in {takes_ms} ms, {fate:?}", calls.join(" + "))
    }
}
