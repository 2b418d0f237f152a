//! What a node prints when it starts, and the names of stores in it: kind, host and database, never a password.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use latchgate_core::Timestamp;
use latchgate_node::engines::open::{NamedEngine, StoreKind};
use latchgate_node::format::rfc3339;
use latchgate_node::store::postgres::place_of;

use crate::config::StoreArgs;

/// # Errors
/// When the flags name no stores.
pub fn text(
    scheme: &str,
    address: SocketAddr,
    args: &StoreArgs,
    history_retention: Duration,
    needs_key: bool,
    hold_off: Option<Timestamp>,
) -> anyhow::Result<String> {
    let engines = args.engines(history_retention)?;
    let locks = locks_places(args, &engines);
    let stores = match &args.gate_engines()?[..] {
        [] => format!("Locks and operations live in {locks}."),
        gate => format!("Locks live in {locks}.\nOperations live in {} (--gate).", places(gate)),
    };
    let is_redis = engines.iter().any(|engine| matches!(engine.kind, StoreKind::Redis(_)));
    let warning = if is_redis { "\nRedis may lose held locks when it crashes or fails over." } else { "" };
    let header = if needs_key { "-H \"Authorization: Bearer $LATCHGATE_API_KEY\" " } else { "" };
    let first = match hold_off {
        None => format!(
            "Take your first lock:\n\n  curl -f {header}-X POST {scheme}://{address}/v1/locks/my-lock/acquire\n"
        ),
        Some(until) => format!(
            "No lock is granted until {}, a hold-off: the store may have lost locks that clients hold.\n\
             If it has not, because it is new, end the hold-off{}:\n\n  \
             latchgate engines hold-off --for 0 --url {scheme}://{address}\n",
            rfc3339(until),
            if is_redis { " by --new at the next start, or at once" } else { "" }
        ),
    };
    Ok(format!(
        "Latchgate {} listens on {scheme}://{address}\n\
         {stores}{warning}\n\
         Console: {scheme}://{address}/\n\
         Swagger UI: {scheme}://{address}/docs/\n\
         {first}",
        env!("CARGO_PKG_VERSION")
    ))
}

/// Where the locks live, and which setting says so.
pub fn locks_places(args: &StoreArgs, engines: &[NamedEngine]) -> String {
    format!("{} ({})", places(engines), args.locks_source())
}

pub fn places(engines: &[NamedEngine]) -> String {
    match engines {
        [engine] => place(engine),
        pair => {
            let places: Vec<String> = pair.iter().map(|engine| format!("{}: {}", engine.name, place(engine))).collect();
            format!("a pair of engines, {}", places.join("; "))
        }
    }
}

fn place(engine: &NamedEngine) -> String {
    match &engine.kind {
        StoreKind::Sqlite(path) => sqlite_place(path),
        StoreKind::Postgres(config) => postgres_place(&config.url),
        StoreKind::Redis(config) => redis_place(&config.url),
    }
}

fn sqlite_place(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    format!("SQLite, file {}", path.display())
}

fn postgres_place(url: &str) -> String {
    place_of(url).map_or_else(|| "Postgres".to_owned(), |place| format!("Postgres, {place}"))
}

/// Without the login, which ends at the last `@`, and without parameters.
fn redis_place(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let place = rest.rsplit('@').next().unwrap_or_default();
    let place = place.split(['?', '#']).next().unwrap_or_default();
    let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
    let hosts = hosts.replace(',', ", ");
    if url.starts_with("redis+sentinel:") {
        let service = path.split('/').next().unwrap_or_default();
        format!("Redis, service {service} of the Sentinels {hosts}")
    } else if path.is_empty() {
        format!("Redis at {hosts}")
    } else {
        format!("Redis at {hosts}, database {path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_host_and_database_without_a_password() {
        assert_eq!(postgres_place("postgres://me:s3cret@db.example/app"), "Postgres, database app on db.example:5432");
        assert_eq!(postgres_place("postgres://me:s3cret@db.example:5433"), "Postgres, database me on db.example:5433");
        assert_eq!(
            postgres_place("postgres://me:s3cret@one,two:5433/app?target_session_attrs=read-write"),
            "Postgres, database app on one:5432, two:5433"
        );
        assert_eq!(redis_place("redis://:s3cret@cache:6379"), "Redis at cache:6379");
        assert_eq!(redis_place("redis://me:s3@cret@cache/2"), "Redis at cache, database 2");
        let sentinel = redis_place("redis+sentinel://:s3cret@one:1,two/orders/3");
        assert_eq!(sentinel, "Redis, service orders of the Sentinels one:1, two");
        assert!(sqlite_place(Path::new("a.db")).starts_with("SQLite, file /"));
    }
}
