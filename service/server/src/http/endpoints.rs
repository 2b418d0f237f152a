//! All endpoints, one row each. The router, the access check, quotas, metrics, the log, the audit and the OpenAPI description read the
//! rows.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use latchgate_core::access::Scope;
use utoipa::OpenApi;

use super::endpoint::BodyLimit::{Leases, Operations};
use super::endpoint::Needs::{ApiKey, Metrics, Nothing, Operator};
use super::endpoint::Wait::{Poll, Stream};
use super::endpoint::{BodyLimit, Endpoint, Needs, row};
use super::locks::{acquire, closing, history, interventions, leases as lock, owners, reading};
use super::path::Spellings;
use super::problem::{Code, Problem};
use super::stack;
use super::stack_config::StackConfig;
use super::{admin, apps, console, leases, metrics, multilocks, openapi, operations, pages, path, status, terraform};
use crate::audit::Action;
use crate::observe::metrics::Requests;

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
            $(row($($what,)+ |m| on(m, $($handler)::+)) $(.$with($($value)?))*,)+
            $($other,)+
        ];

        #[derive(OpenApi)]
        #[openapi(paths($($($handler)::+,)+))]
        pub struct Described;
    };
}

// Method, path, operation id, what permits it, metric; handler. Then what is not as usual: a body as long as those about locks (none for GET and
// DELETE), no query, no wait, no audit record. In the order in which a reader tries them: what an endpoint deletes can be shown before.
endpoints! {
    described {
        row("POST", "/v1/locks/{key}/acquire", "acquireLock", LOCKS, "acquire"; acquire::acquire).wait(Poll),
        row("POST", "/v1/locks/{key}/renew", "renewLock", LOCKS, "renew"; lock::renew).of_holder(),
        row("POST", "/v1/locks/{key}/fence", "checkLockToken", LOCKS, "fence"; interventions::fence),
        row("POST", "/v1/locks/{key}/revoke", "revokeLock", LOCKS, "revoke"; interventions::revoke).audit(Action::Revoke),
        row("POST", "/v1/locks/{key}/release", "releaseLock", LOCKS, "release"; lock::release).of_holder(),
        row("PUT", "/v1/locks/{key}/limit", "setLockLimit", LOCKS, "limit"; interventions::set_limit),
        row("PUT", "/v1/locks/{key}/closed", "closeLock", ADMIN, "close"; closing::close).audit(Action::Close),
        row("DELETE", "/v1/locks/{key}/closed", "openLock", ADMIN, "open"; closing::open).audit(Action::Open),
        row("GET", "/v1/locks/{key}", "getLock", READ, "inspect"; reading::inspect).query().wait(Poll),
        row("DELETE", "/v1/locks/{key}", "forceLock", ADMIN, "force"; interventions::force).query().audit(Action::Force),
        row("GET", "/v1/locks", "listLocks", READ, "list"; reading::list).query(),
        row("GET", "/v1/owners/{owner}", "getOwner", READ, "owner"; owners::owner).query(),
        row("GET", "/v1/locks/{key}/history", "getLockHistory", READ, "history"; history::history).query(),
        row("GET", "/v1/locks/{key}/events", "watchLock", READ, "events"; history::events).query().wait(Stream),
        row("GET", "/v1/events", "watchLocks", READ, "events"; history::all_events).query().wait(Stream),
        row("POST", "/v1/multilocks/acquire", "acquireMultilock", LOCKS, "multilock_acquire"; multilocks::acquire).wait(Poll),
        row("POST", "/v1/leases/renew", "renewLeases", LOCKS, "leases_renew"; leases::renew).body(Leases).of_holder(),
        row("POST", "/v1/leases/release", "releaseLeases", LOCKS, "leases_release"; leases::release).body(Leases).of_holder(),
        row("POST", "/v1/leases/revoke", "revokeLeases", LOCKS, "leases_revoke"; leases::revoke).audit(Action::Revoke),
        row("POST", "/v1/operations/pre", "startOperation", GATE, "pre"; operations::pre).body(Operations).wait(Poll),
        row("POST", "/v1/operations/{id}/heartbeat", "heartbeatOperation", GATE, "heartbeat"; operations::heartbeat).body(Operations).of_holder(),
        row("POST", "/v1/operations/{id}/post", "finishOperation", GATE, "post"; operations::post).body(Operations).of_holder(),
        row("POST", "/v1/operations/{id}/resolve", "resolveOperation", ADMIN, "operation"; operations::resolve).body(Operations).audit(Action::ResolveOperation),
        row("GET", "/v1/operations/{id}", "getOperation", READ, "operation"; operations::inspect).query().wait(Poll),
        row("DELETE", "/v1/operations/{id}", "forgetOperation", GATE, "operation"; operations::forget).query().audit(Action::ForgetOperation),
        row("GET", "/v1/operations", "listOperations", READ, "list"; operations::list).query(),
        row("POST", "/v1/operations/pre/batch", "startOperations", GATE, "pre_batch"; operations::pre_batch).body(Operations).wait(Poll),
        row("POST", "/v1/operations/preview", "previewOperation", GATE, "preview"; operations::preview).body(Operations),
        row("GET", "/v1/me", "getMe", ApiKey, "other"; apps::me),
        row("GET", "/v1/admin/engines", "listEngines", Operator, "admin"; admin::engines),
        row("POST", "/v1/admin/engines/{of}", "switchEngine", Operator, "admin"; admin::switch).audit(Action::SwitchEngine),
        row("POST", "/v1/admin/hold-off", "setHoldOff", Operator, "admin"; admin::hold_off).audit(Action::HoldOff),
        row("POST", "/v1/terraform/{key}", "lockTerraformState", LOCKS, "acquire"; terraform::lock).alias("LOCK").query().password().wait(Poll),
        row("DELETE", "/v1/terraform/{key}", "unlockTerraformState", LOCKS, "release"; terraform::unlock).alias("UNLOCK").query().password().body(BodyLimit::Small).of_holder(),
        row("GET", "/v1/admin/apps", "listApps", Operator, "admin"; apps::list_apps),
        row("POST", "/v1/admin/apps", "createApp", Operator, "admin"; apps::create_app).audit(Action::CreateApp),
        row("PATCH", "/v1/admin/apps/{app}", "changeApp", Operator, "admin"; apps::change_app).audit(Action::ChangeApp),
        row("GET", "/v1/admin/api-keys", "listApiKeys", Operator, "admin"; apps::list_keys).query(),
        row("POST", "/v1/admin/api-keys", "createApiKey", Operator, "admin"; apps::create_key).audit(Action::CreateKey),
        row("DELETE", "/v1/admin/api-keys/{id}", "revokeApiKey", Operator, "admin"; apps::revoke_key).audit(Action::RevokeKey),
        row("GET", "/healthz", "checkHealth", Nothing, "other"; status::healthz),
        row("GET", "/readyz", "checkReadiness", Nothing, "other"; status::readyz),
        row("GET", METRICS, "getMetrics", Metrics, "other"; metrics::metrics),
    }
    others {
        row("GET", "/", "", Nothing, "other", |m| on(m, console::index)).query(),
        row("GET", "/console/{*path}", "", Nothing, "other", |m| on(m, console::file)).query(),
        row("GET", "/errors/{code}", "", Nothing, "other", |m| on(m, pages::error)).query(),
        row("GET", "/openapi.json", "", Nothing, "other", |m| on(m, async || openapi::serve(Described::openapi, ENDPOINTS))).query(),
        row("GET", "/docs", "", Nothing, "other", |m| on(m, pages::docs_index)).query(),
        row("GET", "/docs/", "", Nothing, "other", |m| on(m, pages::docs)).query(),
        row("GET", "/docs/{*path}", "", Nothing, "other", |m| on(m, pages::docs)).query(),
    }
}

