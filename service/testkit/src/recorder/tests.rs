//! The recorder and the check together, at a pretend node with one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::*;
use crate::recorded::{self, Report, Rule, judge, read_file};

/// In which way the pretend node is broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    TwoHolders,
    TokenFalls,
    ForgetsLeases,
    RenewsWhatItRefused,
}

/// A node with one lock, in memory.
async fn pretend_node(fault: Fault) -> String {
    let holders = if fault == Fault::TwoHolders { 2 } else { 1 };
    let (free, tokens) = (Arc::new(Semaphore::new(holders)), Arc::new(AtomicU64::new(1_000_000)));
    let freed = free.clone();
    let acquire = async move |Path(_): Path<String>, Json(body): Json<Value>| {
        if fault == Fault::RenewsWhatItRefused && free.available_permits() == 0 {
            return (StatusCode::CONFLICT, Json(json!({ "code": "key-full" })));
        }
        free.acquire().await.unwrap().forget();
        let step = if fault == Fault::TokenFalls { u64::MAX } else { 1 };
        let token = tokens.fetch_add(step, Ordering::Relaxed);
        (StatusCode::OK, Json(json!({ "token": token, "ttl_ms": body["ttl_ms"] })))
    };
    let renew = async move |Path(_): Path<String>| match fault {
        Fault::ForgetsLeases => (StatusCode::GONE, Json(json!({ "code": "lease-lost", "why": "unknown" }))),
        _ => (StatusCode::OK, Json(json!({ "ttl_ms": 3_000 }))),
    };
    let release = async move |Path(_): Path<String>| {
        freed.add_permits(1);
        Json(json!({ "still_held": 0 }))
    };
    let routes = Router::new()
        .route("/v1/locks/{key}/acquire", post(acquire))
        .route("/v1/locks/{key}/renew", post(renew))
        .route("/v1/locks/{key}/release", post(release));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, routes).await });
    url
}

/// Records and checks one key. The result of the judge is about the first calls.
async fn recorded_and_checked(fault: Fault) -> (Report, anyhow::Result<()>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("history");
    let defaults = Args::new(vec![pretend_node(fault).await], file.clone());
    let args = Args { keys: 1, clients: 8, seconds: 1, abandon_one_in: 0, ..defaults };
    run(&args).await.unwrap();
    let calls = read_file(&file).unwrap();
    let report = recorded::check(&calls);
    let args = recorded::Args { files: vec![file], handovers_min: 1, options: recorded::Options::default() };
    (report, recorded::run(&args), judge(&calls[..calls.len().min(100)]))
}

#[tokio::test]
async fn a_correct_lock_passes() {
    let (report, checked, judged) = recorded_and_checked(Fault::None).await;
    assert!(report.grants > 10 && report.handovers > 10, "{report:?}");
    checked.unwrap();
    assert!(judged);
}

#[tokio::test]
async fn each_fault_of_a_node_is_reported_by_the_rule_that_it_breaks() {
    for (fault, rule) in [
        (Fault::TwoHolders, Rule::OneHolder),
        (Fault::TokenFalls, Rule::TokensRise),
        (Fault::ForgetsLeases, Rule::Survives),
        (Fault::RenewsWhatItRefused, Rule::GrantedFirst),
    ] {
        let (report, checked, judged) = recorded_and_checked(fault).await;
        assert!(report.violations.iter().any(|violation| violation.rule == rule), "{rule}: {report:?}");
        checked.unwrap_err();
        assert!(!judged, "{rule}");
    }
}
