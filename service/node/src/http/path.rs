//! Paths with the key of a lock: `/v1/locks/{key}/{verb}`. The key may have slashes of its own.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Request, Uri};
use latchgate_core::{Address, Key};

use super::call::Call;
use super::endpoint::RequestContext;
use super::problem::{Code, Problem};

pub const LOCKS: &str = "/v1/locks/";

/// The address of the lock that a path names, which the caller may use.
pub struct PathAddress(pub Address);

impl FromRequestParts<RequestContext> for PathAddress {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, served: &RequestContext) -> Result<Self, Problem> {
        let call = Call::from_request_parts(parts, served).await?;
        let key = call.exchange.parameter(&parts.uri);
        call.address(Key::parse(&key).map_err(|_| invalid_key(&key))?).map(Self)
    }
}

/// The parameter of a path as text.
pub struct PathText(pub String);

impl FromRequestParts<RequestContext> for PathText {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, served: &RequestContext) -> Result<Self, Problem> {
        // `target` has refused what is not percent-encoded UTF-8.
        Ok(Self(served.exchange.parameter(&parts.uri).into_owned()))
    }
}

/// Says which rule a key breaks.
pub fn invalid_key(text: &str) -> Problem {
    let rule = Key::parse(text).err().map(|error| error.to_string()).unwrap_or_default();
    Problem::new(Code::InvalidKey, format!("The key {rule}."))
}

/// The request as the router knows it: the slashes of its key are percent-encoded. `verbs`: the last part of a path with one of these names
/// is a verb and not the end of a key, if a literal slash precedes it.
pub fn normalize<B>(request: &mut Request<B>, verbs: &[&str]) {
    let Some(path) = normalized(request.uri().path(), verbs) else { return };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    if let Ok(uri) = Uri::try_from(format!("{path}{query}")) {
        *request.uri_mut() = uri;
    }
}

fn normalized(path: &str, verbs: &[&str]) -> Option<String> {
    let rest = path.strip_prefix(LOCKS)?;
    let key = match rest.rsplit_once('/')? {
        (key, verb) if verbs.contains(&verb) => key,
        _ => rest,
    };
    key.contains('/').then(|| format!("{LOCKS}{}{}", key.replace('/', "%2F"), &rest[key.len()..]))
}

/// Whether a client may have meant a verb by the end of a key.
pub fn has_verb_in_key(path: &str) -> bool {
    path.starts_with(LOCKS) && path.contains("%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_have_slashes_and_only_the_last_part_is_a_verb() {
        for (path, normal) in [
            ("a/acquire", "a/acquire"),
            ("a/b/acquire?x=/", "a%2Fb/acquire?x=/"),
            ("acquire/acquire", "acquire/acquire"),
            ("acquire", "acquire"),
            ("a%2Facquire", "a%2Facquire"),
            ("/acquire", "/acquire"),
            ("a//acquire", "a%2F/acquire"),
            ("a/b", "a%2Fb"),
            ("a/aquire", "a%2Faquire"),
            ("a/", "a%2F"),
        ] {
            let mut request = Request::builder().uri(format!("/v1/locks/{path}")).body(()).unwrap();
            normalize(&mut request, &["acquire"]);
            assert_eq!(request.uri().to_string(), format!("/v1/locks/{normal}"));
        }
    }
}
