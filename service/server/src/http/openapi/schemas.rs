//! What the schemas of requests and answers have in common, by the names of their fields: a name means the same everywhere.

use std::collections::BTreeSet;

use latchgate_core::access::{PREFIX_MAX_BYTES, PREFIXES_MAX, QUOTA_MAX};
use latchgate_core::gate::{ATTEMPT_ID_MAX_BYTES, IDEMPOTENCY_KEY_MAX_BYTES, OPERATION_MAX_BYTES};
use latchgate_core::key::{APP_MAX_BYTES, KEY_MAX_BYTES};
use latchgate_core::lock::{LEASE_ID_MAX_BYTES, OWNER_MAX_BYTES, PRIORITY_MAX, PRIORITY_MIN};
use serde_json::{Value, json};

use crate::gate::STAMP_MAX_BYTES;
use crate::http::locks::fields::{LIMIT_MAX, REASON_MAX_BYTES, TOKEN_MAX};
use crate::http::locks::ticket::TICKET_MAX_BYTES;
use crate::http::operations::BATCH_MAX;
use crate::locks::MANY_MAX;

const YEAR_MS: u64 = 365 * 24 * 3_600_000;
/// Longest cursor, in bytes: the longest is a key.
const CURSOR_MAX_BYTES: usize = KEY_MAX_BYTES;

/// The longest texts in requests, in bytes. None but a prefix may be empty.
const TEXTS: [(&str, usize); 19] = [
    ("Idempotency-Key", IDEMPOTENCY_KEY_MAX_BYTES),
    ("after", CURSOR_MAX_BYTES),
    ("app", APP_MAX_BYTES),
    ("attempt_id", ATTEMPT_ID_MAX_BYTES),
    ("before", CURSOR_MAX_BYTES),
    ("by", OWNER_MAX_BYTES),
    ("cursor", CURSOR_MAX_BYTES),
    ("engine", 32),
    ("id", 64),
    ("key", KEY_MAX_BYTES),
    ("keys", KEY_MAX_BYTES),
    ("lease_id", LEASE_ID_MAX_BYTES),
    ("operation", OPERATION_MAX_BYTES),
    ("owner", OWNER_MAX_BYTES),
    ("prefix", KEY_MAX_BYTES),
    ("prefixes", PREFIX_MAX_BYTES),
    ("reason", REASON_MAX_BYTES),
    ("stamp", STAMP_MAX_BYTES),
    ("ticket", TICKET_MAX_BYTES),
];

/// The range of numbers in requests: as far as any configuration allows.
const NUMBERS: [(&str, u64, u64); 20] = [
    ("delay_ms", 0, 100 * YEAR_MS),
    ("event_streams", 0, QUOTA_MAX as u64),
    ("expires_in_ms", 1, 10 * YEAR_MS),
    ("for_ms", 0, YEAR_MS),
    ("grace_ms", 0, YEAR_MS),
    ("lease_ms", 1, YEAR_MS),
    ("leases", 0, QUOTA_MAX as u64),
    ("limit", 1, LIMIT_MAX as u64),
    ("max_hold_ms", 1, 100 * YEAR_MS),
    ("min_hold_ms", 0, 100 * YEAR_MS),
    ("operations", 0, QUOTA_MAX as u64),
    ("permits", 1, LIMIT_MAX as u64),
    ("priority", PRIORITY_MIN as u64, PRIORITY_MAX as u64),
    ("requests_per_second", 1, QUOTA_MAX as u64),
    ("retention_ms", 1, 100 * YEAR_MS),
    ("token", 0, TOKEN_MAX),
    ("ttl_ms", 1, YEAR_MS),
    ("wait_ms", 0, 24 * 3_600_000),
    ("waiters", 0, QUOTA_MAX as u64),
    ("warn_after_ms", 1, 10 * YEAR_MS),
];

/// The longest lists in requests, with the fewest entries.
const LISTS: [(&str, usize, usize); 6] = [
    ("keys", 1, MANY_MAX),
    ("leases", 1, 500),
    ("locks", 1, MANY_MAX),
    ("operations", 1, BATCH_MAX),
    ("prefixes", 0, PREFIXES_MAX),
    ("scopes", 1, 16),
];

