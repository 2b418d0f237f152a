//! The leases of a key that ended last.
//!
//! A client that does not know whether its release was carried out repeats it, and must be answered that it was. So a lease
//! that has ended is remembered for a time, as long as the memory of its key stays small: every commit of a busy key writes
//! it, and the cost of a commit is mostly the length of its states. The memory keeps a fingerprint of each lease id, and is
//! written as one short text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lease::{EndReason, LeaseId};
use super::{RECENT_MIN, RECENT_MS};
use crate::time::Timestamp;

/// Bits of a fingerprint. Among a hundred remembered ones, the chance that two are equal is one in 2^35.
const FINGERPRINT_BITS: u32 = 48;
/// Digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 8;
/// Bits of a digit.
const DIGIT_BITS: u32 = 6;

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

    pub(super) fn last(&self) -> Option<Ended> {
        self.0.last().copied()
    }

    pub(super) fn push(&mut self, lease_id: &LeaseId, why: EndReason, at: Timestamp) {
        self.0.push(Ended { fingerprint: fingerprint(lease_id), why, at });
    }

    /// Forgets the oldest leases: those that ended too long before `now`, and as many as make the text longer than
    /// `bytes_max`. The last [`RECENT_MIN`] stay.
    pub(super) fn forget(&mut self, bytes_max: usize, now: Timestamp) {
        let at_most = self.0.len().saturating_sub(RECENT_MIN);
        let mut bytes = self.bytes();
        let mut forgotten = 0;
        while forgotten < at_most {
            let oldest = &self.0[forgotten];
            if bytes <= bytes_max && oldest.at.plus_ms(RECENT_MS) >= now {
                break;
            }
            // The next entry becomes the first, with a whole time in place of a difference.
            forgotten += 1;
            bytes -= entry_bytes(oldest.at, self.0[forgotten].at);
        }
        self.0.drain(..forgotten);
    }

    /// About the length of the text, never less.
    pub(super) fn bytes(&self) -> usize {
        let Some(first) = self.0.first() else { return 0 };
        let differences = self.0.windows(2).map(|pair| entry_bytes(pair[0].at, pair[1].at));
        entry_bytes(Timestamp::default(), first.at) + differences.sum::<usize>()
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
    /// None of these is a digit.
    fn tag(self) -> char {
        match self {
            Self::Released => '.',
            Self::Expired => '!',
            Self::Revoked => '~',
            Self::Forced => '*',
        }
    }

    fn from_tag(tag: char) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.tag() == tag)
    }
}

/// Entries `{tag}{fingerprint}{ms}`, the numbers in base 64. The time is the difference from the entry before, doubled, and
/// minus one if it is negative: an expiry may be noticed after later releases.
impl Serialize for Recent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len() * 12 + 8);
        let mut before = Timestamp::default();
        for ended in &self.0 {
            text.push(ended.why.tag());
            push_digits(&mut text, ended.fingerprint, FINGERPRINT_DIGITS);
            let since = since(before, ended.at);
            push_digits(&mut text, since, digits_of(since));
            before = ended.at;
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Recent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| serde::de::Error::custom("not a list of ended leases"))
    }
}

fn parse(text: &str) -> Option<Recent> {
    let mut entries = Vec::new();
    let mut before = 0_u64;
    let mut rest = text.chars().peekable();
    while let Some(tag) = rest.next() {
        let why = EndReason::from_tag(tag)?;
        let mut fingerprint = 0;
        for _ in 0..FINGERPRINT_DIGITS {
            fingerprint = fingerprint << DIGIT_BITS | value_of(rest.next()?)?;
        }
        let mut since = 0;
        while let Some(digit) = rest.peek().and_then(|digit| value_of(*digit)) {
            since = since << DIGIT_BITS | digit;
            rest.next();
        }
        before = before.wrapping_add(unfold_sign(since).cast_unsigned());
        entries.push(Ended { fingerprint, why, at: Timestamp::from_ms(before) });
    }
    Some(Recent(entries))
}

/// The length of an entry that follows one of `before`.
fn entry_bytes(before: Timestamp, at: Timestamp) -> usize {
    1 + FINGERPRINT_DIGITS + digits_of(since(before, at))
}

fn since(before: Timestamp, at: Timestamp) -> u64 {
    fold_sign(at.as_ms().wrapping_sub(before.as_ms()).cast_signed())
}

