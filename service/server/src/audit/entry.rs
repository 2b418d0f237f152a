//! One record, and the action that it is about.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use latchgate_core::App;
use latchgate_core::access::KeyId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Audit;
use crate::store::AuditClass;

/// Longest text of one field, in characters. A longer one is cut.
const FIELD_CHARS_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = AuditAction)]
pub enum Action {
    Force,
    Revoke,
    ForgetOperation,
    SwitchEngine,
    HoldOff,
    CreateApp,
    DisableApp,
    ChangeApp,
    CreateKey,
    RevokeKey,
    /// A request under `/v1/admin/` that changes something else.
    Administration,
    Authentication,
    AuditLost,
}

impl Action {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Force => "force",
            Self::Revoke => "revoke",
            Self::ForgetOperation => "forget-operation",
            Self::SwitchEngine => "switch-engine",
            Self::HoldOff => "hold-off",
            Self::CreateApp => "create-app",
            Self::DisableApp => "disable-app",
            Self::ChangeApp => "change-app",
            Self::CreateKey => "create-key",
            Self::RevokeKey => "revoke-key",
            Self::Administration => "administration",
            Self::Authentication => "authentication",
            Self::AuditLost => "audit-lost",
        }
    }
}

/// The client that acts.
#[derive(Clone, Debug)]
pub struct Doer {
    pub app: App,
    /// `None` if it needs no API key.
    pub key_id: Option<KeyId>,
    /// `None` for a command beside the store.
    pub from: Option<IpAddr>,
}

/// What is stored of a record, beside its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How many times, if the record stands for several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
}

impl Record {
    pub(super) fn of(action: Action) -> Self {
        Self { action: action.as_str().to_owned(), ..Self::default() }
    }

    pub(super) fn new(action: Action, doer: &Doer, target: &str) -> Self {
        Self {
            app: Some(doer.app.as_str().to_owned()),
            key_id: doer.key_id.map(|id| id.to_string()),
            from: Some(doer.from.map_or_else(|| "command".to_owned(), |from| from.to_string())),
            target: Some(plain(target)).filter(|target| !target.is_empty()),
            ..Self::of(action)
        }
    }

    pub(super) fn of_lost(lost: u64) -> Self {
        let detail = "These records are in the log alone: no store took them, and there was no more room in memory.";
        Self {
            outcome: "lost".to_owned(),
            detail: Some(detail.to_owned()),
            attempts: Some(lost),
            ..Self::of(Action::AuditLost)
        }
    }

    pub(super) fn class(&self) -> AuditClass {
        match (self.action.as_str(), self.outcome.as_str()) {
            ("authentication", _) | (_, "forbidden") => AuditClass::Refused,
            ("force" | "revoke" | "forget-operation", _) => AuditClass::App,
            _ => AuditClass::Operator,
        }
    }

    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A later version of Latchgate may have written fields that this one does not know.
    pub(super) fn from_text(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    pub(super) fn log(&self) {
        let Self { action, app, key_id, from, target, outcome, detail, attempts } = self;
        let of = target.as_deref();
        let (app, key_id, from) = (app.as_deref(), key_id.as_deref(), from.as_deref());
        let (detail, attempts) = (detail.as_deref(), *attempts);
        // The log's own field is called `target` too.
        tracing::info!(target: "audit", action, app, key_id, from, of, outcome, detail, attempts, "audit");
    }
}

/// A record of an action that is under way. Clones share it.
#[derive(Clone)]
pub struct Entry(Arc<Open>);

struct Open {
    audit: Audit,
    record: Mutex<Option<Record>>,
}

impl Entry {
    pub(super) fn new(audit: Audit, record: Record) -> Self {
        Self(Arc::new(Open { audit, record: Mutex::new(Some(record)) }))
    }

    /// Says more about the action. It must contain no secret.
    pub fn detail(&self, detail: impl Into<String>) {
        self.change(|record| record.detail = Some(plain(&detail.into())));
    }

    pub fn target(&self, target: impl Into<String>) {
        self.change(|record| record.target = Some(plain(&target.into())));
    }

    /// The action has ended: `done`, or the code of the problem that was answered.
    pub fn end(&self, outcome: &str) {
        self.0.end(outcome);
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        if let Some(record) = &mut *self.0.record.lock().unwrap_or_else(PoisonError::into_inner) {
            change(record);
        }
    }
}

impl Open {
    fn end(&self, outcome: &str) {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(record) = record {
            self.audit.write(&Record { outcome: outcome.to_owned(), ..record });
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // The request was dropped, or its handler has panicked: the action may have been carried out.
        self.end("unknown");
    }
}

/// The text with control characters escaped, and cut if it is too long.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars().take(FIELD_CHARS_MAX) {
        if character.is_control() || is_reordering(character) {
            plain.extend(character.escape_unicode());
        } else {
            plain.push(character);
        }
    }
    plain
}

/// Characters that make a terminal show the following text in another order, and separators of lines.
const fn is_reordering(character: char) -> bool {
    matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_texts_are_cut() {
        assert_eq!(plain("a\n\u{1b}[31mb\u{85}\u{202e}é\"<b>"), "a\\u{a}\\u{1b}[31mb\\u{85}\\u{202e}é\"<b>");
        assert_eq!(plain(&"é".repeat(2_000)).chars().count(), FIELD_CHARS_MAX);
    }
}
