//! A node's life: open the store, serve, drain.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{MigrateArgs, ServeArgs, StoreArgs};
use crate::engines::{GateEngine, LocksEngine, LocksKind, OPEN_TIMEOUT, Opened, apart, refuse_member};
use crate::http::{self, Context, ServerLimits};
use crate::runtime::Locks;
use crate::runtime::operations::Operations;
use crate::store::engines::{EngineSet, active_of};
use crate::store::gate::GateStore;
use crate::store::gate::late::{GateOpener, LateGateStore};
use crate::store::gate::postgres::PostgresGateStore;
use crate::store::gate::redis::{RedisGateConfig, RedisGateStore};
use crate::store::gate::sqlite::SqliteGateStore;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use crate::store::{Board, LockStore};
use crate::telemetry;

/// Runs a node until it is told to stop.
///
/// # Errors
/// Says why it cannot start.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    args.check()?;
    let connections_max = make_room(args.connections_max);
    let (Opened { locks: store, gate }, engines) = open(&args).await?;
    let locks = Locks::start(Arc::clone(&store), args.runtime_limits()).await?;
    let secret = secret(&args.store, &store).await?;
    let operations = open_gate(&args, &secret, gate).await?;
    let listener = http::bind(args.listen).await?;
    let address = listener.local_addr()?;
    greet(address, &args, store.name());
    let context = Context::new(locks.clone(), operations.clone(), &secret, args.request_limits());
    let answers = Arc::clone(&context.answers);
    let router = http::router(Context { engines, ..context });
    let server_limits = ServerLimits { connections_max, ..args.server_limits() };
    let stop = CancellationToken::new();
    let mut serving = tokio::spawn(http::serve(listener, router, answers, server_limits, stop.clone()));
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

/// How often the board of the store beside the gate's Redis is asked for at the start, and the pause in between.
const BOARD_TRIES: u32 = 20;
const BOARD_PAUSE: Duration = Duration::from_millis(100);

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
        GateEngine::Sqlite(path) => drop(SqliteGateStore::open(&path).await?),
    }
    println!("The schema is up to date.");
    Ok(())
}

/// Dissolves an engine set: takes the boards off the stores that it finds.
///
/// # Errors
/// Says why that failed.
pub async fn leave_set(args: MigrateArgs) -> anyhow::Result<()> {
    telemetry::start(&args.log)?;
    for engine in args.store.engines(Duration::ZERO)? {
        let store = engine.in_a_set(false);
        let store = tokio::time::timeout(OPEN_TIMEOUT, (store.open)()).await.context("it does not answer")??;
        let board = store.board().await?;
        let written = store.write_board(board.version, "").await?;
        anyhow::ensure!(written.is_some(), "a node still uses {}: stop all nodes first", engine.name);
        println!("{} is no engine of a set any more.", engine.name);
    }
    Ok(())
}

/// One store, or the engine set that it is one of.
async fn open(args: &ServeArgs) -> anyhow::Result<(Opened, Option<Arc<EngineSet>>)> {
    let engines = args.engines()?;
    let is_beside = matches!(args.store.gate_engine()?, GateEngine::BesideTheLocks);
    if let [engine] = &engines[..] {
        let gate = redis_gate(args, engine).filter(|_| is_beside);
        let opened = engine.open(args.migrate, gate.as_ref()).await?;
        refuse_member(&opened.locks).await?;
        return Ok((opened, None));
    }
    let mut gate = None;
    let mut set = Vec::with_capacity(engines.len());
    for (index, engine) in engines.iter().enumerate() {
        let mut slot = engine.in_a_set(args.migrate);
        if let LocksKind::Sqlite(path) = &engine.kind {
            // One process has the file, so it is opened once.
            let store = SqliteStore::open(path, args.migrate).await?;
            if index == 0 {
                gate = Some(Arc::new(store.gate(path).await?) as Arc<dyn GateStore>);
            }
            let store: Arc<dyn LockStore> = Arc::new(store);
            slot.open = Arc::new(move || {
                let store = Arc::clone(&store);
                Box::pin(async move { Ok(store) })
            });
        }
        set.push(slot);
    }
    let set = Arc::new(EngineSet::open(set, usize::from(args.store.shards), args.engine_set()).await?);
    // The gate stays beside the first, whichever the locks are switched to.
    let gate = gate.or_else(|| late_gate(args, &engines[0], is_beside));
    let locks: Arc<dyn LockStore> = Arc::clone(&set) as Arc<dyn LockStore>;
    Ok((Opened { locks, gate }, Some(set)))
}

