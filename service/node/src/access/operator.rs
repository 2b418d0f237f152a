//! What operators do with apps and API keys. The HTTP API and the commands that open the store themselves call it.

use std::fmt::Display;
use std::sync::Arc;

use latchgate_core::access::{
    ApiKey, AppChange, ChangeRefused, Document, KeyId, NewKey, PREFIX_MAX_BYTES, PREFIXES_MAX, Permissions, QUOTA_MAX,
    Quota, Scope, has_api_key,
};
use latchgate_core::key::{ALL_APPS, InvalidName, check_name};
use latchgate_core::{App, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::json::{AppAnswer, AppsAnswer, KeysAnswer, NewKeyAnswer, RevokedAnswer};
use super::{Access, Caller, ChangeFailure};
use crate::audit::Entry;
use crate::format::{lasting, requests};

/// Longest life of an API key that expires, and longest time before a notice, in ms.
const MS_MAX: u64 = 10 * 365 * 24 * 3_600_000;

/// Most names of scopes in a request: a name may come again.
const SCOPES_MAX: usize = 16;

/// Longest name of an API key.
const NAME_MAX_BYTES: usize = 64;

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderRefused {
    #[error("{field} {rule}")]
    Invalid { field: String, rule: String },
    #[error(transparent)]
    Change(#[from] ChangeFailure),
}

impl OrderRefused {
    fn invalid(field: impl Into<String>, rule: impl Display) -> Self {
        Self::Invalid { field: field.into(), rule: rule.to_string() }
    }
}

requests! {
    /// A field that is absent changes nothing.
    #[schema(example = json!({"quotas": {"requests_per_second": 200, "waiters": 500}, "warn_after_ms": 600_000}))]
    pub struct AppChangeRequest {
        /// Whether its API keys are refused. Its locks and operations stay.
        disabled: Option<bool>,
        /// After what time, in ms, a held lock of the app makes the event `held_too_long`, however often it was renewed; null: never. It
        /// counts for leases that are granted from now on.
        #[serde(default, deserialize_with = "some")]
        #[schema(value_type = Option<u64>, example = 600_000, minimum = 1, maximum = 315_360_000_000_u64)]
        warn_after_ms: Option<Option<u64>>,
        /// How much the app may use of each node. Each node enforces them for itself.
        #[serde(default, deserialize_with = "crate::objects::object")]
        quotas: Option<QuotasRequest>,
    }

    #[schema(as = ApiKeyRequest, example = json!({"scopes": ["read", "locks", "operations", "admin"]}))]
    pub struct KeyRequest {
        /// The app that the API key belongs to; `default` if absent.
        #[schema(example = "billing", min_length = 1, max_length = 64)]
        app: Option<String>,
        /// At least one. No scope includes another one.
        #[schema(value_type = Vec<Scope>, min_items = 1, max_items = 16)]
        scopes: Vec<Scope>,
        /// Only locks whose keys begin with one of these; all locks of the app if absent. At most 16.
        #[schema(max_items = 16)]
        prefixes: Option<Vec<String>>,
        /// What it is for, as operators see it. 1 to 64 bytes without control characters.
        #[schema(example = "billing workers", min_length = 1, max_length = 64)]
        name: Option<String>,
        /// When the API key expires, in ms from now; never if absent.
        #[schema(minimum = 1, maximum = 315_360_000_000_u64)]
        expires_in_ms: Option<u64>,
    }
}

/// By its own name: clap takes an `Option` in an `Option` for a flag whose value may be left out.
type Limit = Option<u32>;

/// # Errors
/// When the text is neither a number nor `none`.
pub fn number_or_none(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(None),
        number => number.parse().map(Some).map_err(|_| "must be a number or none".to_owned()),
    }
}

/// A field that is absent changes nothing; null is no limit.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema, clap::Args)]
#[serde(deny_unknown_fields)]
pub struct QuotasRequest {
    /// Requests in a second; as many may come at once after a pause. Renewals, releases, posts and heartbeats are refused only beyond
    /// ten times as many. 1 to 1 000 000.
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, example = 200, minimum = 1, maximum = 1_000_000)]
    requests_per_second: Option<Limit>,
    /// Requests that wait at once. 0 to 1 000 000.
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, example = 500, maximum = 1_000_000)]
    waiters: Option<Limit>,
    /// Open streams of events. 0 to 1 000 000.
    #[arg(long, value_name = "N|none", value_parser = number_or_none)]
    #[serde(default, deserialize_with = "some", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, example = 20, maximum = 1_000_000)]
    event_streams: Option<Limit>,
}

