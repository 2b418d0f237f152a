//! The files of SQLite: who may read them, and what happens if they do not stay where they are.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use latchgate_testkit::node::Node;
use latchgate_testkit::until;
use serde_json::json;

use crate::client::{BIN, acquire, embedded, get, granted, pre};
use crate::start::refused;

fn file(node: &Node, name: &str) -> PathBuf {
    node.dir().join(name)
}

/// The very next grant is refused, and the node says why.
async fn is_refused(node: &Node, why: &str) {
    acquire(node, "next", json!({})).await.assert_problem(503, "store-unavailable");
    until(why, || async { get(node, "/readyz").await.body["detail"].to_string().contains(why) }).await;
    acquire(node, "next", json!({})).await.assert_problem(503, "store-unavailable");
    pre(node, json!({ "operation": "pay", "contents": 1 })).await.assert_problem(503, "store-unavailable");
}

async fn serves_again(node: &Node) {
    until("the node is ready", || async { get(node, "/readyz").await.status == 200 }).await;
    granted(node, "next", json!({})).await;
}

/// The node serves again when the change is undone, except if the file has gone.
#[tokio::test]
async fn what_becomes_of_the_files_is_noticed_before_the_next_grant() {
    for (change, why, undo) in [
        ("mv latchgate.db away", "was deleted or moved", "mv away latchgate.db"),
        ("mv latchgate.db-wal away", "was deleted or moved", "mv away latchgate.db-wal"),
        ("rm latchgate.db", "was deleted or moved", "test ! -e latchgate.db"),
        ("mv latchgate.db away && cp away latchgate.db", "was replaced", ""),
        ("ln latchgate.db link.db", "has several names", "rm link.db"),
    ] {
        let node = embedded().await;
        granted(&node, "k", json!({})).await;
        let run = |line| {
            let ended = Command::new("sh").args(["-c", line]).current_dir(node.dir()).status().unwrap();
            assert!(ended.success(), "{line}");
        };
        run(change);
        is_refused(&node, why).await;
        run(undo);
        if undo.starts_with("mv") || undo.starts_with("rm") {
            serves_again(&node).await;
            acquire(&node, "k", json!({})).await.assert_problem(423, "lock-held");
        }
    }
}

#[tokio::test]
async fn a_second_node_is_refused_by_whatever_name_it_knows_the_file() {
    let node = Node::start(BIN, &["--gate", "sqlite:gate.db"]).await;
    granted(&node, "k", json!({})).await;
    symlink(file(&node, "latchgate.db"), file(&node, "symbolic.db")).unwrap();
    fs::hard_link(file(&node, "latchgate.db"), file(&node, "link.db")).unwrap();
    for (of, name) in [("--locks", "symbolic.db"), ("--locks", "link.db"), ("--gate", "gate.db")] {
        let url = format!("sqlite:{}", file(&node, name).display());
        refused(&[of, &url], &["in use by another latchgate process"]).await;
    }
    // The first node serves on when its file has one name again.
    fs::remove_file(file(&node, "link.db")).unwrap();
    serves_again(&node).await;
    // A gate whose file is moved away claims nothing.
    fs::rename(file(&node, "gate.db"), file(&node, "away")).unwrap();
    pre(&node, json!({ "operation": "pay", "contents": 1 })).await.assert_problem(503, "store-unavailable");
}

#[tokio::test]
async fn the_gate_can_be_named_in_the_file_of_the_locks() {
    let node = Node::start(BIN, &["--locks", "sqlite:one.db", "--gate", "sqlite:one.db"]).await;
    granted(&node, "k", json!({})).await;
    assert_eq!(pre(&node, json!({ "operation": "pay", "contents": 1 })).await.status, 201);
}

#[tokio::test]
async fn new_files_are_for_their_user_alone() {
    let node = Node::start(BIN, &["--gate", "sqlite:gate.db"]).await;
    for name in ["latchgate.db", "gate.db"] {
        for suffix in ["", "-wal", "-shm"] {
            let path = file(&node, &format!("{name}{suffix}"));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
    }
}