fn redis_gate(args: &ServeArgs, engine: &LocksEngine) -> Option<RedisGateConfig> {
    match &engine.kind {
        LocksKind::Redis(config) => Some(args.store.redis_gate(&config.url)),
        LocksKind::Sqlite(_) | LocksKind::Postgres(_) => None,
    }
}

/// The gate beside an engine that may not answer yet.
fn late_gate(args: &ServeArgs, engine: &LocksEngine, is_beside: bool) -> Option<Arc<dyn GateStore>> {
    let open: GateOpener = match &engine.kind {
        LocksKind::Postgres(config) => {
            let (config, migrate) = (config.clone(), args.migrate);
            Arc::new(move || {
                let config = config.clone();
                apart(move || async move {
                    if migrate {
                        PostgresStore::migrate(&config).await?;
                    }
                    Ok(Arc::new(PostgresGateStore::open(&config).await?) as Arc<dyn GateStore>)
                })
            })
        }
        LocksKind::Redis(_) => {
            let config = redis_gate(args, engine).filter(|_| is_beside)?;
            Arc::new(move || {
                let config = config.clone();
                Box::pin(async move { Ok(Arc::new(RedisGateStore::open(&config).await?) as Arc<dyn GateStore>) })
            })
        }
        LocksKind::Sqlite(_) => return None,
    };
    let is_durable = matches!(engine.kind, LocksKind::Postgres(_));
    Some(Arc::new(LateGateStore::new(engine.kind.as_str(), is_durable, open)))
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
            GateEngine::Redis(config) => (redis_beside(config, beside.as_ref()).await?, beside),
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

/// The gate's Redis. If new operations are claimed in the store beside it, it need not answer.
async fn redis_beside(
    config: RedisGateConfig,
    beside: Option<&Arc<dyn GateStore>>,
) -> anyhow::Result<Arc<dyn GateStore>> {
    let board = match beside {
        Some(beside) => board_of(beside).await,
        None => None,
    };
    let active = board.and_then(|board| active_of(&board.text));
    if active.is_none_or(|active| active == "redis") {
        return Ok(Arc::new(RedisGateStore::open(&config).await?));
    }
    let open: GateOpener = Arc::new(move || {
        let config = config.clone();
        Box::pin(async move { Ok(Arc::new(RedisGateStore::open(&config).await?) as Arc<dyn GateStore>) })
    });
    Ok(Arc::new(LateGateStore::new("redis", false, open)))
}

/// A store that is one of several may have to be opened first.
async fn board_of(store: &Arc<dyn GateStore>) -> Option<Board> {
    for _ in 0..BOARD_TRIES {
        if let Ok(board) = store.board().await {
            return Some(board);
        }
        tokio::time::sleep(BOARD_PAUSE).await;
    }
    None
}

fn greet(address: std::net::SocketAddr, args: &ServeArgs, store_name: &str) {
    let engines = args.engines().unwrap_or_default();
    let place = match &engines[..] {
        [LocksEngine { kind: LocksKind::Sqlite(path), .. }] => format!("SQLite, in {}", path.display()),
        [LocksEngine { kind: LocksKind::Redis(_), .. }] => {
            "Redis, which may forget held locks when it crashes or fails over".to_owned()
        }
        [_] => store_name.replace("postgres", "Postgres"),
        all => {
            let names: Vec<&str> = all.iter().map(|engine| engine.name.as_str()).collect();
            format!("the engine set {}, now in {store_name}", names.join(", "))
        }
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
