//! The life of a node: bind the port, open the stores, serve, drain.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use latchgate_node::access::{Access, Clock, FixedKey};
use latchgate_node::engines::open::{NamedEngine, StoreKind};
use latchgate_node::engines::{EngineSet, EngineSpec};
use latchgate_node::gate::Operations;
use latchgate_node::http::{self, Context, Threads, Tls};
use latchgate_node::locks::Locks;
use latchgate_node::observe::logs;
use latchgate_node::observe::traces::Exporter;
use latchgate_node::store::documents::SECRET;
use latchgate_node::store::postgres::PostgresStore;
use latchgate_node::store::sqlite::SqliteStore;
use latchgate_node::{gate_home, listen};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{CLIENT_TIMEOUT, HttpArgs, MigrateArgs, ServeArgs, StoreArgs};
use crate::greeting;

/// Runs a node until SIGTERM or SIGINT.
///
/// # Errors
/// Says why the node cannot start.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let exporter = args.observe.otlp().as_ref().map(Exporter::start).transpose()?;
    logs::start(&args.log.filter, args.log.format, exporter.as_ref())?;
    let served = serve(args).await;
    if let Some(exporter) = exporter {
        exporter.finish().await;
    }
    served
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    args.check()?;
    // From here on, it does not end the node.
    let hangup = signal(SignalKind::hangup())?;
    // Before a store is opened: a node that cannot have its port must leave no file behind.
    let addresses = args.http.listen.resolve().await?;
    let fixed_key = args.access.fixed_key()?;
    let tls = args.http.tls().await?;
    // A new store has no API keys, so a node that would be refused then does not create one.
    args.http.check_exposure(&addresses, !fixed_key.is_none() || args.store.may_have_data()?)?;
    let bound = listen::bind(&addresses)?;
    let connections_max = raise_file_limit(args.http.connections_max);
    tracing::info!(connections_max, waits_max = HttpArgs::waits_max(connections_max), "limits of connections");
    let node = (bound.shown(), tls.clone());
    let context = Arc::new(context(&args, fixed_key, connections_max, &addresses, node).await?);
    tokio::spawn(http::keep_samples(Arc::downgrade(&context)));
    tokio::spawn(http::keep_counting(Arc::downgrade(&context)));
    let address = bound.address();
    let listener = bound.listen(CLIENT_TIMEOUT)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let hold_off = context.locks.engines().in_use().ok().and_then(|used| used.hold_off(context.locks.now()));
    let needs_key = context.access.needs_key();
    let greeting = greeting::text(scheme, address, &args.store, args.locks.history_retention, needs_key, hold_off)?;
    // The node serves also if standard output cannot be written.
    let _ = writeln!(std::io::stdout(), "{greeting}");
    let server_limits = args.http.server_limits(connections_max, tls.clone());
    tokio::spawn(reload_on_hangup(tls, hangup));
    let stop = CancellationToken::new();
    let threads = Threads::start(args.http.workers()).context("--workers")?;
    let serving = http::serve(listener, Arc::clone(&context), server_limits, Arc::clone(&threads), stop.clone());
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        signal = stop_signal() => {
            tracing::info!(signal = signal?, "shutting down");
            context.locks.close();
            context.operations.close();
            tokio::time::sleep(args.http.drain_notice).await;
            stop.cancel();
        }
        ended = &mut serving => return ended.context("the HTTP server has ended unexpectedly"),
    }
    let served = serving.await.context("the HTTP server has panicked");
    context.failures.log_counted();
    tokio::join!(context.locks.flush_events(FLUSH_MAX), context.operations.flush(FLUSH_MAX));
    // Only now: connections to stores may belong to any of their runtimes.
    drop(threads);
    served
}

/// Opens the stores, and starts all that requests need. `addresses` are those that `--listen` stands for, and `address` is the one that operators see.
async fn context(
    args: &ServeArgs,
    fixed_key: FixedKey,
    connections_max: usize,
    addresses: &[SocketAddr],
    (address, tls): (String, Option<Tls>),
) -> anyhow::Result<Context> {
    let store = open(args).await?;
    let limits = args.locks.runtime_limits(args.store.store_timeout);
    let locks = Locks::start(store.clone(), store.node_id(), limits.clone()).await?;
    let clock: Clock = Arc::new({
        let locks = locks.clone();
        move || locks.now()
    });
    let access = Access::start(store.clone(), clock, fixed_key).await?;
    args.http.check_exposure(addresses, access.needs_key())?;
    let secret = secret(&args.store, &store).await?;
    let gate = open_gate(args, &locks).await?;
    let operations = Operations::start(&locks, gate, limits).await?;
    let limits = args.request_limits(connections_max, addresses);
    let context = Context::new(locks, operations, access, http::requests(), &secret, limits, address);
    Ok(Context { tls, ..context })
}

