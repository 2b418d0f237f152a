//! The error codes as pages: `/errors/{code}`, where a problem's `type` points to, and `docs/ERRORS.md`.

use std::fmt::Write as _;

use super::{Code, CodeInfo};

/// The HTML page of a code; `None` if there is no such code.
pub fn page(name: &str) -> Option<String> {
    let CodeInfo { name, status, title, happened, advice } =
        Code::ALL.iter().map(|code| code.info()).find(|info| info.name == name)?;
    let html = include_str!("../../../../../web/error.html")
        .replace("{{name}}", name)
        .replace("{{status}}", status.as_str())
        .replace("{{title}}", &escaped(title))
        .replace("{{happened}}", &escaped(happened))
        .replace("{{advice}}", &escaped(advice));
    Some(html)
}

/// Text as HTML, with what stands in backticks as code.
fn escaped(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut html = String::with_capacity(escaped.len());
    for (index, part) in escaped.split('`').enumerate() {
        if index % 2 == 1 {
            let _ = write!(html, "<code>{part}</code>");
        } else {
            html.push_str(part);
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes as one page of Markdown.
    fn markdown() -> String {
        let mut page = String::from(
            "<!-- Generated from service/server/src/http/problem/codes.rs by `make errors`. Do not edit. -->\n\
             # Error codes\n\n\
             A 2xx answer means: you may proceed. Every other answer is `application/problem+json` (RFC 9457) with a stable `code`. \
             A node serves the same texts at `/errors/{code}`, where the problem's `type` points to.\n\n\
             | Code | Status | |\n| --- | --- | --- |\n",
        );
        for CodeInfo { name, status, title, .. } in Code::ALL.iter().map(|code| code.info()) {
            let _ = writeln!(page, "| [`{name}`](#{name}) | {} | {title} |", status.as_str());
        }
        for CodeInfo { name, status, title, happened, advice } in Code::ALL.iter().map(|code| code.info()) {
            let status = status.as_str();
            let _ = write!(page, "\n## {name}\n\n{status}: {title}.\n\n{happened}\n\n**What to do:** {advice}\n");
        }
        page
    }

    /// `make errors` sets UPDATE=1, and the test then writes the file.
    #[test]
    fn docs_errors_md_is_generated_from_the_codes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ERRORS.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == markdown(), "docs/ERRORS.md does not fit the codes: run `make errors` and commit it");
    }

    #[test]
    fn a_page_has_its_code_in_it_and_no_stray_markup() {
        let html = page("lock-held").unwrap();
        assert!(html.contains("<code>retry_after_ms</code>") && !html.contains('`') && !html.contains("{{"), "{html}");
        assert_eq!(escaped("a<b & `c`"), "a&lt;b &amp; <code>c</code>");
        assert!(page("no-such-code").is_none());
    }
}
