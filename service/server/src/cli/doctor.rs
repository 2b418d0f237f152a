//! `latchgate doctor`: checks a service, and says what to do about each finding.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use latchgate_client::clock::Moment;
use latchgate_client::{Client, Error, Method};
use nix::sys::resource::{Resource, getrlimit};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::beside::{join, join_gate};
use super::node::client;
use super::print::{out, plain};
use super::progress::shown;
use crate::config::{DoctorArgs, NodeArgs};
use crate::engines::{Engine, Engines, GateEngines};
use crate::format::ms;

/// Files that a node should be able to open: one for each connection of a client, and some for the stores.
const FILES_MIN: u64 = 10_000;
/// A clock that is off by more than this makes the times in logs hard to compare.
const CLOCK_OFF_MAX: Duration = Duration::from_secs(1);
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(50);

/// What is found, a line each.
#[derive(Default)]
struct Findings {
    wrong: usize,
}

impl Findings {
    fn good(&self, what: impl AsRef<str>) {
        out(format_args!("ok     {}", plain(what.as_ref())));
    }

    fn advice(&self, what: impl AsRef<str>, advice: &str) {
        out(format_args!("note   {}\n       {advice}", plain(what.as_ref())));
    }

    fn wrong(&mut self, what: impl AsRef<str>, advice: &str) {
        self.wrong += 1;
        out(format_args!("WRONG  {}\n       {advice}", plain(what.as_ref())));
    }
}

/// # Errors
/// When a URL has the wrong form.
pub async fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    out(format_args!("latchgate {}", env!("CARGO_PKG_VERSION")));
    files(&findings);
    if args.beside.beside_store {
        stores(args, &mut findings).await;
    } else {
        for url in args.node.url.split(',').filter(|url| !url.trim().is_empty()) {
            let one = NodeArgs { url: url.to_owned(), ..args.node.clone() };
            node(args, &one, &mut findings).await?;
        }
    }
    Ok(ExitCode::from(u8::from(findings.wrong > 0)))
}

fn files(findings: &Findings) {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, most)) if most < FILES_MIN => findings.advice(
            format!("a process of this user may open {most} files"),
            "A node accepts fewer connections then. Raise the limit (`ulimit -Hn`, `LimitNOFILE=` of systemd) to 10 000 or more.",
        ),
        Ok((_, most)) => findings.good(format!("a process of this user may open {most} files")),
        Err(_) => {}
    }
}

/// The stores, opened as a node opens them: it checks versions, settings and the schema.
async fn stores(args: &DoctorArgs, findings: &mut Findings) {
    let joined = shown(join(&args.beside, false), "opening the store of the locks", async || None).await;
    let engines = match joined {
        Ok(engines) => engines,
        Err(error) => {
            findings.wrong(
                format!("the store of the locks cannot be used: {error:#}"),
                "Correct --locks or the store. A SQLite file that a node uses is checked through the node, without --beside-store.",
            );
            return;
        }
    };
    answers(&engines, "locks", findings);
    let before = OffsetDateTime::now_utc();
    if let Ok(used) = engines.used()
        && let Ok(now) = used.store.ping().await
    {
        let now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(now.as_ms()) * 1_000_000);
        if let Ok(now) = now {
            clock(findings, "the store", now, before, OffsetDateTime::now_utc());
        }
    }
    drop(engines);
    match shown(open_gate(args), "opening the store of the gate", async || None).await {
        Ok(joined) => {
            for (engines, of) in joined.iter().zip(["gate", "durable operations"]) {
                answers(engines, of, findings);
            }
        }
        Err(error) => findings.wrong(
            format!("the store of the gate cannot be used: {error:#}"),
            "Correct --gate or the store; `latchgate migrate` brings a schema up to date.",
        ),
    }
}

/// A SQLite file is opened once at a time, and the engines of the locks close it a moment after they are dropped.
async fn open_gate(args: &DoctorArgs) -> anyhow::Result<Vec<GateEngines>> {
    let began = Moment::now();
    loop {
        match join_gate(&args.beside).await {
            Err(_) if began.elapsed() < CLOSED_WITHIN => tokio::time::sleep(CLOSED_WITHIN / 20).await,
            joined => return joined,
        }
    }
}

