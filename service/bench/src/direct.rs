//! What an acquire and a release cost a client that speaks the store's own protocol: `SET NX PX` and a script that deletes, or an advisory
//! lock of a session. Neither has a queue or a fencing token; the one in Redis is lost with the server, and the other with the connection.

use anyhow::{Context as _, bail};
use redis::Script;
use redis::aio::MultiplexedConnection;
use sqlx::{Connection as _, PgConnection};

use crate::drive::{Laps, Worker};
use crate::http::Failure;

/// The delete of a lock that is still this client's, as the documentation of `SET` recommends.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub struct Direct {
    store: Store,
    run: u64,
    number: usize,
    is_fresh: bool,
}

enum Store {
    Redis(MultiplexedConnection, Box<Script>),
    Postgres(PgConnection),
}

impl Direct {
    /// With a connection of its own.
    ///
    /// # Errors
    /// When the URL is not `redis://…` or `postgres://…`, or its server cannot be reached.
    pub async fn open(url: &str, run: u64, number: usize, is_fresh: bool) -> anyhow::Result<Self> {
        let store = if url.starts_with("redis://") {
            let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await;
            Store::Redis(connection.context("Redis cannot be reached")?, Box::new(Script::new(RELEASE)))
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            Store::Postgres(PgConnection::connect(url).await.context("Postgres cannot be reached")?)
        } else {
            bail!("not the URL of a Redis or a Postgres");
        };
        Ok(Self { store, run, number, is_fresh })
    }
}

impl Worker for Direct {
    async fn operation(&mut self, sequence: u64, laps: &mut Laps) -> Result<(), Failure> {
        let key = (self.number as u64) << 32 | if self.is_fresh { sequence } else { 0 };
        match &mut self.store {
            Store::Redis(connection, release) => {
                let (name, id) = (format!("bench-{:016x}-{key}", self.run), format!("{:016x}-{sequence}", self.run));
                let mut set = redis::cmd("SET");
                set.arg(&name).arg(&id).arg("NX").arg("PX").arg(30_000);
                let taken: Option<String> =
                    set.query_async(connection).await.map_err(|error| failed("acquire", error))?;
                expect("acquire", taken.is_some())?;
                laps.lap("acquire");
                let gone: u64 = release
                    .key(&name)
                    .arg(&id)
                    .invoke_async(connection)
                    .await
                    .map_err(|error| failed("release", error))?;
                expect("release", gone == 1)?;
            }
            Store::Postgres(connection) => {
                let key = (self.run ^ key).cast_signed();
                expect("acquire", call(connection, "acquire", "select pg_try_advisory_lock($1)", key).await?)?;
                laps.lap("acquire");
                expect("release", call(connection, "release", "select pg_advisory_unlock($1)", key).await?)?;
            }
        }
        laps.lap("release");
        Ok(())
    }
}

async fn call(connection: &mut PgConnection, what: &str, sql: &'static str, key: i64) -> Result<bool, Failure> {
    sqlx::query_scalar(sql).bind(key).fetch_one(connection).await.map_err(|error| failed(what, error))
}

fn expect(what: &str, is_done: bool) -> Result<(), Failure> {
    if is_done { Ok(()) } else { Err(failed(what, "was refused")) }
}

fn failed(what: &str, why: impl std::fmt::Display) -> Failure {
    Failure { what: format!("{what}: {why}"), outcome_unknown: false }
}
