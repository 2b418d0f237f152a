//! The console at `/`: a page for people. Its files are in the binary, and it calls the same API as every other client.

use std::sync::LazyLock;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::path::PathText;
use super::problem::{Code, Problem};

/// Nothing but the node's own files, and no text that becomes markup or script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                       connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                                       require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

struct File {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($path:literal $content_type:ident),* $(,)?) => {
        &[$(File {
            path: $path,
            content_type: $content_type,
            text: include_str!(concat!("../../../../web/console/", $path)),
        }),*]
    };
}

const FILES: &[File] = files![
    "api.js" JS,
    "app.js" JS,
    "charts.js" JS,
    "dom.js" JS,
    "events.js" JS,
    "format.js" JS,
    "icon.svg" SVG,
    "metrics.js" JS,
    "pages/access.js" JS,
    "pages/attention.js" JS,
    "pages/decisions.js" JS,
    "pages/engines.js" JS,
    "pages/events.js" JS,
    "pages/lock.js" JS,
    "pages/locks.js" JS,
    "pages/operation.js" JS,
    "pages/operations.js" JS,
    "pages/overview.js" JS,
    "selection.js" JS,
    "style.css" CSS,
    "theme.js" JS,
    "widgets.js" JS,
];

const INDEX: File = File { path: "", content_type: HTML, text: include_str!("../../../../web/index.html") };

/// One for all files: they change together.
static ENTITY_TAG: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    hash.update(INDEX.text);
    FILES.iter().for_each(|file| hash.update(file.text));
    let short = hex::encode(&hash.finalize()[..8]);
    format!("\"{short}\"")
});

pub async fn index(headers: HeaderMap) -> Response {
    answer(&INDEX, &headers)
}

pub async fn file(PathText(path): PathText, headers: HeaderMap) -> Response {
    match FILES.iter().find(|file| file.path == path) {
        Some(file) => answer(file, &headers),
        None => Problem::new(Code::NotFound, "The console has no such file.").into_response(),
    }
}

/// A browser keeps the file, and asks each time whether it is the same.
fn answer(file: &File, headers: &HeaderMap) -> Response {
    let kept = headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let is_kept =
        kept.is_some_and(|tags| tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == *ENTITY_TAG));
    let headers = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::ETAG, ENTITY_TAG.as_str()),
    ];
    if is_kept { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, file.text).into_response() }
}
