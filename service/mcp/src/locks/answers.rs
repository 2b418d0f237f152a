//! What tools answer: words for the model, and the same as data.

use latchgate_client::{Error, Problem};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Map, Value, json};

use super::paths::overlap;
use super::session::object;

/// Most holders that an answer names.
const HOLDERS_MAX: usize = 16;

/// `Err` is a refusal, which the model reads, too.
pub type Answer = Result<Said, Said>;

pub struct Said {
    words: String,
    data: Map<String, Value>,
}

impl Said {
    pub fn new(words: impl Into<String>, data: Value) -> Self {
        let Value::Object(data) = data else { return Self { words: words.into(), data: Map::new() } };
        Self { words: words.into(), data }
    }

    /// Nothing was asked of a node.
    pub fn refused(words: impl Into<String>) -> Self {
        Self::new(words, json!({ "code": "refused" }))
    }

    /// A refusal of a node, or the lack of an answer. `then` says what that means, and what to do.
    pub fn of(error: &Error, then: &str) -> Self {
        let code = error.code().unwrap_or(if matches!(error, Error::Unreachable(_)) { "unreachable" } else { "invalid" });
        let mut data = error.problem().map(|problem| problem.fields().clone()).unwrap_or_default();
        for name in ["type", "title", "status", "instance"] {
            data.remove(name);
        }
        data.insert("code".to_owned(), code.into());
        Self { words: format!("{error}. {then}"), data }
    }

    pub fn into_result(mut self, is_error: bool, notices: &Vec<String>) -> CallToolResult {
        if !notices.is_empty() {
            self.data.insert("notices".to_owned(), json!(notices));
        }
        let words = notices.iter().chain([&self.words]).map(|words| ContentBlock::text(words.as_str())).collect();
        let mut result = if is_error { CallToolResult::error(words) } else { CallToolResult::success(words) };
        result.structured_content = Some(Value::Object(self.data));
        result
    }
}

/// A refusal of an acquire: who holds it, since when, why, until when, and what to do next.
pub fn not_acquired(problem: &Problem, key: &str, path: Option<&str>, wanted: &[String], ticket: Option<String>) -> Said {
    let holders = Holder::all(problem.field("holders"));
    let overlapping: Vec<&Holder> = holders.iter().filter(|holder| holder.overlaps(path, wanted)).collect();
    let who = lines(if overlapping.is_empty() { holders.iter().collect() } else { overlapping });
    let refused = path.map_or_else(|| format!("{key:?}"), |path| format!("the path {:?}", if path.is_empty() { "." } else { path }));
    let next = match &ticket {
        Some(ticket) => format!(
            "Next: call acquire again with the same keys and paths and with ticket {ticket:?} within 60 s, which keeps your place in the queue; or do \
             other work first."
        ),
        None => "Next: do other work first, or call acquire again with wait_s to wait in the queue. Do not change what is held.".to_owned(),
    };
    let words = format!("NOT acquired ({}): {refused} is not free.\n{who}{next}", problem.code());
    let fields = object([
        ("code", problem.code().into()),
        ("key", key.into()),
        ("path", path.into()),
        ("holders", holders.iter().map(Holder::data).collect()),
        ("waiters", problem.field("waiters").clone()),
        ("position", problem.field("position").clone()),
        ("retry_after_ms", problem.field("retry_after_ms").clone()),
        ("ticket", ticket.into()),
        ("next", next.into()),
    ]);
    Said { words, data: fields }
}

/// Locks as they are now, each with its holders.
pub fn held(locks: &[Value]) -> Said {
    let mut words = String::new();
    let mut data = Vec::new();
    for lock in locks {
        let holders = Holder::all(&lock["holders"]);
        words += &format!("{} ({} waiting):\n{}", lock["key"].as_str().unwrap_or_default(), lock["waiters"], lines(holders.iter().collect()));
        let shown: Value = holders.iter().map(Holder::data).collect();
        data.push(json!({ "key": lock["key"], "held": lock["held"], "waiters": lock["waiters"], "holders": shown }));
    }
    if words.is_empty() {
        words = "Nothing of it is held.".to_owned();
    }
    Said::new(words, json!({ "locks": data }))
}

struct Holder<'a>(&'a Value);

impl<'a> Holder<'a> {
    fn all(holders: &'a Value) -> Vec<Self> {
        holders.as_array().into_iter().flatten().take(HOLDERS_MAX).map(Self).collect()
    }

    fn paths(&self) -> impl Iterator<Item = &'a str> {
        self.0["metadata"]["paths"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether it stands in the way. A holder that does not name its paths may.
    fn overlaps(&self, path: Option<&str>, wanted: &[String]) -> bool {
        path.is_none()
            || self.paths().next().is_none()
            || self.paths().any(|held| wanted.iter().any(|wanted| overlap(held, wanted)))
    }

    fn words(&self) -> String {
        let text = |name: &str| self.0[name].as_str().unwrap_or("?");
        let paths: Vec<&str> = self.paths().map(|path| if path.is_empty() { "." } else { path }).collect();
        let held = if paths.is_empty() { String::new() } else { format!(" holds {}", paths.join(", ")) };
        let note = self.0["metadata"]["note"].as_str().map_or_else(String::new, |note| format!(": {note}"));
        format!(
            "- {}{held} ({}) since {}{note}. The lease ends at {} unless it is renewed.",
            text("owner"),
            text("mode"),
            text("granted_at"),
            text("expires_at")
        )
    }

    fn data(&self) -> Value {
        let holder = self.0;
        let metadata = &holder["metadata"];
        Value::Object(object([
            ("owner", holder["owner"].clone()),
            ("mode", holder["mode"].clone()),
            ("since", holder["granted_at"].clone()),
            ("ends", holder["expires_at"].clone()),
            ("note", metadata["note"].clone()),
            ("paths", metadata["paths"].clone()),
            ("client", metadata["client"].clone()),
        ]))
    }
}

fn lines(holders: Vec<&Holder>) -> String {
    holders.iter().map(|holder| holder.words() + "\n").collect()
}
