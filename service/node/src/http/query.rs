//! Query parameters. Unknown ones are refused.

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::endpoint::Exchange;
use super::endpoint::RequestContext;
use super::problem::{Code, Problem, within};

/// Parses a query.
///
/// # Errors
/// `invalid-request` naming the parameter.
fn parse<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    axum::extract::Query::try_from_uri(uri).map(|query| query.0).map_err(|error| bad_query(&error.body_text()))
}

/// The beginning of the parameter that names an app.
const APP: &str = "app=";

/// The app that a query names.
///
/// # Errors
/// `invalid-request` if it names several.
pub fn app(uri: &Uri) -> Result<Option<String>, Problem> {
    let mut named = uri.query().unwrap_or_default().split('&').filter_map(|parameter| parameter.strip_prefix(APP));
    let Some(app) = named.next() else { return Ok(None) };
    if named.next().is_some() {
        return Err(Problem::field("app", "must be given once"));
    }
    Ok(Some(percent_decode_str(&app.replace('+', " ")).decode_utf8_lossy().into_owned()))
}

/// The same without the app that it names, which is settled before the handler.
fn without_app(exchange: &Exchange, uri: &Uri) -> Uri {
    if exchange.app.get().is_none() {
        return uri.clone();
    }
    let kept: Vec<&str> =
        uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.starts_with(APP)).collect();
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    Uri::try_from(format!("{}{query}", uri.path())).unwrap_or_else(|_| uri.clone())
}

/// # Errors
/// `invalid-request`, naming the first parameter: the endpoint takes none, and would ignore it.
pub fn none(exchange: &Exchange, uri: &Uri) -> Result<(), Problem> {
    if uri.query().is_none() {
        return Ok(());
    }
    let parameters: Vec<(String, String)> = parse(&without_app(exchange, uri))?;
    match parameters.first() {
        Some((name, _)) => Err(Problem::field(name, "is a query parameter, and this method of this path takes none")),
        None => Ok(()),
    }
}

/// The query parameters of a request.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<RequestContext> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, served: &RequestContext) -> Result<Self, Problem> {
        parse(&without_app(&served.exchange, &parts.uri)).map(Self)
    }
}

/// The longest page. A sorted listing counts as one against a quota: what it walks along is bounded by its time.
pub const PAGE_MAX: usize = 1_000;

/// Most entries of one page: 100 if the request does not say.
///
/// # Errors
/// `invalid-request`
pub fn page_limit(requested: Option<usize>) -> Result<usize, Problem> {
    within("limit", requested.unwrap_or(100), 1..=PAGE_MAX)
}

/// axum words a query's errors as `Failed to deserialize query string: {field}: {reason}`.
fn bad_query(text: &str) -> Problem {
    let reason = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let unknown = reason.split("unknown field `").nth(1).and_then(|rest| rest.split('`').next());
    let named = reason.split_once(": ").map(|(field, _)| field);
    Problem::new(Code::InvalidRequest, format!("The query is not valid: {reason}."))
        .with_some("field", unknown.or(named))
}
