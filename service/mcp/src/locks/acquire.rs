//! The tools `acquire`, `release` and `who_holds`.

use std::collections::BTreeMap;
use std::time::Duration;

use latchgate_client::{Client, Error, Method, Wanted, encode};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolResult;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{AND_MORE, ToolAnswer, failed, held, not_acquired, refused, said};
use super::paths::{Locks, overlap};
use super::session::{Caller, Context, Hold, PER_SESSION_MAX, Session, short};

/// Longest wait of one call: clients give up after a minute.
const WAIT_MAX: Duration = Duration::from_secs(45);
/// How long an acquire or a release is repeated while no node can do it: many sessions that lock one folder together keep its row locked.
const PATIENCE: Duration = Duration::from_secs(10);
/// The metadata of a lease are 1 KiB at most, of which a note takes 400 bytes at most.
const NOTE_CHARS_MAX: usize = 100;
const PATHS_BYTES_MAX: usize = 344;
/// The most keys that a node locks together.
const KEYS_MAX: usize = 64;
/// Most locks that `who_holds` lists.
const LISTED_MAX: usize = 50;
const OVERLAPS: &str = "Work under that lease, or release it, then acquire all that you need in one call.";
const LOST: &str = "What you did under it may have overlapped with the work of another session: check it.";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// Names of things that only one session may use at a time, for example "deploy/production".
    #[serde(default)]
    pub keys: Vec<String>,
    /// Files or folders of the repository, relative to its root: "src/billing/" is held with all that is below it.
    #[serde(default)]
    pub paths: Vec<String>,
    /// How long to wait if another session holds one of them, in seconds. If absent: not at all. After 45 s the answer is a `ticket`.
    #[serde(default)]
    pub wait_s: u64,
    /// What you do with it, in one line. Other sessions see it while they wait.
    pub note: Option<String>,
    /// From the refusal of a call that waited, less than a minute ago: keeps your place in the queue. Repeat keys and paths.
    pub ticket: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The number from acquire. If absent: everything that this session holds.
    pub lease: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhoHolds {
    /// One file or folder, as in acquire: what holds it, a folder above it, or something below it.
    pub path: Option<String>,
    /// One key.
    pub key: Option<String>,
    /// All held keys that begin with this. Those of paths begin with "path/".
    pub prefix: Option<String>,
}

