//! Web pages of other origins that the operator allows to call this node (CORS).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::request_ids::REQUEST_ID;

/// How long a browser may remember the answer to a preflight.
const MAX_AGE: Duration = Duration::from_secs(600);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Scheme, host and port of a page, as browsers send them in the header `Origin`.
///
/// # Errors
/// When the text is not that.
pub fn origin(text: &str) -> Result<HeaderValue, String> {
    let text = text.trim().to_ascii_lowercase();
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let is_host =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    let rule = "must be scheme, host and port of a page without a path, such as https://console.example.com, and not a pattern";
    HeaderValue::try_from(text).ok().filter(|_| is_host).ok_or_else(|| rule.to_owned())
}

/// Whether the page that sends the request has one of the origins that may call this node.
pub fn allows(origins: &[HeaderValue], headers: &HeaderMap) -> bool {
    !origins.is_empty() && headers.get(header::ORIGIN).is_some_and(|sent| origins.contains(sent))
}

/// `None` if no page of another origin may. A preflight needs no API key, and changes nothing.
pub fn layer(origins: &[HeaderValue]) -> Option<CorsLayer> {
    let layer = CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins.iter().cloned()))
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, LAST_EVENT_ID, REQUEST_ID])
        .expose_headers([header::RETRY_AFTER, REQUEST_ID])
        // A cache must not give the answer for one origin to another.
        .vary([header::ORIGIN])
        .max_age(MAX_AGE);
    (!origins.is_empty()).then_some(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host_and_no_pattern() {
        for text in ["https://console.example.com", "http://localhost:3000", "https://[::1]:8443", "HTTPS://A.B"] {
            assert!(origin(text).is_ok(), "{text}");
        }
        for text in
            ["", "*", "null", "console.example.com", "https://", "https://*.example.com", "https://a/b", "ftp://a"]
        {
            assert!(origin(text).is_err(), "{text}");
        }
    }
}
