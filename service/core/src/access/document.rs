//! The document of apps and API keys: few, read with every request, and changed as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::api_key::id_of;
use super::{ApiKey, KeyDigest, KeyId, Permissions, Quota, Quotas};
use crate::{App, Timestamp};

pub const APPS_MAX: usize = 1_000;
/// Most API keys, including those that have ended and are still listed.
pub const KEYS_MAX: usize = 5_000;
/// Most prefixes of one API key.
pub const PREFIXES_MAX: usize = 16;
/// Longest prefix of an API key, in bytes.
pub const PREFIX_MAX_BYTES: usize = 128;
/// How long an API key that was revoked or has expired is still listed, in ms. If there are too many, the one that ended first goes before.
const ENDED_LISTED_MS: u64 = 30 * 24 * 3_600_000;
const HOUR_MS: u64 = 3_600_000;
/// How long after its revocation, in ms, a request with an API key may still take effect: the other nodes learn of it within 2 s, and a
/// commit that is under way then may take one more.
const REVOKED_WITHIN_MS: u64 = 3_000;

/// All apps and API keys of a service. The app `default` exists without an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// An API key has been made: from then on every request needs one, even if all are revoked.
    #[serde(default)]
    pub needs_key: bool,
    #[serde(default)]
    pub apps: BTreeMap<App, AppEntry>,
    #[serde(default)]
    pub keys: BTreeMap<KeyId, KeyEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppEntry {
    pub created_at: Timestamp,
    /// Its API keys are refused.
    #[serde(default)]
    pub is_disabled: bool,
    /// A lock that is held for longer is a notice, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Quotas::are_none")]
    pub quotas: Quotas,
}

/// What is `None` or not named stays as it is.
#[derive(Clone, Debug, Default)]
pub struct AppChange {
    /// Whether its API keys are refused.
    pub is_disabled: Option<bool>,
    /// After what time, in ms, a lock that is held is a notice; never if `Some(None)`.
    pub warn_after_ms: Option<Option<u64>>,
    /// Each gets this limit, or none.
    pub quotas: Vec<(Quota, Option<u32>)>,
}

impl AppEntry {
    fn new(created_at: Timestamp) -> Self {
        Self { created_at, is_disabled: false, warn_after_ms: None, quotas: Quotas::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEntry {
    #[serde(flatten)]
    pub permissions: Permissions,
    pub sha256: KeyDigest,
    #[serde(default)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The API key of the operator who created it; absent if that operator needed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<KeyId>,
    /// Rounded down to the hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Timestamp>,
}

impl KeyEntry {
    /// When it was revoked or expired; `None` if it has not ended by `now`.
    fn ended_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.revoked_at.into_iter().chain(self.expires_at).min().filter(|at| *at <= now)
    }
}

/// Why an API key is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Also for a known id with a wrong secret.
    #[error("This is not an API key of this service.")]
    Unknown,
    #[error("This API key has been revoked.")]
    Revoked,
    #[error("This API key has expired.")]
    Expired,
    #[error("The app of this API key is disabled.")]
    AppDisabled,
}

/// Why the document is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    #[error("The caller has no permission any more.")]
    NotPermitted,
    #[error("There is no app of this name.")]
    UnknownApp,
    #[error("There is no API key with this id.")]
    UnknownKey,
    #[error("The app has API keys: revoke them first.")]
    AppHasKeys,
    #[error(
        "An API key of the app was revoked less than 3 s ago, and a request with it may still be under way: repeat this."
    )]
    AppKeysJustRevoked,
    #[error("There are already {APPS_MAX} apps.")]
    TooManyApps,
    #[error("There are already {KEYS_MAX} API keys that have not ended: revoke some.")]
    TooManyKeys,
}

/// An API key that is to be entered.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub permissions: Permissions,
    pub expires_at: Option<Timestamp>,
    pub name: Option<String>,
    pub created_by: Option<KeyId>,
}

impl Document {
    /// Looks a presented API key up.
    ///
    /// # Errors
    /// Says why it is not accepted. More than [`Refusal::Unknown`] is said only to a caller that has the secret.
    pub fn check(&self, presented: &str, now: Timestamp) -> Result<KeyId, Refusal> {
        let id = id_of(presented).ok_or(Refusal::Unknown)?;
        let entry = self.keys.get(&id).ok_or(Refusal::Unknown)?;
        if !KeyDigest::of(presented).is_equal(entry.sha256) {
            return Err(Refusal::Unknown);
        }
        self.state_of(entry, now).map(|()| id)
    }

    /// Whether the entry permits anything at `now`.
    ///
    /// # Errors
    /// Says why not.
    pub fn state_of(&self, entry: &KeyEntry, now: Timestamp) -> Result<(), Refusal> {
        if entry.revoked_at.is_some() {
            return Err(Refusal::Revoked);
        }
        if entry.expires_at.is_some_and(|expires_at| expires_at <= now) {
            return Err(Refusal::Expired);
        }
        if self.apps.get(&entry.permissions.app).is_some_and(|app| app.is_disabled) {
            return Err(Refusal::AppDisabled);
        }
        Ok(())
    }

    /// Whether the app is there, or an API key of the configuration names it.
    pub fn knows_app(&self, app: &App) -> bool {
        self.has_app(app) || self.keys.values().any(|entry| entry.permissions.app == *app)
    }

