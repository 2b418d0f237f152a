//! Answers in JSON. Each ends with a newline, so that a shell's prompt after curl begins on a line of its own.

use std::cell::Cell;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

/// A buffer for answers is not kept if it has grown longer than this.
const KEPT_BYTES_MAX: usize = 16 * 1_024;

thread_local! {
    /// Answers are copied from here: a body that has the length of its text is one allocation, and one that could grow is two.
    static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// 200 with a body of JSON.
pub fn ok(body: &impl Serialize) -> Response {
    json(200, body)
}

/// An invalid status number becomes 500: never a 2xx, with which a client would proceed.
pub fn json(status: u16, body: &impl Serialize) -> Response {
    let mut response = Response::new(Body::from(json_line(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Compact JSON with a newline at its end.
pub fn json_line(body: &impl Serialize) -> Bytes {
    let mut line = LINE.take();
    line.clear();
    if serde_json::to_writer(&mut line, body).is_err() {
        line.clear();
    }
    line.push(b'\n');
    let answer = Bytes::copy_from_slice(&line);
    if line.capacity() <= KEPT_BYTES_MAX {
        LINE.set(line);
    }
    answer
}
