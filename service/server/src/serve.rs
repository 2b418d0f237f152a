//! The life of a node: bind the port, open the stores, serve, drain.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use latchgate_client::process_name;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Clock, FixedKey};
use crate::config::{CLIENT_TIMEOUT, HttpArgs, MigrateArgs, ServeArgs, StoreArgs};
use crate::engines::open::{GateEngine, LocksEngine, LocksKind, OPEN_TIMEOUT};
use crate::engines::{EngineSpec, GateEngines, LockEngines};
use crate::gate::{COMMAND_MAX, Operations, SecondStore};
use crate::http::{self, Context, Threads, Tls};
use crate::locks::Locks;
use crate::observe::logs;
use crate::observe::traces::Exporter;
use crate::store::documents::{self, StoredDocument};
use crate::store::gate::GateStore;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::gate::PostgresGateStore;
use crate::store::redis::gate::{RedisGateConfig, RedisGateStore};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::gate::SqliteGateStore;
use crate::{greeting, listen};

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
    let context =
        Arc::new(context(&args, fixed_key, connections_max, &addresses, (bound.address(), tls.clone())).await?);
    tokio::spawn(http::keep_samples(Arc::downgrade(&context)));
    tokio::spawn(http::keep_counting(Arc::downgrade(&context)));
    let address = bound.address();
    let listener = bound.listen(CLIENT_TIMEOUT)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let hold_off = context.locks.engines().standing().and_then(|used| used.hold_off(context.locks.now()));
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
    tokio::join!(context.locks.flush_events(FLUSH_MAX), context.operations.flush(FLUSH_MAX));
    // Only now: connections to stores may belong to any of their runtimes.
    drop(threads);
    served
}

/// Opens the stores, and starts all that requests need. `addresses` are those that the node listens on.
pub(crate) async fn context(
    args: &ServeArgs,
    fixed_key: FixedKey,
    connections_max: usize,
    addresses: &[SocketAddr],
    (address, tls): (SocketAddr, Option<Tls>),
) -> anyhow::Result<Context> {
    let (store, gate) = open(args).await?;
    let locks =
        Locks::start(store.clone(), store.node_id(), args.locks.runtime_limits(args.store.store_timeout)).await?;
    let clock: Clock = Arc::new({
        let locks = locks.clone();
        move || locks.now()
    });
    let access = Access::start(store.clone(), clock, fixed_key).await?;
    args.http.check_exposure(addresses, access.needs_key())?;
    let secret = secret(&args.store, &store).await?;
    if gate.is_some() {
        check_home(args, &store).await?;
    }
    let mut gate = open_gate(&args.store, !args.no_migrate, args.operations.operation_lease_ms_max, gate).await?;
    let is_new = is_first_gate(&store).await?;
    gate.engines.iter_mut().for_each(|spec| spec.is_new |= is_new);
    let operations = gate.start().await?;
    // Only now: if a node were killed between this and the gate's first record, that would seem to be lost.
    if store.standing().is_some() {
        agreed(&store, documents::GATE_BEGUN, Some("yes")).await?;
    }
    let limits = args.request_limits(connections_max, addresses);
    Ok(Context::new(locks, operations, access, http::requests(), &secret, limits, tls, reachable(address)))
}

/// Where a node listens, for operators: a node that listens on all addresses of its machine has the name of that.
fn reachable(address: SocketAddr) -> String {
    let name = process_name();
    let host = name.split(':').next().filter(|_| address.ip().is_unspecified());
    host.map_or_else(|| address.to_string(), |host| format!("{host}:{}", address.port()))
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
    for engine in args.store.engines(Duration::ZERO)? {
        match &engine.kind {
            LocksKind::Sqlite(path) => drop(SqliteStore::open(path, true).await?),
            LocksKind::Postgres(config) => PostgresStore::migrate(config).await?,
            LocksKind::Redis(_) => {}
        }
    }
    match args.store.gate_engine()? {
        GateEngine::BesideTheLocks | GateEngine::Redis(_) => {}
        GateEngine::Postgres(config) => PostgresStore::migrate(&config).await?,
        GateEngine::Sqlite(path) => drop(SqliteGateStore::open(&path, true).await?),
    }
    Ok(())
}

