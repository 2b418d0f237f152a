//! The OpenAPI description, made from the code: each operation from the annotations of its handler and from what its endpoint needs.

mod codes;
mod problem;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::PrettyFormatter;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, Header, Object, ObjectBuilder, Ref, RefOr, Required, ResponseBuilder, Schema, Type};
use utoipa::{OpenApi, openapi};

use self::codes::OF_ALL;
use super::endpoint::{Endpoint, NamedApps, Needs};
use super::endpoints::{Described, ENDPOINTS};
use super::problem::Code;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Latchgate",
        description = "Distributed locks and an idempotency gate over HTTP/JSON.\n\nA 2xx answer to an acquire or a \
                       pre means: you may proceed. Nothing else does. Every other answer is a problem (RFC 9457) with a stable `code`; the \
                       page at its `type` explains it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "locks", description = "Leases of named locks"),
        (name = "events", description = "Events of locks: streams and history"),
        (name = "leases", description = "Many leases in one call"),
        (name = "multilocks", description = "Several locks as one: all or none"),
        (name = "operations", description = "The gate: one call before an operation and one after it, so that \
                                             no operation runs twice unnoticed"),
        (name = "access", description = "What an API key permits"),
        (name = "admin", description = "For operators of the service"),
        (name = "probes", description = "For load balancers and monitoring"),
    ),
    components(schemas(problem::Problem)),
    servers((url = "/", description = "This node")),
)]
struct Api;

/// A parameter that several operations have: its name as a component, its own, its longest value, what it is, an example, and which
/// endpoints have it.
type SharedParameter = (&'static str, &'static str, usize, &'static str, &'static str, fn(&Endpoint) -> bool);

const KEY: &str = "1 to 512 bytes of UTF-8 without control characters, percent-encoded: a slash is `%2F`.";
const OF_APP: &str =
    "Another app than the caller's: for API keys of the app `default` with the scope `admin` and without prefixes.";
const IN_PATH: [SharedParameter; 3] = [
    ("LockKey", "key", 512, KEY, "orders", |endpoint| endpoint.path.contains("{key}")),
    ("OperationId", "id", 64, "From the answer to pre or preview", "7d88c00ddeafbae02d6198a43e38f30a", |endpoint| {
        endpoint.path.starts_with("/v1/operations/{id}")
    }),
    ("AppName", "app", 64, "The app's name", "billing", |endpoint| endpoint.path.contains("{app}")),
];
const OF_ALL_APPS: &str = "As `app` elsewhere; `*` is all apps, and each item then has its `app`.";
const IN_QUERY: [SharedParameter; 2] = [
    ("OfApp", "app", 64, OF_APP, "billing", |endpoint| endpoint.named_apps == NamedApps::One),
    ("OfApps", "app", 64, OF_ALL_APPS, "*", |endpoint| endpoint.named_apps == NamedApps::OneOrAll),
];

/// Adds what operations have in common: their API key, the parameters that several have, and their problems.
fn complete(api: &mut openapi::OpenApi, endpoints: &[Endpoint]) {
    let components = api.components.get_or_insert_default();
    let api_key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("lgk_ID_SECRET");
    let api_key = api_key.description(Some("An API key. As long as the service has none, requests need none."));
    components.security_schemes.insert("api_key".to_owned(), SecurityScheme::Http(api_key.build()).into());
    let seconds = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
    let mut retry_after = Header::new(seconds.build());
    retry_after.description = Some("When to try again, in seconds; only with a `retry_after_ms`.".to_owned());
    let of_all = named(&OF_ALL);
    let problem = ResponseBuilder::new()
        .description(format!("You may not proceed. Any operation may also answer {of_all}."))
        .content("application/problem+json", Content::new(Some(Ref::from_schema_name("Problem"))))
        .header("Retry-After", retry_after);
    components.responses.insert("Problem".to_owned(), problem.build().into());
    for (place, shared) in [(ParameterIn::Path, &IN_PATH[..]), (ParameterIn::Query, &IN_QUERY)] {
        for (component, name, len_max, text, example, _) in shared {
            let schema = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(*len_max));
            let required = if place == ParameterIn::Path { Required::True } else { Required::False };
            let parameter = ParameterBuilder::new().name(*name).parameter_in(place.clone()).required(required);
            let parameter = parameter.description(Some(*text)).schema(Some(schema)).example(Some((*example).into()));
            components.parameters.insert((*component).to_owned(), parameter.build().into());
        }
    }
    for endpoint in endpoints {
        let Some(item) = api.paths.paths.get_mut(endpoint.path) else { continue };
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        let methods = ["GET", "PUT", "POST", "PATCH", "DELETE"].into_iter().zip(operations);
        for operation in methods.filter(|(method, _)| *method == endpoint.method).filter_map(|(_, of)| of.as_mut()) {
            complete_operation(endpoint, operation, &components.schemas);
        }
    }
}

