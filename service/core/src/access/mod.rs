//! Who may do what: apps, their API keys, and what an API key permits.

mod api_key;
mod document;
mod permissions;
mod quotas;
#[cfg(test)]
mod tests;

pub use self::api_key::{ApiKey, InvalidApiKey, KeyDigest, KeyId, has_api_key};
pub use self::document::{
    APPS_MAX, AppChange, AppEntry, ChangeRefused, Document, KEYS_MAX, KeyEntry, NewKey, PREFIX_MAX_BYTES, PREFIXES_MAX,
    Refusal,
};
pub use self::permissions::{Permissions, Scope, Scopes, UnknownScope};
pub use self::quotas::{QUOTA_MAX, Quota, Quotas};
