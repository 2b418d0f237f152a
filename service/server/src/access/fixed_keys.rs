//! API keys of the configuration: the first admin's, and those of a file, for set-ups that keep secrets elsewhere.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow, ensure};
use latchgate_core::access::{ApiKey, Document, KeyEntry, Permissions, Scopes};
use latchgate_core::{App, Timestamp};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::files;

#[derive(Debug, Default)]
pub struct FixedKeys {
    admin: Option<ApiKey>,
    file: Option<PathBuf>,
    /// The file as it was read last, and the entries of all fixed API keys.
    read: Mutex<(Option<String>, Document)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    keys: Vec<FileKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKey {
    key: String,
    app: String,
    scopes: Scopes,
    #[serde(default)]
    prefixes: Vec<String>,
}

impl FixedKeys {
    /// `admin` is an operator. The file is read later, and again when it changes.
    ///
    /// # Errors
    /// When `admin` is not an API key.
    pub fn new(admin: Option<&str>, file: Option<PathBuf>) -> anyhow::Result<Self> {
        // The text is not repeated: it is a secret.
        let admin = admin.map(|text| text.trim().parse()).transpose().context("LATCHGATE_ADMIN_API_KEY")?;
        Ok(Self { admin, file, read: Mutex::default() })
    }

    pub fn are_none(&self) -> bool {
        self.admin.is_none() && self.file.is_none()
    }

    /// Reads the file; returns whether it has changed.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub(super) async fn read(&self) -> anyhow::Result<bool> {
        let text = match &self.file {
            Some(path) => {
                let failed = || format!("cannot read the API keys in {}", path.display());
                let bytes = files::read(path).await.with_context(failed)?;
                Some(String::from_utf8(bytes).map_err(|_| anyhow!("it is not UTF-8")).with_context(failed)?)
            }
            None => None,
        };
        let mut read = self.read.lock();
        if text.is_some() && text == read.0 {
            return Ok(false);
        }
        let mut document = Document { needs_key: !self.are_none(), ..Document::default() };
        if let Some(admin) = &self.admin {
            enter(&mut document, admin, Permissions::all(App::default()));
        }
        if let (Some(text), Some(path)) = (&text, &self.file) {
            enter_all(&mut document, text).with_context(|| format!("the API keys in {}", path.display()))?;
        }
        let has_changed = document != read.1;
        *read = (text, document);
        Ok(has_changed)
    }

    /// The store's document with the fixed API keys.
    pub(super) fn added_to(&self, stored: &Document) -> Document {
        let read = self.read.lock();
        let mut document = stored.clone();
        document.needs_key |= read.1.needs_key;
        for (id, entry) in &read.1.keys {
            let is_revoked = document.keys.get(id).is_some_and(|stored| stored.revoked_at.is_some());
            if !is_revoked {
                document.keys.insert(*id, entry.clone());
            }
        }
        document
    }
}

fn enter_all(document: &mut Document, text: &str) -> anyhow::Result<()> {
    // The text of the error may have a secret in it.
    let malformed = |error: serde_json::Error| {
        let what = if error.is_data() { "an unexpected field or value" } else { "not JSON" };
        anyhow!("line {}, column {}: {what}", error.line(), error.column())
    };
    let File { keys } = serde_json::from_str(text).map_err(malformed)?;
    for (index, FileKey { key, app, scopes, prefixes }) in keys.into_iter().enumerate() {
        let key: ApiKey = key.parse().with_context(|| format!("keys[{index}].key"))?;
        let app = App::parse(&app).with_context(|| format!("keys[{index}].app"))?;
        ensure!(!scopes.is_empty(), "keys[{index}].scopes must name a scope");
        enter(document, &key, Permissions { app, scopes, prefixes });
    }
    Ok(())
}

fn enter(document: &mut Document, key: &ApiKey, permissions: Permissions) {
    let entry = KeyEntry {
        permissions,
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
