//! Answers in JSON. Each ends with a newline, so that a shell's prompt after curl begins on a line of its own.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

/// Most answers are no longer.
const LINE_BYTES: usize = 512;

/// 200 with a body of JSON.
pub fn ok(body: &impl Serialize) -> Response {
    json(200, body)
}

pub fn json(status: u16, body: &impl Serialize) -> Response {
    let mut response = Response::new(Body::from(json_line(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Compact JSON with a newline at its end.
pub fn json_line(body: &impl Serialize) -> Vec<u8> {
    let mut line = Vec::with_capacity(LINE_BYTES);
    if serde_json::to_writer(&mut line, body).is_err() {
        line.clear();
    }
    line.push(b'\n');
    line
}
