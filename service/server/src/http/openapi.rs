//! The OpenAPI description, made from the code.

use axum::Router;
use axum::http::header;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::{
    admin, apps, audit, fleet_lock, leases, locks, me, metrics, multilocks, operations, pages, status, terraform,
};

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
        (name = "tools", description = "Locks in the protocols of other tools: Terraform's http backend, and FleetLock"),
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
        operations::pre,
        operations::pre_batch,
        operations::preview,
        operations::post,
        operations::heartbeat,
        operations::inspect,
        operations::forget,
        operations::list,
        me::me,
        admin::engines,
        admin::switch_locks,
        admin::switch_gate,
        admin::hold_off,
        audit::list,
        terraform::lock,
        terraform::unlock,
        fleet_lock::pre_reboot,
        fleet_lock::steady_state,
        apps::list_apps,
        apps::create_app,
        apps::disable_app,
        apps::set_warn_after,
        apps::set_quotas,
        apps::list_keys,
        apps::create_key,
        apps::revoke_key,
        status::healthz,
        status::readyz,
        metrics::metrics,
    ),
    modifiers(&ApiKeys),
)]
struct Api;

/// The API key, which every operation under `/v1/` needs once there is one, and the answers to requests without it.
struct ApiKeys;

impl Modify for ApiKeys {
    fn modify(&self, api: &mut openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("lgk_ID_SECRET");
        let scheme = scheme.description(Some("An API key. As long as the service has none, requests need none."));
        let components = api.components.get_or_insert_default();
        components.security_schemes.insert("api_key".to_owned(), RefOr::T(SecurityScheme::Http(scheme.build())));
        let problem = |description: &str| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            ResponseBuilder::new().description(description).content("application/problem+json", content).build()
        };
        for (path, item) in &mut api.paths.paths {
            if !path.starts_with("/v1/") && path != "/metrics" {
                continue;
            }
            for operation in [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten() {
                operation.security = Some(vec![SecurityRequirement::new("api_key", [""; 0])]);
                let responses = &mut operation.responses.responses;
                if path.starts_with("/v1/") && !path.starts_with("/v1/admin/") {
                    responses.entry("429".to_owned()).or_insert_with(|| problem("`quota-reached`").into());
                }
                responses.entry("401".to_owned()).or_insert_with(|| problem("`unauthorized`").into());
                match responses.get_mut("403") {
                    Some(RefOr::T(own)) => own.description = format!("`forbidden`, {}", own.description),
                    _ => {
                        responses.insert("403".to_owned(), problem("`forbidden`").into());
                    }
                }
            }
        }
    }
}

/// The description as JSON: exactly the bytes of `openapi/openapi.json`.
pub fn openapi_json() -> String {
    let mut text = serde_json::to_string_pretty(&Api::openapi()).unwrap_or_default();
    text.push('\n');
    text
}

pub(super) async fn serve() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi_json()).into_response()
}

/// Swagger UI, from files inside the binary.
pub(super) fn swagger_ui<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let config = Config::from("/openapi.json").try_it_out_enabled(true).display_request_duration(true);
    Router::from(SwaggerUi::new("/docs").config(config.validator_url("none"))).layer(map_response(pages::docs))
}
