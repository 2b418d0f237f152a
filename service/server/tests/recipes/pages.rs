//! README.md and docs/*.md: their examples work when they are pasted one after the other.

use futures::future::join_all;

use crate::book::pages;
use crate::terminal::run;

/// `PAGE=docs/LOCKS.md` runs that page alone.
#[tokio::test]
async fn every_shell_block_of_the_pages_runs_as_it_stands_and_prints_what_is_shown() {
    let only = std::env::var("PAGE").ok();
    let mut pages = pages();
    pages.retain(|page| only.as_ref().is_none_or(|only| page.name == *only));
    assert!(!pages.is_empty());
    let failures: Vec<String> = join_all(pages.iter().map(run)).await.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
