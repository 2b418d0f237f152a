//! The audit: which operator or client did what to the service, from where, and how it ended. A record is one event of the log, with the
//! target [`AUDIT_TARGET`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::access::KeyId;
use parking_lot::Mutex;

use crate::observe::logs::AUDIT_TARGET;

/// Longest text of one field, in characters. A longer one is cut.
const FIELD_CHARS_MAX: usize = 1_024;
/// A client that tries API keys must not fill the log: the first failed authentications of a time are logged one by one, if they
/// differ, and the others are counted and logged at its end.
const FAILURES_EVERY: Duration = Duration::from_secs(5);
const FAILURES_MAX: usize = 8;

/// The client that acts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Actor {
    /// `None` if it is not known.
    pub app: Option<App>,
    /// `None` if the client needs no API key. Of a failed authentication: the id that it presented.
    pub key_id: Option<KeyId>,
    /// Its address, or [`COMMAND`]; `None` if several are counted as one.
    pub from: Option<String>,
}

/// Where an action of a command comes from that opens the store itself.
pub const COMMAND: &str = "command";

/// A record of an action that is under way. Clones share it. It is logged when the action ends, or with the outcome `unknown` when the
/// last clone is dropped.
#[derive(Clone)]
pub struct Entry(Arc<Open>);

struct Open {
    action: &'static str,
    actor: Actor,
    text: Mutex<Option<Text>>,
}

struct Text {
    resource: String,
    detail: Option<String>,
}

impl Entry {
    /// `action` is one of those in docs/OPERATIONS.md, and `resource` is what is acted on.
    pub fn begin(action: &'static str, actor: Actor, resource: &str) -> Self {
        let text = Text { resource: resource.to_owned(), detail: None };
        Self(Arc::new(Open { action, actor, text: Mutex::new(Some(text)) }))
    }

    /// Says more about the action. It must contain no secret.
    pub fn detail(&self, detail: impl Into<String>) {
        self.change(|text| text.detail = Some(detail.into()));
    }

    pub fn resource(&self, resource: impl Into<String>) {
        self.change(|text| text.resource = resource.into());
    }

    /// The action has ended: `done`, or the code of the problem that is answered.
    pub fn end(&self, outcome: &str) {
        self.0.end(outcome);
    }

    fn change(&self, change: impl FnOnce(&mut Text)) {
        self.0.text.lock().as_mut().map(change);
    }
}

impl Open {
    fn end(&self, outcome: &str) {
        let text = self.text.lock().take();
        if let Some(Text { resource, detail }) = text {
            log(self.action, &self.actor, Some(&resource), outcome, detail.as_deref(), None);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // The request was dropped, or its handler has panicked: the action may have been carried out.
        self.end("unknown");
    }
}

/// Failed authentications. Clones share it.
#[derive(Clone, Default)]
pub struct Failures(Arc<Mutex<HashMap<Option<Failure>, u64>>>);

type Failure = (Actor, &'static str);

impl Failures {
    /// A request had no valid API key, for the reason `outcome`. Called in a runtime.
    pub fn log(&self, actor: Actor, outcome: &'static str) {
        let mut counted = self.0.lock();
        if counted.is_empty() {
            let failures = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(FAILURES_EVERY).await;
                failures.log_counted();
            });
        }
        let failure = (actor, outcome);
        let is_new = !counted.contains_key(&Some(failure.clone()));
        if is_new && counted.len() < FAILURES_MAX {
            log_failure(Some(&failure), 1);
            counted.insert(Some(failure), 0);
        } else {
            *counted.entry(Some(failure).filter(|_| !is_new)).or_default() += 1;
        }
    }

    /// Logs what was counted, and begins anew. A node that ends calls it after its last request.
    pub fn log_counted(&self) {
        for (failure, attempts) in std::mem::take(&mut *self.0.lock()).into_iter().filter(|(_, attempts)| *attempts > 0)
        {
            log_failure(failure.as_ref(), attempts);
        }
    }
}

/// `None` stands for further clients.
fn log_failure(failure: Option<&Failure>, attempts: u64) {
    let others = (Actor::default(), "unauthorized");
    let (actor, outcome) = failure.unwrap_or(&others);
    let detail = failure.is_none().then_some("from further clients");
    log("authentication", actor, None, outcome, detail, Some(attempts));
}

fn log(
    action: &str,
    actor: &Actor,
    resource: Option<&str>,
    outcome: &str,
    detail: Option<&str>,
    attempts: Option<u64>,
) {
    let app = actor.app.as_ref().map(App::as_str);
    let key_id = actor.key_id.map(tracing::field::display);
    let from = actor.from.as_deref();
    let (resource, detail) = (resource.filter(|resource| !resource.is_empty()).map(plain), detail.map(plain));
    tracing::info!(target: AUDIT_TARGET, action, app, key_id, from, resource, outcome, detail, attempts, "audit");
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
