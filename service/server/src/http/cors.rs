//! Web pages of other origins that the operator allows to call this node (CORS).

use std::str::FromStr;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};

/// What a page may send beside what every page may.
const ALLOWED_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, idempotency-key, last-event-id, x-request-id");
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
/// What a page may read of an answer beside what every page may.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static("retry-after, x-request-id");
/// How long a browser may remember the answer to a preflight, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const REQUEST_METHOD: HeaderName = header::ACCESS_CONTROL_REQUEST_METHOD;

/// Scheme, host and port of a page, as browsers send them in the header `Origin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
        let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host_byte) {
            return Err("must be scheme, host and port of a page without a path, such as https://console.example.com, and not a \
                        pattern"
                .to_owned());
        }
        Ok(Self(text))
    }
}

/// The origins whose pages may call this node; none unless the operator names some.
#[derive(Clone, Debug, Default)]
pub struct Cors(Vec<Origin>);

impl Cors {
    pub fn new(origins: &[Origin]) -> Self {
        Self(origins.to_vec())
    }

    /// The origin of the page that sends the request, if it may.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let sent = headers.get(header::ORIGIN).filter(|_| !self.0.is_empty())?;
        self.0.iter().any(|origin| sent.as_bytes().eq_ignore_ascii_case(origin.0.as_bytes())).then(|| sent.clone())
    }

    /// A browser's question before the request of a page. It has no API key, and changes nothing.
    pub fn is_preflight<B>(request: &Request<B>) -> bool {
        request.method() == Method::OPTIONS && request.headers().contains_key(REQUEST_METHOD)
    }

    pub fn preflight() -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        response
    }

    /// Lets the page read the answer. Without an allowed origin, the browser keeps the answer from the page.
    pub fn mark(&self, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        // A cache must not give the answer for one origin to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host_and_no_pattern() {
        for text in ["https://console.example.com", "http://localhost:3000", "https://[::1]:8443", "HTTPS://A.B"] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for text in
            ["", "*", "null", "console.example.com", "https://", "https://*.example.com", "https://a/b", "ftp://a"]
        {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
