//! `latchgate locks` and `events`: list, show, watch, intervene.

use std::cmp::Reverse;
use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use anyhow::ensure;
use latchgate_client::{Client, Error, Event, Events, Method, encode, is_about};
use latchgate_node::format::{YEAR_MS, ms};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::sleep;

use super::listing::{PAGE, in_own_app, list_of, pages};
use super::node::client;
use super::print::{coloured, complain, counted, list, one_line, print_answer, println_or_exit, text, when};
use crate::config::{EventsArgs, LocksCommand, LocksListArgs, LocksSort, NodeCommand, NoteArgs, ShowArgs};

/// Between two lists with --watch.
const WATCH_EVERY: Duration = Duration::from_secs(2);

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
            let lock = of_lock(Method::GET, key, "", None).await?;
            let place = in_own_app(&client, app.as_deref(), show.json, state_of(&lock) != FREE).await;
            show_lock(show.json, &lock, &place);
        }
        LocksCommand::Watch { key } => watch(show, client.watch(key)).await?,
        LocksCommand::History { key, limit } => {
            let path = lock_path(key, &format!("/history?limit={limit}"));
            let answer = client.call(Method::GET, &path, None).await?;
            let events = answer["events"].as_array().cloned().unwrap_or_default();
            events.iter().try_for_each(|event| is_about(key, event))?;
            let place = in_own_app(&client, app.as_deref(), show.json, !events.is_empty()).await;
            list(show.json, &format!("events{place}"), &events, &EVENT_COLUMNS, |event| {
                let mut cells = event_cells(event);
                cells[0] = when(&event["at"]);
                cells
            });
        }
        LocksCommand::Revoke { key, grace, token, note } => {
            let mut body = note_fields(note);
            body.insert("grace_ms".to_owned(), json!(ms(*grace)));
            body.extend(token.map(|token| ("token".to_owned(), json!(token))));
            let answer = of_lock(Method::POST, key, "/revoke", Some(&Value::Object(body))).await?;
            let place = in_own_app(&client, app.as_deref(), show.json, answer["leases"] != 0).await;
            print_answer(show.json, &answer, || match &answer["leases"] {
                leases if leases == 0 => format!("{key} is free{place}: there is nothing to revoke."),
                leases => {
                    format!("{} revoked: {key}. The end is at {}.", counted(leases, "lease"), text(&answer["deadline"]))
                }
            });
            notices(show.json, &answer["leases"]);
        }
        LocksCommand::Force { key, token, note } => {
            let mut fields = note_fields(note);
            fields.extend(token.map(|token| ("token".to_owned(), json!(token))));
            let query: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}={}", encode(&text(value)))).collect();
            let query = format!("?{}", query.join("&"));
            let answer = of_lock(Method::DELETE, key, query.trim_end_matches('?'), None).await?;
            let place = in_own_app(&client, app.as_deref(), show.json, answer["ended"] != 0).await;
            print_answer(show.json, &answer, || match &answer["ended"] {
                ended if ended == 0 => format!("{key} is free{place}: there is nothing to end."),
                ended => format!("{} ended: {key}.", counted(ended, "lease")),
            });
            notices(show.json, &answer["ended"]);
        }
        LocksCommand::Close { key, reason, until, lasts } => {
            let mut body = json!({ "reason": reason });
            if let Some(until) = until.clone().map_or_else(|| from_now(*lasts), |until| Ok(Some(until)))? {
                body["until"] = json!(until);
            }
            let answer = of_lock(Method::PUT, key, "/closed", Some(&body)).await?;
            print_answer(show.json, &answer, || match &answer["closed"]["until"] {
                Value::String(until) => format!("{key} is closed until {until}."),
                _ => format!("{key} is closed. `latchgate locks open` opens it."),
            });
        }
        LocksCommand::Open { key } => {
            let answer = of_lock(Method::DELETE, key, "/closed", None).await?;
            print_answer(show.json, &answer, || match answer["was_closed"] == true {
                true => format!("{key} is open."),
                false => format!("{key} was not closed."),
            });
        }
        LocksCommand::Limit { key, limit } => {
            let body = json!({ "limit": limit });
            let answer = of_lock(Method::PUT, key, "/limit", Some(&body)).await?;
            print_answer(show.json, &answer, || match limit {
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

/// After leases were taken away.
fn notices(is_json: bool, leases: &Value) {
    if !is_json && *leases != 0 {
        complain("a holder learns of it by its next renewal, after a third of its TTL, and may work on until then");
    }
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
            println_or_exit("\x1b[H\x1b[2J");
        }
        let place = in_own_app(client, app, is_json, !locks.is_empty()).await;
        let columns = ["KEY", "MODE", "HOLDERS", "HELD FOR", "ENDS", "WAITERS", "TOKEN", "CLOSED"];
        list_of(is_json, app, &format!("{what}{place}"), &locks, &columns, |lock| {
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
                closed(&lock["closed"]),
            ]
        });
        if !args.watch {
            return Ok(());
        }
        sleep(WATCH_EVERY).await;
    }
}

/// Why a lock is closed, and until when.
fn closed(closed: &Value) -> String {
    let until = if closed["until"].is_null() { String::new() } else { format!(", until {}", when(&closed["until"])) };
    one_line(&closed["reason"]) + &until
}

/// The time so long from now, by this machine's clock.
fn from_now(lasts: Option<Duration>) -> anyhow::Result<Option<String>> {
    let Some(lasts) = lasts else { return Ok(None) };
    ensure!(ms(lasts) <= YEAR_MS, "--for must be at most 365d");
    Ok(Some((OffsetDateTime::now_utc() + lasts).format(&Rfc3339)?))
}

const FREE: &str = "free";

fn state_of(lock: &Value) -> &'static str {
    match lock {
        lock if lock["held"] == true => "held",
        lock if lock["closed"].is_object() => "closed",
        lock if !lock["delayed_until"].is_null() => "not held, but not granted yet",
        _ => FREE,
    }
}

fn show_lock(is_json: bool, lock: &Value, place: &str) {
    if is_json {
        return println_or_exit(lock);
    }
    let (key, state) = (text(&lock["key"]), coloured("STATE", state_of(lock)));
    println_or_exit(format_args!("{key}: {state}{place}, {}", counted(&lock["waiters"], "waiter")));
    for (name, what) in
        [("delayed_until", "lock-delay or min-hold until"), ("limit", "limit of permits"), ("fence", "fence")]
    {
        if !lock[name].is_null() {
            println_or_exit(format_args!("{what} {}", text(&lock[name])));
        }
    }
    if lock["closed"].is_object() {
        let until = lock["closed"]["until"].as_str().map(|until| format!(" until {until}")).unwrap_or_default();
        println_or_exit(format_args!("closed{until}: {}", text(&lock["closed"]["reason"])));
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
            println_or_exit(&data);
        } else {
            let app = data["app"].is_string().then(|| one_line(&data["app"]));
            let cells = EVENT_COLUMNS.iter().zip(event_cells(&data)).map(|(column, cell)| coloured(column, &cell));
            let cells: Vec<String> = app.into_iter().chain(cells).collect();
            println_or_exit(if stdout().is_terminal() {
                cells.join("  ").trim_end().to_owned()
            } else {
                cells.join("\t")
            });
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
