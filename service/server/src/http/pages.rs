//! Pages for people.

use axum::extract::Path;
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

use super::problem::{Code, CodeInfo, Problem};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

pub async fn index() -> Response {
    page(include_str!("../../../../web/index.html").to_owned())
}

/// What a problem's code means: the page its `type` points to.
pub async fn error(Path(name): Path<String>) -> Response {
    let info = Code::ALL.into_iter().map(Code::info).find(|info| info.name == name);
    match info {
        Some(CodeInfo { name, status, title, meaning, advice }) => page(
            include_str!("../../../../web/error.html")
                .replace("{{name}}", name)
                .replace("{{status}}", status.as_str())
                .replace("{{title}}", title)
                .replace("{{meaning}}", meaning)
                .replace("{{advice}}", advice),
        ),
        None => Problem::new(Code::NotFound, "No problem has this code.").into_response(),
    }
}

fn page(html: String) -> Response {
    ([(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)], Html(html)).into_response()
}
