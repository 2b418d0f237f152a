//! HTML pages without scripts.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

use super::path::PathText;
use super::problem::{self, Code, Problem};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

/// The page of an error code, where the `type` of a problem points to.
pub async fn error(PathText(name): PathText) -> Response {
    match problem::page(&name) {
        Some(html) => ([(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)], Html(html)).into_response(),
        None => Problem::new(Code::NotFound, "No problem has this code.").into_response(),
    }
}
