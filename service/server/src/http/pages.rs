//! HTML pages.

use axum::extract::Path;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

use super::problem::{self, Code, Problem};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

pub async fn index() -> Response {
    page(include_str!("../../../../web/index.html").to_owned())
}

/// The page of an error code, where the `type` of a problem points to.
pub async fn error(Path(name): Path<String>) -> Response {
    match problem::page(&name) {
        Some(html) => page(html),
        None => Problem::new(Code::NotFound, "No problem has this code.").into_response(),
    }
}

fn page(html: String) -> Response {
    ([(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)], Html(html)).into_response()
}
