//! How the nodes of an engine set agree: each record's successor is decided once.
//!
//! The engines are the acceptors of Paxos (L. Lamport, "Paxos Made Simple", 2001), one instance for each epoch; the nodes
//! propose. An engine knows nothing of it: what it has promised and accepted is a text that nodes change by compare-and-set,
//! so whichever node changes it acts for the engine (as in E. Gafni and L. Lamport, "Disk Paxos", 2003).
//!
//! Nothing here rests on clocks. What does is the right to grant: a node that has [seen](Register::look) that the record
//! had no successor relies on it for a short while, and whoever has decided the successor waits that long before it lets
//! anything come of it.

use futures::future::join_all;
use latchgate_core::Timestamp;
use tokio::time::Instant;

use super::record::{Ballot, Board, Record};
use crate::store::StoreError;

/// Tries of one proposal against others.
const TRIES: u32 = 8;

/// An engine's board as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadBoard {
    /// 0 if there is none. If there is one and no board, the engine has left the set that it was in.
    pub version: u64,
    pub board: Option<Board>,
    /// The engine's clock.
    pub now: Timestamp,
}

/// Where boards are kept: one in each engine.
pub(super) trait Boards: Sync {
    fn read(&self, engine: &str) -> impl Future<Output = Result<ReadBoard, StoreError>> + Send;

    /// Compare-and-set. Returns the new version, or `None` if the board has changed since.
    fn write(
        &self,
        engine: &str,
        expected: u64,
        board: &Board,
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send;
}

pub(super) struct Register<B> {
    pub boards: B,
    /// The proposing node's name.
    pub node: String,
}

/// What a look at all boards comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// When the look began, the record had no successor.
    Current,
    /// There is a later one in force.
    Later(Box<Record>),
    /// Somebody has begun to decide the successor, and may have come to an end.
    Undecided,
    /// Too few engines answer.
    Unknown,
}

pub(super) struct Looked {
    pub look: Look,
    pub began: Instant,
    /// How many of them were behind, and have been told.
    pub behind: usize,
    pub reached: Vec<Reached>,
}

/// An engine that has answered.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    pub engine: String,
    /// By its own clock.
    pub shown: Timestamp,
    /// When the answer was there.
    pub at: Instant,
}

impl Looked {
    pub(super) fn reached(&self, engine: &str) -> Option<&Reached> {
        self.reached.iter().find(|reached| reached.engine == engine)
    }
}

/// A successor could not be decided, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMajority;

impl<B: Boards> Register<B> {
    /// Whether `known` is still in force; brings engines up to date that are behind it. `engines` are all that are to be
    /// asked.
    pub(super) async fn look(&self, known: &Record, engines: &[String]) -> Looked {
        let began = Instant::now();
        let read = |engine: &String| {
            let engine = engine.clone();
            async move { (self.boards.read(&engine).await, Instant::now(), engine) }
        };
        let answers = join_all(engines.iter().map(read)).await;
        let mut reached = Vec::with_capacity(answers.len());
        let mut boards: Vec<(String, ReadBoard)> = Vec::with_capacity(answers.len());
        for (answer, at, engine) in answers {
            if let Ok(read) = answer {
                reached.push(Reached { engine: engine.clone(), shown: read.now, at });
                boards.push((engine, read));
            }
        }
        let answers = boards;
        let looked = |look: Look, behind: usize| Looked { look, began, behind, reached };
        if known.is_first() && is_of_several_sets(&answers) {
            return looked(Look::Unknown, 0);
        }
        let latest = answers.iter().filter_map(|(_, read)| read.board.as_ref().map(|board| &board.record));
        let latest = latest.max_by_key(|record| record.epoch).filter(|record| record.epoch > known.epoch);
        if let Some(latest) = latest {
            return looked(Look::Later(Box::new(latest.clone())), 0);
        }
        let founding = founding(&answers, known);
        if let Some(first) = founding.filter(|first| *first != known) {
            return looked(Look::Later(Box::new(first.clone())), 0);
        }
        let deciders = known.deciders();
        let is_decider = |engine: &str| deciders.contains(&engine);
        let at = |is_meant: fn(&Board, &Record) -> bool| {
            let is_meant = |read: &ReadBoard| read.board.as_ref().is_some_and(|board| is_meant(board, known));
            answers.iter().filter(|(engine, read)| is_decider(engine) && is_meant(read)).count()
        };
        let untouched = at(|board, known| board.record == *known && board.accepted.is_none());
        let all = at(|board, known| board.record == *known);
        let is_other_first =
            |board: &Board| founding.is_some() && board.record != *known && board.record.has_engines_of(known);
        let is_old = |board: &Board| board.record.epoch < known.epoch || is_other_first(board);
        let is_behind = |read: &ReadBoard| read.board.as_ref().is_none_or(is_old);
        let behind = answers.iter().filter(|(engine, read)| known.engines.contains(engine) && is_behind(read));
        let told = join_all(behind.map(|(engine, read)| self.tell(engine, read.version, known))).await;
        let look = if untouched >= known.majority() {
            Look::Current
        } else if all >= known.majority() {
            Look::Undecided
        } else {
            Look::Unknown
        };
        looked(look, told.len())
    }

