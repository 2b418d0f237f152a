//! Answers of the upstream as results of operations.

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::response::Parts;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Problem;

/// Longest answer that is stored, as JSON: what the gate keeps.
const STORED_BYTES_MAX: usize = 64 * 1_024;
/// A header of answers that are repeated.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// An answer as it is stored. Without a `body`, it was too long.
#[derive(Deserialize, Serialize)]
struct Stored {
    status: u16,
    /// Each character of a value is a byte.
    headers: Vec<(String, String)>,
    body: Option<String>,
}

/// Whether a repeat must get the same answer. Otherwise the upstream may be called again.
pub fn is_final(status: StatusCode) -> bool {
    !status.is_server_error() && ![408, 409, 425, 429].contains(&status.as_u16())
}

/// What the gate stores of an answer. Of a longer one, only the status.
pub fn result(head: &Parts, body: Option<&Bytes>) -> Value {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    // A cookie is the first caller's.
    let headers = head.headers.iter().filter(|(name, _)| **name != header::SET_COOKIE);
    let headers = headers.map(|(name, value)| (name.to_string(), text(value))).collect();
    let status = head.status.as_u16();
    let stored = Stored { status, headers, body: body.map(|body| BASE64_STANDARD.encode(body)) };
    let is_whole = body.is_some() && serde_json::to_vec(&stored).is_ok_and(|json| json.len() <= STORED_BYTES_MAX);
    let stored = if is_whole { stored } else { Stored { status, headers: Vec::new(), body: None } };
    serde_json::to_value(stored).unwrap_or_default()
}

pub fn not_stored(result: &Value) -> Problem {
    let mut problem =
        Problem::new(409, "response-not-stored", "The upstream has answered, but the answer was too long.");
    problem.0["upstream_status"] = result["status"].clone();
    problem
}

/// The stored answer again; `None` if it was not stored.
pub fn replayed(result: &Value) -> Option<Response> {
    let stored = Stored::deserialize(result).ok()?;
    let mut response = Response::new(Body::from(BASE64_STANDARD.decode(stored.body?).ok()?));
    *response.status_mut() = StatusCode::from_u16(stored.status).ok()?;
    let headers = stored.headers.iter().map(|(name, value)| {
        let bytes: Result<Vec<u8>, _> = value.chars().map(u8::try_from).collect();
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(&bytes.ok()?).ok()?))
    });
    *response.headers_mut() = headers.collect::<Option<HeaderMap>>()?;
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Parts {
        let response = Response::builder().status(201).header("content-length", "3").header("location", "/köln");
        response.header("set-cookie", "a").header("x-any", "1").header("x-any", "2").body(()).unwrap().into_parts().0
    }

    #[test]
    fn an_answer_is_stored_with_its_status_and_headers() {
        let response = replayed(&result(&head(), Some(&Bytes::from_static(b"\xff\0a")))).unwrap();
        let headers = response.headers();
        assert_eq!((response.status().as_u16(), headers["location"].as_bytes()), (201, "/köln".as_bytes()));
        assert_eq!(
            (headers.get_all("x-any").iter().count(), headers["idempotency-replayed"].as_bytes()),
            (2, &b"true"[..])
        );
        assert_eq!((&headers["content-length"], headers.get("set-cookie")), (&"3".parse().unwrap(), None));
    }

    #[test]
    fn a_long_answer_leaves_its_status() {
        let fits = |length: usize| replayed(&result(&head(), Some(&Bytes::from(vec![b'a'; length])))).is_some();
        assert!(replayed(&result(&head(), None)).is_none());
        // As it is stored: base64, and two bytes for each byte of a header that is not ASCII.
        assert!(fits(48_900) && !fits(49_152));
        let mut head_of_bytes = head();
        head_of_bytes.headers.insert("x-bytes", HeaderValue::from_bytes(&[0xff; 40_000]).unwrap());
        assert!(replayed(&result(&head_of_bytes, Some(&Bytes::new()))).is_none());
        let result = result(&head(), None);
        assert_eq!((&result["status"], &result["headers"]), (&Value::from(201), &serde_json::json!([])));
        assert_eq!(not_stored(&result).0["upstream_status"], 201);
        assert!(replayed(&Value::Null).is_none());
    }
}
