//! One client's session, and what it holds. All of it ends with the session.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchgate_client::{Attempt, Client, Lease};
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::paths::Tree;

/// Most leases, attempts and tickets of a session, each.
pub const PER_SESSION_MAX: usize = 200;

/// What all sessions of one server have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    pub tree: Tree,
    /// The owner of all leases; if absent, the name of the session's client and an id of the session.
    pub owner: Option<String>,
    /// Length of a lease between two renewals: how long it outlives a server that was killed.
    pub ttl: Duration,
}

pub struct Session {
    pub settings: Arc<Settings>,
    pub id: String,
    client: Client,
    /// Of a session over HTTP: the API key of its first call, and a client with it.
    caller: OnceLock<(Option<String>, Client)>,
    pub held: Mutex<Held>,
}

#[derive(Default)]
pub struct Held {
    numbers: u64,
    pub leases: BTreeMap<u64, Hold>,
    pub attempts: HashMap<String, Attempt>,
    /// Waits that can go on: the lease id that was asked for, and the node's ticket.
    pub tickets: BTreeMap<u64, (String, Value)>,
}

pub struct Hold {
    pub lease: Lease,
    pub keys: Vec<String>,
    /// Relative to the root of the tree.
    pub paths: Vec<String>,
    /// Of each key that is held exclusively.
    pub tokens: BTreeMap<String, u64>,
}

impl Held {
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl Session {
    pub fn new(client: Client, settings: Arc<Settings>) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
        Self { settings, id, client, caller: OnceLock::new(), held: Mutex::default() }
    }

    /// The client with which the session's calls go out: with the API key that came with the call, else with the server's own.
    ///
    /// # Errors
    /// If the API key is another one than that of the session, or has not the form of one.
    pub fn client(&self, api_key: Option<&str>) -> Result<Client, String> {
        let made = match api_key {
            Some(key) => self.client.clone().api_key(key).map_err(|error| error.to_string())?,
            None => self.client.clone(),
        };
        let (first, client) = self.caller.get_or_init(|| (api_key.map(str::to_owned), made));
        if first.as_deref() == api_key {
            Ok(client.clone())
        } else {
            Err("The session began with another API key.".to_owned())
        }
    }

    /// What the client must know before anything else: leases that it has lost, and locks that an operator asks for.
    pub fn notices(&self) -> Vec<String> {
        let mut held = self.held.lock();
        let mut notices = Vec::new();
        held.leases.retain(|number, hold| match hold.lease.check() {
            Ok(()) => {
                if let Some(revocation) = hold.lease.revocation() {
                    let reason = revocation.reason.unwrap_or_else(|| "no reason given".to_owned());
                    notices.push(format!(
                        "An operator asks for lease {number} ({}): {reason}. Finish and release it before {}.",
                        hold.names(),
                        revocation.deadline
                    ));
                }
                true
            }
            Err(loss) => {
                notices.push(format!(
                    "LOST: lease {number} ({}): {loss}. Another session may have changed what it protects. Stop, \
                     acquire it again, and read everything anew before you go on.",
                    hold.names()
                ));
                false
            }
        });
        notices
    }

    /// The owner of the session's leases, and the metadata that refused sessions see beside it.
    pub fn owner(&self, client_name: &str) -> String {
        self.settings.owner.clone().unwrap_or_else(|| format!("{client_name}/{}", self.id))
    }
}

impl Hold {
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.keys.iter().chain(&self.paths).map(|name| if name.is_empty() { "." } else { name }).collect();
        names.join(", ")
    }
}

/// A text that fits into a name or a note.
pub fn short(text: &str, chars: usize) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(chars).collect()
}

/// An object of the fields that are not null.
pub fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)).collect()
}