    /// Decides the successor of `known`: `proposed`, unless another may have been decided already. Returns which.
    ///
    /// # Errors
    /// When too few engines answer, or others propose too often. Then `proposed` may be decided yet.
    pub(super) async fn decide(&self, known: &Record, proposed: &Record) -> Result<Record, NoMajority> {
        debug_assert_eq!(proposed.epoch, known.epoch + 1, "it is the successor of another record");
        let mut count = 1;
        for round in 0..TRIES {
            if round > 0 {
                // So that two who disturb each other do not go on doing so.
                let pause = rand::random_range(5..50) * u64::from(round);
                tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
            }
            match self.propose(known, proposed, Ballot(count, self.node.clone())).await {
                Round::Decided(record) => {
                    self.spread(&record).await;
                    return Ok(record);
                }
                Round::Over(record) => return Ok(record),
                Round::Outbid(seen) => count = seen.max(count) + 1,
            }
        }
        Err(NoMajority)
    }

    /// Tells the engines of a record that is decided, those that know no later one.
    pub(super) async fn spread(&self, record: &Record) {
        let tell = async |engine: &String| {
            if let Ok(ReadBoard { version, board, .. }) = self.boards.read(engine).await
                && board.is_none_or(|board| board.record.epoch < record.epoch)
            {
                self.tell(engine, version, record).await;
            }
        };
        join_all(record.engines.iter().map(tell)).await;
    }

    /// Puts a record in force that was decided by nobody, because those that would have to are gone for good.
    ///
    /// # Errors
    /// When the engine that is to be active does not answer, or knows a later record.
    pub(super) async fn usurp(&self, record: &Record) -> Result<(), NoMajority> {
        let engine = &record.active;
        let ReadBoard { version, board, .. } = self.boards.read(engine).await.map_err(|_| NoMajority)?;
        if board.is_some_and(|board| board.record.epoch >= record.epoch) {
            return Err(NoMajority);
        }
        let written = self.boards.write(engine, version, &Board::of(engine, record)).await;
        if matches!(written, Ok(Some(_))) { Ok(()) } else { Err(NoMajority) }
    }

    /// What an engine had promised and accepted was of an earlier epoch, which is decided.
    async fn tell(&self, engine: &str, version: u64, record: &Record) {
        let _ = self.boards.write(engine, version, &Board::of(engine, record)).await;
    }

