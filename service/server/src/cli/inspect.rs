//! `latchgate locks`, `operations`, `engines` and `events`: list, show, watch, intervene.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use anyhow::{bail, ensure};
use latchgate_client::{Client, Error, Event, Events, Method, encode, is_about};
use latchgate_core::key::ALL_APPS;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::sleep;

use super::beside;
use super::node::{ORDER_MAX, client};
use super::print::{coloured, complain, counted, list, one_line, out, rough, said, text, when};
use super::progress::shown;
use crate::config::{
    EnginesCommand, EventsArgs, LocksCommand, LocksListArgs, LocksSort, NodeCommand, NoteArgs, OperationsCommand,
    ShowArgs,
};
use crate::engines::{EnginesOf, SwitchOrder};
use crate::format::{YEAR_MS, ms};

const PAGE: u32 = 1_000;
const ENGINES: [&str; 3] = ["locks", "gate", "durable"];
const EXPIRES_SOON: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The requests of which time a status shows.
const LATELY: Duration = Duration::from_secs(5 * 60);
/// Between two lists with --watch.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// How many items of a kind a status shows.
const STATUS_LINES: usize = 5;
/// Digits of the id of an operation.
const ID_LENGTH: usize = 32;
/// How many pages of operations a command looks through at most, if it does not list them all.
const PAGES_MAX: usize = 40;

/// # Errors
/// Says why the node has refused the command, or did not answer.
pub async fn locks(NodeCommand { command, app, show }: &NodeCommand<LocksCommand>) -> anyhow::Result<()> {
    let client = client(&show.node)?.in_app(app.as_deref());
    let of_lock = async |method, key: &str, rest: &str, body: Option<&Value>| {
        let answer = client.call(method, &lock_path(key, rest), body).await?;
        is_about(key, &answer)?;
        Ok::<_, Error>(answer)
    };
    match command {
        LocksCommand::List(args) => list_locks(&client, args, app.as_deref(), show.json).await?,
        LocksCommand::Show { key } => {
            show_lock(show.json, &of_lock(Method::GET, key, "", None).await?);
        }
        LocksCommand::Watch { key } => watch(show, client.watch(key)).await?,
        LocksCommand::History { key, limit } => {
            let path = lock_path(key, &format!("/history?limit={limit}"));
            let answer = client.call(Method::GET, &path, None).await?;
            let events = answer["events"].as_array().cloned().unwrap_or_default();
            events.iter().try_for_each(|event| is_about(key, event))?;
            list(show.json, "events", &events, &EVENT_COLUMNS, event_cells);
        }
        LocksCommand::Revoke { key, grace, token, note } => {
            let mut body = note_fields(note);
            body.insert("grace_ms".to_owned(), json!(ms(*grace)));
            body.extend(token.map(|token| ("token".to_owned(), json!(token))));
            let answer = of_lock(Method::POST, key, "/revoke", Some(&Value::Object(body))).await?;
            said(show.json, &answer, || match &answer["leases"] {
                leases if leases == 0 => format!("{key} is free: there is nothing to revoke."),
                leases => {
                    format!("{} revoked: {key}. The end is at {}.", counted(leases, "lease"), text(&answer["deadline"]))
                }
            });
        }
        LocksCommand::Force { key, token, note } => {
            let mut fields = note_fields(note);
            fields.extend(token.map(|token| ("token".to_owned(), json!(token))));
            let query: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}={}", encode(&text(value)))).collect();
            let query = format!("?{}", query.join("&"));
            let answer = of_lock(Method::DELETE, key, query.trim_end_matches('?'), None).await?;
            said(show.json, &answer, || format!("{} ended: {key}.", counted(&answer["ended"], "lease")));
        }
        LocksCommand::Close { key, reason, until, lasts } => {
            let mut body = json!({ "reason": reason });
            if let Some(until) = until.clone().map_or_else(|| from_now(*lasts), |until| Ok(Some(until)))? {
                body["until"] = json!(until);
            }
            let answer = of_lock(Method::PUT, key, "/closed", Some(&body)).await?;
            said(show.json, &answer, || match &answer["closed"]["until"] {
                Value::String(until) => format!("{key} is closed until {until}."),
                _ => format!("{key} is closed. `latchgate locks open` opens it."),
            });
        }
        LocksCommand::Open { key } => {
            let answer = of_lock(Method::DELETE, key, "/closed", None).await?;
            said(show.json, &answer, || match answer["was_closed"] == true {
                true => format!("{key} is open."),
                false => format!("{key} was not closed."),
            });
        }
        LocksCommand::Limit { key, limit } => {
            let body = json!({ "limit": limit });
            let answer = of_lock(Method::PUT, key, "/limit", Some(&body)).await?;
            said(show.json, &answer, || match limit {
                Some(limit) => {
                    let permits = counted(&json!(limit), "permit");
                    format!("{key} has {permits}; held: {}.", answer["permits_held"])
                }
                None => format!("The callers of {key} say how many permits it has."),
            });
        }
    }
    Ok(())
}

