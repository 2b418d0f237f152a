//! Simulated nodes, for the tests of the checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Path;
use axum::routing::post;
use axum::{Json, Router};
use latchgate_load::handoff::{Args, run};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::floor::{AcquireBody, Grant, ReleaseBody, Released, serve_on};

/// A node with one lock, in memory, that admits `holders` at once.
pub async fn fake_node(holders: usize) -> String {
    let free = Arc::new(Semaphore::new(holders));
    let freed = free.clone();
    let tokens = Arc::new(AtomicU64::new(0));
    let acquire = async move |Path(key): Path<String>, Json(body): Json<AcquireBody>| {
        free.acquire().await.expect("never closed").forget();
        Json(Grant::of(key, body, 1 + tokens.fetch_add(1, Ordering::Relaxed)))
    };
    let release = async move |Path(key): Path<String>, Json(body): Json<ReleaseBody>| {
        freed.add_permits(1);
        Json(Released::of(key, body))
    };
    let routes =
        Router::new().route("/v1/locks/{key}/acquire", post(acquire)).route("/v1/locks/{key}/release", post(release));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(serve_on(listener, routes));
    url
}

fn args(url: String) -> Args {
    Args { url: Some(url), urls: Vec::new(), key: None, waiters: 8, seconds: 1, warmup_seconds: 0 }
}

#[tokio::test]
async fn a_correct_lock_passes() {
    let report = run(&args(fake_node(1).await)).await.unwrap();
    assert!(report.handoffs_per_second > 0.0 && report.errors.is_empty(), "{report:?}");
    report.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_holders_at_once_are_reported() {
    let report = run(&args(fake_node(2).await)).await.unwrap();
    // Which of the two shows is chance: the clients hold the lock for a moment only.
    assert!(report.overlaps + report.tokens_not_rising > 0, "{report:?}");
    report.check().unwrap_err();
}
