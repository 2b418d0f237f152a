//! README.md and docs/*.md: their examples work when they are pasted one after the other.

use futures::future::join_all;

use crate::book::{Page, pages};
use crate::terminal::run;

/// The pages that a reader goes through on one machine, in the order in which the README names them.
const WALK: [&str; 5] = ["docs/RECIPES.md", "docs/LOCKS.md", "docs/COMMANDS.md", "docs/GATE.md", "docs/OPERATIONS.md"];

/// `PAGE=docs/LOCKS.md` runs that page alone.
#[tokio::test]
async fn every_shell_block_of_the_pages_runs_unchanged_and_prints_what_is_shown() {
    let only = std::env::var("PAGE").ok();
    let mut pages = pages();
    pages.retain(|page| only.as_ref().is_none_or(|only| page.name == *only));
    assert!(!pages.is_empty());
    let failures: Vec<String> = join_all(pages.iter().map(run)).await.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[tokio::test]
async fn a_reader_can_run_one_page_after_the_other_on_one_node() {
    // Nothing that an earlier page left behind stops a later page.
    let mut walk = Page { name: "one after the other".to_owned(), blocks: Vec::new() };
    for (name, place) in WALK.iter().zip(1..) {
        let page = pages().into_iter().find(|page| page.name == *name);
        // The line 3042 is line 42 of the third page.
        walk.blocks.extend(page.unwrap_or_else(|| panic!("{name}")).blocks.into_iter().map(|mut block| {
            block.line += place * 1000;
            block
        }));
    }
    assert_eq!(run(&walk).await, None);
}
