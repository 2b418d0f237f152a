//! All endpoints, one row each, and how the endpoint of a request is found. The access check, quotas, metrics, the log, the audit and the
//! OpenAPI description read the rows.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::extract::Request as AnyRequest;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use latchgate_core::access::Scope;

use super::endpoint::BodyLimit::{Leases, Operations, Results};
use super::endpoint::Needs::{ApiKey, Metrics, Nothing, Operator};
use super::endpoint::Wait::{Poll, Stream};
use super::endpoint::{Endpoint, Found, Needs, call_handler, row};
use super::locks::{acquire, closing, history, interventions, leases as lock, reading};
use super::problem::{Code, Problem};
use super::{admin, apps, console, leases, metrics, multilocks, operations, pages, path, status, swagger_ui};
use crate::observe::metrics::Requests;

/// The OpenAPI description. `make drift` compares it to the code.
pub const OPENAPI: &str = include_str!("../../../../openapi/openapi.json");

const READ: Needs = Needs::Scope(Scope::Read);
const LOCKS: Needs = Needs::Scope(Scope::Locks);
const GATE: Needs = Needs::Scope(Scope::Operations);
const ADMIN: Needs = Needs::Scope(Scope::Admin);

/// Makes the table, and the description of each row in its first part.
macro_rules! endpoints {
    (
        described { $(row($($what:expr),+; $($handler:ident)::+) $(.$with:ident($($value:expr)?))*,)+ }
        others { $($other:expr,)+ }
    ) => {
        pub static ENDPOINTS: &[Endpoint] = &[
            $(row($($what,)+ |request, context| call_handler($($handler)::+, request, context)) $(.$with($($value)?))*,)+
            $($other,)+
        ];

        #[cfg(feature = "openapi")]
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($($handler)::+,)+))]
        pub struct Described;
    };
}