async fn list_locks(client: &Client, args: &LocksListArgs, app: Option<&str>, is_json: bool) -> anyhow::Result<()> {
    let sort = args.sort.unwrap_or(if args.waiters { LocksSort::Waiters } else { LocksSort::Key });
    let mut path = format!("/v1/locks?prefix={}&limit={PAGE}", encode(&args.prefix));
    for (is_asked, parameter) in [
        (args.closed, "&closed=true"),
        (!(args.all || args.closed || args.waiters), "&held=true"),
        (args.waiters, "&sort=waiters"),
    ] {
        path += if is_asked { parameter } else { "" };
    }
    path += &args.owner.as_ref().map(|owner| format!("&owner={}", encode(owner))).unwrap_or_default();
    let what = match args {
        args if args.closed || args.waiters || args.owner.is_some() || !args.prefix.is_empty() => "locks that match",
        args if args.all => "locks",
        _ => "held locks",
    };
    loop {
        let mut locks = pages(client, &path, "locks").await?;
        // The order of the node is that of one page.
        match sort {
            LocksSort::Key => {}
            LocksSort::Waiters => locks.sort_by_key(|lock| Reverse(lock["waiters"].as_u64())),
            // Free locks last.
            LocksSort::HeldSince => locks.sort_by_key(|lock| {
                let since = lock["holders"][0]["granted_at"].as_str().map(str::to_owned);
                (since.is_none(), since)
            }),
        }
        locks.truncate(args.limit.unwrap_or(usize::MAX));
        if args.watch && stdout().is_terminal() {
            out("\x1b[H\x1b[2J");
        }
        let columns = ["KEY", "MODE", "HOLDERS", "HELD FOR", "ENDS", "WAITERS", "TOKEN", "CLOSED"];
        list_of(is_json, app, what, &locks, &columns, |lock| {
            let (holders, first) = (&lock["holders"], &lock["holders"][0]);
            let last = holders.as_array().into_iter().flatten().max_by_key(|holder| holder["ttl_ms"].as_u64());
            vec![
                one_line(&lock["key"]),
                text(&first["mode"]),
                owners(holders),
                when(&first["granted_at"]).trim_end_matches(" ago").to_owned(),
                when(last.map_or(&Value::Null, |last| &last["expires_at"])),
                text(&lock["waiters"]),
                text(&lock["last_token"]),
                one_line(&lock["closed"]["reason"]),
            ]
        });
        if !args.watch {
            return Ok(());
        }
        sleep(WATCH_EVERY).await;
    }
}

