//! The header `Idempotency-Key` (IETF draft), used if a pre has no contents.

use axum::http::HeaderMap;

use crate::http::problem::Problem;

const NAME: &str = "Idempotency-Key";
/// Longest value, in bytes. All headers together may be twice as long.
pub const HEADER_MAX_BYTES: usize = 8_192;

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
    if value.len() > HEADER_MAX_BYTES {
        return Err(Problem::field(NAME, format!("must have at most {HEADER_MAX_BYTES} bytes")));
    }
    let text =
        value.to_str().ok().map(str::trim).and_then(|text| text.strip_prefix('"').map_or_else(|| bare(text), quoted));
    match text {
        Some(text) if !text.is_empty() => Ok(Some(text)),
        _ => Err(Problem::field(NAME, "must be ASCII, in quotes or without any quotes, and not empty")),
    }
}

/// `rest` follows the opening quote; nothing may follow the closing one.
fn quoted(rest: &str) -> Option<String> {
    let mut text = String::with_capacity(rest.len());
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return chars.as_str().is_empty().then_some(text),
            '\\' => text.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            c => text.push(c),
        }
    }
}

fn bare(text: &str) -> Option<String> {
    (!text.contains('"')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn key(value: &'static str) -> Option<String> {
        let headers = HeaderMap::from_iter([(NAME.parse().unwrap(), HeaderValue::from_static(value))]);
        idempotency_key(&headers).ok().flatten()
    }

    #[test]
    fn quoted_and_bare_are_the_same_key() {
        for value in ["\"8e03-978e\"", "8e03-978e", "  \"8e03-978e\" "] {
            assert_eq!(key(value).as_deref(), Some("8e03-978e"), "{value}");
        }
        assert_eq!(key(r#""a\"b\\c""#).as_deref(), Some(r#"a"b\c"#));
        assert_eq!(key("two words").as_deref(), Some("two words"));
    }

    #[test]
    fn other_values_are_refused() {
        for value in ["", "\"\"", "\"open", "\"a\"b", "\"a\";p=1", r#""\n""#, "a\"b"] {
            assert_eq!(key(value), None, "{value}");
        }
        assert!(idempotency_key(&HeaderMap::new()).unwrap().is_none());
        let mut headers = HeaderMap::new();
        for value in ["a", "b"] {
            headers.append(NAME, value.parse().unwrap());
        }
        assert!(idempotency_key(&headers).is_err());
    }

    #[test]
    fn a_value_that_is_longer_than_described_is_refused() {
        for (length, is_accepted) in [(HEADER_MAX_BYTES, true), (HEADER_MAX_BYTES + 1, false)] {
            let headers = HeaderMap::from_iter([(NAME.parse().unwrap(), "k".repeat(length).parse().unwrap())]);
            assert_eq!(idempotency_key(&headers).is_ok(), is_accepted, "{length}");
        }
    }
}
