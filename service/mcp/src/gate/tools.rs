//! Which tools are gated, and how the list of tools says so.

use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Settings;
use super::message::{Object, field, set};

pub const KEY: &str = "idempotency_key";
/// Most tools that are remembered. A tool that is not is gated.
const TOOLS_MAX: usize = 10_000;
const DESCRIPTION: &str = include_str!("key.txt");

/// What the list of the server's tools says of one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tool {
    /// It only reads, or may be repeated.
    is_harmless: bool,
    /// It has an argument of this name itself, which stays with the call.
    pub has_own_key: bool,
    /// Clients check its results.
    pub has_output_schema: bool,
}

/// The client may know a schema of its results.
const NOT_LISTED: Tool = Tool { is_harmless: false, has_own_key: false, has_output_schema: true };

#[derive(Default)]
pub struct Tools {
    listed: HashMap<String, Tool>,
    is_checked: bool,
}

impl Tools {
    pub fn get(&self, name: &str) -> Tool {
        self.listed.get(name).copied().unwrap_or(NOT_LISTED)
    }

    /// What is known of a tool first of all holds if it is gated: the same call must not pass after one whose outcome is unknown.
    pub fn know(&mut self, name: &str, mut tool: Tool) {
        let before = self.listed.get(name);
        if tool.is_harmless && before.is_some_and(|before| !before.is_harmless) {
            tracing::warn!(
                tool = name,
                "now the server says that the tool is harmless: it stays gated until the gate ends"
            );
            tool.is_harmless = false;
        }
        if before.is_some() || self.listed.len() < TOOLS_MAX {
            self.listed.insert(name.to_owned(), tool);
        }
    }

    pub fn is_gated(&self, settings: &Settings, name: &str) -> bool {
        let by_itself = !settings.only_chosen && !self.get(name).is_harmless;
        settings.chosen.get(name).copied().unwrap_or(by_itself)
    }

    /// The result of `tools/list`, in which each gated tool has one argument more.
    pub fn listed(&mut self, settings: &Settings, result: &RawValue) -> Option<Object> {
        let mut result: Object = serde_json::from_str(result.get()).ok()?;
        let mut tools: Vec<Object> = field(&result, "tools")?;
        for tool in &mut tools {
            let Some(name) = field::<String>(tool, "name") else { continue };
            let hint = |hint: &str| field::<Value>(tool, "annotations").is_some_and(|hints| hints[hint] == true);
            let mut schema: Object = field(tool, "inputSchema").unwrap_or_default();
            let mut properties: Object = field(&schema, "properties").unwrap_or_default();
            let known = Tool {
                is_harmless: hint("readOnlyHint") || hint("idempotentHint"),
                has_own_key: properties.contains_key(KEY),
                has_output_schema: tool.contains_key("outputSchema"),
            };
            self.know(&name, known);
            if self.is_gated(settings, &name) && !known.has_own_key {
                set(&mut properties, KEY, &json!({ "type": "string", "description": DESCRIPTION.trim() }));
                set(&mut schema, "properties", &properties);
                set(tool, "inputSchema", &schema);
            }
        }
        // Once the list is whole: a wrong name in the settings would leave a tool without a gate.
        let is_whole = field::<String>(&result, "nextCursor").is_none();
        if is_whole && !std::mem::replace(&mut self.is_checked, true) {
            for name in settings.chosen.keys().filter(|name| !self.listed.contains_key(*name)) {
                tracing::warn!(
                    tool = name,
                    "the server lists no tool of this name, which --only, --except or --treat has"
                );
            }
        }
        set(&mut result, "tools", &tools);
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Scope;
    use super::*;

    fn settings() -> Settings {
        let second = Duration::from_secs(1);
        let (name, scope, chosen) = ("shop".to_owned(), Scope::Session, HashMap::new());
        let (window, retention, lease, call_max) = (second, second, second, second);
        Settings { name, scope, window, retention, lease, call_max, chosen, only_chosen: false }
    }

    fn listed(tools: &mut Tools) -> String {
        let list = r#"{"tools":[{"name":"pay","inputSchema":{"type":"object","properties":{"b":{},"a":{"const":1.10}},"required":["b"]}},
            {"name":"look","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},
            {"name":"put","annotations":{"idempotentHint":true,"readOnlyHint":false}},
            {"name":"own","inputSchema":{"properties":{"idempotency_key":{"type":"integer"}}},"outputSchema":{}}],"nextCursor":"c"}"#;
        let list = tools.listed(&settings(), &RawValue::from_string(list.to_owned()).unwrap()).unwrap();
        String::from_utf8(super::super::message::text(&list)).unwrap()
    }

    #[test]
    fn a_gated_tool_has_one_argument_more_and_keeps_all_else() {
        let mut tools = Tools::default();
        let list = listed(&mut tools);
        assert!(list.contains(r#""properties":{"b":{},"a":{"const":1.10},"idempotency_key":{"#), "{list}");
        assert!(
            list.contains(r#"{"name":"look","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}"#)
        );
        assert!(list.contains(r#"{"idempotency_key":{"type":"integer"}}"#) && list.ends_with(r#""nextCursor":"c"}"#));
        assert!(tools.get("own").has_own_key && tools.get("own").has_output_schema);
    }

    #[test]
    fn a_tool_that_was_gated_stays_gated() {
        let mut tools = Tools::default();
        tools.know("look", NOT_LISTED);
        listed(&mut tools);
        tools.know("pay", Tool { is_harmless: true, ..Tool::default() });
        assert!(["look", "pay"].iter().all(|name| tools.is_gated(&settings(), name)));
        assert!(!tools.is_gated(&settings(), "put"));
    }

    #[test]
    fn a_tool_passes_only_if_it_is_said_to_be_harmless() {
        let mut tools = Tools::default();
        assert!(tools.is_gated(&settings(), "look"), "nothing is known of it yet");
        listed(&mut tools);
        let gated = |settings: &Settings| ["pay", "look", "put", "own"].map(|name| tools.is_gated(settings, name));
        assert_eq!(gated(&settings()), [true, false, false, true]);
        let chosen = HashMap::from([("pay".to_owned(), false), ("look".to_owned(), true)]);
        assert_eq!(gated(&Settings { chosen: chosen.clone(), ..settings() }), [false, true, false, true]);
        assert_eq!(gated(&Settings { chosen, only_chosen: true, ..settings() }), [false, true, false, false]);
    }
}