/// Opens the store of the locks, or the pair, and the gate beside the first.
async fn open(args: &ServeArgs) -> anyhow::Result<(LockEngines, Option<Arc<dyn GateStore>>)> {
    let engines = args.store.engines(args.locks.history_retention)?;
    let opening = async {
        let is_beside = matches!(args.store.gate_engine()?, GateEngine::BesideTheLocks);
        if let [LocksEngine { kind: LocksKind::Postgres(config), .. }] = &engines[..]
            && !args.no_migrate
        {
            // As long as it takes: a migration may have to wait for that of another node.
            PostgresStore::migrate(config).await?;
        }
        let (mut specs, mut gate) = (Vec::new(), None);
        for (index, engine) in engines.iter().enumerate() {
            let (spec, opened) = engine.spec(!args.no_migrate).await?;
            specs.push(spec);
            gate = if index == 0 { opened } else { gate };
        }
        let store = LockEngines::start(specs, args.store.store_timeout, args.locks.ttl_ms_max).await?;
        // The gate stays beside the first, whichever is active.
        if gate.is_none()
            && let Some(first) = engines.first()
        {
            gate = gate_beside(&args.store, first, is_beside).await?;
        }
        Ok((store, gate))
    };
    let opened: anyhow::Result<_> = opening.await;
    opened.with_context(|| {
        format!("cannot use the store of the locks, {}", greeting::locks_places(&args.store, &engines))
    })
}

/// The gate in the store of these locks. `is_only`: it has no other store.
///
/// # Errors
/// Says why it cannot be used.
pub async fn gate_beside(
    store: &StoreArgs,
    locks: &LocksEngine,
    is_only: bool,
) -> anyhow::Result<Option<Arc<dyn GateStore>>> {
    let redis: Option<RedisGateConfig> = match &locks.kind {
        LocksKind::Redis(config) if is_only => Some(store.redis_gate(&config.url)),
        LocksKind::Redis(_) | LocksKind::Sqlite(_) | LocksKind::Postgres(_) => None,
    };
    locks.open_gate(redis.as_ref()).await
}

/// The secret that all nodes sign tickets with.
async fn secret(args: &StoreArgs, locks: &LockEngines) -> anyhow::Result<Vec<u8>> {
    if let Some(secret) = &args.secret {
        return Ok(secret.clone().into_bytes());
    }
    let fresh = hex::encode(rand::random::<[u8; 32]>());
    let secret = agreed(locks, documents::SECRET, Some(&fresh)).await?;
    secret.map(String::into_bytes).context("the store of the locks keeps no secret")
}

/// Nodes that name the engines of a pair in another order would keep operations in different stores, and let one run twice.
async fn check_home(args: &ServeArgs, locks: &LockEngines) -> anyhow::Result<()> {
    if matches!(args.store.gate_engine()?, GateEngine::Postgres(_) | GateEngine::Sqlite(_)) {
        return Ok(());
    }
    let engines = args.store.engines(args.locks.history_retention)?;
    let Some(LocksEngine { name: first, .. }) = engines.first() else { return Ok(()) };
    let home = agreed(locks, documents::GATE, Some(first.as_str()).filter(|_| engines.len() > 1)).await?;
    match home {
        Some(home) if home != *first => {
            bail!(
                "operations live beside the engine {home}: name it first with --locks, or name with --gate where they live"
            )
        }
        _ => Ok(()),
    }
}

/// Whether no node has had a gate beside these locks. What a store that may forget says of that may be lost together with the gate.
async fn is_first_gate(locks: &LockEngines) -> anyhow::Result<bool> {
    let may_forget = locks.standing().is_none_or(|used| used.store.may_forget());
    Ok(!may_forget && agreed(locks, documents::GATE_BEGUN, None).await?.is_none())
}

/// What all nodes agree on under this name, at every engine that answers. It becomes `fresh` if that is given and there is nothing yet.
///
/// # Errors
/// When it is not known.
async fn agreed(locks: &LockEngines, name: &str, fresh: Option<&str>) -> anyhow::Result<Option<String>> {
    let used = match locks.used() {
        Ok(used) => used,
        // A node that was started without an engine may be what an operator has to call. The other engine has what all agree on.
        Err(error) => {
            for other in locks.others() {
                let read = locks.in_time(other.store.read_document(name, 0)).await;
                if let Ok(StoredDocument { text: Some(text), .. }) = read {
                    return Ok(Some(text));
                }
            }
            return Err(error.into());
        }
    };
    let stored = async {
        match fresh {
            Some(fresh) => documents::agreed(&*used.store, name, fresh).await,
            None => used.store.read_document(name, 0).await,
        }
    };
    let stored = timeout(OPEN_TIMEOUT, stored).await.context("the store of the locks does not answer")??;
    for other in locks.others() {
        let brought = locks.in_time(documents::bring(&*used.store, &*other.store, name, None)).await;
        if let Err(error) = brought {
            tracing::warn!(%error, engine = %other.name, name, "the engine was not given what the nodes agree on");
        }
    }
    Ok(stored.text)
}

