//! No request of a client causes a 500, and each mistake has a clear code and the name of its field.

use reqwest::Method;
use serde_json::{Value, json};

use crate::access::world::operated;
use crate::client::{Answer, acquire, begun, embedded, get, granted, http, inspect, leases, many, post};
use crate::client::{release, request, send, sent};
use crate::described::{API, endpoints};

/// Values of these beyond their maximum are cut.
const CUT: [&str; 2] = ["wait_ms", "detail"];

/// A field of a body, or of an object in it.
struct Field {
    /// The place of its object, as a JSON pointer.
    object: String,
    name: String,
    schema: &'static Value,
    is_required: bool,
}

/// The schema that a reference names, also beside null.
fn resolved(schema: &Value) -> Option<&'static Value> {
    let references = schema["oneOf"].as_array().into_iter().flatten().chain([schema]);
    let name = references.filter_map(|schema| schema["$ref"].as_str()).next()?.rsplit('/').next()?;
    Some(&API["components"]["schemas"][name])
}

/// Adds the fields of an object, each with the place of its object in the example.
fn add_fields(schema: &'static Value, example: &Value, at: &str, fields: &mut Vec<Field>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = schema["required"].as_array().is_some_and(|required| required.contains(&json!(name)));
        fields.push(Field { object: at.to_owned(), name: name.clone(), schema: property, is_required });
        let item = resolved(&property["items"]).map(|schema| (schema, format!("{at}/{name}/0"), &example[name][0]));
        let inner = resolved(property).map(|schema| (schema, format!("{at}/{name}"), &example[name]));
        for (schema, at, example) in item.into_iter().chain(inner).filter(|(.., example)| example.is_object()) {
            add_fields(schema, example, &at, fields);
        }
    }
}

/// Of each endpoint that takes a body: its method and path, an example, and the fields.
fn bodies() -> impl Iterator<Item = (Method, String, Value, Vec<Field>)> {
    endpoints().filter_map(|(method, path, said)| {
        let schema = resolved(&said["requestBody"]["content"]["application/json"]["schema"])?;
        let (mut example, mut fields) = (schema["example"].clone(), Vec::new());
        add_fields(schema, &example, "", &mut fields);
        // The time of the example has passed.
        example.as_object_mut().expect("an object").remove("until");
        Some((method, path, example, fields))
    })
}

impl Field {
    /// The example with this value of the field; `None` leaves it out.
    fn set(&self, example: &Value, name: &str, value: Option<Value>) -> Value {
        let mut body = example.clone();
        let object = body.pointer_mut(&self.object).and_then(Value::as_object_mut).expect("an object");
        object.remove(name);
        object.extend(value.map(|value| (name.to_owned(), value)));
        body
    }

    /// Values that the description rules out.
    fn wrong(&self, example: &Value) -> Vec<Value> {
        let schema = resolved(self.schema).unwrap_or(self.schema);
        let is = |kind: &str| schema["type"] == kind || schema["type"][0] == kind;
        let min = |limit: &str| schema[limit].as_i64();
        let max = |limit: &str| schema[limit].as_i64().filter(|_| !CUT.contains(&&*self.name));
        let long = |length: i64| "k".repeat(length as usize);
        let mut wrong = Vec::new();
        if is("integer") {
            wrong.extend([json!(1e300), json!(1.5), json!("1"), json!([])]);
            wrong.extend(min("minimum").map(|min| json!(min - 1)));
            wrong.extend(max("maximum").into_iter().flat_map(|max| [json!(max + 1), json!(1_u64 << 63)]));
        } else if is("string") {
            wrong.extend([json!(7), json!([])]);
            wrong.extend(min("minLength").filter(|min| *min > 0).map(|min| json!(long(min - 1))));
            wrong.extend(max("maxLength").map(|max| json!(long(max + 1))));
            wrong.extend(schema["enum"][0].as_str().map(|one| json!(one.to_uppercase())));
        } else if is("array") {
            let item = &example.pointer(&self.object).expect("an object")[&self.name][0];
            wrong.extend([json!("a"), json!({}), json!([7]), json!([[item]])]);
            wrong.extend(min("minItems").map(|_| json!([])));
            wrong.extend(max("maxItems").map(|max| json!(vec![item; max as usize + 1])));
        } else if is("boolean") {
            wrong.extend([json!("yes"), json!(1)]);
        } else if is("object") {
            wrong.extend([json!("text"), json!([1])]);
        }
        wrong.extend((self.is_required && schema["type"].is_string()).then_some(Value::Null));
        wrong
    }
}

