//! The leases of a key that ended last.
//!
//! A client that does not know whether its release was carried out repeats it, and must be answered that it was. A late repetition
//! of its acquire must not take the lock for a client that has gone on. So the last [`RECENT_MAX`] leases that have ended are remembered. Each commit of
//! the key writes them, so there are few, and each is short: a hash stands for the lease id.

use std::collections::VecDeque;

use md5::{Digest as _, Md5};
use serde::Deserialize;

use super::RECENT_MAX;
use super::lease::{EndReason, LeaseId, Lost};
use crate::time::Timestamp;

/// Oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct Recent(VecDeque<Ended>);

/// The hash of its lease id, and how and when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Ended(u64, EndReason, Timestamp);

/// An entry as it is written, with its comma.
const ENTRY_BYTES: usize = 36;

impl Recent {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the list in JSON.
    pub(super) fn write(&self, text: &mut String) {
        let mut digits = itoa::Buffer::new();
        text.push('[');
        for (index, Ended(hash, why, at)) in self.0.iter().enumerate() {
            text.push_str(if index == 0 { "[" } else { ",[" });
            text.push_str(digits.format(*hash));
            text.push_str(",\"");
            text.push(why.letter());
            text.push_str("\",");
            text.push_str(digits.format(at.as_ms()));
            text.push(']');
        }
        text.push(']');
    }

    pub(super) fn push(&mut self, lease_id: &LeaseId, why: EndReason, at: Timestamp) {
        if self.0.len() >= RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Ended(hash(lease_id), why, at));
    }

    pub(super) fn find(&self, lease_id: &LeaseId) -> Option<Lost> {
        if self.is_empty() {
            return None;
        }
        let hash = hash(lease_id);
        let Ended(_, why, at) = self.0.iter().rfind(|ended| ended.0 == hash)?;
        Some(Lost { why: Some(*why), at: Some(*at) })
    }

    /// When and why the last one ended.
    pub(super) fn last(&self) -> Option<(Timestamp, EndReason)> {
        self.0.back().map(|Ended(_, why, at)| (*at, *why))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len() * ENTRY_BYTES
    }

    /// Changes all times.
    pub(super) fn move_times(&mut self, moved: impl Fn(Timestamp) -> Timestamp) {
        self.0.iter_mut().for_each(|ended| ended.2 = moved(ended.2));
    }
}

/// 48 bits of the MD5 of the lease id. It is written into states, so it must never change. A client that makes two of its own lease
/// ids collide only reads the end of the wrong one.
fn hash(lease_id: &LeaseId) -> u64 {
    Md5::digest(lease_id.as_str()).iter().take(6).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    fn id(number: usize) -> LeaseId {
        LeaseId::parse(&format!("lease-{number}")).unwrap()
    }

    #[test]
    fn the_last_leases_are_remembered_and_older_ones_are_not() {
        let mut recent = Recent::default();
        for number in 0..=RECENT_MAX {
            recent.push(&id(number), EndReason::Released, NOW.plus_ms(number as u64));
        }
        assert_eq!(recent.find(&id(0)), None);
        for number in 1..=RECENT_MAX {
            let at = Some(NOW.plus_ms(number as u64));
            assert_eq!(recent.find(&id(number)), Some(Lost { why: Some(EndReason::Released), at }));
        }
        assert_eq!(recent.last(), Some((NOW.plus_ms(RECENT_MAX as u64), EndReason::Released)));
    }

    #[test]
    fn the_list_is_written_as_it_always_was() {
        let mut recent = Recent::default();
        let reasons = [EndReason::Expired, EndReason::Released, EndReason::Revoked, EndReason::Forced];
        for (number, why) in reasons.into_iter().enumerate() {
            recent.push(&id(number), why, NOW);
        }
        // The hashes are those of coreutils: printf lease-0 | md5sum | cut -c1-12.
        let mut text = String::new();
        recent.write(&mut text);
        let expected = r#"[[173421922464012,"e",1700000000000],[153090262544379,"r",1700000000000],\
            [94689646474727,"v",1700000000000],[200826077971466,"f",1700000000000]]"#;
        assert_eq!(text, expected.replace("\\\n            ", ""));
        assert!(text.len() <= 2 + recent.bytes());
        assert_eq!(serde_json::from_str::<Recent>(&text).unwrap(), recent);
    }
}
