//! One client's session, and what it holds. All of it ends with the session.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, HeaderMap};
use axum::http::request::Parts;
use latchgate_client::{Attempt, Client, Error, Lease};
use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::handler::server::tool::ToolRouter;
use rmcp::model::CallToolResult;
use rmcp::service::RequestContext;
use serde_json::Value;

use super::answers::refused;
use super::paths::{Locks, Tree};

/// Most leases, attempts and tickets of a session, each.
pub const PER_SESSION_MAX: usize = 200;

const LOST: &str =
    "Another session may have changed what it protects. Stop, acquire it again, and read everything anew.";

/// What all sessions of one server have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    pub tree: Tree,
    /// The owner of all leases; if absent, the name of the session's client and an id of the session.
    pub owner: Option<String>,
    /// Length of a lease between two renewals: how long it outlives a server that was killed.
    pub ttl: Duration,
}

pub type Context = RequestContext<RoleServer>;

pub struct Session {
    pub settings: Arc<Settings>,
    id: String,
    numbers: AtomicU64,
    client: Client,
    /// The API key of the session's first call over HTTP, and a client with it.
    first: OnceLock<(Option<String>, Result<Client, Error>)>,
    pub held: Mutex<Held>,
}

#[derive(Default)]
pub struct Held {
    pub leases: BTreeMap<u64, Hold>,
    pub attempts: HashMap<String, Attempt>,
    /// Losses that no answer has told yet.
    pub losses: Vec<String>,
    /// Waits that can go on: the lease id that was asked for, and the node's ticket.
    pub tickets: BTreeMap<u64, (String, Value)>,
}

pub struct Hold {
    pub lease: Lease,
    pub keys: Vec<String>,
    /// Relative to the root of the tree.
    pub paths: Vec<String>,
    pub locks: Locks,
}

/// Who calls.
pub struct Caller {
    /// With the API key that came with the call, else with the server's own.
    pub client: Client,
    /// The name and the version of the client program, as it says.
    pub program: String,
    pub owner: String,
}

impl Session {
    pub fn new(client: Client, settings: Arc<Settings>) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
        Self { settings, id, numbers: AtomicU64::new(1), client, first: OnceLock::new(), held: Mutex::default() }
    }

    pub fn tools() -> ToolRouter<Self> {
        Self::lock_tools() + Self::once_tools()
    }

    /// Names a lease or a ticket.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// # Errors
    /// If the API key is another one than that of the session, or has not the form of one.
    pub fn caller(&self, context: &Context) -> Result<Caller, CallToolResult> {
        let key = context.extensions.get::<Parts>().and_then(|parts| api_key(&parts.headers));
        let with = |key: &str| self.client.clone().api_key(key);
        let begin = || (key.map(str::to_owned), key.map_or_else(|| Ok(self.client.clone()), with));
        let (first, client) = self.first.get_or_init(begin);
        if first.as_deref() != key {
            return Err(refused("The session began with another API key."));
        }
        let client = client.clone().map_err(|error| refused(error.to_string()))?;
        let (name, version) = context.client_info().map_or_else(Default::default, |info| (info.name, info.version));
        let name = short(if name.is_empty() { "agent" } else { &name }, 40);
        let owner = self.settings.owner.clone().unwrap_or_else(|| format!("{name}/{}", self.id));
        Ok(Caller { client, program: format!("{name} {}", short(&version, 20)), owner })
    }

    /// What the client must know before anything else: leases that it has lost, and locks that an operator asks for.
    pub fn notices(&self) -> Vec<String> {
        let (mut held, mut notices) = (self.held.lock(), Vec::new());
        let Held { leases, losses, .. } = &mut *held;
        leases.retain(|number, hold| {
            let lost = hold.lease.check().err();
            if let Some(loss) = &lost {
                losses.push(format!("LOST: lease {number} ({}): {loss}. {LOST}", hold.names()));
            } else if let Some(asked) = hold.lease.revocation() {
                let (names, reason) = (hold.names(), asked.reason.as_deref().unwrap_or("no reason given"));
                let wish = format!("An operator asks for lease {number} ({names}): {reason}. Release it before");
                notices.push(format!("{wish} {}.", asked.deadline));
            }
            lost.is_none()
        });
        losses.iter().cloned().chain(notices).collect()
    }
}

impl Hold {
    pub fn names(&self) -> String {
        let names = self.keys.iter().chain(&self.paths).map(|name| if name.is_empty() { "." } else { name });
        names.collect::<Vec<_>>().join(", ")
    }
}

pub fn api_key(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// A text that fits into a name or a note.
pub fn short(text: &str, chars: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(chars).collect()
}
