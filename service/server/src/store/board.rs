//! The board: the document by which the nodes of an engine set agree on which of their stores is active. Each store keeps one
//! of its own, beside the states and apart from them: no state, no listing and no collection knows of it.

use latchgate_core::Timestamp;

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
