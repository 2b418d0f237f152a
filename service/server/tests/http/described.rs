//! Problems against the OpenAPI description: a client that was generated from it must understand each of them.

use std::sync::LazyLock;

use reqwest::Method;
use serde_json::Value;

pub static API: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../../openapi/openapi.json")).expect("openapi/openapi.json is JSON")
});

/// The method and the path of each endpoint, and what the description says of it.
pub fn endpoints() -> impl Iterator<Item = (Method, String, &'static Value)> {
    let paths = API["paths"].as_object().expect("paths").iter();
    paths.flat_map(|(path, item)| {
        let path = path.replace("{key}", "k").replace("{app}", "default").replace("{of}", "locks");
        let path = path.replace("{id}", &"0".repeat(32));
        let operations = item.as_object().expect("operations").iter();
        operations.map(move |(method, said)| (method.to_uppercase().parse().expect("a method"), path.clone(), said))
    })
}

/// Fails unless the description has the problem's code and its fields.
pub fn check(problem: &Value) {
    let schemas = &API["components"]["schemas"];
    let codes = schemas["ProblemCode"]["enum"].as_array().expect("ProblemCode is an enum");
    assert!(codes.contains(&problem["code"]), "openapi/openapi.json does not have the code of {problem}");
    for field in problem.as_object().expect("a problem is an object").keys() {
        let described = &schemas["Problem"]["properties"];
        assert!(described.get(field).is_some(), "openapi/openapi.json does not have the field {field} of {problem}");
    }
}
