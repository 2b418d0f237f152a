//! HTML pages without scripts, and the policy of Swagger UI.

use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

use super::problem::{self, Code, Problem};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

/// Swagger UI has scripts, which the browser loads from this node alone.
const CONTENT_SECURITY_POLICY_OF_DOCS: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                                               img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                                               form-action 'none'; frame-ancestors 'none'";

/// Adds the policy to answers of Swagger UI.
pub async fn docs(mut response: Response) -> Response {
    let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY_OF_DOCS);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

/// Starts Swagger UI.
pub async fn docs_script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("../../../../web/docs.js"))
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