/// # Errors
/// As [`locks`].
pub async fn operations(NodeCommand { command, app, show }: &NodeCommand<OperationsCommand>) -> anyhow::Result<()> {
    let client = client(&show.node)?.in_app(app.as_deref());
    match command {
        OperationsCommand::List { operation, state, older_than, suspect, undecided, limit } => {
            let older_than_ms = ms(*older_than);
            let mut filter = format!("&suspect={suspect}&older_than_ms={older_than_ms}");
            if let Some(operation) = operation {
                filter += &format!("&operation={}", encode(operation));
            }
            let states: Vec<&str> = match state {
                Some(state) => vec![state],
                None if *undecided => UNDECIDED_STATES.to_vec(),
                None => vec![""],
            };
            let is_kept = |operation: &Value| !undecided || is_undecided(operation);
            let (mut operations, _) = in_states(&client, &states, &filter, is_kept, usize::MAX).await?;
            let is_filtered = *undecided || *suspect || older_than_ms > 0 || operation.is_some() || state.is_some();
            // The newest ones.
            operations.drain(..operations.len().saturating_sub(limit.unwrap_or(usize::MAX)));
            list_of(
                show.json,
                app.as_deref(),
                if is_filtered { "operations that match" } else { "operations" },
                &operations,
                &["SINCE", "STATE", "OPERATION", "LABEL", "ATTEMPT", "SUSPECTED DOUBLE RUNS", "ID"],
                |operation| {
                    let fields = ["operation", "label", "attempt", "suspected_double_runs", "id"];
                    let cells = fields.iter().map(|name| one_line(&operation[name]));
                    [when(&json!(since(operation))), state_of(operation)].into_iter().chain(cells).collect()
                },
            );
        }
        OperationsCommand::Show { id } => {
            let id = whole_id(&client, id).await?;
            let answer = client.call(Method::GET, &format!("/v1/operations/{}", encode(&id)), None).await?;
            said(show.json, &answer, || {
                let mut fields = answer.as_object().cloned().unwrap_or_default();
                fields.insert("state".to_owned(), json!(state_of(&answer)));
                let first = ["operation", "state", "label", "created_at", "started_at", "ended_at", "detail"];
                let first: Vec<(&str, Value)> =
                    first.into_iter().filter_map(|name| Some((name, fields.remove(name)?))).collect();
                let rest = fields.iter().map(|(name, value)| (name.as_str(), value.clone()));
                let lines = first.into_iter().chain(rest).map(|(name, value)| format!("{name}: {}", text(&value)));
                lines.collect::<Vec<_>>().join("\n")
            });
        }
        OperationsCommand::Resolve { id, succeeded, result, reason, by, .. } => {
            let mut body = json!({ "outcome": if *succeeded { "success" } else { "failure" }, "reason": reason });
            if let Some(result) = result {
                body["result"] = serde_json::from_str(result).unwrap_or_else(|_| json!(result));
            }
            if let Some(by) = by {
                body["by"] = json!(by);
            }
            let id = whole_id(&client, id).await?;
            let path = format!("/v1/operations/{}/resolve", encode(&id));
            let answer = client.call(Method::POST, &path, Some(&body)).await?;
            said(show.json, &answer, || match answer["outcome"].as_str() {
                Some("success") => format!("The operation {id} has succeeded: no run begins until it is forgotten."),
                _ => format!("The operation {id} has failed: the next run may begin."),
            });
        }
        OperationsCommand::Forget { id, force } => {
            let id = whole_id(&client, id).await?;
            let path = format!("/v1/operations/{}?force={force}", encode(&id));
            let answer = client.call(Method::DELETE, &path, None).await?;
            said(show.json, &answer, || {
                format!("The operation {id} is forgotten. Its state was {}.", text(&answer["was"]))
            });
        }
    }
    Ok(())
}

