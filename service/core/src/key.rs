//! Names, parsed once at the door: an app, a key, and the two together.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest key, in bytes of UTF-8.
pub const KEY_MAX_BYTES: usize = 512;
/// Longest app name, in bytes.
pub const APP_MAX_BYTES: usize = 64;

/// Why a text is not a name. Displayed as the end of a sentence that begins with the field's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    #[error("must not be empty")]
    Empty,
    #[error("must be at most {max_bytes} bytes of UTF-8, not {bytes}")]
    TooLong { bytes: usize, max_bytes: usize },
    #[error("must not contain control characters")]
    ControlCharacter,
    #[error("must not be *: that stands for all apps, and only in listings")]
    AllApps,
    #[error("must not begin with {prefix:?}: the server makes such names for callers that send none")]
    Reserved { prefix: &'static str },
}

/// No caller can name it, because a key has no control characters.
const PLACEHOLDER: &str = "\u{1}";

/// The name of a lock within an app: 1–512 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(Arc<str>);

impl Key {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, KEY_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    /// The key of an operation's row: its id.
    pub(crate) fn of_hex(number: u128) -> Self {
        Self(format!("{number:032x}").into())
    }

    /// For rows whose key cannot be decoded, or that have none. No lock has this key.
    pub fn placeholder() -> Self {
        Self(PLACEHOLDER.into())
    }

    pub fn is_placeholder(&self) -> bool {
        &*self.0 == PLACEHOLDER
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Stands for all apps where a listing names one.
pub const ALL_APPS: &str = "*";

/// A tenant's namespace. Until apps are made, everything belongs to the app `default`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct App(Arc<str>);

impl App {
    /// # Errors
    /// Says which rule `text` breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        check_name(text, APP_MAX_BYTES)?;
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for App {
    fn default() -> Self {
        Self("default".into())
    }
}

/// Where a state lives: the app and the key, always two fields and never a concatenation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub app: App,
    pub key: Key,
}

/// Checks the rules that keys, app names, owners and the like share.
///
/// # Errors
/// Says which rule `text` breaks.
pub fn check_name(text: &str, max_bytes: usize) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty);
    }
    if text.len() > max_bytes {
        return Err(InvalidName::TooLong { bytes: text.len(), max_bytes });
    }
    // Of ASCII, over all bytes and without a branch, so that many are looked at at once.
    let has_control = match text.is_ascii() {
        true => text.bytes().fold(false, |found, byte| found | byte.is_ascii_control()),
        false => text.chars().any(char::is_control),
    };
    if has_control {
        return Err(InvalidName::ControlCharacter);
    }
    Ok(())
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_colons_spaces_and_emoji_are_keys() {
        for text in ["a", "a/b", "order:42", "two words", "🔒", &"k".repeat(512)] {
            assert_eq!(Key::parse(text).map(|key| key.as_str().to_owned()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn empty_long_and_control_characters_are_refused() {
        assert_eq!(Key::parse(""), Err(InvalidName::Empty));
        assert_eq!(Key::parse(&"k".repeat(513)), Err(InvalidName::TooLong { bytes: 513, max_bytes: 512 }));
        assert_eq!(Key::parse("a\nb"), Err(InvalidName::ControlCharacter));
        assert_eq!(Key::parse("a\u{85}b"), Err(InvalidName::ControlCharacter));
    }
}