#[tool_router(router = lock_tools, vis = "pub")]
impl Session {
    /// Take locks, all or none, before you change what other agents may change too. A path covers everything below it; sessions in different
    /// folders do not disturb each other. The lease is renewed until you release it or this session ends. If it is refused, the answer says
    /// who holds what, why, and what to do next.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn acquire(&self, Parameters(args): Parameters<Acquire>, context: Context) -> ToolAnswer {
        let caller = self.caller(&context)?;
        let (paths, locks) = self.wanted(&args.keys, &args.paths)?;
        if let Some(own) = self.held_already(&args.keys, &paths)? {
            return Ok(own);
        }
        let (lease_id, ticket) = self.resumed(args.ticket)?;
        let client = caller.client.clone().patience(PATIENCE);
        let wanted = |(key, is_exclusive): (&String, &bool)| {
            if *is_exclusive { Wanted::exclusive(key) } else { Wanted::shared(key) }
        };
        let request = match locks.first_key_value() {
            Some((key, true)) if locks.len() == 1 => client.lock(key),
            _ => client.multilock(locks.iter().map(wanted)),
        };
        let request =
            request.ttl(self.settings.ttl).wait(Duration::from_secs(args.wait_s).min(WAIT_MAX)).owner(&caller.owner);
        let request = request.metadata(metadata(&caller, args.note.as_deref(), &paths)).resume(&lease_id, ticket);
        let acquired = context.ct.run_until_cancelled(request.acquire()).await;
        match acquired.ok_or_else(|| refused("The call was cancelled: nothing is held."))? {
            Ok(lease) => {
                let (number, hold) = (self.number(), Hold { lease, keys: args.keys, paths, locks });
                Ok(granted(number, self.held.lock().leases.entry(number).or_insert(hold), "Acquired"))
            }
            Err(Error::NotAcquired(problem)) => {
                let ticket = Some(problem.field("ticket")).filter(|ticket| !ticket.is_null());
                let ticket = ticket.map(|ticket| self.ticket(lease_id, ticket.clone()));
                let of_paths = self.settings.tree.key("");
                Err(not_acquired(&problem, &of_paths, &paths, ticket, &self.waited_for(&caller).await))
            }
            Err(error) => Err(failed(&error, "Nothing was acquired: do not begin the work.")),
        }
    }

    /// Release what acquire has given, as soon as the work is done. If a lease was lost meanwhile, the answer says so.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn release(&self, Parameters(args): Parameters<Release>) -> ToolAnswer {
        let is_meant = |number: &u64, _: &mut Hold| args.lease.is_none_or(|lease| lease == *number);
        let released: Vec<_> = self.held.lock().leases.extract_if(.., is_meant).collect();
        let (mut numbers, mut lost) = (Vec::new(), Vec::new());
        for (number, hold) in released {
            let names = hold.names();
            match hold.lease.release().await {
                Ok(()) => numbers.push(number),
                Err(Error::LeaseLost(loss)) => lost.push(format!("LOST: lease {number} ({names}): {loss}. {LOST}")),
                Err(error) => lost.push(format!("Lease {number} ({names}) ends by itself: {error}.")),
            }
        }
        let data = json!({ "released": numbers, "lost": lost });
        let words = if numbers.is_empty() { "There was nothing to release." } else { "Released." };
        if lost.is_empty() { Ok(said(words, data)) } else { Err(said(lost.join("\n"), data)) }
    }

    /// Show who holds locks, since when, and why: of one path, of one key, of all keys that begin with a prefix, or of all.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn who_holds(&self, Parameters(args): Parameters<WhoHolds>, context: Context) -> ToolAnswer {
        let client = self.caller(&context)?.client;
        let not_known = |error: Error| failed(&error, "Who holds it is not known.");
        let (keys, paths): (Vec<_>, Vec<_>) = (args.key.into_iter().collect(), args.path.into_iter().collect());
        if keys.is_empty() && paths.is_empty() {
            let prefix = encode(&args.prefix.unwrap_or_default());
            let found = list(&client, &format!("limit={LISTED_MAX}&prefix={prefix}")).await.map_err(not_known)?;
            return Ok(held(&found));
        }
        let (_, locks) = self.wanted(&keys, &paths)?;
        let mut found = Vec::new();
        for (key, is_exclusive) in &locks {
            let lock =
                client.call(Method::GET, &format!("/v1/locks/{}", encode(key)), None).await.map_err(not_known)?;
            // Those that share a folder above work elsewhere in it.
            if *is_exclusive && lock["held"] == true || lock["holders"][0]["mode"] == "exclusive" {
                found.push(lock);
            }
        }
        Ok(held(&found))
    }
}

impl Session {
    /// The paths relative to the root, and what is locked for them and the keys.
    fn wanted(&self, keys: &[String], paths: &[String]) -> ToolAnswer<(Vec<String>, Locks)> {
        let tree = &self.settings.tree;
        let paths: Result<Vec<_>, _> = paths.iter().map(|path| tree.relative(path)).collect();
        let paths = paths.map_err(refused)?;
        let mut locks = tree.locks(&paths);
        locks.extend(keys.iter().map(|key| (key.clone(), true)));
        if !(1..=KEYS_MAX).contains(&locks.len()) {
            let words =
                format!("{} locks are not possible, with the folders above paths: 1 to {KEYS_MAX} are.", locks.len());
            return Err(refused(words));
        }
        Ok((paths, locks))
    }