/// # Errors
/// As [`locks`].
pub async fn engines(NodeCommand { command, app, show }: &NodeCommand<EnginesCommand>) -> anyhow::Result<()> {
    ensure!(app.is_none(), "engines belong to no app");
    let node = || client(&show.node);
    // It is carried out before the answer.
    let orders = || Ok::<_, anyhow::Error>(client(&show.node)?.patience(ORDER_MAX));
    match command {
        EnginesCommand::List => {
            let answer = node()?.call(Method::GET, "/v1/admin/engines", None).await?;
            show_engines(show.json, &answer);
            let wrong = wrong_with(&answer);
            ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        }
        EnginesCommand::Lower { of, ttl_ms_max } => {
            let (path, body) = (format!("/v1/admin/engines/{}", of.as_str()), json!({ "ttl_ms_max": ttl_ms_max }));
            show_engines(show.json, &orders()?.call(Method::POST, &path, Some(&body)).await?);
        }
        EnginesCommand::Switch { of, engine, stopped, force, beside } => {
            if beside.beside_store {
                let order = SwitchOrder { to: engine.clone(), is_stopped: *stopped, force: *force };
                let answer = beside::switch(beside, *of, &order).await?;
                said(show.json, &answer, || format!("The nodes use {} from now on.", text(&answer["active"])));
                return Ok(());
            }
            let (client, of) = (node()?, of.as_str());
            let mut body = json!({ "stopped": stopped, "force": force });
            if let Some(engine) = engine {
                body["engine"] = json!(engine);
            }
            let path = format!("/v1/admin/engines/{of}");
            let ordering = orders()?;
            let switching = ordering.call(Method::POST, &path, Some(&body));
            let answer = shown(switching, &format!("switching the {of}"), async || copied(&client, of).await).await?;
            show_engines(show.json, &answer);
        }
        EnginesCommand::HoldOff { of, lasts, beside } => {
            let for_ms = lasts.map(ms);
            ensure!(for_ms.is_none_or(|for_ms| for_ms <= YEAR_MS), "--for must be at most 365d");
            let answer = if beside.beside_store {
                beside::hold_off(beside, *of, for_ms).await?
            } else {
                let body = json!({ "of": of.as_str(), "for_ms": for_ms });
                orders()?.call(Method::POST, "/v1/admin/hold-off", Some(&body)).await?
            };
            said(show.json, &answer, || hold_off(*of, answer["hold_off_ms"].as_u64().unwrap_or(0)));
        }
    }
    Ok(())
}

/// The state that a list shows: an attempt whose lease has ended is not under way any more.
fn state_of(operation: &Value) -> String {
    let has_expired = operation["state"] == "started" && operation["ttl_ms"] == 0;
    if has_expired { "expired".to_owned() } else { text(&operation["state"]) }
}

/// The states of operations that may be undecided, in the order in which an operation has them: between two lists none is missed.
const UNDECIDED_STATES: [&str; 2] = ["started", "unknown"];

fn operations_path(state: &str, filter: &str) -> String {
    let state = if state.is_empty() { String::new() } else { format!("&state={}", encode(state)) };
    format!("/v1/operations?limit={PAGE}{state}{filter}")
}

/// What is kept of the operations in these states, the oldest first; and whether these are all.
async fn in_states(
    client: &Client,
    states: &[&str],
    filter: &str,
    is_kept: impl Fn(&Value) -> bool,
    pages_max: usize,
) -> Result<(Vec<Value>, bool), Error> {
    let (mut found, mut is_all) = (Vec::new(), true);
    for state in states {
        let path = operations_path(state, filter);
        let (operations, is_whole) = kept(client, &path, "operations", &is_kept, usize::MAX, pages_max).await?;
        found.extend(operations);
        is_all &= is_whole;
    }
    let mut names = HashSet::new();
    found.retain(|operation| names.insert((text(&operation["app"]), text(&operation["id"]))));
    found.sort_by_key(since);
    Ok((found, is_all))
}

/// Whether a person must find out how the operation has ended.
fn is_undecided(operation: &Value) -> bool {
    let has_passed = operation["ttl_ms"] == 0 && operation["on_expiry"] == "block";
    operation["state"] == "unknown" || (operation["state"] == "started" && has_passed)
}