/// A field that is there, even if it is null.
fn some<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(field).map(Some)
}

/// An operator and the audit record of its order.
#[derive(Clone, Copy)]
pub struct Order<'a> {
    pub access: &'a Access,
    pub by: &'a Arc<Caller>,
    pub record: &'a Entry,
}

impl Access {
    pub fn apps(&self) -> AppsAnswer {
        AppsAnswer::of(&self.document(), self.now())
    }

    /// # Errors
    /// When `app` is no name of one.
    pub fn api_keys(&self, app: Option<&str>) -> Result<KeysAnswer, OrderRefused> {
        let app = app.map(parse_app).transpose()?;
        Ok(KeysAnswer::of(&self.document(), app.as_ref(), self.now()))
    }
}

impl Order<'_> {
    /// If the app exists, it is enabled. Returns whether it is new.
    ///
    /// # Errors
    /// Says why the app is not there.
    pub async fn create_app(self, app: &str) -> Result<(AppAnswer, bool), OrderRefused> {
        let app = parse_app(app)?;
        if app.as_str() == ALL_APPS {
            return Err(OrderRefused::invalid("app", InvalidName::AllApps));
        }
        self.record.resource(app.as_str());
        let is_new = self.access.change(self.by, |document, now| document.create_app(&app, now)).await?;
        Ok((self.shown(&app), is_new))
    }

    /// # Errors
    /// Says why the app is as before.
    pub async fn change_app(self, app: &str, request: AppChangeRequest) -> Result<AppAnswer, OrderRefused> {
        let (app, change) = (parse_app(app)?, request.parse()?);
        self.record.detail(shown_change(&change));
        self.access.change(self.by, |document, now| document.change_app(&app, &change, now)).await?;
        Ok(self.shown(&app))
    }

    /// Only for an app without locks and operations, which the caller has looked for since `at_rest`.
    ///
    /// # Errors
    /// Says why the app is still there.
    pub async fn delete_app(self, app: &App, at_rest: Timestamp) -> Result<(), OrderRefused> {
        Ok(self.access.change(self.by, |document, _| document.delete_app(app, at_rest)).await?)
    }

    /// Whether no request with an API key of the app can change anything any more, also with one of the configuration, which cannot be
    /// revoked. Returns since when, at the latest.
    ///
    /// # Errors
    /// Says why the app may still change.
    pub fn check_at_rest(self, app: &App) -> Result<Timestamp, OrderRefused> {
        let now = self.access.now();
        self.access.document().check_at_rest(app, now).map_err(ChangeFailure::Refused)?;
        Ok(now)
    }

    /// # Errors
    /// Says why there is no new API key.
    pub async fn create_key(self, request: KeyRequest) -> Result<NewKeyAnswer, OrderRefused> {
        let name = request.name.clone();
        let (permissions, expires_in_ms) = request.parse()?;
        if !self.access.needs_key() && !permissions.is_operator() {
            let rule = "must have admin, and app must be default: with the first API key every request needs one, and no \
                        other could be made";
            return Err(OrderRefused::invalid("scopes", rule));
        }
        let key = ApiKey::of_random(rand::random(), rand::random());
        self.record.resource(key.id().to_string());
        self.record.detail(shown_key(&permissions, expires_in_ms));
        let create = |document: &mut Document, now: Timestamp| {
            let expires_at = expires_in_ms.map(|ms| now.plus_ms(ms));
            let (permissions, name, created_by) = (permissions.clone(), name.clone(), self.by.key_id);
            document.create_key(&key, NewKey { permissions, expires_at, name, created_by }, now)
        };
        self.access.change(self.by, create).await?;
        let made = NewKeyAnswer::of(&self.access.document(), &key, self.access.now());
        Ok(made.ok_or(ChangeFailure::Refused(ChangeRefused::UnknownKey))?)
    }

    /// # Errors
    /// Says why the API key is not revoked.
    pub async fn revoke_key(self, id: &str) -> Result<RevokedAnswer, OrderRefused> {
        let id: KeyId = id.parse().map_err(|_| ChangeFailure::Refused(ChangeRefused::UnknownKey))?;
        let is_first = self.access.change(self.by, |document, now| document.revoke(id, now)).await?;
        Ok(RevokedAnswer { id: id.to_string(), already: !is_first })
    }

    fn shown(self, app: &App) -> AppAnswer {
        AppAnswer::of(&self.access.document(), app, self.access.now())
    }
}

