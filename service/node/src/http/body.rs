//! Bodies of requests: JSON, whatever the content type says, because curl sends another one by default.

use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::access;
use super::endpoint::RequestContext;
use super::problem::{Code, Problem};

/// A request counts once more for each of these.
const COUNTED_BYTES: usize = 1_024;

/// The body of a request as JSON. An absent body is an empty object.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<RequestContext> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, served: &RequestContext) -> Result<Self, Problem> {
        let RequestContext { context, exchange } = served;
        let bytes_max = exchange.endpoint().body.bytes(&context.limits);
        check_encoding(request.headers())?;
        let body = read(request.into_body(), bytes_max, context.limits.body_timeout).await?;
        // A slow body may arrive after the API key was revoked, and its app deleted.
        if exchange.caller.get().is_some_and(|caller| caller.ended().is_cancelled()) {
            return Err(access::ended());
        }
        access::count(exchange, body.len() / COUNTED_BYTES)?;
        parse(&body).map(Self)
    }
}

/// # Errors
/// `unsupported-encoding` if the body is compressed.
fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("an unreadable one"));
    let mut encodings = encodings.filter(|encoding| !encoding.trim().eq_ignore_ascii_case("identity"));
    match encodings.next() {
        None => Ok(()),
        Some(encoding) => {
            let detail = format!("The body has the Content-Encoding {encoding}. Send it without one.");
            Err(Problem::new(Code::UnsupportedEncoding, detail))
        }
    }
}

/// What a body begins with that is no JSON in UTF-8, and what it is then.
const FOREIGN_BEGINNINGS: [(&[u8], &str); 6] = [
    (&[0xef, 0xbb, 0xbf], "begins with a byte order mark: send it without"),
    (&[0xff, 0xfe], "is in UTF-16: send it in UTF-8"),
    (&[0xfe, 0xff], "is in UTF-16: send it in UTF-8"),
    (&[b'{', 0], "is in UTF-16: send it in UTF-8"),
    (&[0, b'{'], "is in UTF-16: send it in UTF-8"),
    (&[0x1f, 0x8b], "is compressed with gzip: send it as it is"),
];

/// Reads a whole body.
///
/// # Errors
/// `body-too-large`, `body-timeout`, or `invalid-request` if the connection ended before the body did.
async fn read(body: Body, bytes_max: usize, time_out: Duration) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Code::BodyTooLarge, format!("A body may have at most {bytes_max} bytes."));
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(time_out, whole(Limited::new(body, bytes_max))).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Code::InvalidRequest, "The body ended early.")),
        Err(_) => {
            let detail = format!("The body did not arrive within {} ms.", time_out.as_millis());
            Err(Problem::new(Code::BodyTimeout, detail))
        }
    }
}

/// Most bodies come in one frame.
async fn whole(mut body: Limited<Body>) -> Result<Bytes, BoxError> {
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let rest = body.collect().await?.to_bytes();
    Ok([first, rest].concat().into())
}

/// # Errors
/// `invalid-request` if there is a body: the endpoint takes none, and would ignore what it says.
pub async fn none(body: Body, time_out: Duration) -> Result<(), Problem> {
    // A body in chunks may be empty.
    let refused = |_| Problem::field("body", "must be absent: this method of this path takes none");
    read(body, 0, time_out).await.map(drop).map_err(refused)
}

