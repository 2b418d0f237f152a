//! What every operation of the description has in common: its API key and scope, and the problems that any request may get.

use axum::http::Method;
use latchgate_core::access::Scope;
use serde_json::{Value, json};

use super::problems;
use crate::http::endpoint::{Endpoint, Needs};
use crate::http::problem::Code;

/// What an endpoint needs, as the description shows it.
pub struct Permission {
    pub api_key: bool,
    pub scope: Option<Scope>,
    /// Only API keys of the app `default` have it.
    pub of_default: bool,
}

impl Permission {
    /// Whether it is a request in the sense of the app's quota.
    pub fn is_counted(&self) -> bool {
        self.scope.is_some() && !self.of_default
    }
}

pub fn needed(endpoints: &[Endpoint], method: &Method, path: &str) -> Permission {
    let row = endpoints.iter().find(|endpoint| endpoint.method == method.as_str() && endpoint.path == path);
    let needs = row.map_or(Needs::ApiKey, |endpoint| endpoint.needs);
    let scope = match needs {
        Needs::Nothing | Needs::ApiKey => None,
        Needs::Scope(scope) => Some(scope),
        Needs::Operator => Some(Scope::Admin),
        Needs::Metrics => Some(Scope::Read),
    };
    let of_default = matches!(needs, Needs::Operator | Needs::Metrics);
    Permission { api_key: needs != Needs::Nothing, scope, of_default }
}

/// Calls `visit` with each operation, its method and its path.
pub fn each(api: &mut Value, mut visit: impl FnMut(&Method, &str, &mut Value)) {
    let paths = api["paths"].as_object_mut().into_iter().flatten();
    for (path, item) in paths {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            let method = Method::try_from(method.to_uppercase().as_str()).unwrap_or_default();
            visit(&method, path, operation);
        }
    }
}

pub fn complete(endpoints: &'static [Endpoint], method: &Method, path: &str, operation: &mut Value) {
    let needed = needed(endpoints, method, path);
    operation["security"] = match &needed {
        Permission { api_key: false, .. } => json!([]),
        Permission { scope: None, .. } => json!([{ "api_key": [] }]),
        Permission { scope: Some(scope), .. } => json!([{ "api_key": [scope] }]),
    };
    let has_body = allow_no_body(operation);
    for code in common_codes(path, operation, has_body, &needed) {
        problems::add(operation, code);
    }
    if let Some(scope) = needed.scope {
        let app = if needed.of_default { " of the app `default`" } else { "" };
        let description = &mut operation["responses"]["403"]["description"];
        let text = description.as_str().unwrap_or_default();
        *description = format!("{text}. Needs an API key{app} with the scope `{scope}`.").into();
    }
}

/// A body that may be absent is described as optional, not as one that may be null. Returns whether there is one.
fn allow_no_body(operation: &mut Value) -> bool {
    let Some(body) = operation.get_mut("requestBody") else { return false };
    for content in body["content"].as_object_mut().into_iter().flat_map(|content| content.values_mut()) {
        let known =
            content["schema"]["oneOf"].as_array().into_iter().flatten().find(|schema| schema["$ref"].is_string());
        if let Some(known) = known.cloned() {
            content["schema"] = known;
        }
    }
    true
}

/// The problems that come from what all handlers share.
fn common_codes(path: &str, operation: &Value, has_body: bool, needed: &Permission) -> Vec<Code> {
    let mut codes = vec![Code::InvalidRequest, Code::ForeignOrigin, Code::ForeignHost, Code::InternalError];
    if path.contains("{key}") {
        codes.push(Code::InvalidKey);
    }
    if has_body {
        codes.extend([Code::BodyTooLarge, Code::BodyTimeout]);
    }
    if needed.is_counted() {
        codes.push(Code::QuotaReached);
    }
    if needed.api_key {
        codes.extend([Code::Unauthorized, Code::Forbidden, Code::StoreUnavailable]);
        if problems::lists(operation, Code::StoreUnavailable) && !path.starts_with("/v1/admin/") {
            codes.push(Code::StateUnreadable);
        }
    }
    codes
}