const METRICS: &str = "/metrics";

/// A request for no path or for no method of its path.
static NO_ENDPOINT: Endpoint = row("GET", "", "", ApiKey, "other", |_| MethodRouter::new()).query().body(Operations);

/// The values of the label `route` in the metrics. The last stands for every request that has none of its own.
static ROUTES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut routes: Vec<&'static str> = Vec::new();
    for endpoint in ENDPOINTS.iter().chain([&NO_ENDPOINT]) {
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

/// The OpenAPI description: exactly the bytes of `openapi/openapi.json`.
pub fn openapi_json() -> String {
    openapi::text(Described::openapi, ENDPOINTS)
}

/// The router of all endpoints, or of `/metrics` alone.
pub fn router(config: &Arc<StackConfig>) -> Router {
    let mut paths: BTreeMap<&'static str, Vec<&'static Endpoint>> = BTreeMap::new();
    for endpoint in ENDPOINTS.iter().filter(|endpoint| !config.is_metrics_alone || endpoint.path == METRICS) {
        paths.entry(endpoint.path).or_default().push(endpoint);
    }
    let layered = |endpoint: &'static Endpoint, methods| {
        let route = ROUTES.iter().position(|route| *route == endpoint.metric).unwrap_or_default();
        stack::layered(config, endpoint, route, methods)
    };
    let mut router = Router::new();
    for (path, endpoints) in paths {
        let other_methods = MethodRouter::new().fallback(no_method(&endpoints));
        let mut methods = layered(&NO_ENDPOINT, other_methods);
        for endpoint in endpoints {
            let filter = Method::from_bytes(endpoint.method.as_bytes()).ok().and_then(|method| method.try_into().ok());
            let filter: MethodFilter = filter.expect("the router knows the methods of the table");
            methods = methods.merge(layered(endpoint, (endpoint.handler)(filter)));
        }
        router = router.route(path, methods);
    }
    let no_path = layered(&NO_ENDPOINT, MethodRouter::new().fallback(no_path));
    router.fallback_service(no_path.with_state(Arc::clone(&config.context))).with_state(Arc::clone(&config.context))
}

