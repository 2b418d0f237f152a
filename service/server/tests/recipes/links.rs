//! The links of the documents lead somewhere.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::book::{REPOSITORY, pages};

const OTHERS: [&str; 6] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "service/testkit/README.md",
    "service/bench/README.md",
];

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let top = Path::new(REPOSITORY);
    let names = pages().into_iter().map(|page| page.name).chain(OTHERS.map(str::to_owned));
    let broken: Vec<String> = names
        .flat_map(|name| {
            let page = top.join(&name);
            let targets = targets(&fs::read_to_string(&page).unwrap());
            targets
                .into_iter()
                .filter(move |target| !leads_somewhere(&page, target))
                .map(move |t| format!("{name}: {t}"))
        })
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The targets of the page's links, without those to other sites.
fn targets(page: &str) -> Vec<String> {
    let after = page.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    after.map(|(target, _)| target.to_owned()).filter(|target| !target.contains("://")).collect()
}

fn leads_somewhere(page: &Path, target: &str) -> bool {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path: PathBuf = if file.is_empty() { page.to_owned() } else { page.with_file_name("").join(file) };
    // It may be a picture.
    let Ok(bytes) = fs::read(path) else { return false };
    heading.is_empty() || headings(&String::from_utf8_lossy(&bytes)).contains(heading)
}

/// The headings as they are named in links: small letters, without punctuation, hyphens for spaces.
fn headings(page: &str) -> HashSet<String> {
    let lines = page.lines().filter(|line| line.starts_with('#'));
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    lines
        .map(|line| line.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect())
        .map(|heading: String| heading.replace(' ', "-"))
        .collect()
}

/// Those in shell blocks are called by the tests of pages.
#[test]
fn every_endpoint_that_a_document_names_with_its_method_is_described() {
    let top = Path::new(REPOSITORY);
    let described: Value =
        serde_json::from_str(&fs::read_to_string(top.join("openapi/openapi.json")).unwrap()).unwrap();
    let (mut unknown, mut count) = (Vec::new(), 0);
    for name in pages().into_iter().map(|page| page.name).chain(OTHERS.map(str::to_owned)) {
        let text = fs::read_to_string(top.join(&name)).unwrap();
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            for named in text.split(&format!("{method} /v1/")).skip(1) {
                let end = named.find(|letter: char| !letter.is_alphanumeric() && !"{}/-".contains(letter));
                let path = format!("/v1/{}", &named[..end.unwrap_or(named.len())]);
                let is_known = described["paths"][&path].get(method.to_lowercase()).is_some();
                unknown.extend((!is_known).then(|| format!("{name}: {method} {path}")));
                count += 1;
            }
        }
    }
    assert!(unknown.is_empty() && count > 40, "{unknown:#?} of {count}");
}
