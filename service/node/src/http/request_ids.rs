//! Ids of requests: the client's own if it sent one and that is no secret, else an id that no other request of any process has.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use latchgate_core::access;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_MAX_BYTES: usize = 128;

/// With a hyphen at its end.
static PROCESS: LazyLock<String> = LazyLock::new(|| format!("{:016x}-", rand::random::<u64>()));
static NEXT: AtomicU64 = AtomicU64::new(1);

pub fn of(headers: &HeaderMap) -> HeaderValue {
    let sent = headers.get(REQUEST_ID);
    let is_good = |id: &&HeaderValue| {
        let is_plain = |id: &str| id.bytes().all(|byte| byte.is_ascii_graphic()) && !access::has_api_key(id);
        (1..=REQUEST_ID_MAX_BYTES).contains(&id.len()) && id.to_str().is_ok_and(is_plain)
    };
    if let Some(sent) = sent.filter(is_good) {
        return sent.clone();
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = [PROCESS.as_str(), itoa::Buffer::new().format(number)].concat();
    HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("-"))
}