    async fn propose(&self, known: &Record, proposed: &Record, ballot: Ballot) -> Round {
        let deciders = known.deciders();
        let promises = join_all(deciders.iter().map(|engine| self.promise(engine, known, &ballot))).await;
        let mut promised = Vec::new();
        let mut accepted: Option<(Ballot, Record)> = None;
        let mut outbid = 0;
        for promise in promises {
            match promise {
                Step::Done { engine, version, board } => {
                    let earlier = accepted.as_ref().map(|(ballot, _)| ballot);
                    if board.accepted.as_ref().map(|(ballot, _)| ballot) > earlier {
                        accepted.clone_from(&board.accepted);
                    }
                    promised.push((engine, version));
                }
                Step::Later(record) => return Round::Over(record),
                Step::Refused(seen) => outbid = outbid.max(seen),
                Step::Silent => {}
            }
        }
        if promised.len() < known.majority() {
            return Round::Outbid(outbid);
        }
        // What may have been decided must be decided.
        let value = accepted.map_or_else(|| proposed.clone(), |(_, record)| record);
        let accepts = promised.iter().map(|(engine, version)| {
            let board = Board {
                promised: Some(ballot.clone()),
                accepted: Some((ballot.clone(), value.clone())),
                ..Board::of(engine, known)
            };
            // On the version that was promised on: had it changed, somebody has outbid this ballot, or knows the successor.
            async move { self.boards.write(engine, *version, &board).await }
        });
        let accepts = join_all(accepts).await;
        let count = accepts.iter().filter(|accept| matches!(accept, Ok(Some(_)))).count();
        if count >= known.majority() { Round::Decided(value) } else { Round::Outbid(outbid.max(ballot.0)) }
    }

    async fn promise(&self, engine: &str, known: &Record, ballot: &Ballot) -> Step {
        let Ok(ReadBoard { version, board, .. }) = self.boards.read(engine).await else { return Step::Silent };
        let mut board = match board {
            Some(board) if board.record.epoch > known.epoch => return Step::Later(board.record),
            Some(board) if board.record == *known => board,
            Some(board) if board.record.epoch == known.epoch => return Step::Silent,
            _ => Board::of(engine, known),
        };
        if let Some(promised) = board.promised.as_ref().filter(|promised| *promised >= ballot) {
            return Step::Refused(promised.0);
        }
        board.promised = Some(ballot.clone());
        match self.boards.write(engine, version, &board).await {
            Ok(Some(version)) => Step::Done { engine: engine.to_owned(), version, board: Box::new(board) },
            Ok(None) => Step::Refused(ballot.0),
            Err(_) => Step::Silent,
        }
    }
}

/// Engines of different sets, or some that have left the set that others are in: whichever record is the later, nobody can
/// tell which of them has what is true.
fn is_of_several_sets(answers: &[(String, ReadBoard)]) -> bool {
    let records = || answers.iter().filter_map(|(_, read)| read.board.as_ref().map(|board| &board.record));
    let mut sets = records().filter(|record| !record.is_first()).map(|record| &record.set);
    let Some(set) = sets.next() else { return false };
    let has_left = answers.iter().any(|(_, read)| read.board.is_none() && read.version > 0);
    has_left || sets.any(|other| other != set)
}

/// Nodes that name the engines in different orders begin with different records: whichever came first to one of the engines,
/// the same for all, is everybody's. It is never replaced there but by one that was decided.
fn founding<'a>(answers: &'a [(String, ReadBoard)], known: &Record) -> Option<&'a Record> {
    let founder = known.founder().filter(|_| known.is_first())?;
    let (_, read) = answers.iter().find(|(engine, _)| engine == founder)?;
    let first = read.board.as_ref().map(|board| &board.record)?;
    Some(first).filter(|first| first.has_engines_of(known))
}

enum Round {
    Decided(Record),
    /// A later record is in force already.
    Over(Record),
    /// By a ballot of this count, or by silence.
    Outbid(u64),
}

enum Step {
    Done { engine: String, version: u64, board: Box<Board> },
    Later(Record),
    Refused(u64),
    Silent,
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
