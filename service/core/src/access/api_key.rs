//! API keys: `lgk_<id>_<secret>`, all in lower-case hex. The secret is 256 random bits and the CRC-32 of all that comes before it,
//! so that a scanner can tell an API key from other text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

const BEGINNING: &str = "lgk_";
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 4;
/// Where the secret begins in the text.
const SECRET_AT: usize = BEGINNING.len() + 2 * ID_BYTES + 1;
const CHECKSUM_AT: usize = SECRET_AT + 2 * SECRET_BYTES;
const LENGTH: usize = CHECKSUM_AT + 2 * CHECKSUM_BYTES;

/// The part of an API key that is not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID_BYTES]);

/// An API key with its secret. It is shown once, and never stored.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

/// The SHA-256 of an API key: all that is stored of its secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest([u8; 32]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidApiKey {
    #[error(
        "must be an API key, as `latchgate api-key generate` makes it: lgk_, 12 hexadecimal digits, _, and 72 more, in lower case"
    )]
    Form,
    #[error("is not a whole API key: its checksum is wrong")]
    Checksum,
}

impl ApiKey {
    /// Makes an API key from random bytes.
    pub fn of_random(id: [u8; ID_BYTES], secret: [u8; SECRET_BYTES]) -> Self {
        let text = format!("{BEGINNING}{}_{}", hex::encode(id), hex::encode(secret));
        let checksum = crc32fast::hash(text.as_bytes());
        Self(format!("{text}{checksum:08x}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn id(&self) -> KeyId {
        id_of(&self.0).unwrap_or(KeyId([0; ID_BYTES]))
    }

    pub fn digest(&self) -> KeyDigest {
        KeyDigest::of(&self.0)
    }
}

impl FromStr for ApiKey {
    type Err = InvalidApiKey;

    fn from_str(text: &str) -> Result<Self, InvalidApiKey> {
        let has_form = id_of(text).is_some() && is_hex(&text[SECRET_AT..]);
        if !has_form {
            return Err(InvalidApiKey::Form);
        }
        if format!("{:08x}", crc32fast::hash(&text.as_bytes()[..CHECKSUM_AT])) != text[CHECKSUM_AT..] {
            return Err(InvalidApiKey::Checksum);
        }
        Ok(Self(text.to_owned()))
    }
}

/// The id in a text that has the length and the beginning of an API key. The secret is not looked at.
pub(super) fn id_of(text: &str) -> Option<KeyId> {
    if text.len() != LENGTH || !text.is_ascii() {
        return None;
    }
    let (id, rest) = text.strip_prefix(BEGINNING)?.split_at(2 * ID_BYTES);
    if rest.starts_with('_') { id.parse().ok() } else { None }
}

/// Whether the text has an API key in it, even one with a wrong secret.
pub fn has_api_key(text: &str) -> bool {
    // Most texts do not even have its beginning, which `contains` finds sooner.
    text.contains(BEGINNING)
        && text.match_indices(BEGINNING).any(|(at, _)| {
            let rest = &text.as_bytes()[at + BEGINNING.len()..];
            rest.len() > 2 * ID_BYTES
                && rest[..2 * ID_BYTES].iter().all(u8::is_ascii_hexdigit)
                && rest[2 * ID_BYTES] == b'_'
        })
}

impl KeyDigest {
    pub(super) fn of(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Compares in a time that does not depend on how much is equal.
    pub(super) fn is_equal(self, other: Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (is_hex(text) && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

/// The text is not lower-case hex of the right length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be {0} lower-case hexadecimal digits")]
pub struct NotHex(usize);

macro_rules! hex_text {
    ($name:ident) => {
        impl FromStr for $name {
            type Err = NotHex;

            fn from_str(text: &str) -> Result<Self, NotHex> {
                from_hex(text).map(Self).ok_or(NotHex(2 * size_of::<Self>()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_text!(KeyId);
hex_text!(KeyDigest);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEGINNING}{}_…", self.id())
    }
}
