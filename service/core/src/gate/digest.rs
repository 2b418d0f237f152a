//! Numbers shown as lower-case hex: the operation's id, its SHA-256, an attempt's stamp; and how an id is made.

use std::fmt;
use std::str::FromStr;

use md5::Md5;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::{AttemptId, Canonical, OperationName};
use crate::key::{App, Key};

/// The visible id of an operation: MD5 over the length-prefixed app, operation and contents (see [`Fingerprint`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(u128);

/// The proof of an attempt: 128 random bits that the caller of [`step`](super::step()) draws for each claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp(u128);

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Digest([u8; 32]);

/// An operation's two digests over the same bytes.
///
/// The bytes are three parts, each preceded by its length as a big-endian `u32`: the app's name, the operation's name,
/// and the contents in canonical JSON. So `"a" + "bc"` is not `"ab" + "c"`, and since a string is quoted in canonical
/// JSON, the string `"1"` is not the number `1`. MD5 is short and customary but can be forged; the SHA-256 beside it is
/// compared on every pre, so that a forged collision is reported and never swallows an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    pub id: OperationId,
    pub sha256: Sha256Digest,
}

impl Fingerprint {
    pub fn of(app: &App, operation: &OperationName, contents: &Canonical) -> Self {
        let (mut md5, mut sha256) = (Md5::new(), Sha256::new());
        for part in [app.as_str().as_bytes(), operation.as_str().as_bytes(), contents.as_bytes()] {
            // Names are short and contents were measured by `Canonical::parse`.
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
            md5.update(length);
            md5.update(part);
            sha256.update(length);
            sha256.update(part);
        }
        Self { id: OperationId::from_bytes(md5.finalize().into()), sha256: Sha256Digest(sha256.finalize().into()) }
    }
}

impl OperationId {
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub const fn as_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// The key of its row.
impl From<OperationId> for Key {
    fn from(id: OperationId) -> Self {
        Self::of_hex(id.0)
    }
}

impl Stamp {
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The stamp under which a run is entered: the same however often its client repeats the entry.
    pub fn of_run(attempt: &AttemptId) -> Self {
        let Sha256Digest(digest) = Sha256Digest::of(attempt.as_str().as_bytes());
        Self(digest.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }
}

impl Sha256Digest {
    /// The SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

/// The text is not lower-case hex of the right length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be {digits} lower-case hexadecimal digits")]
pub struct NotHex {
    digits: usize,
}

/// 32 lower-case hex digits, strictly: one number has one text.
fn parse_u128(text: &str) -> Option<u128> {
    let digits_only = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == 32 && digits_only).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl FromStr for OperationId {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        parse_u128(text).map(Self).ok_or(NotHex { digits: 32 })
    }
}

impl FromStr for Stamp {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        parse_u128(text).map(Self).ok_or(NotHex { digits: 32 })
    }
}

impl FromStr for Sha256Digest {
    type Err = NotHex;

    fn from_str(text: &str) -> Result<Self, NotHex> {
        let halves = text.split_at_checked(32).and_then(|(high, low)| Some((parse_u128(high)?, parse_u128(low)?)));
        let (high, low) = halves.ok_or(NotHex { digits: 64 })?;
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&high.to_be_bytes());
        bytes[16..].copy_from_slice(&low.to_be_bytes());
        Ok(Self(bytes))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0.to_be_bytes()))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0.to_be_bytes()))
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Debug as displayed, and a serde form that is the same text.
macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
as_text!(OperationId, Stamp, Sha256Digest);
