//! A node's life: open the store, serve, drain.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{GateEngine, LocksEngine, MigrateArgs, ServeArgs, StoreArgs};
use crate::http::{self, Context};
use crate::runtime::Locks;
use crate::runtime::operations::Operations;
use crate::store::LockStore;
use crate::store::gate::GateStore;
use crate::store::gate::postgres::PostgresGateStore;
use crate::store::gate::redis::RedisGateStore;
use crate::store::gate::sqlite::SqliteGateStore;
use crate::store::postgres::{PostgresConfig, PostgresStore};
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
    let store = open(&args.store, args.migrate).await?;
    let locks = Locks::start(Arc::clone(&store), args.runtime_limits()).await?;
    let operations = open_gate(&args, &store).await?;
    let listener = http::bind(args.listen).await?;
    let address = listener.local_addr()?;
    greet(address, &args.store, store.name());
    let router = http::router(Context::new(locks.clone(), operations.clone(), args.request_limits()));
    let stop = CancellationToken::new();
    let mut serving = tokio::spawn(http::serve(listener, router, args.server_limits(), stop.clone()));
    tokio::select! {
        told = told_to_stop() => {
            tracing::info!(signal = told?, "shutting down");
            locks.close();
            operations.close();
            stop.cancel();
        }
        ended = &mut serving => return ended.context("the server ended by itself"),
    }
    serving.await.context("the server did not end well")
}

/// Brings the schema up to date, and ends.
///
/// # Errors
/// Says why that failed.
pub async fn migrate(args: MigrateArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    match args.store.engine()? {
        LocksEngine::Sqlite(path) => drop(SqliteStore::open(&path, true).await?),
        LocksEngine::Postgres(config) => PostgresStore::migrate(&config).await?,
    }
    match args.store.gate_engine()? {
        GateEngine::BesideTheLocks | GateEngine::Redis(_) => {}
        GateEngine::Postgres(config) => PostgresStore::migrate(&config).await?,
        GateEngine::Sqlite(path) => drop(SqliteGateStore::open(&path).await?),
    }
    println!("The schema is up to date.");
    Ok(())
}

async fn open(args: &StoreArgs, migrate: bool) -> anyhow::Result<Arc<dyn LockStore>> {
    match args.engine()? {
        LocksEngine::Sqlite(path) => Ok(Arc::new(SqliteStore::open(&path, migrate).await?)),
        LocksEngine::Postgres(config) => {
            let opened = tokio::time::timeout(OPEN_TIMEOUT, open_postgres(&config, migrate)).await;
            let store = opened.context("Postgres does not answer")??;
            Ok(Arc::new(store))
        }
    }
}

/// The gate on its store; with Redis, also on the store of the locks.
async fn open_gate(args: &ServeArgs, locks: &Arc<dyn LockStore>) -> anyhow::Result<Operations> {
    let engine = args.store.gate_engine()?;
    let opening = async {
        let (primary, second): (Arc<dyn GateStore>, Option<Arc<dyn GateStore>>) = match engine {
            GateEngine::BesideTheLocks => (beside_the_locks(args).await?, None),
            GateEngine::Redis(config) => {
                (Arc::new(RedisGateStore::open(&config).await?), Some(beside_the_locks(args).await?))
            }
            GateEngine::Postgres(config) => {
                if args.migrate {
                    PostgresStore::migrate(&config).await?;
                }
                (Arc::new(PostgresGateStore::open(&config).await?), None)
            }
            GateEngine::Sqlite(path) => (Arc::new(SqliteGateStore::open(&path).await?), None),
        };
        let secret = match &args.store.secret {
            Some(secret) => secret.clone().into_bytes(),
            None => locks.cluster_secret(&rand::random::<[u8; 32]>()).await?,
        };
        Operations::start(primary, second, &secret, args.gate_limits()).await
    };
    tokio::time::timeout(OPEN_TIMEOUT, opening).await.context("the gate's store does not answer")?
}

async fn beside_the_locks(args: &ServeArgs) -> anyhow::Result<Arc<dyn GateStore>> {
    Ok(match args.store.engine()? {
        LocksEngine::Sqlite(path) => Arc::new(SqliteGateStore::open(&path).await?),
        LocksEngine::Postgres(config) => Arc::new(PostgresGateStore::open(&config).await?),
    })
}

async fn open_postgres(config: &PostgresConfig, migrate: bool) -> anyhow::Result<PostgresStore> {
    if migrate {
        PostgresStore::migrate(config).await?;
    }
    PostgresStore::open(config).await
}

fn greet(address: std::net::SocketAddr, store: &StoreArgs, store_name: &str) {
    let place = match store.engine() {
        Ok(LocksEngine::Sqlite(path)) => format!("SQLite, in {}", path.display()),
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
