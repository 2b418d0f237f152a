//! The OpenAPI description, made from the code.

mod operations;
mod problems;
#[cfg(test)]
mod rules;
mod schemas;

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, RefOr};
use utoipa::{Modify, OpenApi};

use super::endpoint::Endpoint;
use super::{admin, api_keys, apps, leases, locks, me, metrics, multilocks, status, terraform};

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
        (name = "terraform", description = "Locks in the protocol of Terraform's http backend"),
        (name = "admin", description = "For operators of the service"),
        (name = "probes", description = "For load balancers and monitoring"),
    ),
    paths(
        locks::acquire::acquire,
        locks::leases::renew,
        locks::leases::release,
        locks::reading::inspect,
        locks::reading::list,
        locks::interventions::revoke,
        locks::interventions::force,
        locks::interventions::set_limit,
        locks::interventions::fence,
        locks::history::history,
        locks::history::events,
        locks::history::all_events,
        leases::renew,
        leases::release,
        leases::revoke,
        multilocks::acquire,
        multilocks::renew,
        multilocks::release,
        super::operations::pre,
        super::operations::pre_batch,
        super::operations::preview,
        super::operations::post,
        super::operations::heartbeat,
        super::operations::inspect,
        super::operations::forget,
        super::operations::list,
        me::me,
        admin::engines,
        admin::switch_locks,
        admin::switch_gate,
        admin::hold_off,
        terraform::lock,
        terraform::unlock,
        apps::list_apps,
        apps::create_app,
        apps::disable_app,
        apps::set_warn_after,
        apps::set_quotas,
        api_keys::list_keys,
        api_keys::create_key,
        api_keys::revoke_key,
        status::healthz,
        status::readyz,
        metrics::metrics,
    ),
    components(schemas(multilocks::LostKey, locks::answers::LostWhy, problems::UnknownWhy)),
    servers((url = "/", description = "This node")),
    modifiers(&ApiKeys),
)]
struct Api;

/// The API key, which every operation under `/v1/` needs once there is one.
struct ApiKeys;

impl Modify for ApiKeys {
    fn modify(&self, api: &mut openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("lgk_ID_SECRET");
        let scheme = scheme.description(Some("An API key. As long as the service has none, requests need none."));
        let components = api.components.get_or_insert_default();
        components.security_schemes.insert("api_key".to_owned(), RefOr::T(SecurityScheme::Http(scheme.build())));
    }
}

/// The description: what the code says of each operation, and what all have in common.
fn describe(endpoints: &'static [Endpoint]) -> Value {
    let mut api = serde_json::to_value(Api::openapi()).unwrap_or_default();
    operations::each(&mut api, |method, path, operation| {
        operations::complete(endpoints, method, path, operation);
        problems::describe(operation);
        schemas::bound_parameters(operation);
    });
    problems::add_schemas(&mut api);
    schemas::complete(&mut api);
    api
}

/// The description in the order in which a reader tries it: Swagger UI shows it so.
#[derive(Serialize)]
struct Page<'a> {
    openapi: &'a Value,
    info: &'a Value,
    servers: &'a Value,
    tags: &'a Value,
    #[serde(serialize_with = "in_order")]
    paths: &'a Value,
    components: &'a Value,
}

fn in_order<S: Serializer>(paths: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    const FIRST: [&str; 8] = ["/acquire", "/renew", "/fence", "/revoke", "/release", "/pre", "/heartbeat", "/post"];
    let mut paths: Vec<(&String, &Value)> = paths.as_object().into_iter().flatten().collect();
    paths.sort_by_key(|(path, _)| FIRST.iter().position(|end| path.ends_with(end)).unwrap_or(FIRST.len()));
    serializer.collect_map(paths.into_iter().map(|(path, item)| (path, Item(item))))
}

/// The operations of a path. What an operation deletes can be shown before.
struct Item<'a>(&'a Value);

impl Serialize for Item<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut operations: Vec<(&String, &Value)> = self.0.as_object().into_iter().flatten().collect();
        operations.sort_by_key(|(method, _)| *method == "delete");
        serializer.collect_map(operations)
    }
}

/// The description as JSON: exactly the bytes of `openapi/openapi.json`.
pub fn text(endpoints: &'static [Endpoint]) -> String {
    let api = describe(endpoints);
    let [openapi, info, servers] = ["openapi", "info", "servers"].map(|name| &api[name]);
    let page =
        Page { openapi, info, servers, tags: &api["tags"], paths: &api["paths"], components: &api["components"] };
    let mut text = serde_json::to_string_pretty(&page).unwrap_or_default();
    text.push('\n');
    text
}

pub fn serve(endpoints: &'static [Endpoint]) -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| text(endpoints));
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}