/// Whether each engine answers, and whether its settings have changed since it was opened.
fn answers<E: ?Sized + Engine>(engines: &Engines<E>, of: &str, findings: &mut Findings) {
    for engine in engines.view().engines {
        let name = format!("the engine {} of the {of} ({})", engine.name, engine.kind);
        let reading = match engine.reading {
            Ok(reading) => reading,
            Err(error) => {
                findings.wrong(
                    format!("{name} does not answer: {error}"),
                    "Start it, or look at the network between here and there.",
                );
                continue;
            }
        };
        match reading.risk {
            None => findings.good(format!("{name} answers")),
            Some(risk) if risk.is_accepted => findings.advice(
                format!("{name} answers; {}", risk.what),
                "It is accepted by --allow-eviction or --allow-volatile.",
            ),
            Some(risk) => findings.wrong(
                format!("{name} answers; {}", risk.what),
                "Set it back: for Redis maxmemory-policy noeviction, for Postgres on.",
            ),
        }
    }
}

async fn node(args: &DoctorArgs, node: &NodeArgs, findings: &mut Findings) -> anyhow::Result<()> {
    let client = client(node)?;
    let url = &node.places();
    let key = format!("latchgate-doctor/{}", uuid::Uuid::new_v4());
    let before = OffsetDateTime::now_utc();
    let lease = match client.lock(&key).ttl(Duration::from_secs(60)).acquire().await {
        Ok(lease) => lease,
        Err(error) => {
            findings.wrong(format!("{url} grants no lock: {error}"), advice(&error));
            return Ok(());
        }
    };
    let after = OffsetDateTime::now_utc();
    findings.good(format!("{url} grants locks"));
    let lock = client.call(Method::GET, &format!("/v1/locks/{}", key.replace('/', "%2F")), None).await;
    if let Ok(lock) = lock
        && let Some(granted_at) = lock["holders"][0]["granted_at"].as_str()
    {
        clock(findings, url, OffsetDateTime::parse(granted_at, &Rfc3339).context("a time")?, before, after);
    }
    if !args.wait.is_zero() {
        wait(args, &client, &key, url, findings).await;
    }
    let _ = lease.release().await;
    match client.call(Method::GET, "/v1/admin/engines", None).await {
        Ok(engines) => {
            in_use(&engines, url, findings);
            versions(&engines, url, findings);
        }
        Err(Error::Refused(problem)) if [401, 403].contains(&problem.status()) => {
            findings.advice(
                format!("{url} does not show its engines"),
                "Use an API key with the scope admin to check them.",
            );
        }
        Err(error) => findings.wrong(format!("{url} does not show its engines: {error}"), advice(&error)),
    }
    Ok(())
}

/// Waits as clients do, for a lock that stays taken.
async fn wait(args: &DoctorArgs, client: &Client, key: &str, url: &str, findings: &mut Findings) {
    let wait = args.wait.min(LONGEST_WAIT);
    let body = json!({ "wait_ms": ms(wait), "lease_id": uuid::Uuid::new_v4().to_string() });
    let path = format!("/v1/locks/{}/acquire", key.replace('/', "%2F"));
    let began = Moment::now();
    let calling = client.call(Method::POST, &path, Some(&body));
    let what = format!("a long wait through the load balancer, {} s", wait.as_secs());
    let answer = shown(calling, &what, async || None).await;
    let took = began.elapsed().as_secs();
    match answer {
        Err(Error::Refused(problem)) if problem.code() == "wait-timeout" => {
            findings.good(format!("a wait of {} s through {url} is answered", wait.as_secs()));
        }
        Err(error) => findings.wrong(
            format!("a wait through {url} ended after {took} s without an answer of Latchgate: {error}"),
            "Raise the time-out for answers of the load balancer or proxy to more than 60 s (nginx: proxy_read_timeout).",
        ),
        Ok(_) => findings.wrong(format!("{url} has granted a lock twice"), "Look at whether its nodes use the same store."),
    }
}

