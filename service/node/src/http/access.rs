//! Which caller sends a request, and whether it has the scope that the endpoint needs: checked once, before any handler.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use latchgate_core::App;
use latchgate_core::access::{ApiKey, Refusal, Scope};
use latchgate_core::key::{ALL_APPS, InvalidName};

use super::audit;
use super::context::Context;
use super::endpoint::Exchange;
use super::endpoint::{NamedApps, Needs};
use super::problem::{Code, Problem};
use super::query;
use super::request_body::Arriving;
use crate::access::Denied;
use crate::audit::Actor;

/// Refuses a request without permission, and puts the caller into the exchange of the others.
///
/// # Errors
/// `unauthorized`, `forbidden`, or `store-unavailable` while the API keys are not known.
pub fn authenticate(context: &Context, exchange: &Exchange, request: &Arriving) -> Result<(), Problem> {
    let endpoint = exchange.endpoint();
    let count = |presented: Option<&str>, denied| count_failure(context, exchange, presented, denied);
    let presented = api_key(request.headers());
    let presented = presented.inspect_err(|_| count(None, Denied::Refused(Refusal::Unknown)))?;
    let caller = context.access.check(presented).map_err(|denied| {
        count(presented, denied);
        refused(denied)
    })?;
    let _ = exchange.caller.set(Arc::clone(&caller));
    let permissions = &caller.permissions;
    let Some((scope, of_default)) = endpoint.needs.scope() else { return Ok(()) };
    let is_permitted = match endpoint.needs {
        Needs::Operator => permissions.is_operator(),
        _ => permissions.scopes.has(scope) && (!of_default || permissions.app == App::default()),
    };
    let named = if endpoint.named_apps == NamedApps::None { None } else { query::app(request.uri())? };
    if let Some(named) = named {
        let app = match &*named {
            ALL_APPS if endpoint.named_apps == NamedApps::OneOrAll => None,
            ALL_APPS => return Err(Problem::field("app", InvalidName::AllApps)),
            // Also one that was deleted, whose leftovers an operator ends.
            name => Some(App::parse(name).map_err(|error| Problem::field("app", error))?),
        };
        let _ = exchange.app.set(app);
    }
    let is_other = exchange.app.get().is_some_and(|app| app.as_ref() != Some(&permissions.app));
    if !is_permitted || (is_other && !permissions.is_operator()) {
        audit::forbidden(endpoint, request.uri(), exchange, &caller);
        return Err(if is_permitted { lacks(Scope::Admin, true) } else { lacks(scope, of_default) });
    }
    Ok(())
}

/// Counts a request of an app as so many more: one, and others for what it carries. Operators can always change quotas.
///
/// # Errors
/// `quota-reached`.
pub fn count(exchange: &Exchange, count: usize) -> Result<(), Problem> {
    let endpoint = exchange.endpoint();
    if !matches!(endpoint.needs, Needs::Scope(_)) {
        return Ok(());
    }
    let caller = exchange.caller.get().ok_or_else(Problem::defect)?;
    let more = u32::try_from(count).unwrap_or(u32::MAX);
    Ok(caller.app_use.request(endpoint.has_holders_quota, exchange.count(more), more)?)
}

/// The answer to a caller without the scope, or of another app than `default`, if that must be its own.
pub fn lacks(scope: Scope, of_default: bool) -> Problem {
    let of = if of_default { " of the app default" } else { "" };
    let detail = format!("This needs an API key{of} with the scope {scope}.");
    Problem::new(Code::Forbidden, detail).with("scope", scope)
}

/// The answer to a request whose API key was revoked while it waited.
pub fn ended() -> Problem {
    refused(Denied::Refused(Refusal::Revoked))
}

/// Logs a failed authentication.
fn count_failure(context: &Context, exchange: &Exchange, presented: Option<&str>, denied: Denied) {
    let key_id = presented.and_then(|text| text.parse::<ApiKey>().ok()).map(|key| key.id());
    let (app, why) = match denied {
        Denied::NotYetKnown => return,
        Denied::NoKey if exchange.endpoint().anonymous_ok => return,
        Denied::NoKey => (None, "no-api-key"),
        Denied::Refused(Refusal::Unknown) => (None, "unknown-api-key"),
        // Only a client that has the secret gets here.
        Denied::Refused(Refusal::Revoked) => (context.access.app_of(key_id), "revoked"),
        Denied::Refused(Refusal::Expired) => (context.access.app_of(key_id), "expired"),
        Denied::Refused(Refusal::AppDisabled) => (context.access.app_of(key_id), "app-disabled"),
    };
    context.failures.log(Actor { app, key_id, from: Some(exchange.from.to_string()) }, why);
}

/// The API key that the request presents as a bearer token.
fn api_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let Some(first) = sent.next() else { return Ok(None) };
    let text = first.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, api_key)) if scheme.eq_ignore_ascii_case("bearer") && sent.next().is_none() => {
            Ok(Some(api_key.trim()))
        }
        _ => {
            Err(Problem::new(Code::Unauthorized, "The header must be `Authorization: Bearer API_KEY`, and sent once."))
        }
    }
}

fn refused(denied: Denied) -> Problem {
    match denied {
        Denied::NoKey => Problem::new(
            Code::Unauthorized,
            "This service needs an API key: `Authorization: Bearer API_KEY`; clients take it from LATCHGATE_API_KEY.",
        ),
        Denied::NotYetKnown => {
            let detail = "This node does not know yet which API keys there are, because no store of the locks answers.";
            Problem::new(Code::StoreUnavailable, detail).retry_after_ms(1_000)
        }
        Denied::Refused(refusal) => Problem::new(Code::Unauthorized, refusal.to_string()),
    }
}
