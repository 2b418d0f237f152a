//! The leases of a key that ended last.
//!
//! A client that does not know whether its release was carried out repeats it, and must be answered that it was. So a lease
//! that has ended is remembered for a time, as long as the memory of its key stays small: every commit of a busy key writes
//! it, and the cost of a commit is mostly the length of its states. The memory keeps a fingerprint of each lease id, and is
//! written as one short text.

use serde::{Deserialize, Deserializer};

use super::lease::{EndReason, LeaseId};
use super::{RECENT_MIN, RECENT_MS};
use crate::time::Timestamp;

/// Bits of a fingerprint. Among a hundred remembered ones, the chance that two are equal is one in 2^35.
const FINGERPRINT_BITS: u32 = 48;
/// Digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 8;
/// Of an entry, at most.
const ENTRY_BYTES_MAX: usize = 1 + FINGERPRINT_DIGITS + 11;
/// Bits of a digit.
const DIGIT_BITS: u32 = 6;

/// The text, as it is written into the state: each commit writes it, so an end only appends its entry.
///
/// Entries `{tag}{fingerprint}{ms}`, oldest first, the numbers in base 64. The time is the difference from the entry before,
/// doubled, and minus one if it is negative: an expiry may be noticed after later releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent {
    text: String,
    entries: usize,
    /// When the last one ended.
    last_at: Timestamp,
}

/// How and when a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    fingerprint: u64,
    pub why: EndReason,
    pub at: Timestamp,
}

impl Recent {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn find(&self, lease_id: &LeaseId) -> Option<Ended> {
        // Most lease ids are not here, which is found without reading the entries.
        let (digits, fingerprint) = (digits_of_fingerprint(lease_id), fingerprint(lease_id));
        self.text
            .contains(digits.as_str())
            .then(|| self.iter().filter(|ended| ended.fingerprint == fingerprint).last())?
    }

    /// When and why the last one ended.
    pub(super) fn last(&self) -> Option<(Timestamp, EndReason)> {
        let why = self.text.chars().rev().find_map(EndReason::from_tag)?;
        Some((self.last_at, why))
    }

    pub(super) fn push(&mut self, lease_id: &LeaseId, why: EndReason, at: Timestamp) {
        self.append(Ended { fingerprint: fingerprint(lease_id), why, at });
    }

    /// Forgets the oldest leases: those that ended too long before `now`, and as many as make the text longer than
    /// `bytes_max`. The last [`RECENT_MIN`] stay.
    pub(super) fn forget(&mut self, bytes_max: usize, now: Timestamp) {
        let at_most = self.entries.saturating_sub(RECENT_MIN);
        let mut entries = self.iter();
        let (mut forgotten, mut first, mut bytes) = (0, entries.next(), self.bytes());
        while let Some(oldest) = first
            && forgotten < at_most
            && (bytes > bytes_max || oldest.at.plus_ms(RECENT_MS) < now)
        {
            // The next entry becomes the first, with a whole time in place of a difference.
            forgotten += 1;
            first = entries.next();
            bytes = entries.rest.len() + first.map_or(0, |first| entry_bytes(Timestamp::default(), first.at));
        }
        if let (1.., Some(first)) = (forgotten, first) {
            let mut whole = String::with_capacity(ENTRY_BYTES_MAX);
            push_entry(&mut whole, first, Timestamp::default());
            let end = self.text.len() - entries.rest.len();
            self.text.replace_range(..end, &whole);
            self.entries -= forgotten;
        }
    }

    /// The text. JSON escapes none of its characters.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The length of the text.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The same leases with other times.
    pub(super) fn with_times(&self, time: impl Fn(Timestamp) -> Timestamp) -> Self {
        let mut recent = Self::default();
        self.iter().for_each(|ended| recent.append(Ended { at: time(ended.at), ..ended }));
        recent
    }

    fn iter(&self) -> Entries<'_> {
        Entries { rest: &self.text, before: Timestamp::default() }
    }

    fn append(&mut self, ended: Ended) {
        push_entry(&mut self.text, ended, self.last_at);
        self.entries += 1;
        self.last_at = ended.at;
    }
}

/// Reads entries one by one; what is not one ends it.
struct Entries<'a> {
    rest: &'a str,
    before: Timestamp,
}