/// Fields that are not described are refused too, and so is an object without one that it needs.
#[tokio::test]
async fn of_a_body_what_the_description_rules_out_is_refused_by_field() {
    let (_node, operator) = operated().await;
    let mut tried = 0;
    for (method, path, example, fields) in bodies() {
        for field in fields {
            let wrong = field.wrong(&example).into_iter().map(|value| (field.name.clone(), Some(value)));
            let absent = field.is_required.then(|| (field.name.clone(), None));
            let other = (field.name.to_uppercase(), Some(json!(1)));
            for (name, value) in wrong.chain(absent).chain([other]) {
                let answer = operator.call(method.clone(), &path, field.set(&example, &name, value.clone())).await;
                let code =
                    ["invalid-key", "invalid-ticket", "unknown-engine"].into_iter().find(|it| *it == answer.code());
                let code = code.unwrap_or("invalid-request");
                answer.assert_problem(if code == "unknown-engine" { 404 } else { 400 }, code);
                let at = field.object.trim_start_matches('/').replace("/0", "[0]");
                let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                let said = answer.text("field");
                let is_named = said == name || at.starts_with(&said) || said.starts_with(&at);
                assert!(is_named, "{method} {path} with {value:?} in {at}: {}", answer.body);
                tried += 1;
            }
        }
    }
    assert!(tried > 600, "only {tried} bodies were tried");
    assert_eq!(operator.get("/v1/locks/k").await.body["last_token"], 0);
    assert_eq!(operator.get("/v1/operations").await.body, json!({ "operations": [] }));
}

/// Of each request, with each optional field of its body, and of the objects in it.
#[tokio::test]
async fn null_says_the_same_as_leaving_an_optional_field_out() {
    let (_node, operator) = operated().await;
    let mut tried = 0;
    for (method, path, example, fields) in bodies() {
        for field in fields.into_iter().filter(|field| !field.is_required) {
            let refusal = async |value: Option<Value>| {
                let body = field.set(&example, &field.name, value);
                let Answer { status, body, .. } = operator.call(method.clone(), &path, body).await;
                (status == 400).then(|| (body["code"].clone(), body["detail"].clone()))
            };
            let without = refusal(None).await;
            assert_eq!(refusal(Some(Value::Null)).await, without, "{method} {path}: {}/{}", field.object, field.name);
            tried += 1;
        }
    }
    assert!(tried > 60, "only {tried} fields were tried");
}

#[tokio::test]
async fn bodies_that_are_too_long_encoded_or_no_json_objects_are_refused() {
    let node = embedded().await;
    let twice = br#"{"owner":"a","owner":"b"}"#;
    for (method, path, ..) in bodies() {
        for body in [b"{".as_slice(), b"nonsense", b"owner=me", b"[]", b"7", b"null", b"{} {}", b"\xff\xfe", twice] {
            sent(&node, method.clone(), &path, body).await.assert_problem(400, "invalid-request");
        }
        sent(&node, method, &path, " ".repeat(1 << 20)).await.assert_problem(413, "body-too-large");
    }
    let url = format!("{}/v1/locks/encoded/acquire", node.base_url());
    let encoded = async |encoding| send(http().post(&url).header("content-encoding", encoding).body("{}")).await;
    let refused = encoded("br").await;
    refused.assert_problem(415, "unsupported-encoding");
    assert!(refused.text("detail").contains("br"), "{}", refused.body);
    assert_eq!(encoded("Identity").await.status, 200);
    let not_utf8 = b"{\"operation\":\"o\",\"contents\":\"\xff\"}".as_slice();
    sent(&node, Method::POST, "/v1/operations/pre", not_utf8).await.assert_problem(400, "invalid-request");
    // curl without -d sends no body, and -d sends the content type of a form.
    for body in ["".to_owned(), "{}".to_owned(), " ".repeat(65_536)] {
        let answer = post(format!("{}/v1/locks/k/acquire", node.base_url()), body).await;
        assert_eq!(release(&node, "k", &answer.text("lease_id")).await.status, 200);
    }
}

