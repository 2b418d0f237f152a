//! Swagger UI at `/docs/`. Its page is `web/docs.html`, configured by `web/docs.js`; its own files come from its archive, which is inside the binary.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use rawzip::{CompressionMethod, ZipArchive};
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;

use super::path::PathText;
use super::problem::{Code, Problem};

/// Swagger UI has scripts, which the browser loads from this node alone.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                                       img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";

/// What the page loads from the archive, and the types of these files.
const FILES: [(&str, &str); 4] = [
    ("favicon-32x32.png", "image/png"),
    ("swagger-ui-bundle.js", JAVASCRIPT),
    ("swagger-ui-standalone-preset.js", JAVASCRIPT),
    ("swagger-ui.css", "text/css; charset=utf-8"),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// What comes before data that DEFLATE has compressed, and after it their CRC-32 and their length (RFC 1952): then it is gzip.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// A file. Browsers decompress it, so that a node need not.
#[derive(Clone)]
struct File {
    content_type: &'static str,
    bytes: Bytes,
    is_compressed: bool,
}

impl File {
    fn own(content_type: &'static str, text: &'static str) -> Self {
        Self { content_type, bytes: Bytes::from_static(text.as_bytes()), is_compressed: false }
    }
}

/// Those of the archive, by their names.
static OF_ARCHIVE: LazyLock<BTreeMap<&str, File>> = LazyLock::new(|| read().unwrap_or_default());

/// Leads to the page.
pub async fn index() -> Redirect {
    Redirect::to("/docs/")
}

pub async fn file(PathText(path): PathText) -> Response {
    let file = match path.as_str() {
        "" | "index.html" => Some(File::own("text/html; charset=utf-8", include_str!("../../../../web/docs.html"))),
        "docs.js" => Some(File::own(JAVASCRIPT, include_str!("../../../../web/docs.js"))),
        path => OF_ARCHIVE.get(path).cloned(),
    };
    let Some(File { content_type, bytes, is_compressed }) = file else {
        return Problem::new(Code::NotFound, "The documentation has no such file.").into_response();
    };
    let headers = [(header::CONTENT_TYPE, content_type), (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY)];
    // Not copied: clients that do not read would fill the memory with copies.
    let mut response = (headers, bytes).into_response();
    if is_compressed {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn read() -> Result<BTreeMap<&'static str, File>, rawzip::Error> {
    let archive = ZipArchive::from_slice(SWAGGER_UI_VENDORED)?;
    let (mut files, mut entries) = (BTreeMap::new(), archive.entries());
    while let Some(header) = entries.next_entry()? {
        let path = header.file_path();
        let is_at =
            |name: &str| path.as_ref().strip_suffix(name.as_bytes()).is_some_and(|folder| folder.ends_with(b"/dist/"));
        let Some((name, content_type)) = FILES.into_iter().find(|(name, _)| is_at(name)) else { continue };
        let entry = archive.get_entry(header.wayfinder())?;
        let is_compressed = header.compression_method() == CompressionMethod::DEFLATE;
        let bytes = if is_compressed {
            let length = u32::try_from(header.uncompressed_size_hint()).unwrap_or_default();
            let end = [header.crc32().to_le_bytes(), length.to_le_bytes()].concat();
            [&GZIP_HEADER[..], entry.data(), &end].concat().into()
        } else {
            Bytes::copy_from_slice(entry.data())
        };
        files.insert(name, File { content_type, bytes, is_compressed });
    }
    Ok(files)
}
