//! The console at `/`: a page for people. Its files are in the binary, and it calls the same API as every other client.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use include_dir::{Dir, include_dir};
use sha2::{Digest, Sha256};

use super::path::PathText;
use super::problem::{Code, Problem};

/// Nothing but the node's own files, and no text that becomes markup or script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                       connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                                       require-trusted-types-for 'script'; trusted-types 'none'";

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../web/console");
const INDEX: &[u8] = include_bytes!("../../../../web/index.html");

pub async fn index(headers: HeaderMap) -> Response {
    answer("index.html", INDEX, &headers)
}

pub async fn file(PathText(path): PathText, headers: HeaderMap) -> Response {
    // Another way to write the same path would break the relative links in the file.
    match FILES.get_file(&path).filter(|file| file.path().as_os_str() == path.as_str()) {
        Some(file) => answer(&path, file.contents(), &headers),
        None => Problem::new(Code::NotFound, "The console has no such file.").into_response(),
    }
}

/// A browser keeps the file, and asks each time whether it is the same.
fn answer(name: &str, file: &'static [u8], headers: &HeaderMap) -> Response {
    let entity_tag = format!("\"{}\"", hex::encode(&Sha256::digest(file)[..8]));
    let kept = headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let is_kept = kept.is_some_and(|tags| tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == entity_tag));
    let content_type = mime_guess::from_path(name).first_or_text_plain();
    let charset = if content_type.type_() == mime_guess::mime::TEXT { "; charset=utf-8" } else { "" };
    let headers = [
        (header::CONTENT_TYPE, format!("{content_type}{charset}")),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY.to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
        (header::ETAG, entity_tag),
    ];
    if is_kept { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, file).into_response() }
}
