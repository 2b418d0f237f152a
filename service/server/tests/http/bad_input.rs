//! No request of a client causes a 500, and each mistake has a clear code.

use latchgate_testkit::node::Node;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::access::world::operated;
use crate::client::{Answer, acquire, embedded, get, granted, inspect, post, release, request};
use crate::described::{API, endpoints};

#[tokio::test]
async fn keys_that_break_a_rule_are_refused() {
    let node = embedded().await;
    for key in ["", &"k".repeat(513), "a%00b", "a%0Ab", "a%C2%85b", "%FF%FE", "%C3%28"] {
        acquire(&node, key, json!({})).await.assert_problem(400, "invalid-key");
    }
    get(&node, "/v1/locks/").await.assert_problem(400, "invalid-key");
}

#[tokio::test]
async fn slashes_colons_spaces_and_emoji_make_keys() {
    let node = embedded().await;
    let long = "k".repeat(512);
    for (sent, key) in [
        ("a/b", "a/b"),
        ("c%2Fd", "c/d"),
        ("order:42", "order:42"),
        ("two%20words", "two words"),
        ("%F0%9F%94%92", "🔒"),
        ("acquire", "acquire"),
        ("e/acquire", "e/acquire"),
        ("%25", "%"),
        ("..%2F..", "../.."),
        (long.as_str(), long.as_str()),
    ] {
        let grant = granted(&node, sent, json!({})).await;
        assert_eq!(grant.body["key"], key);
        assert_eq!(release(&node, sent, &grant.text("lease_id")).await.status, 200, "{key}");
    }
    assert_eq!(inspect(&node, "a%2Fb").await["last_token"], inspect(&node, "a/b").await["last_token"]);
}

#[tokio::test]
async fn fields_out_of_range_are_named() {
    let node = embedded().await;
    for (field, value) in [
        ("ttl_ms", json!(0)),
        ("ttl_ms", json!(99)),
        ("ttl_ms", json!(3_600_001)),
        ("ttl_ms", json!(-1)),
        ("ttl_ms", json!(1_u64 << 63)),
        ("ttl_ms", json!(1e300)),
        ("ttl_ms", json!(1.5)),
        ("ttl_ms", json!("30000")),
        ("ttl_ms", json!([])),
        ("wait_ms", json!("1")),
        ("priority", json!(0)),
        ("priority", json!(11)),
        ("priority", json!(256)),
        ("owner", json!("")),
        ("owner", json!("o".repeat(257))),
        ("owner", json!("a\nb")),
        ("owner", json!(7)),
        ("lease_id", json!("")),
        ("lease_id", json!("l".repeat(65))),
        ("lease_id", json!("a b")),
        ("mode", json!("shared-ish")),
        ("metadata", json!("text")),
        ("metadata", json!([1])),
        ("metadata", json!({ "long": "m".repeat(1_024) })),
        ("ttl", json!(1_000)),
        ("Owner", json!("me")),
    ] {
        let answer = acquire(&node, "k", json!({ field: value.clone() })).await;
        answer.assert_names(field);
    }
    let detail = acquire(&node, "k", json!({ "ttl_ms": 99 })).await.body["detail"].clone();
    assert_eq!(detail, "ttl_ms must be from 100 to 300000 (5 min)");
    assert_eq!(inspect(&node, "k").await["held"], false);
}

#[tokio::test]
async fn bodies_that_are_not_json_objects_are_refused() {
    let node = embedded().await;
    let url = format!("{}/v1/locks/k/acquire", node.base_url());
    for body in ["{", "nonsense", "owner=me", "[]", "7", "null", "{} {}", "{\"owner\":\"a\",\"owner\":\"b\"}"] {
        post(url.clone(), body).await.assert_problem(400, "invalid-request");
    }
    post(url.clone(), vec![0xff, 0xfe]).await.assert_problem(400, "invalid-request");
    for body in ["", "  ", "{}"] {
        let answer = post(url.clone(), body).await;
        assert_eq!(answer.status, 200, "{body:?}");
        release(&node, "k", &answer.text("lease_id")).await;
    }
}

#[tokio::test]
async fn a_list_in_place_of_an_object_is_named() {
    let node = embedded().await;
    for (method, path, field, body) in [
        (Method::POST, "/v1/leases/renew", "leases[0]", json!({ "leases": [["k", "a"]] })),
        (Method::POST, "/v1/leases/release", "leases[0]", json!({ "leases": [["k", "a"]] })),
        (Method::POST, "/v1/multilocks/acquire", "locks[0]", json!({ "locks": [["k", "shared"]] })),
        (Method::POST, "/v1/operations/pre/batch", "operations[0]", json!({ "operations": [["charge", 1]] })),
        (Method::PATCH, "/v1/admin/apps/default", "quotas", json!({ "quotas": [1, 2] })),
    ] {
        let refused = request(&node, method, path, body).await;
        refused.assert_names(field);
    }
}

#[tokio::test]
async fn a_body_of_a_megabyte_is_refused() {
    let node = embedded().await;
    let url = format!("{}/v1/locks/k/acquire", node.base_url());
    assert_eq!(post(url.clone(), " ".repeat(65_536)).await.status, 200);
    post(url, " ".repeat(1 << 20)).await.assert_problem(413, "body-too-large");
}

