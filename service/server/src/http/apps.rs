//! `/v1/admin/apps`: apps, their quotas and notices, for operators.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, Path, State};
use axum::http::Request;
use axum::response::Response;
use axum::{Extension, Router, routing};
use latchgate_core::access::{ChangeRefused, Document, KeyEntry, QUOTA_MAX, Quota, Quotas};
use latchgate_core::{App, Timestamp};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;
use utoipa::ToSchema;

use super::access::By;
use super::answer::ok;
use super::audit::{Audited, recorded};
use super::format::rfc3339;
use super::problem::{Code, Problem, ProblemBody};
use super::query::NoQuery;
use super::{api_keys, body};
use crate::access::{Access, Caller, ChangeFailure};
use crate::failure::Failure;
use crate::store::StoreError;

pub(super) const BODY_BYTES_MAX: usize = 65_536;
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest life of an API key that expires, and longest time before a notice, in ms.
pub(super) const MS_MAX: u64 = 10 * 365 * 24 * 3_600_000;

pub(super) fn routes<S>() -> Router<S>
where
    S: Clone + Send + Sync + 'static,
    Access: FromRef<S>,
{
    Router::new()
        .route("/v1/admin/apps", routing::get(list_apps).post(create_app))
        .route("/v1/admin/apps/{app}/disable", routing::post(disable_app))
        .route("/v1/admin/apps/{app}/warn-after", routing::put(set_warn_after))
        .route("/v1/admin/apps/{app}/quotas", routing::post(set_quotas))
        .route("/v1/admin/keys", routing::get(api_keys::list_keys).post(api_keys::create_key))
        .route("/v1/admin/keys/{id}", routing::delete(api_keys::revoke_key))
}

/// Carries out a request of a command that opens the store itself. No node is needed.
pub async fn beside_the_store(access: Access, mut request: Request<Body>) -> Response {
    let operator = Arc::new(Caller::without_key(App::default()));
    request.extensions_mut().insert(operator);
    request.extensions_mut().insert(BesideTheStore);
    let (head, body) = request.into_parts();
    recorded(Box::new(head), |head| async {
        match routes().with_state(access).oneshot(Request::from_parts(*head, body)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    })
    .await
}

/// Marks requests of such commands. Whoever can open the store can change it anyway, so no API key is needed.
#[derive(Clone, Copy)]
pub struct BesideTheStore;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppRequest {
    /// 1 to 64 bytes of UTF-8 without control characters.
    #[schema(example = "billing", max_length = 64)]
    app: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarnAfterRequest {
    /// After what time, in ms, a lock of the app that is held is a notice; null: never.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required, example = 600_000, minimum = 1)]
    warn_after_ms: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub struct AppAnswer {
    #[schema(example = "billing")]
    app: String,
    /// Its API keys are refused.
    disabled: bool,
    /// Absent for the app `default`, which is always there.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    /// After what time, in ms, a lock that is held is a notice; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    warn_after_ms: Option<u64>,
    /// How many API keys of it are accepted.
    api_keys: usize,
    quotas: QuotasAnswer,
}

/// How much the app may use of each node; null is no limit.
#[derive(Serialize, ToSchema)]
pub struct QuotasAnswer {
    #[schema(required)]
    requests_per_second: Option<u32>,
    #[schema(required)]
    waiters: Option<u32>,
    #[schema(required)]
    leases: Option<u32>,
    #[schema(required)]
    operations: Option<u32>,
    #[schema(required)]
    event_streams: Option<u32>,
}

impl From<Quotas> for QuotasAnswer {
    fn from(quotas: Quotas) -> Self {
        let Quotas { requests_per_second, waiters, leases, operations, event_streams } = quotas;
        Self { requests_per_second, waiters, leases, operations, event_streams }
    }
}

/// A field that is absent changes nothing; null is no limit.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuotasRequest {
    /// Requests in a second; as many may come at once after a pause. Renewals, releases, posts and heartbeats are refused only beyond
    /// ten times as many. 1 to 1 000 000.
    #[serde(deserialize_with = "some")]
    #[schema(value_type = Option<u32>, example = 200)]
    requests_per_second: Option<Option<u32>>,
    /// Requests that wait at once. 0 to 1 000 000.
    #[serde(deserialize_with = "some")]
    #[schema(value_type = Option<u32>, example = 500)]
    waiters: Option<Option<u32>>,
    /// Leases that the node granted and that may be live. 0 to 1 000 000.
    #[serde(deserialize_with = "some")]
    #[schema(value_type = Option<u32>, example = 1_000)]
    leases: Option<Option<u32>>,
    /// Operations that the node let start and that may be running. 0 to 1 000 000.
    #[serde(deserialize_with = "some")]
    #[schema(value_type = Option<u32>, example = 1_000)]
    operations: Option<Option<u32>>,
    /// Open streams of events. 0 to 1 000 000.
    #[serde(deserialize_with = "some")]
    #[schema(value_type = Option<u32>, example = 20)]
    event_streams: Option<Option<u32>>,
}

/// A field that is there, even if it is null.
fn some<'de, D: serde::Deserializer<'de>>(field: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(field).map(Some)
}

impl QuotasRequest {
    fn parse(self) -> Result<Vec<(Quota, Option<u32>)>, Problem> {
        let mut limits = Vec::new();
        for quota in Quota::ALL {
            let limit = match quota {
                Quota::RequestsPerSecond => self.requests_per_second,
                Quota::Waiters => self.waiters,
                Quota::Leases => self.leases,
                Quota::Operations => self.operations,
                Quota::EventStreams => self.event_streams,
            };
            let Some(limit) = limit else { continue };
            // A rate of 0 would be a disabled app.
            let min = u32::from(quota == Quota::RequestsPerSecond);
            if limit.is_some_and(|limit| !(min..=QUOTA_MAX).contains(&limit)) {
                return Err(Problem::field(quota.as_str(), format!("must be from {min} to {QUOTA_MAX}, or null")));
            }
            limits.push((quota, limit));
        }
        Ok(limits)
    }
}

#[derive(Serialize, ToSchema)]
pub struct AppsAnswer {
    apps: Vec<AppAnswer>,
}

/// List the apps.
#[utoipa::path(
    get, path = "/v1/admin/apps", tag = "admin", operation_id = "listApps",
    responses((status = 200, description = "All apps.", body = AppsAnswer))
)]
pub async fn list_apps(State(access): State<Access>, _: NoQuery, body: Body) -> Result<Response, Problem> {
    body::none(body, BODY_TIMEOUT).await?;
    let (document, now) = (access.document(), access.now());
    let default = App::default();
    let mut apps: Vec<&App> = document.apps.keys().filter(|app| **app != default).collect();
    apps.insert(0, &default);
    Ok(ok(&AppsAnswer { apps: apps.into_iter().map(|app| app_answer(&document, app, now)).collect() }))
}