/// How clients may write paths and methods.
pub fn spellings() -> &'static Spellings {
    static SPELLINGS: LazyLock<Spellings> = LazyLock::new(|| Spellings::new(ENDPOINTS));
    &SPELLINGS
}

async fn no_path(request: Request) -> Problem {
    if request.uri().path().starts_with(path::LOCKS) {
        return path::invalid_key("");
    }
    Problem::new(Code::NotFound, "No endpoint has this path: see /docs.")
}

/// Answers OPTIONS, and every method that the path does not have.
fn no_method(
    endpoints: &[&'static Endpoint],
) -> impl Fn(Request) -> std::future::Ready<Response> + Clone + Send + Sync + 'static {
    let names = endpoints.iter().flat_map(|endpoint| {
        let head = (endpoint.method == "GET").then_some("HEAD");
        endpoint.alias.into_iter().chain([endpoint.method]).chain(head)
    });
    let allow = names.chain(["OPTIONS"]).collect::<Vec<_>>().join(",");
    move |request: Request| {
        let problem = match *request.method() {
            Method::OPTIONS => None,
            Method::POST if path::has_verb_in_key(request.uri().path()) => {
                let detail =
                    "After a key comes acquire, renew, release, revoke or fence. Send a slash inside a key as %2F.";
                return std::future::ready(Problem::new(Code::NotFound, detail).into_response());
            }
            _ => Some(Problem::new(Code::MethodNotAllowed, format!("This path has only {allow}: see /docs."))),
        };
        let mut response = problem.map_or_else(|| StatusCode::NO_CONTENT.into_response(), IntoResponse::into_response);
        if let Ok(allow) = HeaderValue::try_from(allow.as_str()) {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        std::future::ready(response)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_document_says_what_each_endpoint_needs() {
        let rows: Vec<String> = ENDPOINTS
            .iter()
            .map(|Endpoint { method, path, needs, .. }| {
                let needs = match needs {
                    Needs::Nothing => "nothing".to_owned(),
                    Needs::ApiKey => "any API key".to_owned(),
                    Needs::Scope(scope) => format!("`{scope}`"),
                    Needs::Operator => "`admin` of the app `default`".to_owned(),
                    Needs::Metrics => "`read` of the app `default`".to_owned(),
                };
                format!("| `{method} {path}` | {needs} |")
            })
            .collect();
        let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ACCESS.md")).unwrap();
        let table = document.split("| endpoint | needs |\n| --- | --- |\n").nth(1).unwrap_or_default();
        let table: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(table, rows, "docs/ACCESS.md, \"Each endpoint\"");
    }

    #[test]
    fn what_is_described_has_a_row_with_its_id_and_every_row_with_an_id_is_described() {
        let api: Value = serde_json::from_str(&openapi_json()).unwrap();
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
            let ends = ["/renew", "/release", "/post", "/heartbeat"].iter().any(|end| endpoint.path.ends_with(end));
            let is_unlock = endpoint.id == "unlockTerraformState";
            assert_eq!(endpoint.is_of_holder, ends || is_unlock, "{} {}", endpoint.method, endpoint.path);
        }
    }
}
