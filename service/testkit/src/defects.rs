//! The patches of `service/testkit/defects`: each gives Latchgate one defect that the tests it names must notice
//! (`scripts/sensitivity.sh`), and those in `crash` a moment at which a node ends (`make chaos`).

use std::path::{Path, PathBuf};
use std::process::Command;

fn patches(dir: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("defects").join(dir);
    let paths = dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "patch")).collect()
}

#[test]
fn each_patch_applies() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !top.join(".git").exists() {
        eprintln!("each_patch_applies is skipped: {} is not a checkout of git", top.display());
        return;
    }
    let all = patches(".").into_iter().chain(patches("crash"));
    let fails = |path: &PathBuf| {
        let output = Command::new("git").current_dir(&top).args(["apply", "--check"]).arg(path).output().unwrap();
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let failed: Vec<String> = all.filter_map(|path| fails(&path)).collect();
    assert!(failed.is_empty(), "change these patches with the lines that they change:\n{}", failed.concat());
}

#[test]
fn each_patch_is_small_and_says_what_it_breaks_and_which_test_notices_it() {
    for path in patches(".") {
        let text = std::fs::read_to_string(&path).unwrap();
        let (header, changes) = text.split_once("\n--- ").unwrap();
        let mut lines = header.lines();
        assert!(lines.next().is_some_and(|what| what.ends_with('.')), "{path:?}");
        let tests: Vec<&str> = lines.collect();
        assert!(!tests.is_empty(), "{path:?}");
        assert!(tests.iter().all(|test| test.starts_with("Noticed by: cargo test -p ")), "{path:?}");
        for sign in ["+", "-"] {
            let is_change = |line: &&str| line.starts_with(sign) && !line.starts_with(&sign.repeat(3));
            assert!(changes.lines().skip(1).filter(is_change).count() <= 3, "{path:?}");
        }
    }
}
