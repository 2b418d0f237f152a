//! Rules of the OpenAPI description, so that generators make good clients of it. They hold for every endpoint.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::http::openapi;

fn api() -> Value {
    serde_json::from_str(&openapi::text()).unwrap()
}

/// Calls `visit` with each operation and a name for failures.
fn each_operation(api: &Value, mut visit: impl FnMut(&str, &Value)) {
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            visit(&format!("{method} {path}"), operation);
        }
    }
}

#[test]
fn the_id_of_every_operation_begins_with_a_verb() {
    each_operation(&api(), |at, operation| {
        let id = operation["operationId"].as_str().unwrap_or_default();
        let is_camel_case = id.starts_with(|first: char| first.is_ascii_lowercase())
            && id.chars().all(|letter| letter.is_ascii_alphabetic())
            && id.contains(|letter: char| letter.is_ascii_uppercase());
        assert!(is_camel_case, "{at}: give it an operation_id such as acquireLock, not {id:?}");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{id} has not one tag");
    });
}

#[test]
fn an_operation_names_its_codes_and_its_scope() {
    let api = api();
    let of = |path: &str, method: &str| api["paths"][path][method]["description"].as_str().unwrap().to_owned();
    let acquire = of("/v1/locks/{key}/acquire", "post");
    for text in ["`invalid-ticket`", "423 `lock-held`", "`wait-timeout`", "; 503 `shutting-down`", "Scope: `locks`."] {
        assert!(acquire.contains(text), "{acquire}");
    }
    assert!(of("/v1/admin/apps", "get").contains("Scope: `admin` of the app `default`."));
    assert_eq!(api["paths"]["/healthz"]["get"]["security"], serde_json::json!([]));
}

/// The schemas that bodies of requests consist of.
fn of_requests(api: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    each_operation(api, |_, operation| add_references(api, &operation["requestBody"], &mut found));
    found
}

fn add_references(api: &Value, part: &Value, found: &mut BTreeSet<String>) {
    let text = part.to_string();
    for rest in text.split("#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap_or_default();
        if found.insert(name.to_owned()) {
            add_references(api, &api["components"]["schemas"][name], found);
        }
    }
}

fn has_type(schema: &Value, name: &str) -> bool {
    schema["type"] == name || schema["type"].as_array().is_some_and(|types| types.iter().any(|one| one == name))
}

fn is_nullable(schema: &Value) -> bool {
    has_type(schema, "null") || schema["oneOf"].to_string().contains("\"null\"")
}

/// Calls `visit` with each property of an object: its name, its schema, and whether the property is always there.
fn each_property(schema: &Value, visit: &mut impl FnMut(&str, &Value, bool)) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit(name, property, required.iter().any(|required| required == name.as_str()));
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        each_property(part, visit);
    }
}

#[test]
fn an_optional_field_of_a_request_may_be_null() {
    let api = api();
    for name in &of_requests(&api) {
        each_property(&api["components"]["schemas"][name], &mut |field, property, is_required| {
            let is_any =
                property.get("type").is_none() && property.get("oneOf").is_none() && property.get("$ref").is_none();
            let may_be_null = is_any || is_nullable(property);
            assert!(is_required || may_be_null, "{name}.{field} is optional: let its type be an Option");
        });
    }
}

#[test]
fn the_fields_of_requests_are_bounded_and_have_no_default() {
    let api = api();
    for name in &of_requests(&api) {
        let schema = &api["components"]["schemas"][name];
        assert!(schema["type"] != "object" || schema["additionalProperties"] == false, "{name} allows unknown fields");
        each_property(schema, &mut |field, property, _| check_bounds(&format!("{name}.{field}"), property));
    }
    each_operation(&api, |at, operation| {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            check_bounds(&format!("{at}: {}", parameter["name"]), &parameter["schema"]);
        }
    });
    for (name, parameter) in api["components"]["parameters"].as_object().unwrap() {
        assert!(parameter["schema"].is_object(), "{name}");
        check_bounds(name, &parameter["schema"]);
    }
}

/// Generators take a field with a default for one that is always there.
fn check_bounds(at: &str, schema: &Value) {
    let has = |name: &str| schema.get(name).is_some();
    assert!(!has("default"), "{at} has a default: say it in the description");
    if has_type(schema, "array") {
        assert!(has("maxItems"), "{at} is a list without bounds");
    } else if has_type(schema, "string") && !has("enum") {
        let may_be_empty = at.ends_with("prefix") || at.ends_with("prefix\"");
        assert!(has("maxLength") && (may_be_empty || has("minLength")), "{at} is a text without bounds");
    } else if has_type(schema, "integer") || has_type(schema, "number") {
        assert!(has("minimum") && has("maximum"), "{at} is a number without bounds");
    }
}

#[test]
fn times_in_answers_are_dates_and_optional_fields_are_not_null() {
    let api = api();
    let of_requests = of_requests(&api);
    for (name, schema) in api["components"]["schemas"].as_object().unwrap() {
        if of_requests.contains(name) || name == "Problem" {
            continue;
        }
        each_property(schema, &mut |field, property, is_required| {
            let is_date = ["_at", "_until"].iter().any(|end| field.ends_with(end))
                || ["at", "deadline", "since", "until"].contains(&field);
            let is_text = has_type(property, "string");
            assert_eq!(is_text && is_date, property["format"] == "date-time", "{name}.{field}");
            assert!(is_required || !is_nullable(property), "{name}.{field} is optional and may be null");
        });
    }
}

/// Swagger UI fills a body without an example with `true` for each boolean, so that it would switch an engine by force.
#[test]
fn every_body_has_an_example_and_none_forces_anything() {
    let api = api();
    each_operation(&api, |at, operation| {
        // A body that may be absent is optional, and not null.
        let body = operation["requestBody"].to_string();
        assert!(!body.contains("oneOf") && !body.contains("\"null\""), "{at}: {body}");
        for (_, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
            let schema = content["schema"]["$ref"].as_str().and_then(|of| of.rsplit('/').next()).unwrap_or_default();
            let example = &api["components"]["schemas"][schema]["example"];
            assert!(example.is_object(), "{at} has a body without an example");
            assert!(example["force"] != true && example["stopped"] != true, "{at}: {example}");
            // With a lease id, a reader who sends the example twice would get the same lease twice.
            assert!(!at.ends_with("/acquire") || example.get("lease_id").is_none(), "{at}: {example}");
        }
    });
}

#[test]
fn swagger_ui_replaces_what_stands_in_the_examples() {
    let script = include_str!("../../../../../web/docs.js");
    let (api, id) = (openapi::text(), "7d88c00ddeafbae02d6198a43e38f30a");
    for text in ["the-lease_id-of-the-acquire", "ed00c3a34ce12df209e466feee905cbd", "1784000000000000", id] {
        assert!(script.contains(text) && api.contains(text), "{text}");
    }
}