const fn fold_sign(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

const fn unfold_sign(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// How many digits a number has; 0 has none.
const fn digits_of(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()).div_ceil(DIGIT_BITS) as usize
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn push_digits(text: &mut String, number: u64, digits: usize) {
    for position in (0..digits).rev() {
        let digit = number >> (position as u32 * DIGIT_BITS) & 63;
        text.push(char::from(DIGITS[digit as usize]));
    }
}

fn value_of(digit: char) -> Option<u64> {
    let value = match digit {
        'A'..='Z' => digit as u64 - 'A' as u64,
        'a'..='z' => digit as u64 - 'a' as u64 + 26,
        '0'..='9' => digit as u64 - '0' as u64 + 52,
        '-' => 62,
        '_' => 63,
        _ => return None,
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

    fn id(number: usize) -> LeaseId {
        LeaseId::parse(&format!("lease-{number}")).unwrap()
    }

    /// One release each `every_ms`, the last one at `NOW`.
    fn released(count: usize, every_ms: u64) -> Recent {
        let mut recent = Recent::default();
        for number in 0..count {
            let ago = (count - 1 - number) as u64 * every_ms;
            recent.push(&id(number), EndReason::Released, Timestamp::from_ms(NOW.as_ms() - ago));
        }
        recent
    }

    fn written(recent: &Recent) -> String {
        serde_json::to_string(recent).unwrap()
    }

    #[test]
    fn the_text_is_read_again() {
        let mut recent = Recent::default();
        // The last lease ended before the one that was noticed before it.
        let times = [1_700_000_000_000, 1_700_000_000_000, 1_700_000_000_700, 1_699_999_999_000];
        for (number, (why, at)) in EndReason::ALL.into_iter().cycle().zip(times).enumerate() {
            recent.push(&id(number), why, Timestamp::from_ms(at));
        }
        let text = written(&recent);
        assert_eq!(serde_json::from_str::<Recent>(&text).unwrap(), recent);
        assert_eq!(recent.find(&id(1)).unwrap().why, EndReason::Released);
        assert_eq!(recent.find(&id(9)), None);
        // The quotation marks are not counted.
        assert_eq!(recent.bytes(), text.len() - 2);
        for text in ["\"x\"", "\".\"", "\".AAAAAAA\"", "\".AAAAAAAAA?\""] {
            assert!(serde_json::from_str::<Recent>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_lease_that_ended_within_half_a_minute_is_remembered() {
        let mut recent = released(100, 1_000);
        recent.forget(usize::MAX, NOW);
        assert_eq!(recent.find(&id(100 - 32)), None);
        assert!(recent.find(&id(100 - 31)).is_some());
    }

    #[test]
    fn the_memory_of_a_busy_key_is_bounded_and_the_oldest_are_forgotten_first() {
        let mut recent = released(5_000, 1);
        recent.forget(1_024, NOW);
        let text = written(&recent);
        assert!((1_000..=1_026).contains(&text.len()), "{}", text.len());
        assert!(recent.0.len() > 90, "{}", recent.0.len());
        assert!(recent.find(&id(5_000 - recent.0.len())).is_some());
        assert!(recent.find(&id(5_000 - recent.0.len() - 1)).is_none());
    }

    #[test]
    fn the_last_leases_of_a_quiet_key_are_remembered_for_longer() {
        let mut recent = released(RECENT_MIN + 1, 3_600_000);
        recent.forget(0, NOW);
        assert_eq!(recent.find(&id(0)), None);
        assert!(recent.find(&id(1)).is_some());
        assert_eq!(recent.0.len(), RECENT_MIN);
    }

    #[test]
    fn numbers_of_any_size_are_written() {
        for number in [0, 1, 63, 64, 1_700_000_000_000, u64::MAX] {
            let mut text = String::new();
            push_digits(&mut text, number, digits_of(number));
            let read = text.chars().fold(0, |read: u64, digit| read << DIGIT_BITS | value_of(digit).unwrap());
            assert_eq!(read, number);
        }
    }

    #[test]
    fn a_fingerprint_never_changes() {
        // FNV-1a of "a" is af63dc4c8601ec8c.
        assert_eq!(fingerprint(&LeaseId::parse("a").unwrap()), 0xdc4c_8601_ec8c ^ 0xaf63);
    }
}