type Schemas = BTreeMap<String, RefOr<Schema>>;

/// The object that a body is.
fn object_of<'a>(content: Option<&RefOr<Content>>, schemas: &'a Schemas) -> Option<&'a Object> {
    let Some(RefOr::T(Content { schema: Some(RefOr::Ref(named)), .. })) = content else { return None };
    match named.ref_location.rsplit('/').next().and_then(|name| schemas.get(name)) {
        Some(RefOr::T(Schema::Object(object))) => Some(object),
        _ => None,
    }
}

/// Whether a request without this body is the same as one with an empty object.
fn may_be_absent(body: &RequestBody, schemas: &Schemas) -> bool {
    object_of(body.content.values().next(), schemas).is_some_and(|object| object.required.is_empty())
}

/// Says which API key an operation needs, which of the shared parameters it has, whether its body may be absent, and what it answers.
fn complete_operation(endpoint: &Endpoint, operation: &mut Operation, schemas: &Schemas) {
    operation.operation_id = Some(endpoint.id.to_owned());
    if let Some(RefOr::T(body)) = &mut operation.request_body
        && may_be_absent(body, schemas)
    {
        body.required = None;
    }
    for answer in operation.responses.responses.values_mut() {
        if let RefOr::T(answer) = answer
            && answer.description.is_empty()
        {
            let meaning = object_of(answer.content.values().next(), schemas).and_then(|body| body.description.clone());
            answer.description = meaning.or_else(|| operation.summary.clone()).unwrap_or_default();
        }
    }
    let needs = endpoint.needs;
    let scope = needs.scope();
    let security = (needs != Needs::Nothing)
        .then(|| SecurityRequirement::new("api_key", scope.iter().map(|(scope, _)| scope.as_str())));
    operation.security = Some(security.into_iter().collect());
    for (component, .., is_of) in IN_PATH.iter().chain(&IN_QUERY) {
        if is_of(endpoint) {
            let parameter = Ref::new(format!("#/components/parameters/{component}"));
            operation.parameters.get_or_insert_default().push(RefOr::Ref(parameter));
        }
    }
    let codes = codes::of(endpoint);
    let mut text = operation.description.take().unwrap_or_default();
    if let Some((scope, of_default)) = scope {
        let app = if of_default { " of the app `default`" } else { "" };
        let _ = write!(text, "\n\nScope: `{}`{app}.", scope.as_str());
    }
    if !codes.is_empty() {
        let _ = write!(text, "\n\nProblems: {}.", named(&codes));
    }
    operation.description = Some(text.trim_start().to_owned()).filter(|text| !text.is_empty());
    for range in ["4XX", "5XX"] {
        let problem = Ref::from_response_name("Problem");
        operation.responses.responses.insert(range.to_owned(), problem.into());
    }
}

/// Codes by their statuses: ``409 `key-full`; 410 `lease-lost` ``.
fn named(codes: &[Code]) -> String {
    let mut by_status: BTreeMap<StatusCode, Vec<String>> = BTreeMap::new();
    for info in codes.iter().map(|code| code.info()) {
        by_status.entry(info.status).or_default().push(format!("`{}`", info.name));
    }
    let of_status = |(status, names): (StatusCode, Vec<String>)| format!("{} {}", status.as_str(), names.join(", "));
    by_status.into_iter().map(of_status).collect::<Vec<_>>().join("; ")
}

/// The description as JSON: the bytes that `openapi/openapi.json` must have.
pub fn text() -> String {
    let mut api = Api::openapi().merge_from(Described::openapi());
    complete(&mut api, ENDPOINTS);
    let mut text = Vec::new();
    let mut json = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b" "));
    let written = api.serialize(&mut json);
    written.ok().and_then(|()| String::from_utf8(text).ok()).unwrap_or_default() + "\n"
}