/// The id of the one operation whose id begins so.
async fn whole_id(client: &Client, beginning: &str) -> anyhow::Result<String> {
    let is_hex = beginning.bytes().all(|byte| byte.is_ascii_hexdigit());
    if beginning.len() >= ID_LENGTH || beginning.is_empty() || !is_hex {
        return Ok(beginning.to_owned());
    }
    let begins = beginning.to_lowercase();
    let begins_so = |operation: &Value| operation["id"].as_str().is_some_and(|id| id.starts_with(&begins));
    let path = operations_path("", "");
    let (found, is_all) = kept(client, &path, "operations", begins_so, 2, PAGES_MAX).await?;
    let mut found: Vec<String> = found.iter().map(|operation| text(&operation["id"])).collect();
    // A store may have listed one twice.
    found.dedup();
    match &found[..] {
        [first, other, ..] => bail!("the ids of several operations begin with {beginning}: {first}, {other}"),
        _ if !is_all => bail!("there are too many operations to look for {beginning}: give the whole id"),
        [id] => Ok(id.clone()),
        // The node says that there is none.
        [] => Ok(beginning.to_owned()),
    }
}

/// When the present state of an operation began.
fn since(operation: &Value) -> String {
    let at = ["ended_at", "started_at", "created_at"].iter().find_map(|name| operation[name].as_str());
    at.unwrap_or_default().to_owned()
}

/// The time so long from now, by this machine's clock.
fn from_now(lasts: Option<Duration>) -> anyhow::Result<Option<String>> {
    let Some(lasts) = lasts else { return Ok(None) };
    ensure!(ms(lasts) <= YEAR_MS, "--for must be at most 365d");
    Ok(Some((OffsetDateTime::now_utc() + lasts).format(&Rfc3339)?))
}