#[tokio::test]
async fn renew_and_release_need_a_lease_id() {
    let node = embedded().await;
    for verb in ["renew", "release"] {
        for body in ["", "{}", "{\"lease_id\":null}", "{\"lease_id\":7}", "{\"lease_id\":\"\"}"] {
            let answer = post(format!("{}/v1/locks/k/{verb}", node.base_url()), body).await;
            answer.assert_names("lease_id");
        }
    }
}

#[tokio::test]
async fn paths_that_do_not_exist_are_problems_too() {
    let node = embedded().await;
    get(&node, "/nowhere").await.assert_problem(404, "not-found");
    get(&node, "/errors/no-such-code").await.assert_problem(404, "not-found");
    post(format!("{}/v1/locks/k/aquire", node.base_url()), "").await.assert_problem(404, "not-found");
}

#[tokio::test]
async fn headers_and_bodies_that_never_end_are_cut_off() {
    let node = Node::start(crate::client::BIN, &["--read-timeout", "2s"]).await;
    let mut slow_head = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    slow_head.write_all(b"POST /v1/locks/k/acquire HTTP/1.1\r\nhost:").await.unwrap();
    let mut slow_body = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    let head = "POST /v1/locks/k/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{";
    slow_body.write_all(head.as_bytes()).await.unwrap();
    read_to_end(slow_head).await;
    let answer = read_to_end(slow_body).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("body-timeout"), "{answer}");
    assert_eq!(inspect(&node, "k").await["held"], false);
}

/// Reads until the server closes the connection.
async fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // The server may also reset the connection after the answer.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Of each query parameter, what the OpenAPI description rules out is refused.
#[tokio::test]
async fn query_parameters_are_held_to_their_description() {
    let node = embedded().await;
    let mut refused = 0;
    for (_, path, said) in endpoints().filter(|(method, ..)| method == Method::GET) {
        let parameters = said["parameters"].as_array().into_iter().flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
            let (name, schema) = (parameter["name"].as_str().expect("a name"), &parameter["schema"]);
            let long = schema["maxLength"].as_u64().map(|max| "k".repeat(max as usize + 1));
            let short = schema["minLength"].as_u64().filter(|min| *min > 0).map(|_| String::new());
            let low = schema["minimum"].as_i64().map(|min| (min - 1).to_string());
            let high = schema["maximum"].as_u64().map(|max| (max + 1).to_string());
            let other = (schema["type"] != "string" || schema["maxLength"].is_null()).then(|| "other".to_owned());
            for value in [long, short, low, high, other].into_iter().flatten() {
                let answer = get(&node, &format!("{path}?{name}={value}")).await;
                assert_eq!(answer.status, 400, "GET {path}?{name}={value}: {}", answer.body);
                refused += 1;
            }
        }
    }
    assert!(refused > 30, "only {refused} values were tried");
}

/// Of each request, with each optional field of its body, and of the objects in it.
#[tokio::test]
async fn null_says_the_same_as_leaving_an_optional_field_out() {
    let (_node, operator) = operated().await;
    let mut tried = 0;
    for (method, path, said) in endpoints() {
        let Some(schema) = resolved(&said["requestBody"]["content"]["application/json"]["schema"]) else { continue };
        let mut fields = Vec::new();
        add_optional(schema, &schema["example"], "", &mut fields);
        for (object, field) in fields {
            let refusal = async |value: Option<Value>| {
                let mut body = schema["example"].clone();
                let object = body.pointer_mut(&object).and_then(Value::as_object_mut).expect("an object");
                object.remove(&field);
                object.extend(value.map(|value| (field.clone(), value)));
                let Answer { status, body, .. } = operator.call(method.clone(), &path, body).await;
                (status == 400).then(|| (body["code"].clone(), body["detail"].clone()))
            };
            let without = refusal(None).await;
            assert_eq!(refusal(Some(Value::Null)).await, without, "{method} {path}: {object}/{field}");
            tried += 1;
        }
    }
    assert!(tried > 60, "only {tried} fields were tried");
}

/// The schema that a reference names, also beside null.
fn resolved(schema: &Value) -> Option<&'static Value> {
    let references = schema["oneOf"].as_array().into_iter().flatten().chain([schema]);
    let name = references.filter_map(|schema| schema["$ref"].as_str()).next()?.rsplit('/').next()?;
    Some(&API["components"]["schemas"][name])
}

/// Adds the optional fields of an object, each with the place of its object in the example.
fn add_optional(schema: &Value, example: &Value, at: &str, fields: &mut Vec<(String, String)>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if !schema["required"].as_array().is_some_and(|required| required.contains(&json!(name))) {
            fields.push((at.to_owned(), name.clone()));
        }
        let item = resolved(&property["items"]).map(|schema| (schema, format!("{at}/{name}/0"), &example[name][0]));
        let inner = resolved(property).map(|schema| (schema, format!("{at}/{name}"), &example[name]));
        for (schema, at, example) in item.into_iter().chain(inner).filter(|(.., example)| example.is_object()) {
            add_optional(schema, example, &at, fields);
        }
    }
}
