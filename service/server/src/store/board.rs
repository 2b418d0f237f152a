//! The board: the document by which nodes agree on which of their stores is active: those of an engine set on that of the
//! locks, those of a gate on two stores on that of new operations. Each store keeps one of its own for either, beside what
//! else it keeps and apart from it: no listing and no collection knows of it.

use latchgate_core::Timestamp;

/// The names of boards in stores that may have both.
pub(super) const LOCKS: &str = "locks";
pub(super) const GATE: &str = "gate";

/// The document as one store keeps it. It is replaced as a whole, under "the version is still the one I saw".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    /// Which write made it: at random, so that one that a fail-over has lost does not share its version with the one made in
    /// its place. 0 while none was ever written, or when the store has lost it.
    pub version: u64,
    /// Empty while none was ever written.
    pub text: String,
    /// The store's clock while it answered; in a Redis Cluster, that of the master that has the board.
    pub now: Timestamp,
}