fn show_lock(is_json: bool, lock: &Value) {
    if is_json {
        return out(lock);
    }
    let state = match lock {
        lock if lock["held"] == true => "held",
        lock if lock["closed"].is_object() => "closed",
        lock if !lock["delayed_until"].is_null() => "not held, but not granted yet",
        _ => "free",
    };
    let (key, state) = (text(&lock["key"]), coloured("STATE", state));
    out(format_args!("{key}: {state}, {}", counted(&lock["waiters"], "waiter")));
    for (name, what) in
        [("delayed_until", "lock-delay or min-hold until"), ("limit", "limit of permits"), ("fence", "fence")]
    {
        if !lock[name].is_null() {
            out(format_args!("{what} {}", text(&lock[name])));
        }
    }
    if lock["closed"].is_object() {
        let until = lock["closed"]["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
        out(format_args!("closed{until}: {}", text(&lock["closed"]["reason"])));
    }
    let holders = lock["holders"].as_array().cloned().unwrap_or_default();
    if !holders.is_empty() {
        list(
            is_json,
            "holders",
            &holders,
            &["OWNER", "MODE", "PERMITS", "TOKEN", "SINCE", "EXPIRES", "REVOKED", "SLOTS", "GROUP"],
            |holder| {
                let texts = |names: &[&str]| names.iter().map(|name| text(&holder[name])).collect::<Vec<_>>();
                let times = [&holder["granted_at"], &holder["expires_at"], &holder["revocation"]["deadline"]];
                [texts(&["owner", "mode", "permits", "token"]), times.map(when).to_vec(), texts(&["slots", "group"])]
                    .concat()
            },
        );
    }
    let waiting = lock["waiting"].as_array().cloned().unwrap_or_default();
    if !waiting.is_empty() {
        list(is_json, "waiters", &waiting, &["WAITING", "MODE", "PERMITS", "PRIORITY", "SINCE"], |waiter| {
            let fields = ["owner", "mode", "permits", "priority"].iter().map(|name| text(&waiter[name]));
            fields.chain([when(&waiter["since"])]).collect()
        });
    }
}

fn hold_off(of: EnginesOf, ms: u64) -> String {
    let lasts = rough(Duration::from_millis(ms));
    match of {
        EnginesOf::Locks if ms == 0 => "No hold-off is in force: nodes grant leases. Unless the gate has a store of its own, the \
                                        hold-off of operations has ended too: an operation that was running may run again."
            .to_owned(),
        EnginesOf::Locks => format!("The hold-off is in force: no node grants new leases for {lasts}."),
        EnginesOf::Gate if ms == 0 => "No hold-off of the gate is in force: operations without a record go, and one that was \
                                       running may run again. Unless the gate has a store of its own, nodes grant leases too."
            .to_owned(),
        EnginesOf::Gate => format!(
            "The hold-off of the gate is in force: for {lasts}, operations without a record go only if they may be repeated."
        ),
    }
}

/// How much a switch has copied.
async fn copied(client: &Client, of: &str) -> Option<String> {
    let answer = client.call(Method::GET, "/v1/admin/engines", None).await.ok()?;
    let copied = answer[of]["engines"].as_array()?.iter().find_map(|engine| engine["copied"].as_u64())?;
    Some(format!("{copied} states copied"))
}

/// # Errors
/// As [`locks`].
pub async fn events(args: &EventsArgs) -> anyhow::Result<()> {
    let client = client(&args.show.node)?.in_app(args.app.as_deref());
    watch(&args.show, client.watch_prefix(&args.prefix)).await
}

async fn watch(show: &ShowArgs, mut events: Events) -> anyhow::Result<()> {
    loop {
        let Event { data, .. } = events.next().await?;
        if show.json {
            out(&data);
        } else {
            let app = data["app"].is_string().then(|| one_line(&data["app"]));
            let cells = EVENT_COLUMNS.iter().zip(event_cells(&data)).map(|(column, cell)| coloured(column, &cell));
            let cells: Vec<String> = app.into_iter().chain(cells).collect();
            out(if stdout().is_terminal() { cells.join("  ").trim_end().to_owned() } else { cells.join("\t") });
        }
    }
}

const EVENT_COLUMNS: [&str; 9] = ["AT", "EVENT", "KEY", "OWNER", "TOKEN", "WAITED", "HELD", "BY", "REASON"];

fn event_cells(event: &Value) -> Vec<String> {
    let seconds =
        |name: &str| event[name].as_u64().map(|ms| format!("{}.{:03} s", ms / 1_000, ms % 1_000)).unwrap_or_default();
    let cells = ["at", "kind", "key", "owner", "token"].iter().map(|name| text(&event[name]));
    cells
        .chain([seconds("waited_ms"), seconds("held_ms"), one_line(&event["by"]), one_line(&event["reason"])])
        .collect()
}

fn show_engines(is_json: bool, answer: &Value) {
    if is_json {
        out(answer);
        return;
    }
    let mut rows = Vec::new();
    for of in ENGINES {
        for engine in answer[of]["engines"].as_array().into_iter().flatten().filter(|engine| engine.is_object()) {
            let mut row = engine.clone();
            row["of"] = json!(of);
            if engine["name"] == answer[of]["active"] {
                row["used"] = json!("used");
                row["hold_off"] = json!(hold_off_of(&answer[of]));
            }
            rows.push(row);
        }
    }
    list(is_json, "engines", &rows, &["OF", "ENGINE", "IN USE", "STATE", "EPOCH", "HOLD-OFF", "TROUBLE"], |row| {
        ["of", "name", "used", "state", "epoch", "hold_off", "trouble"].iter().map(|name| text(&row[name])).collect()
    });
    let nodes = answer["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    list(is_json, "nodes", nodes, &["NODE", "ADDRESS", "VERSION", "STARTED"], |node| {
        let fields = ["node", "address", "version"].iter().map(|name| one_line(&node[name]));
        fields.chain([when(&node["started_at"])]).collect()
    });
    // Not wrong: an operator has vouched for it.
    for of in ENGINES.into_iter().filter(|of| answer[of]["forced_ms"].as_u64().is_some_and(|ms| ms > 0)) {
        let left = left(&answer[of]["forced_ms"]);
        complain(format_args!("{of}: an operator has ended a hold-off early, {left} of it"));
    }
}

