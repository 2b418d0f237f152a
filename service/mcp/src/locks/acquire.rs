//! The tools `acquire`, `release` and `who_holds`.

use std::collections::BTreeMap;
use std::time::Duration;

use latchgate_client::{Error, Lease, Method, Wanted, encode};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde_json::{Map, Value, json};

use super::answers::{Answer, Said, held, not_acquired};
use super::paths::{folders_above, overlap};
use super::session::{Hold, PER_SESSION_MAX, Session, object, short};
use super::tools::{Acquire, Caller, Release, WhoHolds};

/// Longest wait of one call: clients give up after a minute.
const WAIT_MAX: Duration = Duration::from_secs(45);
const NOTE_CHARS_MAX: usize = 200;
/// The metadata of a lease are 1 KiB at most.
const PATHS_BYTES_MAX: usize = 500;
/// The most keys that a node locks together.
const KEYS_MAX: usize = 64;
/// Most locks that `who_holds` lists.
const LISTED_MAX: usize = 50;

impl Session {
    pub async fn acquire(&self, args: Acquire, context: RequestContext<RoleServer>) -> Answer {
        let caller = Caller::of(self, &context)?;
        let paths = args.paths.iter().map(|path| self.settings.tree.relative(path));
        let paths: Vec<String> = paths.collect::<Result<_, _>>().map_err(Said::refused)?;
        if let Some(own) = self.held_already(&args.keys, &paths)? {
            return Ok(own);
        }
        let mut locks = self.settings.tree.locks(&paths);
        locks.extend(args.keys.iter().map(|key| (key.clone(), true)));
        if locks.is_empty() || locks.len() > KEYS_MAX {
            return Err(Said::refused(format!(
                "These are {} locks, one for each key, path and folder above a path; 1 to {KEYS_MAX} are possible: name a folder that contains the \
                 paths.",
                locks.len()
            )));
        }
        let (lease_id, ticket) = self.resumed(args.ticket.as_deref())?;
        let request = match &args.keys[..] {
            [key] if paths.is_empty() => caller.client.lock(key),
            _ => caller.client.multilock(locks.iter().map(|(key, is_exclusive)| match is_exclusive {
                true => Wanted::exclusive(key),
                false => Wanted::shared(key),
            })),
        };
        let wait = Duration::from_secs(args.wait_s).min(WAIT_MAX);
        let request = request
            .ttl(self.settings.ttl)
            .wait(wait)
            .owner(self.owner(&caller.program))
            .metadata(self.metadata(&caller, args.note.as_deref(), &paths))
            .resume(lease_id.clone(), ticket);
        let acquired = tokio::select! {
            acquired = request.acquire() => acquired,
            () = context.ct.cancelled() => return Err(Said::refused("The call was cancelled: nothing is held.")),
        };
        match acquired {
            Ok(lease) => Ok(self.keep(lease, locks, args.keys, paths)),
            Err(Error::NotAcquired(problem)) => {
                let key = problem.field("key").as_str().unwrap_or_else(|| args.keys.first().map_or("", String::as_str));
                let path = key.strip_prefix(&self.settings.tree.key(""));
                let ticket = problem.field("ticket").clone();
                let ticket = (!ticket.is_null()).then(|| self.ticket(lease_id, ticket));
                Err(not_acquired(&problem, key, path, &paths, ticket))
            }
            Err(error) => Err(Said::of(&error, "Nothing was acquired: do not begin the work.")),
        }
    }

    /// A repeated call gets the lease again. One that overlaps with an own lease would wait for itself.
    fn held_already(&self, keys: &[String], paths: &[String]) -> Result<Option<Said>, Said> {
        let held = self.held.lock();
        if held.leases.len() >= PER_SESSION_MAX {
            return Err(Said::refused(format!("This session holds {PER_SESSION_MAX} leases, which is the most: release some first.")));
        }
        for (number, hold) in &held.leases {
            if hold.keys == keys && hold.paths == paths {
                return Ok(Some(granted(*number, hold, "You hold it already")));
            }
            let is_same = hold.keys.iter().any(|own| keys.contains(own));
            if is_same || hold.paths.iter().any(|own| paths.iter().any(|path| overlap(own, path))) {
                let words = format!(
                    "You hold lease {number} ({}), which overlaps: a session cannot wait for itself. Work under that lease, or release it, then acquire \
                     all that you need in one call.",
                    hold.names()
                );
                return Err(Said::new(words, json!({ "code": "held-by-you", "lease": number })));
            }
        }
        Ok(None)
    }

    fn keep(&self, lease: Lease, locks: BTreeMap<String, bool>, keys: Vec<String>, paths: Vec<String>) -> Said {
        // The tokens are in the order of the request.
        let tokens = locks.into_iter().zip(lease.tokens()).filter(|((_, is_exclusive), _)| *is_exclusive);
        let tokens = tokens.map(|((key, _), token)| (key, *token)).collect();
        let mut held = self.held.lock();
        let number = held.number();
        let hold = Hold { lease, keys, paths, tokens };
        let said = granted(number, &hold, "Acquired");
        held.leases.insert(number, hold);
        said
    }