    pub fn has_app(&self, app: &App) -> bool {
        *app == App::default() || self.apps.contains_key(app)
    }

    /// Creates an app, or enables it again. Returns whether there was none of this name.
    ///
    /// # Errors
    /// [`ChangeRefused::TooManyApps`].
    pub fn create_app(&mut self, app: &App, now: Timestamp) -> Result<bool, ChangeRefused> {
        let is_new = !self.has_app(app);
        if is_new && self.apps.len() >= APPS_MAX {
            return Err(ChangeRefused::TooManyApps);
        }
        self.apps.entry(app.clone()).or_insert_with(|| AppEntry::new(now)).is_disabled = false;
        Ok(is_new)
    }

    /// Changes what a request names of an app.
    ///
    /// # Errors
    /// [`ChangeRefused::UnknownApp`].
    pub fn change_app(&mut self, app: &App, change: &AppChange, now: Timestamp) -> Result<(), ChangeRefused> {
        if !self.has_app(app) {
            return Err(ChangeRefused::UnknownApp);
        }
        let entry = self.apps.entry(app.clone()).or_insert_with(|| AppEntry::new(now));
        entry.is_disabled = change.is_disabled.unwrap_or(entry.is_disabled);
        entry.warn_after_ms = change.warn_after_ms.unwrap_or(entry.warn_after_ms);
        change.quotas.iter().for_each(|(quota, limit)| entry.quotas.set(*quota, *limit));
        Ok(())
    }

    /// Whether no request of the app's own can change anything any more.
    ///
    /// # Errors
    /// [`ChangeRefused::AppHasKeys`], [`ChangeRefused::AppKeysJustRevoked`].
    pub fn check_at_rest(&self, app: &App, now: Timestamp) -> Result<(), ChangeRefused> {
        let keys = || self.keys.values().filter(|entry| entry.permissions.app == *app);
        if keys().any(|entry| entry.revoked_at.is_none()) {
            return Err(ChangeRefused::AppHasKeys);
        }
        if keys().any(|entry| entry.revoked_at.is_some_and(|at| now.ms_since(at) < REVOKED_WITHIN_MS)) {
            return Err(ChangeRefused::AppKeysJustRevoked);
        }
        Ok(())
    }

    /// Removes an app without API keys; revoked ones go with it.
    ///
    /// # Errors
    /// [`ChangeRefused::UnknownApp`], and those of [`check_at_rest`](Self::check_at_rest).
    pub fn delete_app(&mut self, app: &App, now: Timestamp) -> Result<(), ChangeRefused> {
        self.check_at_rest(app, now)?;
        self.apps.remove(app).ok_or(ChangeRefused::UnknownApp)?;
        self.keys.retain(|_, entry| entry.permissions.app != *app);
        Ok(())
    }

    /// Enters an API key.
    ///
    /// # Errors
    /// [`ChangeRefused::UnknownApp`], [`ChangeRefused::TooManyKeys`].
    pub fn create_key(&mut self, key: &ApiKey, new: NewKey, now: Timestamp) -> Result<(), ChangeRefused> {
        if !self.has_app(&new.permissions.app) {
            return Err(ChangeRefused::UnknownApp);
        }
        self.keys.retain(|_, entry| entry.ended_at(now).is_none_or(|at| now.ms_since(at) < ENDED_LISTED_MS));
        if self.keys.len() >= KEYS_MAX {
            let ended = self.keys.iter().filter_map(|(id, entry)| Some((entry.ended_at(now)?, *id)));
            let settled = ended.filter(|(at, _)| now.ms_since(*at) >= REVOKED_WITHIN_MS);
            let (_, first) = settled.min().ok_or(ChangeRefused::TooManyKeys)?;
            self.keys.remove(&first);
        }
        self.needs_key = true;
        let NewKey { permissions, expires_at, name, created_by } = new;
        let entry = KeyEntry {
            permissions,
            sha256: key.digest(),
            created_at: now,
            expires_at,
            revoked_at: None,
            name,
            created_by,
            used_at: None,
        };
        self.keys.insert(key.id(), entry);
        Ok(())
    }

    /// Returns `false` if the API key had been revoked already.
    ///
    /// # Errors
    /// [`ChangeRefused::UnknownKey`].
    pub fn revoke(&mut self, id: KeyId, now: Timestamp) -> Result<bool, ChangeRefused> {
        let entry = self.keys.get_mut(&id).ok_or(ChangeRefused::UnknownKey)?;
        let is_first = entry.revoked_at.is_none();
        entry.revoked_at.get_or_insert(now);
        Ok(is_first)
    }

    /// Whether a use at `now` is later, by the hour, than the last one that is entered.
    pub fn is_used_later(&self, id: KeyId, now: Timestamp) -> bool {
        self.keys.get(&id).is_some_and(|entry| entry.used_at < Some(hour_of(now)))
    }

    /// Enters the hour of a use.
    pub fn enter_use(&mut self, id: KeyId, at: Timestamp) {
        if let Some(entry) = self.keys.get_mut(&id) {
            entry.used_at = entry.used_at.max(Some(hour_of(at)));
        }
    }
}

fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp::from_ms(at.as_ms() / HOUR_MS * HOUR_MS)
}