/// Reads the certificate again on each SIGHUP.
async fn reload_on_hangup(tls: Option<Tls>, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        let Some(tls) = &tls else {
            tracing::info!("SIGHUP: there is no certificate to read again");
            continue;
        };
        match tls.reload().await {
            Ok(()) => tracing::info!("the certificate was read again: new connections get it"),
            Err(error) => {
                tracing::error!("{error:#}: new connections still get the certificate that was read before");
            }
        }
    }
}

/// Longest time that a node which has answered everything waits for its last events to be written.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// File descriptors reserved for stores, files and listeners.
const DESCRIPTORS_RESERVED: u64 = 200;

/// Raises the limit of open files as far as the system allows, and returns how many connections fit under it: clients must
/// not take the descriptors that a reconnect to the store needs.
fn raise_file_limit(connections_max: usize) -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return connections_max };
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft };
    let fit = usize::try_from(limit.saturating_sub(DESCRIPTORS_RESERVED)).unwrap_or(usize::MAX).max(1);
    if fit < connections_max {
        tracing::warn!(
            connections_max = fit,
            "the limit of open files (ulimit -n) allows fewer connections than --connections-max"
        );
    }
    fit.min(connections_max)
}

/// Brings the schema up to date.
///
/// # Errors
/// Says why that failed.
pub async fn migrate(args: MigrateArgs) -> anyhow::Result<()> {
    logs::start(&args.log.filter, args.log.format, None)?;
    for engine in args.store.engines(Duration::ZERO)?.into_iter().chain(args.store.gate_engines()?) {
        match &engine.kind {
            StoreKind::Sqlite(path) => drop(SqliteStore::open(path, true).await?),
            StoreKind::Postgres(config) => PostgresStore::migrate(config).await?,
            StoreKind::Redis(_) => {}
        }
    }
    Ok(())
}

/// Opens the store of the locks, or the pair.
async fn open(args: &ServeArgs) -> anyhow::Result<EngineSet> {
    let engines = args.store.engines(args.locks.history_retention)?;
    let opening = async {
        let specs = specs(&engines, !args.no_migrate).await?;
        let (ttl_ms_max, operation_ttl_ms_max) = (args.locks.ttl_ms_max, args.operations.operation_lease_ms_max);
        EngineSet::start_both(specs, args.store.store_timeout, ttl_ms_max, operation_ttl_ms_max).await
    };
    let opened: anyhow::Result<_> = opening.await;
    opened.with_context(|| {
        format!("cannot use the store of the locks, {}", greeting::locks_places(&args.store, &engines))
    })
}

/// How the engines of a set are opened.
///
/// # Errors
/// Says why a file or a database cannot be used.
pub async fn specs(engines: &[NamedEngine], migrate: bool) -> anyhow::Result<Vec<EngineSpec>> {
    if let [NamedEngine { kind: StoreKind::Postgres(config), .. }] = engines
        && migrate
    {
        // As long as it takes: a migration may have to wait for that of another node.
        PostgresStore::migrate(config).await?;
    }
    let mut specs = Vec::new();
    for engine in engines {
        specs.push(engine.spec(migrate).await?);
    }
    Ok(specs)
}

/// The gate's own engine set, if it has one.
async fn open_gate(args: &ServeArgs, locks: &Locks) -> anyhow::Result<Option<EngineSet>> {
    let engines = args.store.gate_engines()?;
    let home = gate_home::agreed_home(locks.engines(), !engines.is_empty()).await?;
    if engines.is_empty() {
        return Ok(None);
    }
    // What a store that may forget says of the gate may be lost together with the gate.
    let is_first = home.is_none() && locks.engines().in_use().is_ok_and(|used| !used.store.may_forget());
    let opening = async {
        let mut specs = specs(&engines, !args.no_migrate).await?;
        specs.iter_mut().for_each(|spec| spec.is_new |= is_first);
        let gate = EngineSet::start(specs, args.store.store_timeout, args.operations.operation_lease_ms_max).await?;
        gate_home::settle(locks, &gate, args.store.new).await?;
        anyhow::Ok(gate)
    };
    let opened: anyhow::Result<_> = opening.await;
    let opened = opened.with_context(|| format!("cannot use the store of the gate, {}", greeting::places(&engines)))?;
    Ok(Some(opened))
}

/// The secret that all nodes sign tickets with.
async fn secret(args: &StoreArgs, locks: &EngineSet) -> anyhow::Result<Vec<u8>> {
    if let Some(secret) = &args.secret {
        return Ok(secret.clone().into_bytes());
    }
    let fresh = hex::encode(rand::random::<[u8; 32]>());
    let secret = locks.agreed(SECRET, Some(&fresh)).await?.text;
    secret.map(String::into_bytes).context("the store of the locks keeps no secret")
}

/// # Errors
/// When signals cannot be received.
pub async fn stop_signal() -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
