//! The links of the documents lead somewhere.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::book::{REPOSITORY, pages};

const OTHERS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

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
