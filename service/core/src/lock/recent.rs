//! The leases of a key that ended last.
//!
//! A client that does not know whether its release was carried out repeats it, and must be answered that it was. A late repetition
//! of its acquire must not take the lock for a client that has gone on. So the last [`RECENT_MAX`] leases that have ended are remembered. Each commit of
//! the key writes them, so there are few, and each is short: a number stands for the lease id. In memory they are the text that is written, because
//! most commits only copy it.

use md5::{Digest as _, Md5};
use serde::Deserialize;

use super::RECENT_MAX;
use super::lease::{EndReason, LeaseId};
use super::outcome::Lost;
use crate::time::Timestamp;

/// Entries without separators, oldest first: the digits of the lease id's number, the letter of the reason, and the digits of the time
/// in ms. JSON escapes none of them. In an entry of an earlier version, whose letter is a capital, the number is from the MD5 of the lease id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Stored")]
pub(super) struct Recent(String);

/// Hexadecimal digits of a number.
const DIGITS: usize = 12;
const ENTRY_BYTES: usize = DIGITS + 1 + DIGITS;

/// The highest prime below 2^47.
const PRIME: u64 = (1 << 47) - 115;

/// What a state can have.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    /// Of an earlier version: 48 bits of the MD5, the reason and the time.
    List(Vec<(u64, char, Timestamp)>),
}

impl Recent {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As it is written.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn push(&mut self, lease_id: &LeaseId, why: EndReason, at: Timestamp) {
        if self.0.len() >= RECENT_MAX * ENTRY_BYTES {
            self.0.drain(..ENTRY_BYTES);
        }
        self.append(number_of(lease_id), why.letter(), at);
    }

    pub(super) fn find(&self, lease_id: &LeaseId) -> Option<Lost> {
        if self.is_empty() {
            return None;
        }
        let digits = digits_of(number_of(lease_id));
        let is_earlier = |entry: &[u8]| entry[DIGITS].is_ascii_uppercase();
        let earlier = self.entries().any(is_earlier).then(|| digits_of(md5_of(lease_id)));
        let is_of_lease = |entry: &&[u8]| match is_earlier(entry) {
            true => earlier.is_some_and(|earlier| entry[..DIGITS] == earlier),
            false => entry[..DIGITS] == digits,
        };
        let (why, at) = self.entries().rfind(is_of_lease).and_then(read)?;
        Some(Lost { why: Some(why), at: Some(at) })
    }

    /// When and why the last one ended.
    pub(super) fn last(&self) -> Option<(Timestamp, EndReason)> {
        self.entries().next_back().and_then(read).map(|(why, at)| (at, why))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Changes all times.
    pub(super) fn move_times(&mut self, moved: impl Fn(Timestamp) -> Timestamp) {
        let before = std::mem::take(self);
        for entry in before.entries() {
            if let (Some(number), Some((_, at))) = (number(&entry[..DIGITS]), read(entry)) {
                self.append(number, char::from(entry[DIGITS]), moved(at));
            }
        }
    }

    fn append(&mut self, number: u64, letter: char, at: Timestamp) {
        let push = |text: &mut String, digits: [u8; DIGITS]| text.push_str(str::from_utf8(&digits).unwrap_or_default());
        push(&mut self.0, digits_of(number));
        self.0.push(letter);
        push(&mut self.0, digits_of(at.as_ms()));
    }

    fn entries(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.as_bytes().chunks_exact(ENTRY_BYTES)
    }
}

impl TryFrom<Stored> for Recent {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let recent = match stored {
            Stored::Text(text) => Self(text),
            Stored::List(list) => {
                let mut recent = Self::default();
                for (md5, letter, at) in list {
                    recent.append(md5, letter.to_ascii_uppercase(), at);
                }
                recent
            }
        };
        let is_readable = |entry: &[u8]| number(&entry[..DIGITS]).is_some() && read(entry).is_some();
        let is_whole = recent.0.len().is_multiple_of(ENTRY_BYTES) && recent.entries().all(is_readable);
        if is_whole { Ok(recent) } else { Err("the leases that have ended cannot be read") }
    }
}

/// Why and when the lease of an entry ended.
fn read(entry: &[u8]) -> Option<(EndReason, Timestamp)> {
    let why = EndReason::of_letter(char::from(entry[DIGITS]).to_ascii_lowercase())?;
    Some((why, Timestamp::from_ms(number(&entry[DIGITS + 1..])?)))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    u64::from_str_radix(digits, 16).ok()
}

/// The last [`DIGITS`] digits: enough for every number here, and for all times until the year 10 889.
fn digits_of(number: u64) -> [u8; DIGITS] {
    let digit = |index| b"0123456789abcdef"[(number >> (4 * (DIGITS - 1 - index)) & 15) as usize];
    std::array::from_fn(digit)
}

