//! What a caller may do, beyond the scope that its endpoint needs.

use latchgate_core::access::Scope;

use super::problem::{Code, Problem};
use crate::access::Caller;

/// Checks the prefixes of the caller: of a key, or of all keys that begin with a text.
///
/// # Errors
/// `forbidden`, with the prefixes that are permitted.
pub fn check_keys(caller: &Caller, prefix: &str) -> Result<(), Problem> {
    if caller.permissions.permits_keys(prefix) {
        return Ok(());
    }
    let detail = "This API key is limited to locks whose keys begin with one of these prefixes.";
    Err(Problem::new(Code::Forbidden, detail).with("prefixes", &caller.permissions.prefixes))
}

/// For a request that ends what is not its caller's own, which only its content shows.
///
/// # Errors
/// `forbidden`.
pub fn check_admin(caller: &Caller) -> Result<(), Problem> {
    if caller.permissions.scopes.has(Scope::Admin) { Ok(()) } else { Err(lacks("", Scope::Admin)) }
}

/// The answer to a caller without the scope; `of_default` says of which app.
pub fn lacks(of_default: &str, scope: Scope) -> Problem {
    let detail = format!("This needs an API key{of_default} with the scope {scope}.");
    Problem::new(Code::Forbidden, detail).with("scope", scope)
}
