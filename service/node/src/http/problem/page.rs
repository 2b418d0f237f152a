//! The pages at `/errors/{code}`, where a problem's `type` points to. Their texts are those of docs/ERRORS.md.

use std::fmt::Write as _;

use super::{Code, CodeInfo};

const TEXTS: &str = include_str!("../../../../../docs/ERRORS.md");

/// The HTML page of a code; `None` if there is no such code.
pub fn page(name: &str) -> Option<String> {
    let CodeInfo { name, status, title } = Code::ALL.iter().map(|code| code.info()).find(|info| info.name == name)?;
    let (_, sections) = TEXTS.split_once(&format!("\n## {name}\n\n"))?;
    let (happened, advice) = sections.split("\n\n## ").next()?.split_once("\n\n**Advice:** ")?;
    let html = include_str!("../../../../../web/error.html")
        .replace("{{name}}", name)
        .replace("{{status}}", status.as_str())
        .replace("{{title}}", &escaped(title))
        .replace("{{happened}}", &escaped(happened))
        .replace("{{advice}}", &escaped(advice.trim_end()));
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn docs_errors_md_has_each_code_in_the_row_of_its_status_and_in_a_section() {
        // The sections have the order of the codes.
        let named =
            TEXTS.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |")).flat_map(|(status, row)| {
                let codes = row.split("[`").skip(1).filter_map(|link| link.split_once("`](#")?.1.split_once(')'));
                codes.map(move |(name, _)| (status.to_owned(), name.to_owned()))
            });
        let codes = Code::ALL.iter().map(|code| (code.info().status.as_str().to_owned(), code.info().name.to_owned()));
        assert_eq!(named.collect::<BTreeSet<_>>(), codes.collect::<BTreeSet<_>>());
        let sections: Vec<&str> = TEXTS.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(sections, Code::ALL.iter().map(|code| code.info().name).collect::<Vec<_>>());
        for name in sections {
            assert!(page(name).is_some(), "the section {name} says what happened and what to do");
        }
    }

    #[test]
    fn a_page_has_its_code_in_it_and_no_stray_markup() {
        let html = page("lock-held").unwrap();
        assert!(html.contains("<code>retry_after_ms</code>") && !html.contains('`') && !html.contains("{{"), "{html}");
        assert_eq!(escaped("a<b & `c`"), "a&lt;b &amp; <code>c</code>");
        assert!(page("no-such-code").is_none());
    }
}
