//! The leases of a key that ended last.
//!
//! Every commit of a busy key writes them, and the cost of a commit is mostly the length of its states. So the state keeps
//! a fingerprint of each lease id, and writes all of them as one short text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::RECENT_MAX;
use super::lease::{EndReason, LeaseId};
use crate::time::Timestamp;

/// Bits of a fingerprint. The chance that two of the remembered ones are equal is one in 2^45.
const FINGERPRINT_BITS: u32 = 48;

/// Oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent(Vec<Ended>);

/// How and when a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    fingerprint: u64,
    pub why: EndReason,
    pub at: Timestamp,
}

impl Recent {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Ended> {
        self.0.iter_mut()
    }

    pub(super) fn find(&self, lease_id: &LeaseId) -> Option<Ended> {
        let fingerprint = fingerprint(lease_id);
        self.0.iter().rev().find(|ended| ended.fingerprint == fingerprint).copied()
    }

    pub(super) fn push(&mut self, lease_id: &LeaseId, why: EndReason, at: Timestamp) {
        if self.0.len() >= RECENT_MAX {
            self.0.drain(..=self.0.len() - RECENT_MAX);
        }
        self.0.push(Ended { fingerprint: fingerprint(lease_id), why, at });
    }
}

/// FNV-1a (Fowler, Noll, Vo), its 64 bits folded to 48 as its authors advise. It is written into states, so it must never
/// change. A client that makes two of its own lease ids collide only reads the end of the wrong one.
fn fingerprint(lease_id: &LeaseId) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = lease_id.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    (hash >> FINGERPRINT_BITS) ^ (hash & ((1 << FINGERPRINT_BITS) - 1))
}

impl EndReason {
    fn tag(self) -> char {
        match self {
            Self::Expired => 'x',
            Self::Released => 'r',
            Self::Revoked => 'v',
            Self::Forced => 'f',
        }
    }

    fn from_tag(tag: char) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.tag() == tag)
    }
}

/// Entries `{tag}{ms}.{fingerprint}`, separated by spaces, the numbers in base 36. The time is the difference from the entry
/// before, doubled, and minus one if it is negative: an expiry may be noticed after later releases.
impl Serialize for Recent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len() * 20);
        let mut before = 0;
        for ended in &self.0 {
            if !text.is_empty() {
                text.push(' ');
            }
            let at = ended.at.as_ms();
            text.push(ended.why.tag());
            push_base36(&mut text, fold_sign(at.wrapping_sub(before).cast_signed()));
            text.push('.');
            push_base36(&mut text, ended.fingerprint);
            before = at;
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Recent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let mut before = 0;
        let entries = text.split(' ').filter(|entry| !entry.is_empty());
        let parsed: Option<Vec<Ended>> = entries.map(|entry| parse(entry, &mut before)).collect();
        parsed.map(Self).ok_or_else(|| serde::de::Error::custom("not a list of ended leases"))
    }
}

const fn fold_sign(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

const fn unfold_sign(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

fn push_base36(text: &mut String, number: u64) {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // 36^13 > 2^64.
    let mut digits = [0_u8; 13];
    let mut first = digits.len();
    let mut rest = number;
    loop {
        first -= 1;
        digits[first] = DIGITS[(rest % 36) as usize];
        rest /= 36;
        if rest == 0 {
            break;
        }
    }
    text.extend(digits[first..].iter().map(|digit| char::from(*digit)));
}

fn parse(entry: &str, before: &mut u64) -> Option<Ended> {
    let why = EndReason::from_tag(entry.chars().next()?)?;
    let (since, fingerprint) = entry.get(1..)?.split_once('.')?;
    *before = before.wrapping_add(unfold_sign(u64::from_str_radix(since, 36).ok()?).cast_unsigned());
    Some(Ended { fingerprint: u64::from_str_radix(fingerprint, 36).ok()?, why, at: Timestamp::from_ms(*before) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> LeaseId {
        LeaseId::parse(text).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut recent = Recent::default();
        // The last lease ended before the one that was noticed before it.
        let times = [1_700_000_000_000, 1_700_000_000_000, 1_700_000_000_700, 1_699_999_999_000];
        for (number, (why, at)) in EndReason::ALL.into_iter().cycle().zip(times).enumerate() {
            recent.push(&id(&format!("lease-{number}")), why, Timestamp::from_ms(at));
        }
        let text = serde_json::to_string(&recent).unwrap();
        assert_eq!(serde_json::from_str::<Recent>(&text).unwrap(), recent);
        assert_eq!(recent.find(&id("lease-1")).unwrap().why, EndReason::Released);
        assert_eq!(recent.find(&id("lease-9")), None);
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut recent = Recent::default();
        for number in 0..=RECENT_MAX {
            recent.push(&id(&format!("lease-{number}")), EndReason::Released, Timestamp::from_ms(1));
        }
        assert_eq!(recent.find(&id("lease-0")), None);
        assert!(recent.find(&id("lease-1")).is_some());
        assert_eq!(recent.0.len(), RECENT_MAX);
    }

    #[test]
    fn numbers_of_any_size_are_written_in_base_36() {
        for number in [0, 1, 35, 36, 1_700_000_000_000, u64::MAX] {
            let mut text = String::new();
            push_base36(&mut text, number);
            assert_eq!(u64::from_str_radix(&text, 36), Ok(number));
        }
    }

    #[test]
    fn a_fingerprint_never_changes() {
        // FNV-1a of "a" is af63dc4c8601ec8c.
        assert_eq!(fingerprint(&id("a")), 0xdc4c_8601_ec8c ^ 0xaf63);
    }
}
