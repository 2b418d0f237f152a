//! The switch of two nodes and an operator, exhaustively: every order of reads, writes, copies, grants, orders, and nodes that start anew
//! with any of these half done, to a depth. The nodes do what [`next`] says; orders and copies are those of `order.rs` and `copy.rs`.
//!
//! In every state: an engine that takes a grant has all grants before it, or holds off. From every state, if nothing goes wrong any
//! more, a node serves.

mod orders;

use std::collections::{BTreeMap, HashSet};

use super::super::*;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
/// How many steps from the beginning; `SEARCH_DEPTH` is another one.
const DEPTH: usize = 10;
/// After so many polls in calm, an engine serves.
const POLLS_MAX: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Store {
    reading: Reading,
    /// Which grants it has.
    grants: u64,
}

#[derive(Clone, Debug, Default)]
struct Node {
    epoch: Epoch,
    /// It uses this engine in this epoch.
    in_use: Option<(usize, Epoch)>,
    /// What it has read, and has not acted upon.
    read: Option<[Reading; 2]>,
    /// It is at this step of an order, with what it had read.
    order: Option<(u8, Epoch, [Reading; 2])>,
    /// What it has read of a frozen engine, to be written: from, the record then, and the grants.
    page: Option<(usize, Reading, u64)>,
}

#[derive(Clone, Debug)]
struct World {
    stores: [Store; 2],
    nodes: [Node; 2],
    /// All grants that clients have.
    grants: u64,
    orders_left: u8,
    starts_left: u8,
    stalls_left: u8,
    story: Vec<(usize, Step)>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read,
    Act,
    /// As [`Step::Act`], and the copy has made no progress for too long.
    Stall,
    Grant,
    Order,
    GoOnWithOrder,
    WritePage,
    Start,
}

const STEPS: [Step; 8] =
    [Step::Read, Step::Act, Step::Stall, Step::Grant, Step::Order, Step::GoOnWithOrder, Step::WritePage, Step::Start];

fn pair() -> [String; 2] {
    ["one".to_owned(), "other".to_owned()]
}

impl Store {
    fn new(state: EngineState, epoch: Epoch) -> Self {
        let record = EngineRecord::new(state, epoch, &pair(), 60_000);
        Self { reading: Reading { record: Some(record), revision: 1, now: NOW, ..Reading::default() }, grants: 0 }
    }

    /// The compare-and-set of a record.
    fn write(&mut self, read: &Reading, record: EngineRecord) -> bool {
        let is_unchanged = self.reading.revision == read.revision;
        if is_unchanged {
            let revision = read.revision + 1;
            self.reading = Reading { record: Some(record), revision, now: NOW, ..Reading::default() };
        }
        is_unchanged
    }

    fn is(&self, state: EngineState, epoch: Epoch) -> bool {
        self.reading.is(state) && self.reading.epoch() == epoch
    }
}

impl World {
    fn new() -> Self {
        let stores = [Store::new(Active, Epoch::NONE.next(NOW)), Store::new(Standby, Epoch::NONE)];
        let (nodes, story) = (Default::default(), Vec::new());
        Self { stores, nodes, grants: 0, orders_left: 2, starts_left: 1, stalls_left: 1, story }
    }

    fn identity(&self) -> String {
        let Self { stores, nodes, grants, orders_left, starts_left, stalls_left, .. } = self;
        format!("{stores:?} {nodes:?} {grants} {orders_left} {starts_left} {stalls_left}")
    }

    fn readings(&self) -> [Reading; 2] {
        self.stores.clone().map(|store| store.reading)
    }

    /// Returns whether it did anything.
    fn take(&mut self, node: usize, step: Step, reached: &mut BTreeMap<String, u64>) -> Result<bool, String> {
        self.story.push((node, step));
        let known = self.nodes[node].clone();
        let is_done = match step {
            Step::Read => {
                let readings = self.readings();
                let is_new = known.read.as_ref() != Some(&readings);
                self.nodes[node].read = Some(readings);
                is_new
            }
            Step::Act => self.act(node, false, reached),
            Step::Stall if self.stalls_left > 0 && self.stores.iter().any(|store| store.reading.is(Moving)) => {
                self.stalls_left -= 1;
                self.act(node, true, reached)
            }
            Step::Grant if self.grants < 3 => return self.grant(node),
            Step::Order if self.orders_left > 0 && known.order.is_none() => self.order(node),
            Step::GoOnWithOrder => self.go_on(node),
            Step::WritePage => self.write_page(node),
            Step::Start if self.starts_left > 0 => {
                self.starts_left -= 1;
                self.nodes[node] = Node::default();
                true
            }
            _ => false,
        };
        Ok(is_done)
    }