impl Iterator for Entries<'_> {
    type Item = Ended;

    fn next(&mut self) -> Option<Ended> {
        let bytes = self.rest.as_bytes();
        let why = EndReason::from_tag(char::from(*bytes.first()?))?;
        let read = |number, digit: &u8| Some(number << DIGIT_BITS | value_of(*digit)?);
        let fingerprint = bytes.get(1..=FINGERPRINT_DIGITS)?.iter().try_fold(0, read)?;
        let times = &bytes[1 + FINGERPRINT_DIGITS..];
        let digits = times.iter().position(|digit| value_of(*digit).is_none()).unwrap_or(times.len());
        let since = times[..digits].iter().try_fold(0, read)?;
        let at = Timestamp::from_ms(self.before.as_ms().wrapping_add(unfold_sign(since).cast_unsigned()));
        self.rest = &self.rest[1 + FINGERPRINT_DIGITS + digits..];
        self.before = at;
        Some(Ended { fingerprint, why, at })
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

impl<'de> Deserialize<'de> for Recent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let mut entries = Entries { rest: &text, before: Timestamp::default() };
        let count = entries.by_ref().count();
        if !entries.rest.is_empty() {
            return Err(serde::de::Error::custom("not a list of ended leases"));
        }
        let last_at = entries.before;
        Ok(Self { text: text.into_owned(), entries: count, last_at })
    }
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

fn push_entry(text: &mut String, ended: Ended, before: Timestamp) {
    let since = since(before, ended.at);
    text.push(ended.why.tag());
    push_digits(text, ended.fingerprint, FINGERPRINT_DIGITS);
    push_digits(text, since, digits_of(since));
}

fn digits_of_fingerprint(lease_id: &LeaseId) -> String {
    let mut digits = String::with_capacity(FINGERPRINT_DIGITS);
    push_digits(&mut digits, fingerprint(lease_id), FINGERPRINT_DIGITS);
    digits
}

fn push_digits(text: &mut String, number: u64, digits: usize) {
    for position in (0..digits).rev() {
        let digit = number >> (position as u32 * DIGIT_BITS) & 63;
        text.push(char::from(DIGITS[digit as usize]));
    }
}

fn value_of(digit: u8) -> Option<u64> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(u64::from(value))
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
        serde_json::to_string(recent.text()).unwrap()
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
        assert_eq!(text, format!("\"{}\"", recent.text()));
        assert_eq!(serde_json::from_str::<Recent>(&text).unwrap(), recent);
        assert_eq!(recent.find(&id(1)).unwrap().why, EndReason::Released);
        assert_eq!(recent.find(&id(9)), None);
        assert_eq!(recent.last().unwrap().0, Timestamp::from_ms(1_699_999_999_000));
        assert_eq!(recent.last(), recent.iter().last().map(|ended| (ended.at, ended.why)));
        let later = recent.with_times(|at| at.plus_ms(5));
        assert_eq!(later.find(&id(1)).unwrap().at, Timestamp::from_ms(1_700_000_000_005));
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
    fn what_is_kept_is_as_if_the_others_had_never_been() {
        let (mut recent, mut alone) = (released(100, 1_000), Recent::default());
        recent.forget(usize::MAX, NOW);
        for number in 100 - recent.entries..100 {
            let ago = (99 - number) as u64 * 1_000;
            alone.push(&id(number), EndReason::Released, Timestamp::from_ms(NOW.as_ms() - ago));
        }
        assert!(recent.entries < 100);
        assert_eq!(recent, alone);
    }

    #[test]
    fn the_memory_of_a_busy_key_is_bounded_and_the_oldest_are_forgotten_first() {
        let mut recent = released(5_000, 1);
        recent.forget(1_024, NOW);
        let text = written(&recent);
        assert!((1_000..=1_026).contains(&text.len()), "{}", text.len());
        assert!(recent.entries > 90, "{}", recent.entries);
        assert!(recent.find(&id(5_000 - recent.entries)).is_some());
        assert!(recent.find(&id(5_000 - recent.entries - 1)).is_none());
    }

    #[test]
    fn the_last_leases_of_a_quiet_key_are_remembered_for_longer() {
        let mut recent = released(RECENT_MIN + 1, 3_600_000);
        recent.forget(0, NOW);
        assert_eq!(recent.find(&id(0)), None);
        assert!(recent.find(&id(1)).is_some());
        assert_eq!(recent.entries, RECENT_MIN);
    }

    #[test]
    fn numbers_of_any_size_are_written() {
        for number in [0, 1, 63, 64, 1_700_000_000_000, u64::MAX] {
            let mut text = String::new();
            push_digits(&mut text, number, digits_of(number));
            let read = text.chars().fold(0, |read: u64, digit| read << DIGIT_BITS | value_of(digit as u8).unwrap());
            assert_eq!(read, number);
        }
    }

    #[test]
    fn a_fingerprint_never_changes() {
        // FNV-1a of "a" is af63dc4c8601ec8c.
        assert_eq!(fingerprint(&LeaseId::parse("a").unwrap()), 0xdc4c_8601_ec8c ^ 0xaf63);
    }
}