    /// What this session holds and other sessions wait for.
    async fn waited_for(&self, caller: &Caller) -> Vec<String> {
        if self.held.lock().leases.is_empty() {
            return Vec::new();
        }
        let found = list(&caller.client, &format!("limit=1000&owner={}", encode(&caller.owner))).await;
        let found = found.unwrap_or_default().into_iter().filter(|lock| lock["waiters"] != 0);
        let keys: Vec<_> = found.filter_map(|lock| lock["key"].as_str().map(str::to_owned)).collect();
        let held = self.held.lock();
        // Other sessions may have the same owner.
        let is_own = |key: &String| held.leases.values().any(|hold| hold.locks.contains_key(key));
        keys.into_iter().filter(is_own).collect()
    }

    /// A repeated call gets the lease again. One that overlaps with an own lease would wait for itself.
    fn held_already(&self, keys: &[String], paths: &[String]) -> ToolAnswer<Option<CallToolResult>> {
        let held = self.held.lock();
        if held.leases.len() >= PER_SESSION_MAX {
            return Err(refused("This session holds too many leases: release some first."));
        }
        for (number, hold) in &held.leases {
            if hold.keys == keys && hold.paths == paths {
                return Ok(Some(granted(*number, hold, "You hold it already")));
            }
            let is_same = hold.keys.iter().any(|own| keys.contains(own));
            if is_same || hold.paths.iter().any(|own| paths.iter().any(|path| overlap(own, path))) {
                let words = format!("You hold lease {number} ({}), which overlaps. {OVERLAPS}", hold.names());
                return Err(said(words, json!({ "code": "held-by-you", "lease": number })));
            }
        }
        Ok(None)
    }

    fn resumed(&self, ticket: Option<u64>) -> ToolAnswer<(String, Option<Value>)> {
        let Some(number) = ticket else { return Ok((uuid::Uuid::new_v4().to_string(), None)) };
        let found = self.held.lock().tickets.remove(&number).map(|(lease_id, ticket)| (lease_id, Some(ticket)));
        found.ok_or_else(|| refused(format!("There is no ticket {number}: call acquire without one.")))
    }

    fn ticket(&self, lease_id: String, ticket: Value) -> u64 {
        let (number, tickets) = (self.number(), &mut self.held.lock().tickets);
        tickets.insert(number, (lease_id, ticket));
        if tickets.len() > PER_SESSION_MAX {
            tickets.pop_first();
        }
        number
    }
}

/// What refused sessions see of a lease beside its owner. If there are many paths, it has the first ones and [`AND_MORE`].
fn metadata(caller: &Caller, note: Option<&str>, paths: &[String]) -> serde_json::Map<String, Value> {
    let (mut bytes, mut shown) = (0, Vec::new());
    for path in paths {
        bytes += path.len() + 3;
        shown.push(if bytes > PATHS_BYTES_MAX { AND_MORE } else { path.as_str() });
    }
    shown.dedup();
    let note = note.map(|note| short(note, NOTE_CHARS_MAX));
    let fields = [("client", json!(caller.program)), ("note", json!(note)), ("paths", json!(shown))];
    fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
}

/// Held locks.
async fn list(client: &Client, query: &str) -> Result<Vec<Value>, Error> {
    let mut found = client.call(Method::GET, &format!("/v1/locks?held=true&{query}"), None).await?;
    Ok(found["locks"].as_array_mut().map_or_else(Vec::new, std::mem::take))
}

fn granted(number: u64, hold: &Hold, how: &str) -> CallToolResult {
    // The lease's tokens are in the order of its locks.
    let tokens = hold.locks.iter().zip(hold.lease.tokens()).filter(|((_, is_exclusive), _)| **is_exclusive);
    let tokens: BTreeMap<_, _> = tokens.map(|((key, _), token)| (key, token)).collect();
    let names = hold.names();
    let words =
        format!("{how}: lease {number} ({names}), until you call release or the session ends. Tokens: {tokens:?}");
    let data = json!({ "acquired": true, "lease": number, "keys": hold.keys, "paths": hold.paths, "tokens": tokens });
    said(words, data)
}