/// What keeps locks or the gate from working as usual: why no engine is used, and hold-offs.
pub fn wrong_with(answer: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for of in ENGINES.into_iter().filter(|of| answer[of].is_object()) {
        let set = &answer[of];
        if set["active"].is_null() {
            wrong.push(format!("{of}: no engine is used: {}", text(&set["trouble"])));
        }
        if set["hold_off_ms"].as_u64().is_some_and(|ms| ms > 0) {
            wrong.push(format!("{of}: a hold-off is in force, {}", hold_off_of(set)));
        }
        let engines = set["engines"].as_array().into_iter().flatten();
        wrong.extend(
            engines
                .filter(|engine| engine["answers"] == false)
                .map(|engine| format!("{of}: {} does not answer: {}", text(&engine["name"]), text(&engine["trouble"]))),
        );
    }
    wrong
}

/// What is left of the hold-off of an engine set, and why it began.
fn hold_off_of(set: &Value) -> String {
    let why = set["hold_off_why"].as_str().map(|why| format!(": {}", why.trim_end_matches(": a hold-off begins")));
    left(&set["hold_off_ms"]) + &why.unwrap_or_default()
}

fn left(ms: &Value) -> String {
    match ms.as_u64() {
        None | Some(0) => String::new(),
        Some(ms) => format!("{} left", rough(Duration::from_millis(ms + 999))),
    }
}

