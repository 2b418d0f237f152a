//! README.md and docs/*.md: their fenced blocks, and the scripts in docs/recipes.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

/// The top directory of the repository.
pub const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What a block may be. Another word after the fence is refused, so that no example escapes the test by a typo.
const FENCES: [&str; 5] = ["sh", "json", "text", "sql", "crontab"];

pub struct Page {
    /// `README.md` or `docs/….md`.
    pub name: String,
    pub blocks: Vec<Block>,
}

/// A fenced block.
pub struct Block {
    /// The line of its opening fence, counted from 1.
    pub line: usize,
    /// The words behind the opening fence.
    pub fence: String,
    pub text: String,
    /// Only blank lines stand between it and the block before.
    pub follows_block: bool,
}

impl Block {
    /// Starts a node, and so keeps the terminal of a reader, who runs the next block in another one.
    pub fn keeps_its_terminal(&self) -> bool {
        self.fence == "sh" && self.text.contains("latchgate serve")
    }
}

pub fn pages() -> Vec<Page> {
    let top = Path::new(REPOSITORY);
    let mut paths: Vec<PathBuf> = fs::read_dir(top.join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.push(top.join("README.md"));
    paths.sort();
    let page = |path: PathBuf| Page {
        name: path.strip_prefix(top).unwrap().display().to_string(),
        blocks: blocks(&fs::read_to_string(path).unwrap()),
    };
    paths.into_iter().map(page).collect()
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut follows_block = false;
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        if let Some(fence) = line.strip_prefix("```") {
            let text = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "```");
            let text = text.map(|line| line.to_owned() + "\n").collect();
            blocks.push(Block { line: number, fence: fence.to_owned(), text, follows_block });
            follows_block = true;
        } else if !line.is_empty() {
            follows_block = false;
        }
    }
    blocks
}

/// The scripts of docs/recipes with their names.
pub fn scripts() -> Vec<(String, String)> {
    let named = |entry: DirEntry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap());
    fs::read_dir(Path::new(REPOSITORY).join("docs/recipes")).unwrap().map(|entry| named(entry.unwrap())).collect()
}

#[test]
fn every_script_is_strict_and_says_how_to_call_it() {
    let scripts = scripts();
    assert!(!scripts.is_empty());
    for (name, script) in scripts {
        assert!(script.starts_with(&format!("#!/usr/bin/env bash\n# {name} ")), "{name} says how to call it");
        assert!(script.contains("\nset -euo pipefail\n"), "{name} is not strict");
    }
}

#[test]
fn every_block_says_what_it_is_and_nothing_follows_a_node_in_its_block() {
    for page in pages() {
        for block in page.blocks {
            let place = format!("{}:{}", page.name, block.line);
            assert!(FENCES.contains(&block.fence.as_str()), "{place}: {:?} is none of {FENCES:?}", block.fence);
            let nodes = block.text.matches("latchgate serve").count();
            let is_last = block.text.lines().last().is_some_and(|last| last.contains("latchgate serve"));
            assert!(!block.keeps_its_terminal() || nodes == 1 && is_last, "{place}: the lines behind `serve`");
        }
    }
}
