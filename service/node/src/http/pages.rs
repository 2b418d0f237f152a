//! HTML pages without scripts, and the policy of Swagger UI.

use std::sync::Arc;

use axum::http::header;
use axum::response::{Html, IntoResponse, Redirect, Response};

use super::path::PathText;
use super::problem::{self, Code, Problem};

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

/// Swagger UI has scripts, which the browser loads from this node alone.
const CONTENT_SECURITY_POLICY_OF_DOCS: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                                               img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                                               form-action 'none'; frame-ancestors 'none'";

/// Leads to Swagger UI.
pub async fn docs_index() -> Redirect {
    Redirect::to("/docs/")
}

/// Swagger UI, from files inside the binary. `web/docs.js` configures it.
pub async fn docs(PathText(path): PathText) -> Response {
    if path == "swagger-initializer.js" {
        let script = include_str!("../../../../web/docs.js");
        return ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], script).into_response();
    }
    match utoipa_swagger_ui::serve(&path, Arc::default()) {
        Ok(Some(file)) => {
            let headers = [
                (header::CONTENT_TYPE, file.content_type),
                (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY_OF_DOCS.to_owned()),
            ];
            // Not copied: clients that do not read would fill the memory with copies.
            (headers, file.bytes).into_response()
        }
        Ok(None) | Err(_) => Problem::new(Code::NotFound, "The documentation has no such file.").into_response(),
    }
}

/// The page of an error code, where the `type` of a problem points to.
pub async fn error(PathText(name): PathText) -> Response {
    match problem::page(&name) {
        Some(html) => ([(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)], Html(html)).into_response(),
        None => Problem::new(Code::NotFound, "No problem has this code.").into_response(),
    }
}