    fn act(&mut self, node: usize, is_stalled: bool, reached: &mut BTreeMap<String, u64>) -> bool {
        let Some(readings) = self.nodes[node].read.take() else { return false };
        let candidate = |(name, reading)| Candidate {
            name,
            reading: Some(reading),
            is_left_out: false,
            may_forget: false,
            is_trusted: false,
            is_new: false,
        };
        let engines: Vec<Candidate<'_>> = ["one", "other"].into_iter().zip(&readings).map(candidate).collect();
        let known = NodeMemory { epoch: self.nodes[node].epoch, is_stalled, ..NodeMemory::default() };
        let next = next(&engines, &pair(), known);
        let mut note = |what: &str| *reached.entry(what.to_owned()).or_default() += 1;
        self.nodes[node].in_use.take_if(|_| !matches!(next, Next::Serve { .. }));
        match next {
            Next::Serve { engine, chore } => {
                note("an engine serves");
                let epoch = readings[engine].epoch();
                self.nodes[node].epoch = epoch.max(self.nodes[node].epoch);
                self.nodes[node].in_use = Some((engine, epoch));
                if let Some(Change { engine, record, why }) = chore {
                    note(why);
                    self.stores[engine].write(&readings[engine], record);
                }
            }
            Next::Write(Change { engine, record, why }) => {
                note(why);
                self.stores[engine].write(&readings[engine], record);
            }
            Next::Copy { from, .. } => {
                note("a node copies");
                // A frozen engine does not change: what is read of it now was there all the time.
                let is_frozen = self.stores[from].reading.revision == readings[from].revision;
                let page = (from, readings[from].clone(), self.stores[from].grants);
                self.nodes[node].page = Some(page).filter(|_| is_frozen);
            }
            Next::Wait(_) => note("a node waits"),
        }
        true
    }

    fn grant(&mut self, node: usize) -> Result<bool, String> {
        let Some((engine, epoch)) = self.nodes[node].in_use else { return Ok(false) };
        let store = &mut self.stores[engine];
        let record = store.reading.record.as_ref();
        // The store refuses another epoch, and the node another time.
        if !store.is(Active, epoch) || record.is_some_and(|record| record.hold_off_until > NOW) {
            return Ok(false);
        }
        if store.grants != (1 << self.grants) - 1 {
            return Err(format!("engine {engine} grants in epoch {epoch}, and has only {:b}", store.grants));
        }
        store.grants |= 1 << self.grants;
        self.grants += 1;
        Ok(true)
    }

    /// In calm, a node finds an engine to serve.
    fn comes_to_an_end(&self) -> Result<(), String> {
        let mut world = self.clone();
        for _ in 0..POLLS_MAX {
            let mut ignored = BTreeMap::new();
            for step in [Step::Read, Step::Act, Step::WritePage] {
                world.take(0, step, &mut ignored)?;
            }
            if world.nodes[0].in_use.is_some_and(|(engine, epoch)| world.stores[engine].is(Active, epoch)) {
                return Ok(());
            }
        }
        Err(format!("no engine serves: {:?}", world.readings()))
    }
}

#[test]
fn in_every_order_of_events_a_switch_loses_no_grant_and_ends() {
    let (mut known, mut worlds, mut reached) = (HashSet::new(), vec![World::new()], BTreeMap::new());
    let mut states = 0;
    let depth_max = std::env::var("SEARCH_DEPTH").map_or(DEPTH, |depth| depth.parse().unwrap());
    for depth in 0..=depth_max {
        let mut following = Vec::new();
        for world in &worlds {
            states += 1;
            world.comes_to_an_end().unwrap_or_else(|what| panic!("{what}\nafter {:?}", world.story));
            for (node, step) in [0, 1].into_iter().flat_map(|node| STEPS.map(|step| (node, step))) {
                let mut after = world.clone();
                let is_done = after.take(node, step, &mut reached);
                let is_done = is_done.unwrap_or_else(|what| panic!("{what}\nafter {:?}", after.story));
                if is_done && known.insert(after.identity()) {
                    following.push(after);
                }
            }
        }
        println!("depth {depth}: {} states", worlds.len());
        worlds = following;
    }
    println!("{states} states to depth {depth_max}, each with its calm end; reached {reached:#?}");
    let must = [
        "an engine serves",
        "a node copies",
        "all states are copied",
        "the copy has made no progress: the switch is given up",
        "the idle engine is to know of the active one",
    ];
    assert!(states > 1_000 && must.iter().all(|what| reached.contains_key(*what)), "the search reaches too little");
}
