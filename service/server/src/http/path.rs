//! Paths with the key of a lock: `/v1/locks/{key}/{verb}`. The key may have slashes of its own.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Request, Uri};
use latchgate_core::{Address, Key};
use utoipa::IntoParams;

use super::call::Call;
use super::context::Shared;
use super::endpoint::Endpoint;
use super::exchange::Exchange;
use super::problem::{Code, Problem};

pub const LOCKS: &str = "/v1/locks/";
const TERRAFORM: &str = "/v1/terraform/";

/// The key in a path, as the OpenAPI description shows it.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "described, not built: see `address`")]
pub struct LockKey {
    /// 1 to 512 bytes of UTF-8 without control characters, percent-encoded: a slash is `%2F`.
    #[param(example = "orders", min_length = 1, max_length = 512)]
    key: String,
}

/// The address of the lock that a path names, which the caller may use.
pub struct PathAddress(pub Address);

impl FromRequestParts<Shared> for PathAddress {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, context: &Shared) -> Result<Self, Problem> {
        let call = Call::from_request_parts(parts, context).await?;
        address(&call, &call.exchange.parameter(&parts.uri)).map(Self)
    }
}

/// The parameter of a path as text.
pub struct PathText(pub String);

impl<S: Sync> FromRequestParts<S> for PathText {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // `target` has refused what is not percent-encoded UTF-8.
        Ok(Self(Exchange::of(&parts.extensions)?.parameter(&parts.uri).into_owned()))
    }
}

/// # Errors
/// `invalid-key`, with the rule that the key breaks; `forbidden`.
pub fn address(call: &Call, key: &str) -> Result<Address, Problem> {
    call.address(Key::parse(key).map_err(|_| invalid_key(key))?)
}

/// Says which rule a key breaks.
pub fn invalid_key(text: &str) -> Problem {
    let rule = Key::parse(text).err().map(|error| error.to_string()).unwrap_or_default();
    Problem::new(Code::InvalidKey, format!("The key {rule}."))
}

/// How clients may write what the router knows by one form alone.
pub struct Spellings {
    /// The last part of a path with one of these names is a verb and not the end of a key, if a literal slash precedes it.
    verbs: Vec<&'static str>,
    /// Methods by another name.
    aliases: Vec<(&'static str, &'static Endpoint)>,
}

impl Spellings {
    pub fn new(endpoints: &'static [Endpoint]) -> Self {
        let aliases = endpoints.iter().filter_map(|endpoint| Some((endpoint.alias?, endpoint)));
        let verbs = endpoints.iter().filter_map(|endpoint| endpoint.path.strip_prefix("/v1/locks/{key}/"));
        Self { verbs: verbs.collect(), aliases: aliases.collect() }
    }

    /// The request as the router knows it: the slashes of its key are percent-encoded, and its method is not an alias.
    pub fn normalize<B>(&self, request: &mut Request<B>) {
        if let Some(path) = self.normalized(request.uri().path()) {
            let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
            if let Ok(uri) = Uri::try_from(format!("{path}{query}")) {
                *request.uri_mut() = uri;
            }
        }
        let is_sent = |(alias, endpoint): &&(&str, &Endpoint)| {
            *alias == request.method().as_str()
                && endpoint.path.split('{').next().is_some_and(|start| request.uri().path().starts_with(start))
        };
        let method = self.aliases.iter().find(is_sent).and_then(|(_, endpoint)| endpoint.method.parse().ok());
        if let Some(method) = method {
            *request.method_mut() = method;
        }
    }

    fn normalized(&self, path: &str) -> Option<String> {
        let (start, rest) =
            [LOCKS, TERRAFORM].into_iter().find_map(|start| Some((start, path.strip_prefix(start)?)))?;
        let slash = rest.bytes().rposition(|byte| byte == b'/')?;
        let (key, verb) = match (&rest[..slash], &rest[slash + 1..]) {
            (key, verb) if start == LOCKS && self.verbs.contains(&verb) => (key, Some(verb)),
            _ => (rest, None),
        };
        if !key.bytes().any(|byte| byte == b'/') {
            return None;
        }
        let verb = verb.map(|verb| format!("/{verb}")).unwrap_or_default();
        Some(format!("{start}{}{verb}", key.replace('/', "%2F")))
    }
}

/// Whether a client may have meant a verb by the end of a key.
pub fn has_verb_in_key(path: &str) -> bool {
    path.starts_with(LOCKS) && path.contains("%2F")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::endpoints::spellings;

    fn normalized(method: &str, uri: &str) -> String {
        let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
        spellings().normalize(&mut request);
        format!("{} {}", request.method(), request.uri())
    }

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
            assert_eq!(normalized("POST", &format!("/v1/locks/{path}")), format!("POST /v1/locks/{normal}"));
        }
    }

    #[test]
    fn methods_of_terraform_are_known_on_its_paths_alone() {
        assert_eq!(normalized("LOCK", "/v1/terraform/live/network"), "POST /v1/terraform/live%2Fnetwork");
        assert_eq!(normalized("UNLOCK", "/v1/terraform/acquire"), "DELETE /v1/terraform/acquire");
        assert_eq!(normalized("LOCK", "/v1/locks/a"), "LOCK /v1/locks/a");
        assert_eq!(normalized("UNLOCK", "/v1/operations/a"), "UNLOCK /v1/operations/a");
    }
}
