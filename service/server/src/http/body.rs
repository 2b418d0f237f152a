//! Bodies: JSON under whatever content type curl happens to send.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;

use super::problem::{Code, Problem};

/// Reads a whole body.
///
/// # Errors
/// `body-too-large`, `body-timeout`, or `invalid-request` when the connection broke.
pub async fn read(body: Body, bytes_max: usize, time_out: Duration) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Code::BodyTooLarge, format!("A body may have at most {bytes_max} bytes."));
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(time_out, Limited::new(body, bytes_max).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Code::InvalidRequest, "The body ended early.")),
        Err(_) => {
            let detail = format!("The body did not arrive within {} ms.", time_out.as_millis());
            Err(Problem::new(Code::BodyTimeout, detail))
        }
    }
}

/// Parses a body; an empty one is an empty object.
///
/// # Errors
/// `invalid-request` naming the field.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let body: &'a [u8] = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    // A list would be taken for the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::new(Code::InvalidRequest, "The body must be a JSON object."));
    }
    if let Ok(parsed) = serde_json::from_slice(body) {
        return Ok(parsed);
    }
    // Once more, slowly, to find out where it went wrong.
    let deserializer = &mut serde_json::Deserializer::from_slice(body);
    let error = match serde_path_to_error::deserialize::<_, T>(deserializer) {
        Ok(_) => return Err(Problem::new(Code::InvalidRequest, "The body has something after its JSON value.")),
        Err(error) => error,
    };
    // A null where an enum is expected counts as bad syntax to serde_json, though the body is JSON.
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() {
        return Err(Problem::new(Code::InvalidRequest, format!("The body is not JSON: {}.", error.inner())));
    }
    let reason = error.inner().to_string();
    let path = error.path().to_string();
    let unknown = reason.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let missing = reason.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    let duplicate = reason.strip_prefix("duplicate field `").and_then(|rest| rest.split('`').next());
    let problem = Problem::new(Code::InvalidRequest, format!("The body is not right: {reason}."));
    match (unknown.or(missing).or(duplicate), path.as_str()) {
        (Some(field), "." | "") => Err(problem.with("field", field)),
        (Some(field), path) if path.ends_with(field) => Err(problem.with("field", path)),
        (Some(field), path) => Err(problem.with("field", format!("{path}.{field}"))),
        (None, "." | "") => Err(problem),
        (None, path) => Err(problem.with("field", path)),
    }
}
