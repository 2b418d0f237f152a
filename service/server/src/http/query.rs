//! Query parameters. Unknown ones are refused.

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::problem::{Code, Problem, within};

/// Parses a query.
///
/// # Errors
/// `invalid-request` naming the parameter.
fn parse<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    axum::extract::Query::try_from_uri(uri).map(|query| query.0).map_err(|error| bad_query(&error.body_text()))
}

/// # Errors
/// `invalid-request`, naming the first parameter: the endpoint takes none, and would ignore it.
pub fn none(uri: &Uri) -> Result<(), Problem> {
    if uri.query().is_none() {
        return Ok(());
    }
    let parameters: Vec<(String, String)> = parse(uri)?;
    match parameters.first() {
        Some((name, _)) => Err(Problem::field(name, "is a query parameter, and this method of this path takes none")),
        None => Ok(()),
    }
}

/// The query parameters of a request.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parse(&parts.uri).map(Self)
    }
}

/// Most entries of one page: 100 if the request does not say.
///
/// # Errors
/// `invalid-request`
pub fn page_limit(requested: Option<usize>) -> Result<usize, Problem> {
    within("limit", requested.unwrap_or(100), 1..=1_000)
}

/// axum words a query's errors as `Failed to deserialize query string: {field}: {reason}`.
fn bad_query(text: &str) -> Problem {
    let reason = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let unknown = reason.split("unknown field `").nth(1).and_then(|rest| rest.split('`').next());
    let named = reason.split_once(": ").map(|(field, _)| field);
    Problem::new(Code::InvalidRequest, format!("The query is not valid: {reason}."))
        .with_some("field", unknown.or(named))
}
