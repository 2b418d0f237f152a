//! `/v1/locks/{key}/{verb}`: the key may have slashes of its own.

use latchgate_core::{Address, Key};
use percent_encoding::percent_decode_str;
use utoipa::IntoParams;

use super::access::check_keys;
use super::problem::{Code, Problem};
use crate::access::Caller;

/// A last segment with one of these names is a verb and not the end of a key, if a literal slash precedes it.
const VERBS: [&str; 8] = ["acquire", "renew", "release", "revoke", "fence", "limit", "events", "history"];

/// The key in a path, as the OpenAPI description shows it.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "described, not built: see `address`")]
pub struct LockKey {
    /// The key as plain text: 1 to 512 bytes of UTF-8 without control characters. The client percent-encodes it, so that a slash
    /// becomes `%2F`.
    #[param(example = "orders")]
    key: String,
}

/// A path under `/v1/locks/`.
#[derive(Debug, PartialEq, Eq)]
pub enum LockPath<'a> {
    /// `{key}/{verb}`; both still percent-encoded.
    Verb(&'a str, &'a str),
    Key(&'a str),
}

impl<'a> LockPath<'a> {
    /// Splits what follows `/v1/locks/`. A slash inside a key may be literal; only a last segment that is a verb is not
    /// part of it.
    pub fn split(rest: &'a str) -> Self {
        match rest.rsplit_once('/') {
            Some((key, verb)) if VERBS.contains(&verb) => Self::Verb(key, verb),
            _ => Self::Key(rest),
        }
    }
}

/// The address of a percent-encoded key in the caller's app.
///
/// # Errors
/// `invalid-key`, with the rule that the key breaks; `forbidden`.
pub fn address(caller: &Caller, encoded: &str) -> Result<Address, Problem> {
    let text = match encoded.contains('%') {
        true => percent_decode_str(encoded).decode_utf8(),
        false => Ok(encoded.into()),
    };
    let text = text.map_err(|_| Problem::new(Code::InvalidKey, "The key must be UTF-8."))?;
    let key = Key::parse(&text).map_err(|error| Problem::new(Code::InvalidKey, format!("The key {error}.")))?;
    check_keys(caller, key.as_str())?;
    Ok(Address { app: caller.app().clone(), key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_have_slashes_and_only_the_last_segment_is_a_verb() {
        assert_eq!(LockPath::split("a/acquire"), LockPath::Verb("a", "acquire"));
        assert_eq!(LockPath::split("a/b/acquire"), LockPath::Verb("a/b", "acquire"));
        assert_eq!(LockPath::split("acquire/acquire"), LockPath::Verb("acquire", "acquire"));
        assert_eq!(LockPath::split("acquire"), LockPath::Key("acquire"));
        assert_eq!(LockPath::split("a%2Facquire"), LockPath::Key("a%2Facquire"));
        assert_eq!(LockPath::split("/acquire"), LockPath::Verb("", "acquire"));
    }
}