/// Create an app.
///
/// An app is a namespace: the same key in two apps is two locks. If the app exists, it is enabled.
#[utoipa::path(
    post, path = "/v1/admin/apps", tag = "admin", operation_id = "createApp",
    request_body(content = AppRequest, example = json!({"app": "billing"})),
    responses(
        (status = 200, description = "The app is there.", body = AppAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`access-full`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn create_app(
    State(access): State<Access>,
    Extension(caller): By,
    audited: Audited,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    let body = body::read(body, BODY_BYTES_MAX, BODY_TIMEOUT).await?;
    let AppRequest { app } = body::parse(&body)?;
    let app = parse_app(&app)?;
    audited.resource(app.as_str());
    access.change(&caller, |document, now| document.create_app(&app, now)).await.map_err(unchanged)?;
    Ok(ok(&app_answer(&access.document(), &app, access.now())))
}

/// Disable an app.
///
/// Its API keys are refused until it is created again. Its locks and operations stay.
#[utoipa::path(
    post, path = "/v1/admin/apps/{app}/disable", tag = "admin", operation_id = "disableApp",
    params(("app" = String, Path, description = "The app's name", example = "billing")),
    responses(
        (status = 200, description = "The app is disabled.", body = AppAnswer),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn disable_app(
    State(access): State<Access>,
    Extension(caller): By,
    Path(app): Path<String>,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    body::none(body, BODY_TIMEOUT).await?;
    let app = parse_app(&app)?;
    access.change(&caller, |document, now| document.disable_app(&app, now)).await.map_err(unchanged)?;
    Ok(ok(&app_answer(&access.document(), &app, access.now())))
}

/// Set after what time a lock of the app that is held is a notice.
///
/// A lease that is granted from now on makes the event `held_too_long` when it has been held for that long, however often it was
/// renewed. The lease goes on.
#[utoipa::path(
    put, path = "/v1/admin/apps/{app}/warn-after", tag = "admin", operation_id = "setWarnAfter",
    params(("app" = String, Path, description = "The app's name", example = "billing")),
    request_body(content = WarnAfterRequest, example = json!({"warn_after_ms": 600_000})),
    responses(
        (status = 200, description = "All nodes know it within two seconds.", body = AppAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn set_warn_after(
    State(access): State<Access>,
    Extension(caller): By,
    audited: Audited,
    Path(app): Path<String>,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    let app = parse_app(&app)?;
    let body = body::read(body, BODY_BYTES_MAX, BODY_TIMEOUT).await?;
    let WarnAfterRequest { warn_after_ms } = body::parse(&body)?;
    if warn_after_ms.is_some_and(|ms| ms == 0 || ms > MS_MAX) {
        return Err(Problem::field("warn_after_ms", format!("must be null, or from 1 to {MS_MAX}")));
    }
    audited
        .detail(|| warn_after_ms.map_or_else(|| "warn_after_ms: never".to_owned(), |ms| format!("warn_after_ms {ms}")));
    let set = access.change(&caller, |document, now| document.set_warn_after(&app, warn_after_ms, now)).await;
    set.map_err(unchanged)?;
    Ok(ok(&app_answer(&access.document(), &app, access.now())))
}

/// Change the quotas of an app.
///
/// Each node enforces them for itself: an app may use as much of every node. Quotas that the request does not name stay. The change
/// counts at this node at once, and at all others within two seconds.
#[utoipa::path(
    post, path = "/v1/admin/apps/{app}/quotas", tag = "admin", operation_id = "setQuotas",
    params(("app" = String, Path, description = "The app's name", example = "billing")),
    request_body(content = Option<QuotasRequest>, example = json!({"requests_per_second": 200, "leases": 1_000})),
    responses(
        (status = 200, description = "The quotas are changed.", body = AppAnswer),
        (status = 400, description = "`invalid-request`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`unknown-app`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`store-unavailable`, `outcome-unknown`", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub async fn set_quotas(
    State(access): State<Access>,
    Extension(caller): By,
    audited: Audited,
    Path(app): Path<String>,
    _: NoQuery,
    body: Body,
) -> Result<Response, Problem> {
    let body = body::read(body, BODY_BYTES_MAX, BODY_TIMEOUT).await?;
    let request: QuotasRequest = body::parse(&body)?;
    let (app, limits) = (parse_app(&app)?, request.parse()?);
    audited.detail(|| {
        let shown = |(quota, limit): &(Quota, Option<u32>)| {
            format!("{}: {}", quota.as_str(), limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string()))
        };
        limits.iter().map(shown).collect::<Vec<_>>().join(", ")
    });
    access.change(&caller, |document, now| document.set_quotas(&app, &limits, now)).await.map_err(unchanged)?;
    Ok(ok(&app_answer(&access.document(), &app, access.now())))
}

pub(super) fn parse_app(text: &str) -> Result<App, Problem> {
    App::parse(text).map_err(|error| Problem::field("app", error))
}

fn app_answer(document: &Document, app: &App, now: Timestamp) -> AppAnswer {
    let entry = document.apps.get(app);
    let is_accepted = |key: &&KeyEntry| key.permissions.app == *app && document.state_of(key, now).is_ok();
    AppAnswer {
        app: app.as_str().to_owned(),
        disabled: entry.is_some_and(|entry| entry.is_disabled),
        warn_after_ms: entry.and_then(|entry| entry.warn_after_ms),
        created_at: entry.filter(|_| *app != App::default()).map(|entry| rfc3339(entry.created_at)),
        api_keys: document.keys.values().filter(is_accepted).count(),
        quotas: entry.map_or_else(Quotas::default, |entry| entry.quotas).into(),
    }
}

pub(super) fn unchanged(failure: ChangeFailure) -> Problem {
    match failure {
        ChangeFailure::Refused(refused) => refused_change(refused),
        ChangeFailure::Store(StoreError::OutcomeUnknown(reason)) => {
            tracing::warn!(reason, "it is not known whether the apps and API keys were changed");
            Problem::new(
                Code::OutcomeUnknown,
                "The node does not know whether the store committed: GET /v1/admin/keys and /v1/admin/apps show it.",
            )
            .retry_after_ms(1_000)
        }
        ChangeFailure::Store(error) => {
            tracing::warn!(%error, "the apps and API keys were not changed");
            Problem::of_failure(&Failure::StoreUnavailable(error.to_string()))
        }
    }
}

pub(super) fn refused_change(refused: ChangeRefused) -> Problem {
    let code = match refused {
        ChangeRefused::NotPermitted => Code::Unauthorized,
        ChangeRefused::UnknownApp => Code::UnknownApp,
        ChangeRefused::UnknownKey => Code::UnknownApiKey,
        ChangeRefused::TooManyApps | ChangeRefused::TooManyKeys => Code::AccessFull,
    };
    Problem::new(code, refused.to_string())
}