// Method, path, operation id, what permits it, metric; handler. Then what is not as usual: usual is a small body (none for GET and DELETE),
// no query, no wait, no audit record, and no other app by `app`. In the order in which a reader tries them: what an endpoint deletes can
// be shown before.
endpoints! {
    described {
        row("POST", "/v1/locks/{key}/acquire", "acquireLock", LOCKS, "acquire"; acquire::acquire).wait(Poll),
        row("POST", "/v1/locks/{key}/renew", "renewLock", LOCKS, "renew"; lock::renew).holders_quota(),
        row("POST", "/v1/locks/{key}/fence", "checkLockToken", LOCKS, "fence"; interventions::fence),
        row("POST", "/v1/locks/{key}/revoke", "revokeLock", LOCKS, "revoke"; interventions::revoke).audit("revoke").app_parameter(),
        row("POST", "/v1/locks/{key}/release", "releaseLock", LOCKS, "release"; lock::release).holders_quota(),
        row("PUT", "/v1/locks/{key}/limit", "setLockLimit", ADMIN, "limit"; interventions::set_limit).audit("set-limit").app_parameter(),
        row("PUT", "/v1/locks/{key}/closed", "closeLock", ADMIN, "close"; closing::close).audit("close").app_parameter(),
        row("DELETE", "/v1/locks/{key}/closed", "openLock", ADMIN, "open"; closing::open).audit("open").app_parameter(),
        row("GET", "/v1/locks/{key}", "getLock", READ, "inspect"; reading::inspect).app_parameter(),
        row("DELETE", "/v1/locks/{key}", "forceLock", ADMIN, "force"; interventions::force).query().audit("force").app_parameter(),
        row("GET", "/v1/locks", "listLocks", READ, "list"; reading::list).query().app_parameter_or_all(),
        row("GET", "/v1/locks/{key}/history", "getLockHistory", READ, "history"; history::history).query().app_parameter(),
        row("GET", "/v1/locks/{key}/events", "watchLock", READ, "events"; history::events).query().wait(Stream).app_parameter(),
        row("GET", "/v1/events", "watchLocks", READ, "events"; history::all_events).query().wait(Stream).app_parameter_or_all(),
        row("POST", "/v1/multilocks/acquire", "acquireMultilock", LOCKS, "multilock_acquire"; multilocks::acquire).wait(Poll),
        row("POST", "/v1/leases/renew", "renewLeases", LOCKS, "leases_renew"; leases::renew).body(Leases).holders_quota(),
        row("POST", "/v1/leases/release", "releaseLeases", LOCKS, "leases_release"; leases::release).body(Leases).holders_quota(),
        row("POST", "/v1/operations/pre", "startOperation", GATE, "pre"; operations::pre).body(Operations).wait(Poll),
        row("POST", "/v1/operations/{id}/heartbeat", "heartbeatOperation", GATE, "heartbeat"; operations::heartbeat).body(Operations).holders_quota(),
        row("POST", "/v1/operations/{id}/post", "finishOperation", GATE, "post"; operations::post).body(Results).holders_quota(),
        row("POST", "/v1/operations/enter", "enterOperation", GATE, "enter"; operations::enter).body(Results).holders_quota(),
        row("POST", "/v1/operations/{id}/resolve", "resolveOperation", ADMIN, "operation"; operations::resolve).body(Operations).audit("resolve-operation").app_parameter(),
        row("GET", "/v1/operations/{id}", "getOperation", READ, "operation"; operations::inspect).query().wait(Poll).app_parameter(),
        row("DELETE", "/v1/operations/{id}", "forgetOperation", GATE, "operation"; operations::forget).query().audit("forget-operation").app_parameter(),
        row("GET", "/v1/operations", "listOperations", READ, "list"; operations::list).query().app_parameter_or_all(),
        row("POST", "/v1/operations/pre/batch", "startOperations", GATE, "pre_batch"; operations::pre_batch).body(Operations).wait(Poll),
        row("POST", "/v1/operations/preview", "previewOperation", GATE, "preview"; operations::preview).body(Operations).app_parameter(),
        row("GET", "/v1/me", "getMe", ApiKey, "other"; apps::me).anonymous_ok(),
        row("GET", "/v1/admin/engines", "listEngines", Operator, "admin"; admin::engines),
        row("POST", "/v1/admin/engines/{of}", "switchEngine", Operator, "admin"; admin::switch).audit("switch-engine"),
        row("POST", "/v1/admin/hold-off", "setHoldOff", Operator, "admin"; admin::hold_off).audit("hold-off"),
        row("GET", "/v1/admin/apps", "listApps", Operator, "admin"; apps::list_apps),
        row("POST", "/v1/admin/apps", "createApp", Operator, "admin"; apps::create_app).audit("create-app"),
        row("PATCH", "/v1/admin/apps/{app}", "changeApp", Operator, "admin"; apps::change_app).audit("change-app"),
        row("DELETE", "/v1/admin/apps/{app}", "deleteApp", Operator, "admin"; apps::delete_app).audit("delete-app"),
        row("GET", "/v1/admin/api-keys", "listApiKeys", Operator, "admin"; apps::list_keys).query(),
        row("POST", "/v1/admin/api-keys", "createApiKey", Operator, "admin"; apps::create_key).audit("create-key"),
        row("DELETE", "/v1/admin/api-keys/{id}", "revokeApiKey", Operator, "admin"; apps::revoke_key).audit("revoke-key"),
        row("GET", "/healthz", "checkHealth", Nothing, "other"; status::healthz).query(),
        row("GET", "/readyz", "checkReadiness", Nothing, "other"; status::readyz).query(),
        row("GET", "/metrics", "getMetrics", Metrics, "other"; metrics::metrics),
        row("GET", "/metrics/samples", "getSamples", READ, "other"; metrics::samples).app_parameter_or_all(),
    }
    others {
        row("GET", "/", "", Nothing, "other", |r, c| call_handler(console::index, r, c)).query(),
        row("GET", "/console/{*path}", "", Nothing, "other", |r, c| call_handler(console::file, r, c)).query(),
        row("GET", "/errors/{code}", "", Nothing, "other", |r, c| call_handler(pages::error, r, c)).query(),
        row("GET", "/openapi.json", "", Nothing, "other", |r, c| call_handler(openapi_document, r, c)).query(),
        row("GET", "/docs", "", Nothing, "other", |r, c| call_handler(swagger_ui::index, r, c)).query(),
        row("GET", "/docs/", "", Nothing, "other", |r, c| call_handler(swagger_ui::file, r, c)).query(),
        row("GET", "/docs/{*path}", "", Nothing, "other", |r, c| call_handler(swagger_ui::file, r, c)).query(),
    }
}

