//! `latchgate engines`: list, switch, begin and end hold-offs.

use std::time::Duration;

use anyhow::ensure;
use latchgate_client::{Client, Method};
use latchgate_node::engines::{EnginesOf, SwitchOrder};
use latchgate_node::format::{YEAR_MS, ms};
use serde_json::{Value, json};

use super::beside;
use super::node::{ORDER_MAX, client};
use super::print::{complain, list, one_line, print_answer, println_or_exit, rough, text, when};
use super::progress::with_progress;
use crate::config::{EnginesCommand, NodeCommand};

const ENGINES: [&str; 3] = ["locks", "gate", "durable"];

/// # Errors
/// As [`super::locks::locks`].
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
                print_answer(show.json, &answer, || format!("The nodes use {} from now on.", text(&answer["active"])));
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
            let answer =
                with_progress(switching, &format!("switching the {of}"), async || copied(&client, of).await).await?;
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
            print_answer(show.json, &answer, || hold_off(*of, answer["hold_off_ms"].as_u64().unwrap_or(0)));
        }
    }
    Ok(())
}

fn hold_off(of: EnginesOf, ms: u64) -> String {
    let lasts = rough(Duration::from_millis(ms));
    match of {
        EnginesOf::Locks if ms == 0 => "No hold-off is in force: nodes grant leases. Unless the gate has a store of its own, the \
                                        hold-off of operations has ended too: an operation that was running may run again."
            .to_owned(),
        EnginesOf::Locks => format!(
            "The hold-off is in force: no node grants new leases for {lasts}. Unless the gate has a store of its own, operations have \
             one too: see `latchgate engines list`."
        ),
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

pub fn show_engines(is_json: bool, answer: &Value) {
    if is_json {
        println_or_exit(answer);
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
    list(is_json, "nodes", nodes, &["NODE", "ADDRESS", "VERSION", "STARTED", "SEEN"], |node| {
        let fields = ["node", "address", "version"].iter().map(|name| one_line(&node[name]));
        let seen = rough(Duration::from_millis(node["seen_ms_ago"].as_u64().unwrap_or_default()));
        fields.chain([when(&node["started_at"]), format!("{seen} ago")]).collect()
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