/// Parses a body; an empty one is an empty object.
///
/// # Errors
/// `invalid-request`, with the name of the field.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body: &[u8] = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    let is_foreign = |(beginning, _): &&(&[u8], &str)| body.starts_with(beginning);
    if let Some((_, what)) = FOREIGN_BEGINNINGS.iter().find(is_foreign) {
        return Err(Problem::new(Code::InvalidRequest, format!("The body {what}.")));
    }
    // serde would read a list as the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::new(Code::InvalidRequest, "The body must be a JSON object."));
    }
    if let Ok(parsed) = serde_json::from_slice(body) {
        return Ok(parsed);
    }
    // A second, slower pass finds the field.
    let deserializer = &mut serde_json::Deserializer::from_slice(body);
    let error = match serde_path_to_error::deserialize::<_, T>(deserializer) {
        Ok(_) => return Err(Problem::new(Code::InvalidRequest, "The body has more text after its JSON object.")),
        Err(error) => error,
    };
    // serde_json reports a null in place of an enum as a syntax error, although the body is JSON.
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() {
        let (line, column) = (error.inner().line(), error.inner().column());
        let detail =
            format!("The body is not JSON: {} (line {line}, column {column} of the body).", reason_of(error.inner()));
        return Err(Problem::new(Code::InvalidRequest, detail));
    }
    let reason = reason_of(error.inner());
    let path = error.path().to_string();
    let rests = ["unknown", "missing", "duplicate"].map(|what| reason.strip_prefix(what)?.strip_prefix(" field `"));
    let named = rests.into_iter().flatten().next().and_then(|rest| rest.split('`').next());
    let problem = Problem::new(Code::InvalidRequest, format!("The body is not valid: {reason}."));
    let path = Some(path).filter(|path| !matches!(path.as_str(), "." | ""));
    let field = match (named, path) {
        (Some(field), Some(path)) if !path.ends_with(field) => Some(format!("{path}.{field}")),
        (named, path) => path.or_else(|| named.map(str::to_owned)),
    };
    Err(problem.with_some("field", field))
}

/// The error without its position, in terms of JSON, and without the client's text, which may be a secret.
fn reason_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = without_position(&text);
    let text_from = text.find("string \"").map(|start| start + "string".len());
    let reason = match (text_from, text.rfind("\", expected")) {
        (Some(start), Some(end)) if start <= end => format!("{}{}", &text[..start], &text[end + 1..]),
        _ => text.to_owned(),
    };
    let numbers = ["expected u64", "expected u32", "expected u8", "expected usize"];
    match numbers.into_iter().find_map(|end| reason.strip_suffix(end)) {
        Some(start) => format!("{start}expected a whole number that is neither negative nor too large"),
        None => reason,
    }
}

/// serde_json's errors end with ` at line N column M`, counted from where it began to read.
pub fn without_position(error: &str) -> &str {
    error.rfind(" at line ").map_or(error, |end| &error[..end])
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        #[allow(dead_code, reason = "only parsed")]
        ttl_ms: Option<u64>,
    }

    fn problem(body: &str) -> Value {
        serde_json::to_value(parse::<Request>(body.as_bytes()).expect_err(body)).unwrap()
    }

    #[test]
    fn a_wrong_field_is_named_without_a_position() {
        for body in [r#"{"ttl_ms": "soon"}"#, r#"{"ttl_ms": -1}"#, r#"{"ttl_ms": 1.5}"#] {
            let problem = problem(body);
            assert_eq!(problem["field"], "ttl_ms");
            let detail = problem["detail"].as_str().unwrap();
            assert!(
                detail.contains("a whole number") && !detail.contains("line") && !detail.contains("u64"),
                "{detail}"
            );
        }
        assert_eq!(problem(r#"{"tll_ms": 1}"#)["field"], "tll_ms");
    }

    #[test]
    fn a_text_in_place_of_a_number_is_not_repeated() {
        let detail = problem(r#"{"ttl_ms": "sec\"ret\", expected"}"#)["detail"].to_string();
        assert!(detail.contains("invalid type: string, expected a whole number"), "{detail}");
    }

    #[test]
    fn a_body_in_another_encoding_says_which() {
        for (body, what) in [
            (b"\xef\xbb\xbf{}".as_slice(), "byte order mark"),
            (b"\xff\xfe{\0}\0", "UTF-16"),
            (b"\xfe\xff\0{\0}", "UTF-16"),
            (b"{\0}\0", "UTF-16"),
            (b"\0{\0}", "UTF-16"),
            (b"\x1f\x8b\x08\0", "gzip"),
        ] {
            let problem = serde_json::to_value(parse::<Request>(body).expect_err(what)).unwrap();
            assert!(problem["detail"].as_str().unwrap().contains(what), "{problem}");
        }
    }

    #[test]
    fn a_syntax_error_is_located_in_the_body() {
        let problem = problem("{\n\"ttl_ms\" 1}");
        assert_eq!(problem["detail"], "The body is not JSON: expected `:` (line 2, column 10 of the body).");
    }
}
