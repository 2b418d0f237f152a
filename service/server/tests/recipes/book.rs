//! docs/RECIPES.md: its named blocks.

use std::process::Command;

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/RECIPES.md");

/// The recipes with their names: the blocks whose fence says "bash" and a name.
pub fn recipes() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(BOOK).unwrap();
    let mut lines = text.lines();
    let mut recipes = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("```bash ") {
            let script: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            recipes.push((name.to_owned(), script.join("\n") + "\n"));
        }
    }
    recipes
}

#[test]
fn every_recipe_is_a_strict_script_that_bash_can_read() {
    let recipes = recipes();
    assert!(!recipes.is_empty());
    for (name, script) in recipes {
        assert!(script.starts_with(&format!("#!/usr/bin/env bash\n# {name} ")), "{name} says how to call it");
        assert!(script.contains("\nset -euo pipefail\n"), "{name} is not strict");
        let parsed = Command::new("bash").args(["-n", "-c", &script]).status().unwrap();
        assert!(parsed.success(), "{name} does not parse");
    }
}
