//! Problems against the OpenAPI description: a client that was generated from it must understand each of them.

use std::sync::LazyLock;

use serde_json::Value;

pub static API: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../../openapi/openapi.json")).expect("openapi/openapi.json is JSON")
});

/// Fails unless the schema of the problem's code has its fields. Codes that no operation returns have no schema.
pub fn check(problem: &Value) {
    let code = problem["code"].as_str().unwrap_or_default();
    let words = code
        .split('-')
        .map(|word| word.get(..1).unwrap_or_default().to_uppercase() + word.get(1..).unwrap_or_default());
    let name = words.collect::<String>() + "Problem";
    let Some(schema) = API["components"]["schemas"].get(&name) else { return };
    let fields = problem.as_object().expect("a problem is an object");
    for field in fields.keys() {
        assert!(
            schema["properties"].get(field).is_some(),
            "{name} of openapi/openapi.json has no field {field}: see http/openapi/problems.rs; {problem}"
        );
    }
    for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(
            fields.contains_key(field),
            "{name} of openapi/openapi.json always has {field}, but not here: {problem}"
        );
    }
}
