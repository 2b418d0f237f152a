//! Paths and queries are percent-encoded UTF-8. Decoders would read anything else as a text that the client did not mean. They have no
//! API key in them.

use axum::http::Uri;
use latchgate_core::access;
use percent_encoding::percent_decode_str;

use super::problem::{Code, Problem};

const RULE: &str = "must be percent-encoded UTF-8: a % is followed by two hexadecimal digits";

/// # Errors
/// `invalid-key` or `invalid-request`, naming the path or the parameter.
pub fn check(uri: &Uri, has_api_key: bool) -> Result<(), Problem> {
    if !is_text(uri.path()) {
        return Err(match uri.path().starts_with("/v1/locks/") {
            true => Problem::new(Code::InvalidKey, format!("The key {RULE}.")),
            false => Problem::field("path", RULE),
        });
    }
    if let Some(parameter) = uri.query().unwrap_or_default().split('&').find(|parameter| !is_text(parameter)) {
        let name = parameter.split('=').next().unwrap_or_default();
        return Err(Problem::field(&percent_decode_str(name).decode_utf8_lossy(), RULE));
    }
    if has_api_key {
        let detail = "An API key does not belong into a URL, which is logged in many places. Send it in the header \
                      Authorization, and revoke this one.";
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    Ok(())
}

pub fn has_api_key(uri: &Uri) -> bool {
    let sent = uri.path_and_query().map_or("", |sent| sent.as_str());
    match sent.contains('%') {
        true => access::has_api_key(&percent_decode_str(sent).decode_utf8_lossy()),
        false => access::has_api_key(sent),
    }
}

fn is_text(encoded: &str) -> bool {
    let is_hex = |digit: Option<&u8>| digit.is_some_and(u8::is_ascii_hexdigit);
    let bytes = encoded.as_bytes();
    let mut escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%').peekable();
    escapes.peek().is_none()
        || (escapes.all(|(at, _)| is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2)))
            && percent_decode_str(encoded).decode_utf8().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_percent_encoded_utf_8() {
        for text in ["", "a/b", "a%2Fb", "%25zz", "%f0%9f%94%92", "ü", "a+b"] {
            assert!(is_text(text), "{text}");
        }
        for other in ["%", "%2", "a%zz", "%u0041", "%ff", "%c3%28", "%F0%9F%94"] {
            assert!(!is_text(other), "{other}");
        }
    }
}
