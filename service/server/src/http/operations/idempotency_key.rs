//! The header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07), used if a pre has no contents.

use axum::http::HeaderMap;
use latchgate_core::gate;

use crate::http::problem::Problem;

const NAME: &str = "Idempotency-Key";

/// The key's text, if the header is there.
///
/// # Errors
/// `invalid-request` when it is neither a string in quotes (RFC 9651) nor a text without quotes, is too long, or is sent twice.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::field(NAME, "must be sent once"));
    }
    let max = gate::IDEMPOTENCY_KEY_MAX_BYTES;
    let rule = || format!("must be ASCII, in quotes or without any quotes, not empty, and at most {max} bytes");
    let text = value.to_str().ok().and_then(gate::idempotency_key);
    text.map(Some).ok_or_else(|| Problem::field(NAME, rule()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_may_be_absent_and_must_not_be_sent_twice() {
        let mut headers = HeaderMap::new();
        assert!(idempotency_key(&headers).unwrap().is_none());
        for value in ["a", "b"] {
            headers.append(NAME, value.parse().unwrap());
        }
        assert!(idempotency_key(&headers).is_err());
    }
}
