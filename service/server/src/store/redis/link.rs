//! A connection that is opened again when it breaks. A command that was sent is never sent again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisFuture, RedisResult,
    ServerErrorKind, Value,
};
use tokio::time::timeout;

use super::scripts::Program;
use super::url::Target;
use crate::store::StoreError;

/// How many commands may be under way on the one connection.
const PIPELINE_MAX: usize = 1_024;

/// A call that failed.
pub(in crate::store) struct Failed {
    pub(in crate::store) error: RedisError,
    /// Whether the command may have reached the server.
    pub(in crate::store) was_sent: bool,
}

/// A connection for many calls at once. Clones share it.
#[derive(Clone)]
pub(in crate::store) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    timeout: Duration,
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// How many connections have been opened.
    number: u64,
}

impl Target {
    /// The server to connect to now.
    pub(in crate::store) async fn client(&self, time_out: Duration) -> RedisResult<Client> {
        let (sentinels, service, login) = match self {
            Self::One(client) => return Ok(client.clone()),
            Self::Master { sentinels, service, login } => (sentinels, service, login),
        };
        let mut last = RedisError::from(std::io::Error::other("no Sentinel knows this service"));
        for sentinel in sentinels {
            match master_of(sentinel, service, time_out).await {
                Ok(Some(server)) => return login.client(&server),
                Ok(None) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect(&self, time_out: Duration) -> RedisResult<MultiplexedConnection> {
        let mut connection = connect(&self.client(time_out).await?, time_out).await?;
        if matches!(self, Self::Master { .. }) {
            let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut connection).await?;
            let role: String = redis::from_redis_value(role.into_iter().next().unwrap_or_default())?;
            if role != "master" {
                return Err(std::io::Error::other("the Sentinels name a server that is no master yet").into());
            }
        }
        Ok(connection)
    }
}

async fn master_of(sentinel: &Client, service: &str, time_out: Duration) -> RedisResult<Option<String>> {
    let mut connection = connect(sentinel, time_out).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(service);
    let master: Option<(String, u16)> = command.query_async(&mut connection).await?;
    Ok(master.map(|(host, port)| server_of(&host, port)))
}

/// `HOST:PORT` as in a URL.
fn server_of(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn connect(client: &Client, time_out: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(time_out))
        .set_response_timeout(Some(time_out))
        .set_pipeline_buffer_size(PIPELINE_MAX);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    timeout(time_out, connecting)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

impl Link {
    /// Connects at the first call. `timeout` is the longest wait for a connection, and for an answer.
    pub(in crate::store) fn new(target: Target, timeout: Duration) -> Self {
        let shared = Shared { target, timeout, current: Mutex::default(), connecting: tokio::sync::Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    pub(in crate::store) fn target(&self) -> &Target {
        &self.shared.target
    }

    pub(in crate::store) async fn send(&self, command: &Cmd) -> Result<Value, Failed> {
        let (mut connection, number) = self.connection().await.map_err(Failed::unsent)?;
        let answer = command.query_async(&mut connection).await;
        self.check_answer(answer, number).map_err(Failed::sent)
    }

    pub(in crate::store) async fn send_all<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, Failed> {
        let (mut connection, number) = self.connection().await.map_err(Failed::unsent)?;
        let answer = commands.query_async(&mut connection).await;
        self.check_answer(answer, number).map_err(Failed::sent)
    }

    /// As [`Link::send`], for commands that only read: if the connection is dead, the command is sent once more.
    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, Failed> {
        match self.send(command).await {
            Err(failed) if failed.is_dead_connection() => self.send(command).await,
            answer => answer,
        }
    }

    /// Sends several commands at once.
    pub(super) async fn send_each(&self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        try_join_all(commands.iter().map(|command| self.send(command))).await
    }

    pub(super) async fn run(&self, program: &Program, keys: &[String], arguments: &[String]) -> Result<Value, Failed> {
        let call = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        match self.send(&call("EVALSHA", program.script.get_hash())).await {
            // The server has been restarted and did not run the script. `EVAL` runs and stores it.
            Err(failed) if failed.error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(&call("EVAL", program.text)).await
            }
            answer => answer,
        }
    }

    async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        if let Some(open) = self.open() {
            return Ok(open);
        }
        let _turn = self.shared.connecting.lock().await;
        if let Some(open) = self.open() {
            return Ok(open);
        }
        let fresh = self.shared.target.connect(self.shared.timeout).await?;
        let mut current = self.current();
        current.number += 1;
        current.connection = Some(fresh.clone());
        Ok((fresh, current.number))
    }

    fn open(&self) -> Option<(MultiplexedConnection, u64)> {
        let current = self.current();
        current.connection.clone().map(|connection| (connection, current.number))
    }

    /// Closes the connection if the answer shows that it cannot be used any longer.
    fn check_answer<T>(&self, answer: RedisResult<T>, number: u64) -> RedisResult<T> {
        if let Err(error) = &answer
            && (error.is_unrecoverable_error() || error.is_connection_dropped() || is_demoted(error))
        {
            let mut current = self.current();
            if current.number == number {
                current.connection = None;
            }
        }
        answer
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For callers that use a `redis` connection and need nothing but its errors.
impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let (mut connection, number) = self.connection().await?;
            let answer = connection.req_packed_command(command).await;
            self.check_answer(answer, number)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (mut connection, number) = self.connection().await?;
            let answer = connection.req_packed_commands(commands, offset, count).await;
            self.check_answer(answer, number)
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Whether the error shows that the server is no longer a master.
fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// The error code of the scripts for an epoch that is not that of the engine record.
pub(super) const EPOCH_OVER: &str = "EPOCHOVER";

/// Error codes that show that the server did nothing. A script that failed half-way has an unknown outcome.
const DID_NOTHING: [&str; 13] = [
    EPOCH_OVER,
    "NOSCRIPT",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "EXECABORT",
];

impl Failed {
    pub(super) fn unsent(error: RedisError) -> Self {
        Self { error, was_sent: false }
    }

    pub(super) fn sent(error: RedisError) -> Self {
        Self { error, was_sent: true }
    }

    /// Whether the connection had ended, perhaps long ago: that shows only when a command is sent.
    pub(super) fn is_dead_connection(&self) -> bool {
        self.was_sent && self.error.is_connection_dropped()
    }

    pub(super) fn of_read(&self) -> StoreError {
        if self.error.code() == Some(EPOCH_OVER) {
            return StoreError::EpochOver;
        }
        StoreError::Unavailable(self.error.to_string())
    }

    pub(super) fn of_write(&self) -> StoreError {
        let did_nothing = !self.was_sent || self.error.code().is_some_and(|code| DID_NOTHING.contains(&code));
        if did_nothing { self.of_read() } else { StoreError::OutcomeUnknown(self.error.to_string()) }
    }
}