/// What is found for a request whose path no endpoint has.
static NO_PATH: Endpoint =
    row("GET", "", "", ApiKey, "other", |r, c| call_handler(no_path, r, c)).query().body(Operations);

/// What is found for a request whose path has endpoints, but none with its method.
static NO_METHOD: Endpoint = Endpoint { handler: |r, c| call_handler(no_method, r, c), ..NO_PATH };

/// The values of the label `route` in the metrics. The last stands for every request that has none of its own.
static ROUTES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut routes: Vec<&'static str> = Vec::new();
    for endpoint in ENDPOINTS.iter().chain([&NO_PATH]) {
        if !routes.contains(&endpoint.metric) {
            routes.push(endpoint.metric);
        }
    }
    routes
});

/// Counts the answers to requests.
pub fn requests() -> Arc<Requests> {
    Arc::new(Requests::new(&ROUTES))
}

fn found(endpoint: &'static Endpoint) -> Found {
    let route = ROUTES.iter().position(|route| *route == endpoint.metric).unwrap_or_default();
    Found { endpoint, route }
}

/// Finds the endpoint of a request by the tree of paths that axum's router has, too. That router would clone the layers for each request:
/// see service/bench/README.md.
pub struct Router {
    paths: matchit::Router<Vec<Found>>,
    /// The last parts of paths with the key of a lock.
    verbs: Vec<&'static str>,
    no_path: Found,
    no_method: Found,
}

impl Router {
    /// Of all endpoints.
    pub fn new() -> Self {
        let mut by_path: BTreeMap<&'static str, Vec<Found>> = BTreeMap::new();
        for endpoint in ENDPOINTS {
            by_path.entry(endpoint.path).or_default().push(found(endpoint));
        }
        let mut paths = matchit::Router::new();
        for (path, endpoints) in by_path {
            paths.insert(path, endpoints).expect("the paths of the table differ");
        }
        let verbs = ENDPOINTS.iter().filter_map(|endpoint| endpoint.path.strip_prefix("/v1/locks/{key}/")).collect();
        Self { paths, verbs, no_path: found(&NO_PATH), no_method: found(&NO_METHOD) }
    }

    /// The endpoint of a request, whose path it brings into the form of the table.
    pub fn find<B>(&self, request: &mut Request<B>) -> Found {
        path::normalize(request, &self.verbs);
        let endpoints = self.at(request.uri().path());
        if endpoints.is_empty() {
            return self.no_path;
        }
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        endpoints.iter().find(|found| found.endpoint.method == method.as_str()).copied().unwrap_or(self.no_method)
    }

    fn at(&self, path: &str) -> &[Found] {
        self.paths.at(path).map_or(&[], |matched| matched.value)
    }
}

async fn no_path(request: AnyRequest) -> Problem {
    if request.uri().path().starts_with(path::LOCKS) {
        return path::invalid_key("");
    }
    Problem::new(Code::NotFound, "No endpoint has this path: see /docs.")
}

