//! Apps and API keys as operators see them, over HTTP and in a command that opens the store itself.

use latchgate_core::access::{ApiKey, Document, KeyEntry, KeyId, Quotas, Refusal, Scope};
use latchgate_core::{App, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::format::{DateTime, answers, rfc3339};

answers! {
    /// An app.
    pub struct AppAnswer {
        app: String,
        /// Its API keys are refused.
        disabled: bool,
        /// Absent for the app `default`, which is always there.
        created_at?: Option<DateTime>,
        /// After what time, in ms, a lock that is held is a notice; absent: never.
        warn_after_ms?: Option<u64>,
        /// How many API keys of it are accepted.
        api_keys: usize,
        quotas: QuotasAnswer,
    }

    /// How much the app may use of each node; null is no limit.
    pub struct QuotasAnswer {
        #[schema(required)]
        requests_per_second: Option<u32>,
        #[schema(required)]
        waiters: Option<u32>,
        #[schema(required)]
        event_streams: Option<u32>,
    }

    /// The app is deleted.
    pub struct DeletedAppAnswer {
        #[schema(example = "billing")]
        pub app: String,
    }

    /// All apps.
    pub struct AppsAnswer {
        apps: Vec<AppAnswer>,
    }

    /// The new API key. Keep the `api_key`: it is not shown again.
    #[schema(as = NewApiKeyAnswer)]
    pub struct NewKeyAnswer {
        /// It is not shown again.
        api_key: String,
        #[serde(flatten)]
        shown: KeyAnswer,
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApiKeyState {
    Active,
    Revoked,
    Expired,
    AppDisabled,
}

answers! {
    #[schema(as = ApiKeyAnswer)]
    pub struct KeyAnswer {
        /// The part of the API key that is not secret.
        id: String,
        app: String,
        scopes: Vec<Scope>,
        /// Only locks whose keys begin with one of these; all if empty.
        prefixes: Vec<String>,
        /// `active`, `revoked`, `expired`, or `app_disabled`.
        state: ApiKeyState,
        /// What it is for, as the operator who created it said.
        #[schema(example = "billing workers")]
        name?: Option<String>,
        /// The id of the API key of the operator who created it; absent if that operator needed none.
        #[schema(example = "0123456789ab")]
        created_by?: Option<String>,
        /// Absent for an API key of the node's configuration.
        created_at?: Option<DateTime>,
        /// Absent if it does not expire.
        expires_at?: Option<DateTime>,
        revoked_at?: Option<DateTime>,
        /// The beginning of the hour in which it was last used; entered with a delay of some minutes. Absent: never.
        used_at?: Option<DateTime>,
    }

    /// The API keys of the store, and that of this node's configuration.
    #[schema(as = ApiKeysAnswer)]
    pub struct KeysAnswer {
        api_keys: Vec<KeyAnswer>,
    }

    /// The API key is revoked.
    #[schema(as = RevokedApiKeyAnswer)]
    pub struct RevokedAnswer {
        pub id: String,
        /// It had been revoked before.
        pub already?: bool,
    }
}

impl From<Quotas> for QuotasAnswer {
    fn from(quotas: Quotas) -> Self {
        let Quotas { requests_per_second, waiters, event_streams } = quotas;
        Self { requests_per_second, waiters, event_streams }
    }
}

impl AppsAnswer {
    pub fn of(document: &Document, now: Timestamp) -> Self {
        let default = App::default();
        let mut apps: Vec<&App> = document.apps.keys().filter(|app| **app != default).collect();
        apps.insert(0, &default);
        Self { apps: apps.into_iter().map(|app| AppAnswer::of(document, app, now)).collect() }
    }
}

impl AppAnswer {
    pub fn of(document: &Document, app: &App, now: Timestamp) -> Self {
        let entry = document.apps.get(app);
        let is_accepted = |key: &&KeyEntry| key.permissions.app == *app && document.state_of(key, now).is_ok();
        Self {
            app: app.as_str().to_owned(),
            disabled: entry.is_some_and(|entry| entry.is_disabled),
            warn_after_ms: entry.and_then(|entry| entry.warn_after_ms),
            created_at: entry.filter(|_| *app != App::default()).map(|entry| rfc3339(entry.created_at)),
            api_keys: document.keys.values().filter(is_accepted).count(),
            quotas: entry.map_or_else(Quotas::default, |entry| entry.quotas).into(),
        }
    }
}

impl KeysAnswer {
    /// Those of one app, or all.
    pub fn of(document: &Document, app: Option<&App>, now: Timestamp) -> Self {
        let is_wanted = |entry: &KeyEntry| app.is_none_or(|app| entry.permissions.app == *app);
        let keys = document.keys.iter().filter(|(_, entry)| is_wanted(entry));
        Self { api_keys: keys.map(|(id, entry)| KeyAnswer::of(document, *id, entry, now)).collect() }
    }
}

impl NewKeyAnswer {
    /// `None` if the document does not have it.
    pub fn of(document: &Document, key: &ApiKey, now: Timestamp) -> Option<Self> {
        let shown = KeyAnswer::of(document, key.id(), document.keys.get(&key.id())?, now);
        Some(Self { api_key: key.as_str().to_owned(), shown })
    }
}

impl KeyAnswer {
    fn of(document: &Document, id: KeyId, entry: &KeyEntry, now: Timestamp) -> Self {
        Self {
            id: id.to_string(),
            app: entry.permissions.app.as_str().to_owned(),
            scopes: entry.permissions.scopes.iter().collect(),
            prefixes: entry.permissions.prefixes.clone(),
            state: match document.state_of(entry, now) {
                Ok(()) | Err(Refusal::Unknown) => ApiKeyState::Active,
                Err(Refusal::Revoked) => ApiKeyState::Revoked,
                Err(Refusal::Expired) => ApiKeyState::Expired,
                Err(Refusal::AppDisabled) => ApiKeyState::AppDisabled,
            },
            name: entry.name.clone(),
            created_by: entry.created_by.map(|id| id.to_string()),
            created_at: Some(entry.created_at).filter(|at| *at != Timestamp::default()).map(rfc3339),
            expires_at: entry.expires_at.map(rfc3339),
            revoked_at: entry.revoked_at.map(rfc3339),
            used_at: entry.used_at.map(rfc3339),
        }
    }
}