/// The bytes of the lease id as one number with the base 256, modulo [`PRIME`]. It is written into states, and SQL finds it too, so it must
/// never change.
///
/// Two lease ids rarely have the same number, and never if only five bytes in a row differ. If one of them has ended, the other one is then not granted,
/// or its release is answered as a repetition: no lease is granted or ended by it. A client that makes such ids on purpose gets wrong answers about its
/// own leases that have ended, and about no others: for that it would need their ids, with which it could release them.
fn number_of(lease_id: &LeaseId) -> u64 {
    let (pairs, last) = lease_id.as_str().as_bytes().as_chunks::<2>();
    let number = pairs.iter().fold(0, |number, pair| (number << 16 | u64::from(u16::from_be_bytes(*pair))) % PRIME);
    last.iter().fold(number, |number, byte| (number << 8 | u64::from(*byte)) % PRIME)
}

/// 48 bits of the MD5 of the lease id, as an earlier version wrote it.
fn md5_of(lease_id: &LeaseId) -> u64 {
    Md5::digest(lease_id.as_str()).iter().take(6).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
    const REASONS: [EndReason; 4] = [EndReason::Expired, EndReason::Released, EndReason::Revoked, EndReason::Forced];

    fn id(number: usize) -> LeaseId {
        LeaseId::parse(&format!("lease-{number}")).unwrap()
    }

    fn lost(why: EndReason, at: Timestamp) -> Option<Lost> {
        Some(Lost { why: Some(why), at: Some(at) })
    }

    #[test]
    fn the_last_leases_are_remembered_and_older_ones_are_not() {
        let mut recent = Recent::default();
        for number in 0..=RECENT_MAX {
            recent.push(&id(number), EndReason::Released, NOW.plus_ms(number as u64));
        }
        assert_eq!(recent.find(&id(0)), None);
        for number in 1..=RECENT_MAX {
            assert_eq!(recent.find(&id(number)), lost(EndReason::Released, NOW.plus_ms(number as u64)));
        }
        assert_eq!(recent.last(), Some((NOW.plus_ms(RECENT_MAX as u64), EndReason::Released)));
    }

    #[test]
    fn the_text_is_written_as_it_always_was() {
        let mut recent = Recent::default();
        for (number, why) in REASONS.into_iter().enumerate() {
            recent.push(&id(number), why, NOW);
        }
        // Of Python: int.from_bytes(b"lease-0") % (2**47 - 115), in hexadecimal digits.
        let expected = ["656173658e38", "656173658e39", "656173658e3a", "656173658e3b"];
        let expected = expected.into_iter().zip(["e", "r", "v", "f"]);
        let expected: String = expected.map(|(number, letter)| format!("{number}{letter}018bcfe56800")).collect();
        assert_eq!(recent.text(), expected);
        assert_eq!(serde_json::from_str::<Recent>(&format!("\"{expected}\"")).unwrap(), recent);
    }

    #[test]
    fn lease_ids_that_differ_in_few_bytes_have_different_numbers() {
        let texts = ["a", "aa", "b", "job-2026-11-25", "job-2026-11-26", "job-2027-11-25", "0b-1", "b0-1", "b-01"];
        let mut numbers: Vec<u64> = texts.iter().map(|text| number_of(&LeaseId::parse(text).unwrap())).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), texts.len());
        assert!(numbers.iter().all(|number| *number < PRIME));
    }

    #[test]
    fn the_list_of_an_earlier_version_is_read_and_its_leases_are_found() {
        // The numbers are of coreutils: printf lease-0 | md5sum | cut -c1-12.
        let list = r#"[[173421922464012,"e",1700000000000],[153090262544379,"r",1700000000000],
            [94689646474727,"v",1700000000000],[200826077971466,"f",1700000000000]]"#;
        let mut recent: Recent = serde_json::from_str(list).unwrap();
        recent.move_times(|at| at.plus_ms(7));
        recent.push(&id(4), EndReason::Released, NOW);
        let written: Recent = serde_json::from_str(&format!("\"{}\"", recent.text())).unwrap();
        assert_eq!(written, recent);
        for (number, why) in REASONS.into_iter().enumerate() {
            assert_eq!(recent.find(&id(number)), lost(why, NOW.plus_ms(7)));
        }
        assert_eq!(recent.find(&id(4)), lost(EndReason::Released, NOW));
        assert_eq!(recent.find(&id(5)), None);
    }

    #[test]
    fn what_is_not_such_a_text_is_not_read() {
        let entry = "656173658e38e018bcfe56800";
        for (text, is_read) in [
            ("", true),
            (entry, true),
            (&entry[1..], false),
            (&entry.replace("65", "x5"), false),
            (&entry.replace("e018", "x018"), false),
            (&entry.replace("018b", "-18b"), false),
            (&entry.replace("018b", "é8b"), false),
        ] {
            assert_eq!(serde_json::from_str::<Recent>(&format!("\"{text}\"")).is_ok(), is_read, "{text}");
        }
    }
}
