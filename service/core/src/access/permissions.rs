//! What an API key permits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::App;

/// A group of endpoints. Each endpoint needs one scope; no scope includes another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ScopeName))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything that changes nothing.
    Read,
    /// Take, renew, release, revoke locks.
    Locks,
    /// Claim operations and post their outcomes.
    Operations,
    /// End any lease; in the app `default`: also engines, apps and API keys.
    Admin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be read, locks, operations or admin")]
pub struct UnknownScope;

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Locks, Self::Operations, Self::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Locks => "locks",
            Self::Operations => "operations",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or(UnknownScope)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Scope>", into = "Vec<Scope>")]
pub struct Scopes(u8);

impl Scopes {
    pub fn all() -> Self {
        Scope::ALL.to_vec().into()
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.has(*scope))
    }
}

impl From<Vec<Scope>> for Scopes {
    fn from(scopes: Vec<Scope>) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | (1 << scope as u8)))
    }
}

impl From<Scopes> for Vec<Scope> {
    fn from(scopes: Scopes) -> Self {
        scopes.iter().collect()
    }
}

/// What a caller may do, and in which app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permissions {
    pub app: App,
    pub scopes: Scopes,
    /// Only locks whose keys begin with one of these; all locks of the app if empty. Operations have no keys: only scopes limit them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
}

impl Permissions {
    /// Everything in the app.
    pub fn all(app: App) -> Self {
        Self { app, scopes: Scopes::all(), prefixes: Vec::new() }
    }

    /// Whether every key that begins with `prefix`, as a whole key does with itself, is permitted.
    pub fn permits_keys(&self, prefix: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|permitted| prefix.starts_with(permitted))
    }

    /// Whether the caller may act on the whole service, and not only on its app or on some locks.
    pub fn is_operator(&self) -> bool {
        self.scopes.has(Scope::Admin) && self.app == App::default() && self.prefixes.is_empty()
    }
}