    fn resumed(&self, ticket: Option<&str>) -> Result<(String, Option<Value>), Said> {
        let Some(name) = ticket else { return Ok((uuid::Uuid::new_v4().to_string(), None)) };
        let number = name.strip_prefix("ticket-").and_then(|number| number.parse().ok());
        let found = number.and_then(|number: u64| self.held.lock().tickets.remove(&number));
        let (lease_id, ticket) = found.ok_or_else(|| Said::refused(format!("There is no ticket {name:?}: call acquire without one.")))?;
        Ok((lease_id, Some(ticket)))
    }

    fn ticket(&self, lease_id: String, ticket: Value) -> String {
        let mut held = self.held.lock();
        let number = held.number();
        held.tickets.insert(number, (lease_id, ticket));
        while held.tickets.len() > PER_SESSION_MAX {
            held.tickets.pop_first();
        }
        format!("ticket-{number}")
    }

    fn metadata(&self, caller: &Caller, note: Option<&str>, paths: &[String]) -> Map<String, Value> {
        let mut bytes = 0;
        let shown = paths.iter().take_while(|path| {
            bytes += path.len() + 3;
            bytes <= PATHS_BYTES_MAX
        });
        let shown: Vec<&String> = shown.collect();
        let client = format!("{} {}", caller.program, caller.version);
        object([
            ("client", client.trim().into()),
            ("session", self.id.as_str().into()),
            ("note", note.map(|note| short(note, NOTE_CHARS_MAX)).into()),
            ("paths", if shown.is_empty() { Value::Null } else { json!(shown) }),
        ])
    }

    pub async fn release(&self, args: Release) -> Answer {
        let released = {
            let mut held = self.held.lock();
            match args.lease {
                Some(number) => held.leases.remove(&number).map(|hold| (number, hold)).into_iter().collect(),
                None => std::mem::take(&mut held.leases).into_iter().collect::<Vec<_>>(),
            }
        };
        if released.is_empty() {
            return Ok(Said::new("There is nothing to release: it was released before, or lost.", json!({ "released": [] })));
        }
        let (mut numbers, mut lost) = (Vec::new(), Vec::new());
        for (number, hold) in released {
            let names = hold.names();
            match hold.lease.release().await {
                Ok(()) => numbers.push(number),
                Err(Error::LeaseLost(loss)) => lost.push(format!(
                    "LOST: lease {number} ({names}) had ended before: {loss}. What you did under it may have overlapped with the work of another session: \
                     check it."
                )),
                Err(error) => lost.push(format!("Lease {number} ({names}) ends by itself: {error}.")),
            }
        }
        let data = json!({ "released": numbers, "lost": lost });
        if lost.is_empty() { Ok(Said::new("Released.", data)) } else { Err(Said::new(lost.join("\n"), data)) }
    }

    pub async fn who_holds(&self, args: WhoHolds, context: RequestContext<RoleServer>) -> Answer {
        let client = Caller::of(self, &context)?.client;
        let look = async |key: &str| client.call(Method::GET, &format!("/v1/locks/{}", encode(key)), None).await;
        let asked = |error: Error| Said::of(&error, "Who holds it is not known.");
        match (args.key, args.prefix, args.path) {
            (Some(key), None, None) => Ok(held(&[look(&key).await.map_err(asked)?])),
            (None, Some(prefix), None) => {
                let list = format!("/v1/locks?held=true&limit={LISTED_MAX}&prefix={}", encode(&prefix));
                let found = client.call(Method::GET, &list, None).await.map_err(asked)?;
                Ok(held(found["locks"].as_array().map_or(&[], Vec::as_slice)))
            }
            (None, None, Some(path)) => {
                let path = self.settings.tree.relative(&path).map_err(Said::refused)?;
                let mut locks = Vec::new();
                for above in folders_above(&path) {
                    let mut lock = look(&self.settings.tree.key(above)).await.map_err(asked)?;
                    // Those that share a folder above hold something beside the path.
                    if let Some(holders) = lock["holders"].as_array_mut() {
                        holders.retain(|holder| holder["mode"] == "exclusive");
                    }
                    locks.push(lock);
                }
                locks.push(look(&self.settings.tree.key(&path)).await.map_err(asked)?);
                locks.retain(|lock| lock["holders"].as_array().is_some_and(|holders| !holders.is_empty()));
                Ok(held(&locks))
            }
            _ => Err(Said::refused("Give one of key, prefix and path.")),
        }
    }
}

fn granted(number: u64, hold: &Hold, how: &str) -> Said {
    let words = format!(
        "{how}: lease {number} ({}). It lasts until you call release, or this session ends. Its tokens, for what can check them: {:?}",
        hold.names(),
        hold.tokens
    );
    let data = json!({ "acquired": true, "lease": number, "keys": hold.keys, "paths": hold.paths, "tokens": hold.tokens });
    Said::new(words, data)
}
