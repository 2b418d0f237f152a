//! `latchgate lock --terraform`: the `http` backend of Terraform in CMD locks and unlocks here, under the lease of the command.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use latchgate_client::LeaseState;
use parking_lot::Mutex;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

struct Backend {
    /// At random: other users of the machine do not know it.
    path: String,
    lease: watch::Receiver<LeaseState>,
    /// What the run of Terraform that has the lock says of itself. CMD may begin several.
    holder: Mutex<Option<Value>>,
}

/// The address for Terraform, on this machine. It answers until the task is aborted.
///
/// # Errors
/// When the system gives no port.
pub async fn serve(lease: watch::Receiver<LeaseState>) -> anyhow::Result<(String, JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for Terraform")?;
    let path = format!("/{}", uuid::Uuid::new_v4().simple());
    let address = format!("http://{}{path}", listener.local_addr()?);
    let backend = Arc::new(Backend { path, lease, holder: Mutex::default() });
    let router = Router::new().fallback(answer).with_state(backend);
    let serving = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    Ok((address, serving))
}

async fn answer(State(backend): State<Arc<Backend>>, method: Method, uri: Uri, body: Bytes) -> Response {
    if uri.path() != backend.path {
        return StatusCode::NOT_FOUND.into_response();
    }
    let info: Option<Value> = serde_json::from_slice(&body).ok();
    let id = |info: &Option<Value>| info.as_ref().and_then(|info| info["ID"].as_str().map(str::to_owned));
    let mut holder = backend.holder.lock();
    // A run without an id is never the one that has the lock.
    let is_other = holder.is_some() && (id(&info).is_none() || id(&holder) != id(&info));
    match method.as_str() {
        "LOCK" if !is_held(&backend.lease.borrow()) => (StatusCode::LOCKED, lost().to_string()).into_response(),
        "LOCK" if is_other => (StatusCode::LOCKED, holder.clone().unwrap_or_default().to_string()).into_response(),
        "LOCK" => {
            *holder = Some(info.unwrap_or_default());
            StatusCode::OK.into_response()
        }
        // `terraform force-unlock` names no run.
        "UNLOCK" if is_other && !body.is_empty() => StatusCode::CONFLICT.into_response(),
        "UNLOCK" => {
            *holder = None;
            StatusCode::OK.into_response()
        }
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

fn is_held(state: &LeaseState) -> bool {
    matches!(state, LeaseState::Held { until, .. } if !until.has_passed())
}

/// Terraform cannot read an answer in which `Created` is no time.
fn lost() -> Value {
    let created = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
    json!({ "ID": "", "Operation": "", "Info": "the lease of latchgate lock has ended", "Who": "", "Created": created })
}
