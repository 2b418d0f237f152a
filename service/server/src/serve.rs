//! A node's life: open the store, serve, drain.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{GateEngine, LocksEngine, MigrateArgs, ServeArgs, StoreArgs};
use crate::http::{self, Context, ServerLimits};
use crate::runtime::Locks;
use crate::runtime::operations::Operations;
use crate::store::LockStore;
use crate::store::gate::GateStore;
use crate::store::gate::postgres::PostgresGateStore;
use crate::store::gate::redis::RedisGateStore;
use crate::store::gate::sqlite::SqliteGateStore;
use crate::store::postgres::PostgresStore;
use crate::store::redis::RedisStore;
use crate::store::sqlite::SqliteStore;
use crate::telemetry;

/// Longest time that opening the store may take: a server that does not answer must not hang the start.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a node until it is told to stop.
///
/// # Errors
/// Says why it cannot start.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    args.check()?;
    let connections_max = make_room(args.connections_max);
    let Opened { locks: store, gate } = open(&args).await?;
    let locks = Locks::start(Arc::clone(&store), args.runtime_limits()).await?;
    let secret = secret(&args.store, &store).await?;
    let operations = open_gate(&args, &secret, gate).await?;
    let listener = http::bind(args.listen).await?;
    let address = listener.local_addr()?;
    greet(address, &args, store.name());
    let router = http::router(Context::new(locks.clone(), operations.clone(), &secret, args.request_limits()));
    let server_limits = ServerLimits { connections_max, ..args.server_limits() };
    let stop = CancellationToken::new();
    let mut serving = tokio::spawn(http::serve(listener, router, server_limits, stop.clone()));
    tokio::select! {
        told = told_to_stop() => {
            tracing::info!(signal = told?, "shutting down");
            locks.close();
            operations.close();
            tokio::time::sleep(Duration::from_millis(args.drain_notice_ms)).await;
            stop.cancel();
        }
        ended = &mut serving => return ended.context("the server ended by itself"),
    }
    serving.await.context("the server did not end well")
}

/// File descriptors kept for the stores, files and listeners.
const DESCRIPTORS_KEPT: u64 = 200;

/// Raises the limit of open files as far as it goes, and returns how many connections fit under it: clients must not
/// take the descriptors that a reconnect to the store needs.
fn make_room(connections_max: usize) -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return connections_max };
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft };
    let fit = usize::try_from(limit.saturating_sub(DESCRIPTORS_KEPT)).unwrap_or(usize::MAX).max(1);
    if fit < connections_max {
        tracing::warn!(connections_max = fit, "the limit of open files allows no more connections than this");
    }
    fit.min(connections_max)
}

/// Brings the schema up to date, and ends.
///
/// # Errors
/// Says why that failed.
pub async fn migrate(args: MigrateArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    match args.store.engine(Duration::ZERO)? {
        LocksEngine::Sqlite(path) => drop(SqliteStore::open(&path, true).await?),
        LocksEngine::Postgres(config) => PostgresStore::migrate(&config).await?,
        LocksEngine::Redis(_) => {}
    }
    match args.store.gate_engine()? {
        GateEngine::BesideTheLocks | GateEngine::Redis(_) => {}
        GateEngine::Postgres(config) => PostgresStore::migrate(&config).await?,
        GateEngine::Sqlite(path) => drop(SqliteGateStore::open(&path).await?),
    }
    println!("The schema is up to date.");
    Ok(())
}

/// The store of the locks, and the gate beside it, if that has a place there.
struct Opened {
    locks: Arc<dyn LockStore>,
    gate: Option<Arc<dyn GateStore>>,
}

async fn open(args: &ServeArgs) -> anyhow::Result<Opened> {
    match args.engine()? {
        LocksEngine::Sqlite(path) => {
            let store = SqliteStore::open(&path, args.migrate).await?;
            let gate = Arc::new(store.gate(&path).await?);
            Ok(Opened { locks: Arc::new(store), gate: Some(gate) })
        }
        LocksEngine::Postgres(config) => {
            if args.migrate {
                // As long as it takes, other nodes' turns included.
                PostgresStore::migrate(&config).await?;
            }
            let opening =
                async { anyhow::Ok((PostgresStore::open(&config).await?, PostgresGateStore::open(&config).await?)) };
            let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
            let (locks, gate) = opened.context("Postgres does not answer")??;
            Ok(Opened { locks: Arc::new(locks), gate: Some(Arc::new(gate)) })
        }
        LocksEngine::Redis(config) => {
            let opened = tokio::time::timeout(OPEN_TIMEOUT, RedisStore::open(&config)).await;
            let locks: Arc<dyn LockStore> = Arc::new(opened.context("Redis does not answer")??);
            // It keeps nothing durable: as a second store it would be of no use.
            let is_beside = matches!(args.store.gate_engine()?, GateEngine::BesideTheLocks);
            let gate: Option<Arc<dyn GateStore>> = if is_beside {
                let opened = RedisGateStore::open(&args.store.redis_gate(&config.url)).await;
                Some(Arc::new(
                    opened.context("the gate cannot live beside these locks: name another place with --gate")?,
                ))
            } else {
                None
            };
            Ok(Opened { locks, gate })
        }
    }
}

/// What all nodes seal tickets and stamps with.
async fn secret(args: &StoreArgs, locks: &Arc<dyn LockStore>) -> anyhow::Result<Vec<u8>> {
    if let Some(secret) = &args.secret {
        return Ok(secret.clone().into_bytes());
    }
    let kept = tokio::time::timeout(OPEN_TIMEOUT, locks.cluster_secret(&rand::random::<[u8; 32]>())).await;
    Ok(kept.context("the store does not answer")??)
}

/// The gate on its store; with Redis, also on the store of the locks, if that commits to disk.
async fn open_gate(args: &ServeArgs, secret: &[u8], beside: Option<Arc<dyn GateStore>>) -> anyhow::Result<Operations> {
    let engine = args.store.gate_engine()?;
    let opening = async {
        let (primary, second): (Arc<dyn GateStore>, Option<Arc<dyn GateStore>>) = match engine {
            GateEngine::BesideTheLocks => (beside.context("the gate has no place beside these locks")?, None),
            GateEngine::Redis(config) => (Arc::new(RedisGateStore::open(&config).await?), beside),
            GateEngine::Postgres(config) => {
                if args.migrate {
                    PostgresStore::migrate(&config).await?;
                }
                (Arc::new(PostgresGateStore::open(&config).await?), None)
            }
            GateEngine::Sqlite(path) => (Arc::new(SqliteGateStore::open(&path).await?), None),
        };
        Operations::start(primary, second, secret, args.gate_limits()).await
    };
    tokio::time::timeout(OPEN_TIMEOUT, opening).await.context("the gate's store does not answer")?
}

fn greet(address: std::net::SocketAddr, args: &ServeArgs, store_name: &str) {
    let place = match args.engine() {
        Ok(LocksEngine::Sqlite(path)) => format!("SQLite, in {}", path.display()),
        Ok(LocksEngine::Redis(_)) => "Redis, which may forget held locks when it crashes or fails over".to_owned(),
        _ => store_name.replace("postgres", "Postgres"),
    };
    println!("Latchgate {} listens on http://{address}", env!("CARGO_PKG_VERSION"));
    println!("Locks live in {place}. Swagger UI: http://{address}/docs/");
    println!("Take your first lock:\n\n  curl -f -X POST http://{address}/v1/locks/my-lock/acquire\n");
}

async fn told_to_stop() -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}