impl AppChangeRequest {
    fn parse(self) -> Result<AppChange, OrderRefused> {
        if self.warn_after_ms.flatten().is_some_and(|ms| ms == 0 || ms > MS_MAX) {
            return Err(OrderRefused::invalid(
                "warn_after_ms",
                format!("must be null, or from 1 to {MS_MAX} ({})", lasting(MS_MAX)),
            ));
        }
        let quotas = self.quotas.unwrap_or_default().parse()?;
        Ok(AppChange { is_disabled: self.disabled, warn_after_ms: self.warn_after_ms, quotas })
    }
}

impl QuotasRequest {
    fn parse(self) -> Result<Vec<(Quota, Option<u32>)>, OrderRefused> {
        let mut limits = Vec::new();
        for quota in Quota::ALL {
            let limit = match quota {
                Quota::RequestsPerSecond => self.requests_per_second,
                Quota::Waiters => self.waiters,
                Quota::EventStreams => self.event_streams,
            };
            let Some(limit) = limit else { continue };
            // A rate of 0 would be a disabled app.
            let min = u32::from(quota == Quota::RequestsPerSecond);
            if limit.is_some_and(|limit| !(min..=QUOTA_MAX).contains(&limit)) {
                let rule = format!("must be from {min} to {QUOTA_MAX}, or null");
                return Err(OrderRefused::invalid(format!("quotas.{}", quota.as_str()), rule));
            }
            limits.push((quota, limit));
        }
        Ok(limits)
    }
}

impl KeyRequest {
    fn parse(self) -> Result<(Permissions, Option<u64>), OrderRefused> {
        let app = self.app.as_deref().map_or_else(|| Ok(App::default()), parse_app)?;
        if !(1..=SCOPES_MAX).contains(&self.scopes.len()) {
            let rule = format!("must name one or more of read, locks, operations, admin; {SCOPES_MAX} names at most");
            return Err(OrderRefused::invalid("scopes", rule));
        }
        let prefixes = self.prefixes.unwrap_or_default();
        if prefixes.len() > PREFIXES_MAX {
            return Err(OrderRefused::invalid("prefixes", format!("must be at most {PREFIXES_MAX}")));
        }
        for prefix in &prefixes {
            check_name(prefix, PREFIX_MAX_BYTES).map_err(|error| OrderRefused::invalid("prefixes", error))?;
            check_no_api_key("prefixes", prefix)?;
        }
        if let Some(name) = &self.name {
            check_name(name, NAME_MAX_BYTES).map_err(|error| OrderRefused::invalid("name", error))?;
            check_no_api_key("name", name)?;
        }
        if self.expires_in_ms.is_some_and(|ms| ms == 0 || ms > MS_MAX) {
            return Err(OrderRefused::invalid(
                "expires_in_ms",
                format!("must be from 1 to {MS_MAX} ({})", lasting(MS_MAX)),
            ));
        }
        Ok((Permissions { app, scopes: self.scopes.into(), prefixes }, self.expires_in_ms))
    }
}

/// A change as the detail of an audit record.
fn shown_change(change: &AppChange) -> String {
    let or_none = |limit: Option<String>| limit.unwrap_or_else(|| "none".to_owned());
    let disabled = change.is_disabled.map(|is_disabled| format!("disabled: {is_disabled}"));
    let warn_after = change.warn_after_ms.map(|ms| format!("warn_after: {}", or_none(ms.map(lasting))));
    let quotas = change
        .quotas
        .iter()
        .map(|(quota, limit)| format!("{}: {}", quota.as_str(), or_none(limit.map(|limit| limit.to_string()))));
    disabled.into_iter().chain(warn_after).chain(quotas).collect::<Vec<_>>().join(", ")
}

/// An API key as the detail of an audit record.
fn shown_key(permissions: &Permissions, expires_in_ms: Option<u64>) -> String {
    let scopes: Vec<&str> = permissions.scopes.iter().map(Scope::as_str).collect();
    let expires = expires_in_ms.map(|ms| format!(", expires in {}", lasting(ms))).unwrap_or_default();
    let prefixes = if permissions.prefixes.is_empty() { "all".to_owned() } else { permissions.prefixes.join(" ") };
    format!("app: {}, scopes: {}, prefixes: {prefixes}{expires}", permissions.app.as_str(), scopes.join(","))
}

/// Of what lists and the log show.
fn check_no_api_key(field: &str, text: &str) -> Result<(), OrderRefused> {
    if has_api_key(text) { Err(OrderRefused::invalid(field, "must not contain an API key")) } else { Ok(()) }
}

fn parse_app(text: &str) -> Result<App, OrderRefused> {
    check_no_api_key("app", text)?;
    App::parse(text).map_err(|error| OrderRefused::invalid("app", error))
}
