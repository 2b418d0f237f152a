//! The files of SQLite: who may read them, and what happens if they do not stay where they are.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchgate_testkit::eventually;
use latchgate_testkit::node::{Node, NotReady};
use serde_json::json;

use crate::client::{BIN, acquire, embedded, get, granted, pre};

const LONG: Duration = Duration::from_secs(30);

fn file(node: &Node, name: &str) -> PathBuf {
    node.dir().join(name)
}

/// The very next grant is refused, and the node says why.
async fn is_refused(node: &Node, why: &str) {
    acquire(node, "next", json!({})).await.assert_problem(503, "store-unavailable");
    let says_why = || async {
        let answer = get(node, "/readyz").await;
        answer.status == 503 && answer.text("detail").contains(why)
    };
    assert!(eventually(LONG, says_why).await, "{}", get(node, "/readyz").await.body);
    acquire(node, "next", json!({})).await.assert_problem(503, "store-unavailable");
    pre(node, json!({ "operation": "pay", "contents": 1 })).await.assert_problem(503, "store-unavailable");
}

async fn serves_again(node: &Node) {
    let is_ready = || async { get(node, "/readyz").await.status == 200 };
    assert!(eventually(LONG, is_ready).await, "{}", get(node, "/readyz").await.body);
    granted(node, "next", json!({})).await;
}

#[tokio::test]
async fn files_that_are_moved_away_are_noticed_before_the_next_grant() {
    for name in ["latchgate.db", "latchgate.db-wal"] {
        let node = embedded().await;
        granted(&node, "k", json!({})).await;
        fs::rename(file(&node, name), file(&node, "away")).unwrap();
        is_refused(&node, "was deleted or moved").await;
        fs::rename(file(&node, "away"), file(&node, name)).unwrap();
        serves_again(&node).await;
        acquire(&node, "k", json!({})).await.assert_problem(423, "lock-held");
    }
}

#[tokio::test]
async fn a_deleted_file_is_not_written_to() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    fs::remove_file(file(&node, "latchgate.db")).unwrap();
    is_refused(&node, "was deleted or moved").await;
    assert!(!file(&node, "latchgate.db").exists());
}

#[tokio::test]
async fn a_file_that_is_replaced_is_noticed_before_the_next_grant() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    fs::rename(file(&node, "latchgate.db"), file(&node, "away")).unwrap();
    fs::copy(file(&node, "away"), file(&node, "latchgate.db")).unwrap();
    is_refused(&node, "was replaced").await;
}

#[tokio::test]
async fn a_file_with_two_names_is_noticed_before_the_next_grant() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    fs::hard_link(file(&node, "latchgate.db"), file(&node, "link.db")).unwrap();
    is_refused(&node, "has several names").await;
    fs::remove_file(file(&node, "link.db")).unwrap();
    serves_again(&node).await;
}

async fn refusal(path: &Path) -> String {
    match Node::try_start(BIN, &["--locks", &format!("sqlite:{}", path.display())], &[]).await {
        Ok(_) => panic!("{} was opened twice", path.display()),
        Err(NotReady { log, .. }) => log,
    }
}

#[tokio::test]
async fn a_second_node_is_refused_by_whatever_name_it_knows_the_file() {
    let node = embedded().await;
    granted(&node, "k", json!({})).await;
    symlink(file(&node, "latchgate.db"), file(&node, "symbolic.db")).unwrap();
    let log = refusal(&file(&node, "symbolic.db")).await;
    assert!(log.contains("in use by another latchgate process"), "{log}");
    fs::hard_link(file(&node, "latchgate.db"), file(&node, "link.db")).unwrap();
    let log = refusal(&file(&node, "link.db")).await;
    assert!(log.contains("in use by another latchgate process"), "{log}");
    // The first node serves on when its file has one name again.
    fs::remove_file(file(&node, "link.db")).unwrap();
    serves_again(&node).await;
}

#[tokio::test]
async fn a_gate_in_a_file_of_its_own_has_one_process_too() {
    let node = Node::start(BIN, &["--gate", "sqlite:gate.db"]).await;
    let gate = format!("sqlite:{}", file(&node, "gate.db").display());
    let Err(NotReady { log, .. }) = Node::try_start(BIN, &["--gate", &gate], &[]).await else { panic!("opened twice") };
    assert!(log.contains("in use by another latchgate process"), "{log}");
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
    granted(&node, "k", json!({})).await;
    for name in ["latchgate.db", "gate.db"] {
        for suffix in ["", "-wal", "-shm"] {
            let path = file(&node, &format!("{name}{suffix}"));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
    }
}