/// Most entries of a page: what the parameter `limit` may ask for.
const PAGE_MAX: u64 = 1_000;

/// Bounds what bodies of requests may say, and describes answers as they are sent.
pub fn complete(api: &mut Value) {
    let of_requests = of_requests(api);
    for (name, schema) in api["components"]["schemas"].as_object_mut().into_iter().flatten() {
        let is_request = of_requests.contains(name);
        each_property(schema, &mut |name, property, is_required| {
            if is_date(name) && has_type(property, "string") {
                property["format"] = "date-time".into();
            }
            if has_type(property, "object") && property.get("properties").is_none() {
                property["additionalProperties"] = true.into();
            }
            if is_request {
                // Generators take a field with a default for one that is always there.
                property.as_object_mut().map(|property| property.remove("default"));
                bound(name, property);
            } else if !is_required {
                // Answers omit a field rather than send null, unless the field is always there.
                refuse_null(property);
            }
        });
    }
}

pub fn bound_parameters(operation: &mut Value) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        let schema = &mut parameter["schema"];
        if name == "limit" {
            (schema["minimum"], schema["maximum"]) = (1.into(), PAGE_MAX.into());
        } else {
            bound(&name, schema);
        }
    }
}

/// Calls `visit` with each property of an object: its name, its schema, and whether the property is always there.
pub fn each_property(schema: &mut Value, visit: &mut impl FnMut(&str, &mut Value, bool)) {
    let required: Vec<Value> = schema["required"].as_array().cloned().unwrap_or_default();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            visit(name, property, required.iter().any(|required| required == name.as_str()));
        }
    }
    if let Some(parts) = schema.get_mut("allOf").and_then(Value::as_array_mut) {
        parts.iter_mut().for_each(|part| each_property(part, visit));
    }
}

/// Whether a property has this type, alone or beside null.
pub fn has_type(schema: &Value, name: &str) -> bool {
    schema["type"] == name || schema["type"].as_array().is_some_and(|types| types.iter().any(|one| one == name))
}

pub fn is_date(name: &str) -> bool {
    ["_at", "_until"].iter().any(|end| name.ends_with(end)) || ["at", "deadline", "since"].contains(&name)
}

/// The schemas that bodies of requests consist of.
pub fn of_requests(api: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for operation in api["paths"].as_object().into_iter().flatten().flat_map(|(_, item)| item.as_object()).flatten() {
        add_references(api, &operation.1["requestBody"], &mut found);
    }
    found
}

fn add_references(api: &Value, part: &Value, found: &mut BTreeSet<String>) {
    match part {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            if let Some(name) = name
                && found.insert(name.to_owned())
            {
                add_references(api, &api["components"]["schemas"][name], found);
            }
            fields.values().for_each(|field| add_references(api, field, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| add_references(api, part, found)),
        _ => {}
    }
}

fn bound(name: &str, schema: &mut Value) {
    if has_type(schema, "array") {
        if let Some((_, min, max)) = LISTS.iter().find(|(of, ..)| *of == name) {
            (schema["minItems"], schema["maxItems"]) = (json!(min), json!(max));
        }
        bound(name, &mut schema["items"]);
    } else if has_type(schema, "string") && schema.get("enum").is_none() {
        if let Some((_, max)) = TEXTS.iter().find(|(of, _)| *of == name) {
            let min = u8::from(name != "prefix");
            (schema["minLength"], schema["maxLength"]) = (min.into(), json!(max));
            if name == "lease_id" {
                schema["pattern"] = "^[A-Za-z0-9._:-]+$".into();
            }
        }
    } else if has_type(schema, "integer")
        && let Some((_, min, max)) = NUMBERS.iter().find(|(of, ..)| *of == name)
    {
        (schema["minimum"], schema["maximum"]) = (json!(min), json!(max));
    }
}

fn refuse_null(property: &mut Value) {
    if let Some(types) = property.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            property["type"] = only.clone();
        }
    }
    let known = property["oneOf"].as_array().into_iter().flatten().find(|schema| schema["$ref"].is_string()).cloned();
    if let Some(known) = known {
        *property = known;
    }
}