/// Limits of the configuration, terms that contradict each other, and texts: the description has none of them.
#[tokio::test]
async fn fields_that_break_a_rule_beyond_the_description_are_named() {
    let node = embedded().await;
    let held = granted(&node, "held", json!({})).await.text("lease_id");
    let go = begun(&node, json!({ "operation": "charge", "contents": 1 })).await;
    let (stamp, attempt) = (go.text("stamp"), format!("operations/{}", go.text("id")));
    let with = |base: &Value, more: Value| {
        let mut body = base.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let group = json!({ "mode": "permits", "limit": 3, "group": "a" });
    let batch = |items: &[Value]| json!({ "operations": items });
    let lease = |lease_id: &str| json!({ "key": "held", "lease_id": lease_id });
    let long = json!({ "operation": "o", "contents": "x".repeat(16 * 1024 - 1) });
    let [one, two] = [1, 2].map(|contents| json!({ "operation": "o", "contents": contents }));
    let (a, success) = (json!({ "locks": [{ "key": "a" }] }), json!({ "stamp": stamp, "outcome": "success" }));
    for (path, field, body) in [
        ("locks/k/acquire", "ttl_ms", json!({ "ttl_ms": 99 })),
        ("locks/k/acquire", "ttl_ms", json!({ "ttl_ms": 3_600_001 })),
        ("locks/k/acquire", "owner", json!({ "owner": "a\nb" })),
        // A name that only a server makes.
        ("locks/k/acquire", "owner", json!({ "owner": "anonymous-me", "reentrant": true })),
        ("locks/k/acquire", "lease_id", json!({ "lease_id": "a b" })),
        ("locks/k/acquire", "metadata", json!({ "metadata": { "long": "m".repeat(1_024) } })),
        ("locks/k/acquire", "permits", json!({ "mode": "shared", "permits": 1 })),
        ("locks/k/acquire", "permits", json!({ "mode": "permits", "permits": 0 })),
        ("locks/k/acquire", "permits", json!({ "mode": "permits", "permits": 4, "limit": 3 })),
        ("locks/k/acquire", "limit", json!({ "limit": 3 })),
        ("locks/k/acquire", "group", json!({ "mode": "shared", "group": "a" })),
        ("locks/k/acquire", "group", with(&group, json!({ "group": "\n" }))),
        ("locks/k/acquire", "group_limit", json!({ "mode": "permits", "limit": 3, "group_limit": 1 })),
        ("locks/k/acquire", "group_limit", with(&group, json!({ "group_limit": 4 }))),
        ("locks/k/acquire", "group_limit", with(&group, json!({ "group_limit": 1, "permits": 2 }))),
        ("locks/k/acquire", "limit", json!({ "mode": "permits", "limit": 1_000_000_001 })),
        ("locks/k/acquire", "delay_ms", json!({ "delay_ms": 3_600_001 })),
        ("locks/k/acquire", "max_hold_ms", json!({ "max_hold_ms": 99 })),
        ("locks/k/acquire", "max_hold_ms", json!({ "max_hold_ms": 604_800_001 })),
        ("locks/k/acquire", "min_hold_ms", json!({ "min_hold_ms": 5, "mode": "shared" })),
        ("locks/k/acquire", "min_hold_ms", json!({ "min_hold_ms": 86_400_001 })),
        ("locks/held/revoke", "reason", json!({ "reason": "a\nb" })),
        ("locks/held/revoke", "grace_ms", json!({ "grace_ms": 3_600_001 })),
        ("multilocks/acquire", "locks", json!({ "locks": [{ "key": "a" }, { "key": "b" }, { "key": "a" }] })),
        // Each lock, and what all have in common, is read as that of one lock.
        ("multilocks/acquire", "permits", json!({ "locks": [{ "key": "a", "permits": 1 }] })),
        ("multilocks/acquire", "ttl_ms", with(&a, json!({ "ttl_ms": 99 }))),
        ("multilocks/acquire", "owner", with(&a, json!({ "owner": "anonymous-me" }))),
        ("multilocks/acquire", "barge", with(&a, json!({ "barge": true }))),
        ("leases/release", "lease_id", json!({ "leases": [lease(&held), lease("no spaces")] })),
        ("operations/pre", "operation", with(&one, json!({ "operation": "a\nb" }))),
        ("operations/pre", "label", with(&one, json!({ "label": "two\nlines" }))),
        ("operations/pre", "metadata", with(&one, json!({ "metadata": { "a": "x".repeat(1_020) } }))),
        // The quotes count as two bytes.
        ("operations/pre", "contents", with(&long, json!({ "keep_contents": true }))),
        ("operations/pre", "contents", json!({ "operation": "o" })),
        ("operations/pre", "retention_ms", with(&one, json!({ "retention_ms": 1 }))),
        ("operations/pre", "retention_ms", with(&one, json!({ "retention_ms": 5_000, "permanent": true }))),
        ("operations/pre", "ttl_ms", with(&one, json!({ "ttl_ms": 999 }))),
        ("operations/pre", "ttl_ms", with(&one, json!({ "ttl_ms": 86_400_001 }))),
        ("operations/enter", "ran_at", with(&one, json!({ "attempt_id": "a", "ran_at": "yesterday" }))),
        ("operations/pre/batch", "operations[1].contents", batch(&[one.clone(), json!({ "operation": "o" })])),
        ("operations/pre/batch", "operations[2].contents", batch(&[one.clone(), two, one.clone()])),
        ("operations/pre/batch", "operations[0].wait_ms", batch(&[with(&one, json!({ "wait_ms": 1 }))])),
        ("operations/pre/batch", "operations[0].ttl_ms", batch(&[with(&one, json!({ "ttl_ms": 1 }))])),
        (&*format!("{attempt}/post"), "retention_ms", with(&success, json!({ "retention_ms": 31_536_000_001_u64 }))),
        (&*format!("{attempt}/heartbeat"), "stamp", json!({ "stamp": "s".repeat(32) })),
        (&*format!("{attempt}/heartbeat"), "ttl_ms", json!({ "stamp": stamp, "ttl_ms": 10 })),
    ] {
        request(&node, Method::POST, &format!("/v1/{path}"), body).await.assert_names(field);
    }
    let refused = acquire(&node, "k", json!({ "ttl_ms": 99 })).await;
    assert_eq!(refused.body["detail"], "ttl_ms must be from 100 to 300000 (5 min)");
    get(&node, "/v1/operations?cursor=nonsense").await.assert_names("cursor");
    let unchanged = [inspect(&node, "k").await["last_token"].clone(), inspect(&node, "a").await["last_token"].clone()];
    assert_eq!(unchanged, [0, 0]);
    let held = inspect(&node, "held").await;
    assert!(held["held"] == true && held["holders"][0].get("revocation").is_none(), "{held}");
    assert_eq!(get(&node, "/v1/operations?state=started").await.body["operations"].as_array().unwrap().len(), 1);
    // An hour and a week, 64 keys and 100 operations are the maximum.
    granted(&node, "k", json!({ "delay_ms": 3_600_000, "max_hold_ms": 604_800_000 })).await;
    let locks: Value = (0..64).map(|number| json!({ "key": number.to_string() })).collect();
    assert_eq!(many(&node, "acquire", json!({ "locks": locks })).await.status, 200);
    let items: Vec<Value> = (0..100).map(|contents| json!({ "operation": "o", "contents": contents })).collect();
    assert_eq!(request(&node, Method::POST, "/v1/operations/pre/batch", batch(&items)).await.status, 201);
}

#[tokio::test]
async fn contents_without_one_form_are_refused_by_path() {
    let node = embedded().await;
    // What says nothing is everybody's identity. It can be checked.
    for (contents, path, can_be_checked) in [
        (r#"{"a":{"b c":[0,{"x":1,"\u0078":2}]}}"#, r#".a["b c"][1].x"#, false),
        (r#"[1,[1e300]]"#, "[1][0]", false),
        (r#"{"items":[{"id":""},[]]}"#, "", true),
    ] {
        for (endpoint, named, body) in [
            ("pre", "contents", r#"{"operation":"o","contents":CONTENTS}"#),
            ("pre", "checked", r#"{"operation":"o","contents":1,"checked":CONTENTS}"#),
            ("pre/batch", "operations[0].contents", r#"{"operations":[{"operation":"o","contents":CONTENTS}]}"#),
            ("preview", "contents", r#"{"operation":"o","contents":CONTENTS}"#),
            (
                "enter",
                "contents",
                r#"{"operation":"o","attempt_id":"a","ran_at":"2026-11-20T10:37:51Z","contents":CONTENTS}"#,
            ),
        ] {
            if named != "checked" || !can_be_checked {
                let body = body.replace("CONTENTS", contents);
                let answer = sent(&node, Method::POST, &format!("/v1/operations/{endpoint}"), body).await;
                answer.assert_names(&format!("{named}{path}"));
            }
        }
    }
    let deep = format!(r#"{{"operation":"o","contents":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    sent(&node, Method::POST, "/v1/operations/pre", deep).await.assert_problem(400, "invalid-request");
    assert_eq!(get(&node, "/v1/operations").await.body["operations"], json!([]));
}

#[tokio::test]
async fn keys_that_break_a_rule_are_refused() {
    let node = embedded().await;
    let long = "k".repeat(513);
    for key in ["", &long, "a%00b", "a%0Ab", "a%C2%85b"] {
        for (method, verb) in [(Method::POST, "/acquire"), (Method::PUT, "/limit"), (Method::GET, "")] {
            let path = format!("/v1/locks/{key}{verb}");
            request(&node, method, &path, json!({ "limit": 1 })).await.assert_problem(400, "invalid-key");
        }
    }
    for (index, keys) in [(0, vec!["", "fine"]), (1, vec!["fine", "a\u{0}b"]), (1, vec!["fine", &long])] {
        let locks: Value = keys.iter().map(|key| json!({ "key": key })).collect();
        for (verb, body) in [("acquire", json!({ "locks": locks })), ("renew", leases("mine", &keys))] {
            let answer = many(&node, verb, body).await;
            answer.assert_problem(400, "invalid-key");
            assert_eq!(answer.body["index"], index, "{}", answer.body);
        }
    }
}

#[tokio::test]
async fn paths_that_do_not_exist_are_problems_and_probes_take_any_query() {
    let node = embedded().await;
    for (method, path) in
        [(Method::GET, "/nowhere"), (Method::GET, "/errors/no-such-code"), (Method::POST, "/v1/locks/k/aquire")]
    {
        request(&node, method, path, Value::Null).await.assert_problem(404, "not-found");
    }
    for id in ["nonsense", "7D88C00DDEAFBAE02D6198A43E38F30A", "%C3%A9"] {
        get(&node, &format!("/v1/operations/{id}")).await.assert_problem(404, "operation-not-found");
    }
    for path in ["/readyz?x=1", "/healthz?cache=0&cache=1", "/readyz?"] {
        assert_eq!(get(&node, path).await.status, 200, "{path}");
    }
}

/// Of each query parameter, what the OpenAPI description rules out is refused.
#[tokio::test]
async fn query_parameters_are_held_to_their_description() {
    let node = embedded().await;
    let mut refused = 0;
    for (method, path, said) in endpoints() {
        let parameters = said["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
            let (name, schema) = (parameter["name"].as_str().expect("a name"), &parameter["schema"]);
            let long = schema["maxLength"].as_u64().map(|max| "k".repeat(max as usize + 1));
            let short = schema["minLength"].as_u64().filter(|min| *min > 0).map(|_| String::new());
            let low = schema["minimum"].as_i64().map(|min| (min - 1).to_string());
            let high = schema["maximum"].as_u64().map(|max| (max + 1).to_string());
            let other = (schema["type"] != "string" || schema["maxLength"].is_null()).then(|| "other".to_owned());
            for value in [long, short, low, high, other].into_iter().flatten() {
                sent(&node, method.clone(), &format!("{path}?{name}={value}"), "").await.assert_names(name);
                refused += 1;
            }
        }
    }
    assert!(refused > 40, "only {refused} values were tried");
}
