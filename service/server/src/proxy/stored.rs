//! Answers of the upstream as results of operations.

use axum::body::Body;
use axum::http::response::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::http::{Code, Problem};

/// Longest result, in bytes of JSON. The gate keeps 64 KiB.
const RESULT_BYTES_MAX: usize = 60 * 1_024;
/// A header of answers that are repeated.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// An answer while it passes, and as it is stored. Without a `body`, the answer was too long.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Stored {
    status: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip)]
    bytes: Vec<u8>,
    #[serde(skip)]
    is_too_long: bool,
}

impl Stored {
    pub fn new(head: &Parts) -> Self {
        let text =
            |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
        let headers = head.headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH).filter_map(text);
        let (status, headers) = (head.status.as_u16(), headers.collect());
        Self { status, headers, body: None, bytes: Vec::new(), is_too_long: false }
    }

    /// Whether the body of this length is surely too long.
    pub fn cannot_hold(&self, length: usize) -> bool {
        // Its field has 10 more bytes: `,"body":""`.
        let encoded = length.div_ceil(3).saturating_mul(4);
        encoded.saturating_add(10).saturating_add(self.json_len()) > RESULT_BYTES_MAX
    }

    fn json_len(&self) -> usize {
        serde_json::to_vec(self).map_or(usize::MAX, |json| json.len())
    }

    pub fn add(&mut self, data: &Bytes) {
        self.is_too_long |= self.bytes.len() + data.len() > RESULT_BYTES_MAX;
        if self.is_too_long {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(data);
        }
    }

    /// The result to store: with as much of the answer as fits.
    pub fn result(mut self) -> Value {
        if !self.is_too_long && !self.cannot_hold(self.bytes.len()) {
            self.body = Some(BASE64_STANDARD.encode(&self.bytes));
        }
        if self.json_len() > RESULT_BYTES_MAX {
            self.headers = Vec::new();
        }
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The stored answer again.
///
/// # Errors
/// `response-not-stored`.
pub fn replay(result: &Value) -> Result<Response<Body>, Problem> {
    let not_stored = |status| {
        let detail = "The upstream has done this request, but its answer was too long to be stored.";
        Problem::new(Code::ResponseNotStored, detail).with("upstream_status", status)
    };
    let stored = Stored::deserialize(result).map_err(|_| not_stored(None))?;
    let body = stored.body.as_ref().and_then(|body| BASE64_STANDARD.decode(body).ok());
    let (Some(body), Ok(status)) = (body, StatusCode::from_u16(stored.status)) else {
        return Err(not_stored(Some(stored.status)));
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers: HeaderMap = stored
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?)))
        .collect();
    *response.headers_mut() = headers;
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Parts {
        let response =
            Response::builder().status(201).header("content-type", "text/plain").header("content-length", "3");
        response.header("set-cookie", "a").header("set-cookie", "b").body(()).unwrap().into_parts().0
    }

    #[test]
    fn an_answer_is_stored_with_its_status_headers_and_bytes() {
        let mut stored = Stored::new(&head());
        stored.add(&Bytes::from_static(b"\xff\0a"));
        let response = replay(&stored.result()).unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), 2);
        assert_eq!(response.headers()["idempotency-replayed"], "true");
        assert!(!response.headers().contains_key("content-length"));
    }

    #[test]
    fn a_long_answer_leaves_its_status() {
        let mut stored = Stored::new(&head());
        for _ in 0..61 {
            stored.add(&Bytes::from(vec![b'a'; 1_024]));
        }
        let result = stored.result();
        assert_eq!((&result["status"], result.get("body")), (&Value::from(201), None));
        assert!(replay(&result).is_err());
        assert!(replay(&Value::Null).is_err());
        // In base64 it is longer, and the headers take part of the space.
        assert!(Stored::new(&head()).cannot_hold(45 * 1_024) && !Stored::new(&head()).cannot_hold(44 * 1_024));
        let mut stored = Stored::new(&head());
        stored.add(&Bytes::from(vec![b'a'; 50 * 1_024]));
        assert!(stored.result().get("body").is_none());
    }
}
