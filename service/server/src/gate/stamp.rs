//! Stamps as callers hold them: which store has the record, and the proof of the attempt.

use std::fmt;

use latchgate_core::gate::{OperationId, OperationName, RETENTION_MS_DEFAULT, Sha256Digest, Stamp};
use latchgate_core::{App, Timestamp};
use serde::{Deserialize, Serialize};

use crate::seal::Sealer;

const PURPOSE: &str = "latchgate unguarded stamp";
/// Longest stamp, in bytes.
pub const STAMP_MAX_BYTES: usize = 2_048;

/// The text of a stamp: `p`, `d` or `f` and 32 hex digits, or an unguarded one, signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StampText(String);

/// Which store holds the attempt's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Primary,
    /// Claimed in the second store because it had to be durable.
    Durable,
    /// Claimed in the second store because the first was away.
    Fallback,
}

/// A stamp that was presented.
#[derive(Clone, Debug)]
pub(super) enum Presented {
    Guarded(Home, Stamp),
    Unguarded(Unguarded),
}

/// What an unguarded stamp says of its attempt, for the ledger.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Unguarded {
    pub app: App,
    pub id: OperationId,
    pub sha256: Sha256Digest,
    pub operation: OperationName,
    pub stamp: Stamp,
    /// By the primary's clock, or by this machine's if that had not answered yet.
    pub at: Timestamp,
    pub lease_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Sha256Digest>,
}

impl Unguarded {
    /// Whether its post comes too late to be entered: as long after its lease as a success is usually kept. Any later, and
    /// a repeated post would enter a run anew whose record has been over for long.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        now > self.at.plus_ms(self.lease_ms).plus_ms(RETENTION_MS_DEFAULT)
    }
}

/// Signs the stamps that no store keeps.
#[derive(Clone)]
pub(super) struct Signer(Sealer);

impl StampText {
    pub(super) fn guarded(home: Home, stamp: Stamp) -> Self {
        let letter = match home {
            Home::Primary => 'p',
            Home::Durable => 'd',
            Home::Fallback => 'f',
        };
        Self(format!("{letter}{stamp}"))
    }

    /// Takes a text for a stamp; whether it is one shows when it is presented.
    pub fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty() && text.len() <= STAMP_MAX_BYTES).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for StampText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Signer {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(Sealer::new(secret))
    }

    pub(super) fn sign(&self, unguarded: &Unguarded) -> StampText {
        let payload = serde_json::to_vec(unguarded).unwrap_or_default();
        StampText(format!("o{}", self.0.seal(PURPOSE, &payload)))
    }

    /// What a presented stamp says; `None` if it is none that this cluster gave.
    pub(super) fn read(&self, text: &StampText) -> Option<Presented> {
        let (letter, rest) = text.0.split_at_checked(1)?;
        let home = match letter {
            "p" => Home::Primary,
            "d" => Home::Durable,
            "f" => Home::Fallback,
            "o" => return self.read_unguarded(rest).map(Presented::Unguarded),
            _ => return None,
        };
        rest.parse().ok().map(|stamp| Presented::Guarded(home, stamp))
    }

    fn read_unguarded(&self, rest: &str) -> Option<Unguarded> {
        serde_json::from_slice(&self.0.open(PURPOSE, rest)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn unguarded(at_ms: u64) -> Unguarded {
        Unguarded {
            app: App::parse(&"\"".repeat(64)).unwrap(),
            id: OperationId::from_bytes([255; 16]),
            sha256: Sha256Digest::of(b"contents"),
            operation: OperationName::parse(&"\"".repeat(latchgate_core::gate::OPERATION_MAX_BYTES)).unwrap(),
            stamp: Stamp::from_bits(u128::MAX),
            at: Timestamp::from_ms(at_ms),
            lease_ms: 24 * HOUR_MS,
            checked: Some(Sha256Digest::of(b"checked")),
        }
    }

    #[test]
    fn the_longest_unguarded_stamp_is_read_again_with_its_check() {
        let signer = Signer::new(b"secret");
        let text = signer.sign(&unguarded(1_700_000_000_000));
        let text = StampText::from_text(&text.to_string()).expect("not too long");
        let Some(Presented::Unguarded(read)) = signer.read(&text) else { panic!("{text}") };
        assert_eq!(read.checked, Some(Sha256Digest::of(b"checked")));
    }

    #[test]
    fn an_unguarded_stamp_is_over_a_day_after_its_lease() {
        let stamp = unguarded(1);
        assert!(!stamp.is_over(Timestamp::from_ms(1 + 48 * HOUR_MS)));
        assert!(stamp.is_over(Timestamp::from_ms(2 + 48 * HOUR_MS)));
    }
}
