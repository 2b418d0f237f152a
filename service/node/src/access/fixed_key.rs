//! The API key of the configuration: that of the first operator.

use anyhow::Context as _;
use latchgate_core::access::{ApiKey, Document, KeyEntry, Permissions};
use latchgate_core::{App, Timestamp};

#[derive(Debug, Default)]
pub struct FixedKey(Option<ApiKey>);

impl FixedKey {
    /// An empty text is none: Compose passes a variable that is not set as an empty one.
    ///
    /// # Errors
    /// When the text is not an API key.
    pub fn new(admin: Option<&str>) -> anyhow::Result<Self> {
        // The text is not repeated: it is a secret.
        admin
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(str::parse)
            .transpose()
            .context("LATCHGATE_ADMIN_API_KEY")
            .map(Self)
    }

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The store's document with the fixed API key, unless that was revoked there.
    pub(super) fn added_to(&self, stored: &Document) -> Document {
        let mut document = stored.clone();
        let Some(key) = &self.0 else { return document };
        document.needs_key = true;
        if document.keys.get(&key.id()).is_none_or(|stored| stored.revoked_at.is_none()) {
            let entry = KeyEntry {
                permissions: Permissions::all(App::default()),
                sha256: key.digest(),
                created_at: Timestamp::default(),
                expires_at: None,
                revoked_at: None,
                name: None,
                created_by: None,
                used_at: None,
            };
            document.keys.insert(key.id(), entry);
        }
        document
    }
}

#[cfg(test)]
mod tests {
    use super::FixedKey;

    #[test]
    fn an_empty_variable_is_no_api_key_and_a_wrong_one_is_not_repeated() {
        for empty in [None, Some(""), Some(" \n")] {
            assert!(FixedKey::new(empty).unwrap().is_none());
        }
        let wrong = FixedKey::new(Some("lgk_0123456789ab")).unwrap_err();
        assert!(!format!("{wrong:?}").contains("0123456789ab"));
    }
}