/// Answers OPTIONS, and every method that the path does not have.
async fn no_method(request: AnyRequest) -> Response {
    static ALL: LazyLock<Router> = LazyLock::new(Router::new);
    let path = request.uri().path();
    let names = ALL.at(path).iter().flat_map(|Found { endpoint, .. }| {
        let head = (endpoint.method == "GET").then_some("HEAD");
        [endpoint.method].into_iter().chain(head)
    });
    let allow = names.chain(["OPTIONS"]).collect::<Vec<_>>().join(",");
    if request.method() == Method::OPTIONS {
        return (StatusCode::NO_CONTENT, [(header::ALLOW, allow)]).into_response();
    }
    if request.method() == Method::POST && path::has_verb_in_key(path) {
        let detail = "After a key comes acquire, renew, release, revoke or fence. Send a slash inside a key as %2F.";
        return Problem::new(Code::NotFound, detail).into_response();
    }
    let problem = Problem::new(Code::MethodNotAllowed, format!("This path has only {allow}: see /docs."));
    ([(header::ALLOW, allow)], problem).into_response()
}

async fn openapi_document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::http::endpoint::NamedApps;

    #[test]
    fn the_document_says_what_each_endpoint_needs() {
        let mut rows: Vec<(String, Vec<String>)> = Vec::new();
        for Endpoint { method, path, needs, named_apps, .. } in ENDPOINTS {
            let apps = match named_apps {
                NamedApps::None => "",
                NamedApps::One => "one",
                NamedApps::OneOrAll => "one or all",
            };
            let needs = match needs {
                Needs::Nothing => "nothing".to_owned(),
                Needs::ApiKey => "any API key".to_owned(),
                Needs::Scope(scope) => format!("`{scope}`"),
                Needs::Operator => "`admin` of the app `default`".to_owned(),
                Needs::Metrics => "`read` of the app `default`".to_owned(),
            };
            let (head, endpoint) = (format!("| {needs} | {apps} |"), format!("`{method} {path}`"));
            match rows.iter_mut().find(|(other, _)| *other == head) {
                Some((_, endpoints)) => endpoints.push(endpoint),
                None => rows.push((head, vec![endpoint])),
            }
        }
        let rows: Vec<String> =
            rows.into_iter().map(|(head, endpoints)| format!("{head} {} |", endpoints.join(", "))).collect();
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ACCESS.md")).unwrap();
        let table =
            document.split("| needs | other apps | endpoints |\n| --- | --- | --- |\n").nth(1).unwrap_or_default();
        let table: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(table, rows, "docs/ACCESS.md, \"Each endpoint\"");
    }

    #[test]
    fn openapi_describes_exactly_the_rows_with_an_id_under_that_id() {
        let api: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in api["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap_or_default();
                described.insert(format!("{} {path} {id}", method.to_uppercase()));
            }
        }
        let rows = ENDPOINTS.iter().filter(|endpoint| !endpoint.id.is_empty());
        let rows: BTreeSet<String> = rows.map(|row| format!("{} {} {}", row.method, row.path, row.id)).collect();
        assert_eq!(described, rows);
    }

    #[test]
    fn what_operators_change_and_what_ends_the_work_of_others_leaves_a_record() {
        for endpoint in ENDPOINTS {
            let Endpoint { method, path, needs, action, .. } = endpoint;
            let changes = *method != "GET";
            let is_intervention = *needs == ADMIN || path.ends_with("/revoke") || endpoint.id == "forgetOperation";
            assert_eq!(action.is_some(), changes && (*needs == Operator || is_intervention), "{method} {path}");
        }
    }

    #[test]
    fn only_what_keeps_or_ends_what_its_client_has_begun_is_of_a_holder() {
        for endpoint in ENDPOINTS {
            let ends =
                ["/renew", "/release", "/post", "/heartbeat", "/enter"].iter().any(|end| endpoint.path.ends_with(end));
            assert_eq!(endpoint.has_holders_quota, ends, "{} {}", endpoint.method, endpoint.path);
        }
    }
}