/// The stores of the gate, and its engines as the operator names them.
pub struct GateStores {
    primary: Arc<dyn GateStore>,
    /// As an engine of the pair, and for durable operations.
    second: Option<[Arc<dyn GateStore>; 2]>,
    pub engines: Vec<EngineSpec<dyn GateStore>>,
    /// The engine of durable operations, if the gate has a second store.
    pub durable_engine: Option<EngineSpec<dyn GateStore>>,
    place: String,
    lease_ms_max: u64,
}

/// Opens the gate in its own store or beside the locks. A gate in Redis also has the store of the locks, if that commits to disk.
///
/// # Errors
/// Says why a store cannot be used.
pub async fn open_gate(
    store: &StoreArgs,
    migrate: bool,
    lease_ms_max: u64,
    beside: Option<Arc<dyn GateStore>>,
) -> anyhow::Result<GateStores> {
    let engine = store.gate_engine()?;
    let place = greeting::gate_place(&engine);
    let mut left_out = None;
    let opening = async {
        Ok::<_, anyhow::Error>(match engine {
            GateEngine::BesideTheLocks => {
                (beside.context("no gate can live there: name another store with --gate")?, None)
            }
            GateEngine::Redis(config) if beside.is_some() && store.is_left_out("redis") => {
                let unchecked: Arc<dyn GateStore> = Arc::new(RedisGateStore::unchecked(&config)?);
                left_out = Some(config);
                (unchecked, beside)
            }
            GateEngine::Redis(config) => (Arc::new(RedisGateStore::open(&config).await?) as Arc<dyn GateStore>, beside),
            GateEngine::Postgres(config) => {
                if migrate {
                    PostgresStore::migrate(&config).await?;
                }
                (Arc::new(PostgresGateStore::open(&config).await?) as Arc<dyn GateStore>, None)
            }
            GateEngine::Sqlite(path) => {
                (Arc::new(SqliteGateStore::open(&path, migrate).await?) as Arc<dyn GateStore>, None)
            }
        })
    };
    let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
    let opened = opened.unwrap_or_else(|_| Err(anyhow::anyhow!("it does not answer")));
    let (primary, second): (Arc<dyn GateStore>, _) = opened.with_context(|| cannot_use_gate(&place))?;
    let second = second.and_then(|second| second.for_durable().map(|durable| [second, durable]));
    let mut engines = store.gate_specs(&primary, second.as_ref().map(|[engine, _]| engine));
    if let (Some(config), Some(spec)) = (left_out, engines.first_mut()) {
        // The engine is used only after it has been opened, which checks the server.
        spec.open = Arc::new(move || {
            let config = config.clone();
            Box::pin(async move { Ok(Arc::new(RedisGateStore::open(&config).await?) as Arc<dyn GateStore>) })
        });
    }
    let durable_engine = second.as_ref().and_then(|[_, durable]| store.gate_specs(durable, None).pop());
    Ok(GateStores { primary, second, engines, durable_engine, place, lease_ms_max })
}

impl GateStores {
    async fn start(self) -> anyhow::Result<Operations> {
        let start = async |specs| {
            let engines = GateEngines::start(specs, COMMAND_MAX, self.lease_ms_max).await;
            engines.with_context(|| cannot_use_gate(&self.place))
        };
        let engines = start(self.engines).await?;
        let second = match (self.second, self.durable_engine) {
            (Some([engine, own]), Some(spec)) => {
                Some(SecondStore { engine, own, own_engine: start(vec![spec]).await? })
            }
            _ => None,
        };
        Ok(Operations::start(engines, self.primary, second).await)
    }
}

fn cannot_use_gate(place: &str) -> String {
    format!("cannot use the store of the gate, {place}")
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