/// The versions of all nodes that share the store.
fn versions(engines: &Value, url: &str, findings: &Findings) {
    let nodes: Vec<(&str, &str)> = engines["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|node| (node["node"].as_str().unwrap_or_default(), node["version"].as_str().unwrap_or_default()))
        .collect();
    let own = env!("CARGO_PKG_VERSION");
    if nodes.iter().all(|(_, version)| *version == own) {
        findings.good(format!("{url}: the version of each node is {own} ({} in all)", nodes.len()));
        return;
    }
    let named: Vec<String> = nodes.iter().map(|(node, version)| format!("{node} {version}")).collect();
    findings.advice(
        format!("{url}: the versions of nodes and this command ({own}) differ: {}", named.join(", ")),
        "That is right during an upgrade. Complete it: see docs/OPERATIONS.md.",
    );
}

fn in_use(engines: &Value, url: &str, findings: &mut Findings) {
    for (name, of) in [("locks", "locks"), ("gate", "gate"), ("durable", "durable operations")] {
        let used = &engines[name];
        if used.is_null() {
            continue;
        }
        let all: &[Value] = used["engines"].as_array().map_or(&[], Vec::as_slice);
        let kind_of = |active: &str| {
            all.iter().find(|engine| engine["name"] == active).and_then(|engine| engine["kind"].as_str())
        };
        match (used["active"].as_str(), used["trouble"].as_str()) {
            (Some(active), _) => {
                let kind = kind_of(active).unwrap_or("of an unknown kind");
                findings.good(format!("{url}: {active} ({kind}) is the engine of the {of}"));
            }
            (None, trouble) => findings.wrong(
                format!("{url}: no engine of the {of} is in use: {}", trouble.unwrap_or("unknown why")),
                "See docs/ENGINES.md.",
            ),
        }
        for engine in all.iter().filter(|engine| engine["answers"] == false) {
            let name = engine["name"].as_str().unwrap_or_default();
            let why = engine["trouble"].as_str().unwrap_or("unknown why");
            findings.wrong(
                format!("{url}: the engine {name} of the {of} does not answer: {why}"),
                "Start it, or look at the network between the node and it.",
            );
        }
        if let Some(ms) = used["hold_off_ms"].as_u64().filter(|ms| *ms > 0) {
            let what = format!("{url}: a hold-off of the {of} lasts for {} s more", ms / 1_000);
            findings
                .advice(what, "It ends by itself. `latchgate engines hold-off --for 0` ends it if no lease was lost.");
        }
    }
}

fn clock(findings: &Findings, whose: &str, theirs: OffsetDateTime, before: OffsetDateTime, after: OffsetDateTime) {
    let off = if theirs < before {
        before - theirs
    } else if theirs > after {
        theirs - after
    } else {
        time::Duration::ZERO
    };
    if off > CLOCK_OFF_MAX {
        findings.advice(
            format!("this machine's clock and that of {whose} differ by {} ms", off.whole_milliseconds()),
            "Leases do not depend on it, but times in logs do: run an NTP client on both.",
        );
    } else {
        findings
            .good(format!("this machine's clock and that of {whose} agree within {} ms", CLOCK_OFF_MAX.as_millis()));
    }
}

fn advice(error: &Error) -> &'static str {
    match error {
        Error::Unreachable(_) => {
            "Look at whether the node runs, at its --listen, and at what is between here and there."
        }
        Error::Refused(problem) if problem.status() == 401 => {
            "Set LATCHGATE_API_KEY. An operator makes an API key with `latchgate api-key create`."
        }
        Error::Refused(problem) if problem.status() == 403 => {
            "Use an API key with the scopes read and locks, and without prefixes."
        }
        Error::NotAcquired(_) => "A hold-off is in force: see `latchgate engines list`.",
        _ => "See docs/ERRORS.md for the code.",
    }
}