/// One screen: what is wrong, what a person must decide, and what soon ends.
///
/// # Errors
/// As [`locks`]; and if something is wrong, or a part cannot be read.
pub async fn status(show: &ShowArgs) -> anyhow::Result<()> {
    let client = client(&show.node)?;
    let engines = client.call(Method::GET, "/v1/admin/engines", None).await?;
    // First: a store that does not answer keeps the rest from being read.
    if !show.json {
        show_engines(false, &engines);
    }
    let mut wrong = wrong_with(&engines);
    let all = client.clone().in_app(Some(ALL_APPS));
    let (undecided, keys, samples) = tokio::join!(
        in_states(&all, &UNDECIDED_STATES, "", is_undecided, PAGES_MAX),
        client.call(Method::GET, "/v1/admin/api-keys", None),
        all.call(Method::GET, "/metrics/samples", None),
    );
    let undecided = undecided.inspect_err(|error| wrong.push(format!("operations cannot be read: {error}"))).ok();
    let keys = keys.inspect_err(|error| wrong.push(format!("API keys cannot be read: {error}"))).ok();
    let soon = OffsetDateTime::now_utc() + EXPIRES_SOON;
    let expiring = keys.map(|keys| {
        let mut expiring = keys["api_keys"].as_array().cloned().unwrap_or_default();
        expiring.retain(|key| {
            let at = key["expires_at"].as_str().and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
            key["state"] == "active" && at.is_some_and(|at| at < soon)
        });
        expiring.sort_by_key(|key| text(&key["expires_at"]));
        expiring
    });
    // They need a scope that the API key may lack.
    let refused = refused_lately(&samples.unwrap_or_default());
    if show.json {
        out(json!({
            "wrong": wrong,
            "engines": engines,
            "undecided": undecided.as_ref().map(|(operations, _)| operations),
            "undecided_incomplete": undecided.as_ref().is_none_or(|(_, is_all)| !is_all),
            "api_keys_expiring": expiring,
            "refused": refused,
        }));
    } else {
        if let Some((operations, is_all)) = &undecided {
            let count = counted(&operations.len().into(), "operation");
            let count = if *is_all { count } else { format!("at least {count}") };
            show_first(&format!("{count} to decide"), operations, |operation| {
                let (at, name) = (when(&json!(since(operation))), one_line(&operation["operation"]));
                let (id, app) = (text(&operation["id"]), quoted(&one_line(&operation["app"])));
                format!("{at}: {name}: latchgate operations show {id} --app {app}")
            });
        }
        if let Some(keys) = &expiring {
            let count = counted(&keys.len().into(), "API key");
            show_first(&format!("{count} to expire within a week"), keys, |key| {
                format!("{}: {} of {}", when(&key["expires_at"]), text(&key["id"]), one_line(&key["app"]))
            });
        }
        let codes: Vec<String> = refused.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        let codes = if codes.is_empty() { "none".to_owned() } else { codes.join(", ") };
        out(format_args!("requests that this node has refused in the last minutes: {codes}"));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// How many there are, and the first of them.
fn show_first(count: &str, items: &[Value], line: impl Fn(&Value) -> String) {
    let is_cut = items.len() > STATUS_LINES;
    let cut = if is_cut { format!(", {STATUS_LINES} of {} shown", items.len()) } else { String::new() };
    out(format_args!("{count}{cut}"));
    items.iter().take(STATUS_LINES).for_each(|item| out(format_args!("  {}", line(item))));
}

/// An argument as a shell reads it.
fn quoted(argument: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    if argument.bytes().all(is_plain) { argument.to_owned() } else { format!("'{}'", argument.replace('\'', r"'\''")) }
}

/// How many requests the node has refused in the last minutes, by the status of the answer. Answers that refuse nothing, such as 304, are
/// counted as `other`.
fn refused_lately(samples: &Value) -> BTreeMap<String, i64> {
    let ages = samples["ages_ms"].as_array().map(Vec::as_slice).unwrap_or_default();
    let first = ages.iter().position(|age| age.as_u64().is_some_and(|age| age <= ms(LATELY))).unwrap_or(0);
    let of_series = |(name, values): (&String, &Value)| {
        let code = name.strip_prefix("latchgate_requests_total{code=\"")?.strip_suffix("\"}")?;
        let values = values.as_array()?;
        let count = values.last()?.as_i64()? - values.get(first)?.as_i64()?;
        (code.parse::<u16>().is_ok_and(|code| code >= 400) && count > 0).then(|| (code.to_owned(), count))
    };
    samples["series"].as_object().into_iter().flatten().filter_map(of_series).collect()
}

/// A list, with the apps in front if it is that of all apps.
fn list_of(
    is_json: bool,
    app: Option<&str>,
    what: &str,
    items: &[Value],
    columns: &[&str],
    cells: impl Fn(&Value) -> Vec<String>,
) {
    if app != Some(ALL_APPS) {
        return list(is_json, what, items, columns, cells);
    }
    let columns = [&["APP"], columns].concat();
    list(is_json, what, items, &columns, |item| [vec![one_line(&item["app"])], cells(item)].concat());
}

/// All pages of a list.
async fn pages(client: &Client, path: &str, name: &str) -> Result<Vec<Value>, Error> {
    Ok(kept(client, path, name, |_| true, usize::MAX, usize::MAX).await?.0)
}

/// What is kept of the pages of a list, until there is `enough` of it or `pages_max` pages are read; and whether these were all pages.
async fn kept(
    client: &Client,
    path: &str,
    name: &str,
    is_kept: impl Fn(&Value) -> bool,
    enough: usize,
    pages_max: usize,
) -> Result<(Vec<Value>, bool), Error> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    for _ in 0..pages_max {
        let mut answer = client.call(Method::GET, &format!("{path}{cursor}"), None).await?;
        if let Some(Value::Array(page)) = answer.get_mut(name).map(Value::take) {
            items.extend(page.into_iter().filter(&is_kept));
        }
        match answer["next_cursor"].as_str() {
            None => return Ok((items, true)),
            Some(_) if items.len() >= enough => break,
            Some(next) => cursor = format!("&cursor={}", encode(next)),
        }
    }
    Ok((items, false))
}

fn note_fields(note: &NoteArgs) -> Map<String, Value> {
    let fields = [("reason", &note.reason), ("by", &note.by)];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?)))).collect()
}

fn owners(holders: &Value) -> String {
    let holders: Vec<String> = holders.as_array().into_iter().flatten().map(|holder| text(&holder["owner"])).collect();
    holders.join(", ")
}

fn lock_path(key: &str, rest: &str) -> String {
    format!("/v1/locks/{}{rest}", encode(key))
}
