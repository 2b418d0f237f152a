//! The recorder and the check together, at a pretend node with one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Path;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::*;
use crate::recorded::{self, Report, Rule, judge, read_file};

/// A node with one lock, in memory, that admits `holders` at once.
async fn fake_node(holders: usize) -> String {
    let (free, tokens) = (Arc::new(Semaphore::new(holders)), Arc::new(AtomicU64::new(0)));
    let freed = free.clone();
    let acquire = async move |Path(_): Path<String>, Json(body): Json<Value>| {
        free.acquire().await.unwrap().forget();
        Json(json!({ "token": 1 + tokens.fetch_add(1, Ordering::Relaxed), "ttl_ms": body["ttl_ms"] }))
    };
    let release = async move |Path(_): Path<String>| {
        freed.add_permits(1);
        Json(json!({ "still_held": 0 }))
    };
    let renew = async move |Path(_): Path<String>| Json(json!({ "ttl_ms": 3_000 }));
    let routes = Router::new()
        .route("/v1/locks/{key}/acquire", post(acquire))
        .route("/v1/locks/{key}/renew", post(renew))
        .route("/v1/locks/{key}/release", post(release));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, routes).await });
    url
}

/// Records and checks one key of a lock that admits `holders` at once. The result of the judge is about the first calls.
async fn recorded_and_checked(holders: usize) -> (Report, anyhow::Result<()>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("history");
    let defaults = Args::new(vec![fake_node(holders).await], file.clone());
    let args = Args { keys: 1, clients: 8, seconds: 1, abandon_one_in: 0, ..defaults };
    run(&args).await.unwrap();
    let calls = read_file(&file).unwrap();
    let report = recorded::check(&calls);
    let args = recorded::Args { files: vec![file], handovers_min: 1, options: recorded::Options::default() };
    (report, recorded::run(&args), judge(&calls[..calls.len().min(100)]))
}

#[tokio::test]
async fn a_correct_lock_passes() {
    let (report, checked, judged) = recorded_and_checked(1).await;
    assert!(report.grants > 10 && report.handovers > 10, "{report:?}");
    checked.unwrap();
    assert!(judged);
}

#[tokio::test]
async fn two_holders_at_once_are_reported() {
    let (report, checked, judged) = recorded_and_checked(2).await;
    assert!(report.violations.iter().any(|violation| violation.rule == Rule::OneHolder), "{report:?}");
    checked.unwrap_err();
    assert!(!judged);
}
