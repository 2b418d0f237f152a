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

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

#[test]
fn every_path_in_documents_clients_and_the_console_is_one_of_an_endpoint() {
    let top = Path::new(REPOSITORY);
    let described: Value =
        serde_json::from_str(&fs::read_to_string(top.join("openapi/openapi.json")).unwrap()).unwrap();
    let endpoints = described["paths"].as_object().unwrap();
    let mut files: Vec<PathBuf> = ["README.md", "SECURITY.md"].map(|name| top.join(name)).into();
    for folder in ["docs", "web", "service/clients", "service/server/src/cli", "service/proxy", "service/mcp"] {
        texts(&top.join(folder), &mut files);
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    for file in files {
        for (line, number) in fs::read_to_string(&file).unwrap_or_default().lines().zip(1..) {
            let named = paths(line);
            count += named.len();
            let named = named.into_iter().filter(|(method, path)| {
                !endpoints.iter().any(|(endpoint, methods)| {
                    let is_there = method.is_none_or(|method| methods.get(method.to_lowercase()).is_some());
                    is_there && is_of(path, endpoint, method.is_some())
                })
            });
            let place = file.strip_prefix(top).unwrap().display();
            wrong
                .extend(named.map(|(method, path)| format!("{place}:{number}: {} {path}", method.unwrap_or_default())));
        }
    }
    assert!(wrong.is_empty() && count > 200, "{wrong:#?} of {count}");
}

/// The files below a folder, without those of tests.
fn texts(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            files.push(path);
        } else if !["test", "tests", "node_modules", "target"].map(Path::new).iter().any(|name| path.ends_with(name)) {
            texts(&path, files);
        }
    }
}

/// The paths in a line, each with the method before it. What code or a reader puts in becomes `{}`.
fn paths(line: &str) -> Vec<(Option<&'static str>, String)> {
    let before = |at: usize| line[..at].trim_end_matches([' ', ',', '"', '`', '\'']);
    let starts = line.match_indices("/v1/").filter(|(at, _)| !line[..*at].ends_with(char::is_lowercase));
    starts
        .map(|(at, _)| {
            let method = METHODS.into_iter().find(|method| before(at).ends_with(method));
            (method, named(&line[at..]))
        })
        .collect()
}

fn named(text: &str) -> String {
    let mut path = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '{' | '(' if letter == '{' || path.ends_with('$') => {
                let (mut open, close) = (1, if letter == '{' { '}' } else { ')' });
                while open > 0 {
                    let Some(inner) = letters.next() else { break };
                    open = open + usize::from(inner == letter) - usize::from(inner == close);
                }
                path = path.trim_end_matches(['$', '#']).to_owned() + "{}";
            }
            '…' => path.push_str("{}"),
            '/' | '$' | '#' | '%' | '-' | '_' | '.' | ':' => path.push(letter),
            letter if letter.is_alphanumeric() => path.push(letter),
            _ => break,
        }
    }
    path.trim_end_matches(['.', ':']).to_owned()
}

/// Whether a path is one of the endpoint. Without a method, it may be the beginning of one.
fn is_of(path: &str, endpoint: &str, is_whole: bool) -> bool {
    let open = path.ends_with('/') || path.ends_with('}');
    let named: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let described: Vec<&str> = endpoint.split('/').collect();
    let is_same = |(named, described): (&&str, &&str)| {
        named == described || described.starts_with('{') || named.contains("{}") || named.starts_with('$')
    };
    named.len() <= described.len()
        && (named.len() == described.len() || open || !is_whole)
        && named.iter().zip(&described).all(is_same)
}
