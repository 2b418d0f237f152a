//! `latchgate locks who`: who blocks whom at one lock.

use latchgate_client::{Client, Method, encode};
use serde_json::{Value, json};

use super::print::{one_line, out};

/// Most holders of the lock that are followed.
const FOLLOWED_MAX: usize = 16;

/// # Errors
/// Says why the node has refused the command, or did not answer.
pub async fn who(client: &Client, key: &str, is_json: bool) -> anyhow::Result<()> {
    let lock = client.call(Method::GET, &format!("/v1/locks/{}", encode(key)), None).await?;
    let mut owners: Vec<Value> = Vec::new();
    for holder in lock["holders"].as_array().into_iter().flatten() {
        let name = &holder["owner"];
        let is_new = owners.iter().all(|owner| owner["owner"] != *name);
        if is_new && owners.len() < FOLLOWED_MAX {
            // Of a caller whose API key is limited to prefixes, only locks like this one are followed.
            let path = format!("/v1/owners/{}", encode(name.as_str().unwrap_or_default()));
            let owner = match client.call(Method::GET, &path, None).await {
                Err(error) if error.problem().is_some_and(|problem| problem.code() == "forbidden") => {
                    client.call(Method::GET, &format!("{path}?prefix={}", encode(key)), None).await?
                }
                answer => answer?,
            };
            owners.push(owner);
        }
    }
    if is_json {
        out(json!({ "lock": lock, "owners": owners }));
        return Ok(());
    }
    said(&lock, &owners);
    Ok(())
}

fn said(lock: &Value, owners: &[Value]) {
    let key = one_line(&lock["key"]);
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let holders = list(&lock["holders"]);
    if holders.is_empty() {
        out(format_args!("{key} is free."));
    }
    for holder in &holders {
        let (owner, mode) = (one_line(&holder["owner"]), one_line(&holder["mode"]));
        out(format_args!("{owner} holds {key} ({mode}) since {}.", one_line(&holder["granted_at"])));
    }
    for waiting in list(&lock["waiting"]) {
        let owner = match &waiting["owner"] {
            Value::Null => "A request without an owner".to_owned(),
            owner => one_line(owner),
        };
        let (mode, since) = (one_line(&waiting["mode"]), one_line(&waiting["since"]));
        out(format_args!("{owner} waits for {key} ({mode}) since {since}."));
    }
    for owner in owners {
        for awaited in list(&owner["waits_for"]) {
            let holders: Vec<String> =
                list(&awaited["holders"]).iter().map(|holder| one_line(&holder["owner"])).collect();
            let (name, key) = (one_line(&owner["owner"]), one_line(&awaited["key"]));
            out(format_args!("{name} waits for {key}, which is held by: {}.", holders.join(", ")));
        }
    }
    for cycle in owners.iter().map(|owner| list(&owner["cycle"])).filter(|cycle| !cycle.is_empty()) {
        let steps = cycle.iter().map(|step| format!("{} → {}", one_line(&step["waiter"]), one_line(&step["key"])));
        let steps: Vec<String> = steps.collect();
        let first = one_line(&cycle[0]["waiter"]);
        out(format_args!("These wait for each other, until a lease ends: {} → {first}.", steps.join(" → ")));
    }
    if let Some(elsewhere) = lock["waiting_elsewhere"].as_u64().filter(|elsewhere| *elsewhere > 0) {
        out(format_args!(
            "{elsewhere} more requests wait for {key}, most of them at other nodes: their owners are not known here."
        ));
    }
}
