//! Rules of the OpenAPI description, so that generators make good clients of it. They hold for every endpoint.

use std::collections::HashSet;

use axum::http::{Method, StatusCode};
use serde_json::Value;

use super::describe;
use super::operations::{self, needed};
use super::problems;
use super::schemas::{each_property, has_type, is_date, of_requests};
use crate::http::endpoints::ENDPOINTS;
use crate::http::problem::Code;

/// Calls `visit` with each operation and a name for failures.
fn each_operation(mut visit: impl FnMut(&Method, &str, &Value)) {
    let mut api = describe(ENDPOINTS);
    operations::each(&mut api, |method, path, operation| visit(method, path, operation));
}

fn problem_responses(operation: &Value) -> impl Iterator<Item = (StatusCode, &Value)> {
    let responses = operation["responses"].as_object().into_iter().flatten();
    responses.filter(|(status, _)| !status.starts_with('2')).map(|(status, body)| (status.parse().unwrap(), body))
}

#[test]
fn every_operation_has_an_id_of_its_own_that_begins_with_a_verb() {
    let mut ids = HashSet::new();
    each_operation(|method, path, operation| {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        let is_camel_case = id.starts_with(|first: char| first.is_ascii_lowercase())
            && id.chars().all(|letter| letter.is_ascii_alphabetic())
            && id.contains(|letter: char| letter.is_ascii_uppercase());
        assert!(is_camel_case, "{method} {path}: give it an operation_id such as acquireLock, not {id:?}");
        assert!(ids.insert(id.clone()), "{method} {path}: another operation has the id {id}");
        assert!(operation["summary"].is_string(), "{id} has no summary");
        assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{id} has not one tag");
    });
}

#[test]
fn every_problem_of_an_operation_names_codes_with_its_status() {
    each_operation(|method, path, operation| {
        for (status, response) in problem_responses(operation) {
            let at = format!("{method} {path}: {status}");
            let text = response["description"].as_str().unwrap_or_default();
            let codes = problems::codes_in(text);
            assert!(!codes.is_empty(), "{at} names no code: {text}");
            for code in codes {
                assert_eq!(code.info().status, status, "{at} names {}", code.info().name);
            }
            let is_word = |word: &&str| word.contains('-') && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            for word in text.split('`').skip(1).step_by(2).filter(is_word) {
                assert!(Code::ALL.iter().any(|code| code.info().name == word), "{at}: no code has the name {word}");
            }
            let content: Vec<&String> =
                response["content"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
            assert_eq!(content, ["application/problem+json"], "{at}");
        }
    });
}

#[test]
fn every_operation_lists_the_problems_that_any_request_may_get() {
    each_operation(|method, path, operation| {
        let needed = needed(ENDPOINTS, method, path);
        let needs_api_key = needed.api_key;
        let has_body = operation.get("requestBody").is_some();
        let listed: Vec<u16> = problem_responses(operation).map(|(status, _)| status.as_u16()).collect();
        for (status, may_come) in
            [(400, true), (401, needs_api_key), (403, true), (413, has_body), (500, true), (503, needs_api_key)]
        {
            assert!(!may_come || listed.contains(&status), "{method} {path} does not list {status}");
        }
        assert_eq!(listed.contains(&429), needed.is_counted(), "{method} {path}: 429");
        assert!(needs_api_key == path.starts_with("/v1/") || path == "/metrics", "{method} {path}");
        assert_eq!(operation["security"].as_array().map(Vec::len), Some(usize::from(needs_api_key)), "{method} {path}");
    });
}

#[test]
fn a_body_that_may_be_absent_is_optional_and_not_null() {
    each_operation(|method, path, operation| {
        let text = operation["requestBody"].to_string();
        assert!(!text.contains("oneOf") && !text.contains("\"null\""), "{method} {path}: {text}");
    });
}

/// Terraform decides what it has.
const OF_TERRAFORM: &str = "LockInfo";

#[test]
fn the_fields_of_requests_are_bounded_and_have_no_default() {
    let mut api = describe(ENDPOINTS);
    let of_requests = of_requests(&api);
    for (name, schema) in api["components"]["schemas"].as_object_mut().unwrap() {
        if of_requests.contains(name) && name != OF_TERRAFORM {
            let is_object = schema["type"] == "object";
            assert!(!is_object || schema["additionalProperties"] == false, "{name} allows unknown fields");
            each_property(schema, &mut |field, property, _| check_bounds(&format!("{name}.{field}"), property));
        }
    }
    each_operation(|method, path, operation| {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            check_bounds(&format!("{method} {path}: {}", parameter["name"]), &parameter["schema"]);
        }
    });
}

/// Where it fails, add the name to the tables in `schemas.rs`.
fn check_bounds(at: &str, schema: &Value) {
    let has = |name: &str| schema.get(name).is_some();
    assert!(!has("default"), "{at} has a default: say it in the description");
    if has_type(schema, "array") {
        assert!(has("maxItems"), "{at} is a list without bounds");
        check_bounds(at, &schema["items"]);
    } else if has_type(schema, "string") && !has("enum") {
        assert!(has("minLength") && has("maxLength"), "{at} is a text without bounds");
    } else if has_type(schema, "integer") || has_type(schema, "number") {
        assert!(has("minimum") && has("maximum"), "{at} is a number without bounds");
    }
}

#[test]
fn times_in_answers_are_dates_and_optional_fields_are_not_null() {
    let mut api = describe(ENDPOINTS);
    let of_requests = of_requests(&api);
    for (name, schema) in api["components"]["schemas"].as_object_mut().unwrap() {
        if of_requests.contains(name) {
            continue;
        }
        each_property(schema, &mut |field, property, is_required| {
            let is_text = has_type(property, "string");
            let is_named_so = is_date(field);
            assert_eq!(is_text && is_named_so, property["format"] == "date-time", "{name}.{field}");
            assert!(is_required || !has_type(property, "null"), "{name}.{field} is optional and may be null");
        });
    }
}

#[test]
fn every_reference_has_a_schema_and_nothing_is_null() {
    let api = describe(ENDPOINTS);
    let text = api.to_string();
    assert!(!text.contains(":null"), "a field of the description is null");
    for (at, start) in text.match_indices("#/components/schemas/") {
        let name = text[at + start.len()..].split('"').next().unwrap_or_default();
        assert!(api["components"]["schemas"].get(name).is_some(), "there is no schema {name}");
    }
}

/// Swagger UI fills a body without an example with `true` for each boolean, so that it would switch an engine by force.
#[test]
fn every_body_has_an_example_and_none_forces_anything() {
    each_operation(|method, path, operation| {
        for content in operation["requestBody"]["content"].as_object().into_iter().flatten().map(|(_, content)| content)
        {
            let example = &content["example"];
            assert!(example.is_object(), "{method} {path} has a body without an example");
            assert!(example["force"] != true && example["stopped"] != true, "{method} {path}: {example}");
        }
    });
}

#[test]
fn swagger_ui_replaces_what_stands_in_the_examples() {
    let script = include_str!("../../../../../web/docs.js");
    let (api, id) = (describe(ENDPOINTS).to_string(), "7d88c00ddeafbae02d6198a43e38f30a");
    for text in ["the-lease_id-of-the-acquire", "the stamp that the pre gave", "1784000000000000", id] {
        assert!(script.contains(text) && api.contains(text), "{text}");
    }
}
