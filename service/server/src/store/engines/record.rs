//! What the nodes of an engine set agree on, and how it is written down in each engine.

use std::time::Duration;

use latchgate_core::Timestamp;
use serde::{Deserialize, Serialize};

/// What all nodes go by. Each has exactly one successor: see [`super::register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Which set this is: at random, so that an engine that has been in another one is not taken for one of this.
    pub set: String,
    /// Counts the decisions. The highest is in force.
    pub epoch: u64,
    /// Names of the set's engines, in the order of preference.
    pub engines: Vec<String>,
    /// The engine that locks live in, or move to.
    pub active: String,
    pub phase: Phase,
    /// The epoch in which the active engine became that. 0: it has been from the first.
    pub since: u64,
    /// The longest lease of any node, in ms.
    pub ttl_ms_max: u64,
    /// The longest that any node relies on what it has seen, in ms. None does for longer.
    pub right_ms: u64,
    /// By the active engine's clock: until then nothing new is granted, for leases of the engine before may be live.
    pub hold_off_until: Timestamp,
    /// By the active engine's clock: until then leases of the engine before may be live, and grants go on all the same.
    pub forced_until: Timestamp,
    /// Where the events begin in the active engine that came after those of the engine before.
    pub events_from: String,
    /// What the nodes seal tickets and stamps with, if that is not configured: hexadecimal.
    pub secret: String,
    /// Of the gate alone: operations are claimed though the other engine does not answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_force: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    Serving,
    /// Nothing is granted, renewed or released before the active engine has what is true.
    Moving(Move),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Move {
    /// The epoch in which the engine before stopped serving: moves that it is the same of, whereto and however, are one.
    pub began: u64,
    /// The engine whose leases are carried over. `None`: it does not answer, they are waited for.
    pub from: Option<String>,
    /// The node that does it, unless it dies.
    pub mover: String,
    /// Leases that cannot be carried over are not waited for.
    pub force: bool,
}

impl Record {
    /// Before anything was decided: the first engine serves.
    pub(super) fn first(engines: &[String]) -> Self {
        Self {
            set: format!("{:016x}", rand::random::<u64>()),
            epoch: 0,
            engines: engines.to_vec(),
            active: engines.first().cloned().unwrap_or_default(),
            phase: Phase::Serving,
            since: 0,
            ttl_ms_max: 0,
            right_ms: 0,
            hold_off_until: Timestamp::default(),
            forced_until: Timestamp::default(),
            events_from: String::new(),
            secret: String::new(),
            by_force: false,
        }
    }

    /// The same, to be changed into its successor.
    pub(super) fn next(&self) -> Self {
        Self { epoch: self.epoch + 1, ..self.clone() }
    }

    /// The engines that the successor is decided at. At first all of them: each must say that it knows of no set yet,
    /// whatever the others have lost, and in whichever order a node names them. Later a majority is enough. But of two,
    /// nobody can tell a dead one from one that is cut off: there it is the active one alone, without which no node can
    /// grant anything anyway.
    pub(super) fn deciders(&self) -> Vec<&str> {
        if self.is_first() || self.engines.len() >= 3 {
            self.engines.iter().map(String::as_str).collect()
        } else {
            vec![&self.active]
        }
    }

    /// So many of the deciders that any two such groups share one.
    pub(super) fn majority(&self) -> usize {
        let deciders = self.deciders().len();
        if self.is_first() { deciders } else { deciders / 2 + 1 }
    }

    /// Nothing was decided yet: nodes that name the engines in another order have another one.
    pub(super) fn is_first(&self) -> bool {
        self.epoch == 0
    }

    /// The engine whose first record is everybody's.
    pub(super) fn founder(&self) -> Option<&String> {
        self.engines.iter().min()
    }

    pub(super) fn has_engines_of(&self, other: &Self) -> bool {
        let sorted = |record: &Self| {
            let mut engines = record.engines.clone();
            engines.sort_unstable();
            engines
        };
        sorted(self) == sorted(other)
    }

    pub(super) fn right(&self) -> Duration {
        Duration::from_millis(self.right_ms)
    }

    pub(super) fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }
}

/// Orders proposals; of one count, by the proposing node's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Ballot(pub u64, pub String);

/// What one engine keeps of it: the record in force as far as it was told, and its part in deciding the successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Board {
    /// This engine's own name, so that engines are not mixed up.
    pub engine: String,
    pub record: Record,
    /// It accepts nothing below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promised: Option<Ballot>,
    /// The successor that it has accepted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<(Ballot, Record)>,
}

impl Board {
    pub(super) fn of(engine: &str, record: &Record) -> Self {
        Self { engine: engine.to_owned(), record: record.clone(), promised: None, accepted: None }
    }
}

/// The engines of the set that a store belongs to, by what its board says.
pub fn set_of(board: &str) -> Option<Vec<String>> {
    let board: Board = serde_json::from_str(board).ok()?;
    Some(board.record.engines).filter(|engines| engines.len() > 1)
}

/// The engine that is active, or moved to, by what a store's board says.
pub fn active_of(board: &str) -> Option<String> {
    let board: Board = serde_json::from_str(board).ok()?;
    Some(board.record.active)
}
