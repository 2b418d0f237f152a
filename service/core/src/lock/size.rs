//! How long a state is when it is written, in bytes: about, because it is found without writing it.
//!
//! Each commit of a key writes its whole state, so a key with a long state slows down every other key. What a caller can add
//! to a state is bounded by its length.

use super::STATE_BYTES_MAX;
use super::command::LeaseTerms;
use super::group::{Group, Share};
use super::lease::{Lease, Metadata, Note, Owner, Revocation};
use super::outcome::KeyFull;
use super::position::{NodeId, Turn};
use super::state::LockState;
use crate::time::Timestamp;

/// The fields that every state has.
const STATE_BYTES: usize = 100;
/// A turn with its names, without its group.
const TURN_BYTES: usize = 180;
/// The fields that every lease has, without its texts.
const LEASE_BYTES: usize = 150;
/// A field that a lease has only at times.
const OPTION_BYTES: usize = 28;
/// A revocation without its texts.
const REVOCATION_BYTES: usize = 60;
/// Kept permits without their numbers.
const KEPT_BYTES: usize = 46;
/// A closing without its reason.
const CLOSING_BYTES: usize = 75;
/// The name of a group, without its text.
const GROUP_BYTES: usize = 12;
/// What a turn of a group has beside its name.
const SHARE_BYTES: usize = 30;
/// The longest owner that the rules make.
const OWNER_MADE_BYTES: usize = 30;

impl LockState {
    /// The length of this state.
    pub fn bytes(&self) -> usize {
        let leases = self.holders.iter().map(Lease::bytes).sum::<usize>();
        let kept = self
            .kept
            .iter()
            .map(|kept| KEPT_BYTES + kept.slots.bytes() + group_bytes(kept.group.as_ref()))
            .sum::<usize>();
        let closed = self.closed.as_ref().map_or(0, |closing| CLOSING_BYTES + closing.reason.len());
        let turns = self.turns.iter().map(Turn::bytes).sum::<usize>();
        STATE_BYTES + leases + kept + closed + turns + self.recent.bytes()
    }

    /// The length of this state without the turns of a node.
    pub(super) fn bytes_beside(&self, node: &NodeId) -> usize {
        let own = self.turns.iter().filter(|turn| turn.node == *node).map(Turn::bytes).sum();
        self.bytes().saturating_sub(own)
    }

    /// # Errors
    /// When the state would be longer than [`STATE_BYTES_MAX`] with `bytes` more.
    pub(super) fn check_length(&self, bytes: usize) -> Result<(), KeyFull> {
        let bytes = self.bytes().saturating_add(bytes);
        if bytes > STATE_BYTES_MAX { Err(KeyFull { bytes }) } else { Ok(()) }
    }
}

impl Lease {
    fn bytes(&self) -> usize {
        let revocation = self.revocation.as_ref().map_or(0, |revocation| revocation.bytes());
        let options = [
            self.waited_ms > 0,
            self.delay_ms > 0,
            self.min_hold_ms > 0,
            self.hold_until.is_some(),
            self.warn_after_ms.is_some(),
            self.warned,
            self.acknowledged,
        ];
        let options = options.into_iter().filter(|is_set| *is_set).count() * OPTION_BYTES;
        lease_bytes(self.lease_id.as_str(), Some(&self.owner), self.metadata.as_ref())
            + options
            + revocation
            + self.slots.bytes()
            + group_bytes(self.group.as_ref())
    }
}

impl LeaseTerms {
    /// The length of a lease that is granted on these terms.
    pub(super) fn bytes(&self) -> usize {
        let named = [self.delay_ms > 0, self.min_hold_ms > 0, self.max_hold_ms.is_some(), self.warn_after_ms.is_some()];
        let options = 2 + named.into_iter().filter(|is_set| *is_set).count();
        lease_bytes(self.lease_id.as_str(), self.owner.as_ref(), self.metadata.as_ref())
            + options * OPTION_BYTES
            + group_bytes(self.demand.group())
    }
}

impl Turn {
    pub(super) fn bytes(&self) -> usize {
        let share = |share: &Share| SHARE_BYTES + group_bytes(Some(&share.group));
        let options = usize::from(self.served > Timestamp::default()) + usize::from(self.hides_groups);
        let options = options + usize::from(self.since.is_some());
        TURN_BYTES + options * OPTION_BYTES + self.share.as_ref().map_or(0, share)
    }
}

impl Revocation {
    fn bytes(&self) -> usize {
        REVOCATION_BYTES + self.note.bytes()
    }
}

impl Note {
    /// The length of a revocation with this note.
    pub(super) fn bytes(&self) -> usize {
        let reason = self.reason.as_deref().map_or(0, str::len);
        reason + self.by.as_ref().map_or(0, |by| by.as_str().len())
    }
}

fn lease_bytes(lease_id: &str, owner: Option<&Owner>, metadata: Option<&Metadata>) -> usize {
    let owner = owner.map_or(OWNER_MADE_BYTES, |owner| owner.as_str().len());
    LEASE_BYTES + lease_id.len() + owner + metadata_bytes(metadata)
}

fn group_bytes(group: Option<&Group>) -> usize {
    group.map_or(0, |group| GROUP_BYTES + group.as_str().len())
}

/// Inside the state, the quotation marks of the metadata are written as two characters.
pub(super) fn metadata_bytes(metadata: Option<&Metadata>) -> usize {
    metadata.map_or(0, |metadata| 16 + metadata.as_json_text().len() * 5 / 4)
}
