//! The boards of the gate's engines.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use super::super::record::Board;
use super::super::register::{Boards, ReadBoard};
use super::super::slot::{of_this_set, parse};
use crate::store::StoreError;
use crate::store::gate::GateStore;

/// One of the gate's engines.
pub(super) struct Place {
    /// Its kind.
    pub name: &'static str,
    store: Arc<dyn GateStore>,
    /// Why its board could not be read.
    trouble: Mutex<String>,
}

impl Place {
    pub(super) fn new(name: &'static str, store: Arc<dyn GateStore>) -> Self {
        Self { name, store, trouble: Mutex::default() }
    }

    pub(super) fn trouble(&self) -> String {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, trouble: &str) {
        trouble.clone_into(&mut self.trouble.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

#[derive(Clone)]
pub(super) struct GateBoards {
    pub all: Arc<[Place; 2]>,
    /// Longest time for one answer.
    pub timeout: Duration,
    /// The set that these are engines of, once that is known.
    pub set: Arc<OnceLock<String>>,
}

impl GateBoards {
    pub(super) fn names(&self) -> Vec<String> {
        self.all.iter().map(|place| place.name.to_owned()).collect()
    }

    /// # Errors
    /// When this node has no such engine.
    fn need(&self, engine: &str) -> Result<&Place, StoreError> {
        let place = self.all.iter().find(|place| place.name == engine);
        place.ok_or_else(|| StoreError::Unavailable(format!("engine {engine} is not one of this node's")))
    }
}

impl Boards for GateBoards {
    async fn read(&self, engine: &str) -> Result<ReadBoard, StoreError> {
        let place = self.need(engine)?;
        let answer = timeout(self.timeout, place.store.board()).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::Unavailable("it took too long to answer".to_owned())));
        let answer = answer.map_err(StoreError::of_reading).inspect_err(|error| place.note(&error.to_string()))?;
        let board = parse(engine, &answer.text);
        let foreign = |_| StoreError::Unavailable("its board is that of another gate: see docs/GATE.md".to_owned());
        let board = board.and_then(|board| of_this_set(self.set.get(), answer.version, board).map_err(foreign));
        let board = board.inspect_err(|error| place.note(&error.to_string()))?;
        place.note("");
        Ok(ReadBoard { version: answer.version, board, now: answer.now })
    }

    async fn write(&self, engine: &str, expected: u64, board: &Board) -> Result<Option<u64>, StoreError> {
        let text = serde_json::to_string(board).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let written = timeout(self.timeout, self.need(engine)?.store.write_board(expected, &text)).await;
        written.unwrap_or_else(|_| Err(StoreError::OutcomeUnknown("it took too long to answer".to_owned())))
    }
}
