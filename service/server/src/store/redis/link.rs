//! A connection that is opened again when it breaks. A command that was sent is never sent again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ServerErrorKind,
    ToRedisArgs, Value,
};
use tokio::time::timeout;

use super::info::Info;
use super::scripts::{Program, read};
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
    open: Option<Open>,
    /// How many connections have been opened.
    number: u64,
}

#[derive(Clone)]
struct Open {
    connection: MultiplexedConnection,
    /// Of the server that it leads to. A server that is started again has another one, and ends its connections before.
    run_id: Arc<str>,
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

    async fn connect(&self, time_out: Duration) -> RedisResult<Open> {
        let mut connection = connect(&self.client(time_out).await?, time_out).await?;
        let run_id = Info::of(&mut connection).await?.run_id_of_master()?.into();
        Ok(Open { connection, run_id, number: 0 })
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
        self.connection().await.map_err(Failed::unsent)?.send(self, command).await
    }

    /// Sends a command that only reads. If the connection is dead, it is sent once more.
    pub(in crate::store) async fn get<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let mut answer = self.send(command).await;
        if answer.as_ref().is_err_and(Failed::is_dead_connection) {
            answer = self.send(command).await;
        }
        read(answer.map_err(|failed| failed.of_read())?).map_err(StoreError::of_reading)
    }

    /// As [`Link::get`], for several commands. Returns the run id of the server that has answered, too.
    pub(in crate::store) async fn get_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<(T, Arc<str>), StoreError> {
        let send = async || {
            let mut open = self.connection().await.map_err(Failed::unsent)?;
            let answer = commands.query_async(&mut open.connection).await;
            self.check_answer(answer, open.number).map(|answer| (answer, open.run_id)).map_err(Failed::sent)
        };
        let mut answer = send().await;
        if answer.as_ref().is_err_and(Failed::is_dead_connection) {
            answer = send().await;
        }
        answer.map_err(|failed| failed.of_read())
    }

    /// Sends several commands at once.
    pub(super) async fn send_each(&self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        try_join_all(commands.iter().map(|command| self.send(command))).await
    }

    /// Runs a script that writes.
    pub(in crate::store) async fn write<T: FromRedisValue>(
        &self,
        program: &Program,
        keys: &[String],
        arguments: &[impl ToRedisArgs + Sync],
    ) -> Result<T, StoreError> {
        self.write_with(program, |command| add(command, keys, arguments)).await
    }

    /// As [`Link::write`]. `add` adds to the command how many keys there are, the keys, and the arguments.
    pub(super) async fn write_with<T: FromRedisValue>(
        &self,
        program: &Program,
        add: impl Fn(&mut Cmd) + Send + Sync,
    ) -> Result<T, StoreError> {
        read(self.run(program, add).await.map_err(|failed| failed.of_write())?)
    }

    /// Runs a script whose effect does not matter to a caller that gets no answer.
    pub(in crate::store) async fn read<T: FromRedisValue>(
        &self,
        program: &Program,
        keys: &[String],
        arguments: &[String],
    ) -> Result<T, StoreError> {
        let add = |command: &mut Cmd| add(command, keys, arguments);
        let answer = self.run(program, add).await.map_err(|failed| failed.of_read())?;
        read(answer).map_err(StoreError::of_reading)
    }

    /// The last argument of every script is the run id of the server that this connection leads to.
    async fn run(&self, program: &Program, add: impl Fn(&mut Cmd) + Send + Sync) -> Result<Value, Failed> {
        let open = self.connection().await.map_err(Failed::unsent)?;
        let call = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script);
            add(&mut command);
            command.arg(&*open.run_id);
            command
        };
        match open.clone().send(self, &call("EVALSHA", program.script.get_hash())).await {
            // The server has been restarted or promoted, or its scripts were removed, and it did not run this one.
            Err(failed) if failed.error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.verify(open.clone()).await?;
                // `EVAL` runs and stores it. It writes nothing unless the engine record names this server.
                open.clone().send(self, &call("EVAL", program.text)).await
            }
            answer => answer,
        }
    }

    /// # Errors
    /// If a proxy has led the connection to another server. Nothing was sent for the caller.
    async fn verify(&self, mut open: Open) -> Result<(), Failed> {
        let info = self.check_answer(Info::of(&mut open.connection).await, open.number).map_err(Failed::unsent)?;
        if info.run_id_of_master().is_ok_and(|run_id| *run_id == *open.run_id) {
            return Ok(());
        }
        self.close(open.number);
        Err(Failed::unsent(std::io::Error::other("another server answers on this connection").into()))
    }

    async fn connection(&self) -> RedisResult<Open> {
        if let Some(open) = self.open() {
            return Ok(open);
        }
        let _turn = self.shared.connecting.lock().await;
        if let Some(open) = self.open() {
            return Ok(open);
        }
        let fresh = self.shared.target.connect(self.shared.timeout).await?;
        let mut current = self.shared.current.lock();
        current.number += 1;
        let fresh = Open { number: current.number, ..fresh };
        current.open = Some(fresh.clone());
        Ok(fresh)
    }

    fn open(&self) -> Option<Open> {
        self.shared.current.lock().open.clone()
    }

    /// Closes the connection if the answer shows that it cannot be used any longer.
    fn check_answer<T>(&self, answer: RedisResult<T>, number: u64) -> RedisResult<T> {
        if let Err(error) = &answer
            && (error.is_unrecoverable_error() || error.is_connection_dropped() || is_demoted(error))
        {
            self.close(number);
        }
        answer
    }

    fn close(&self, number: u64) {
        let mut current = self.shared.current.lock();
        if current.number == number {
            current.open = None;
        }
    }
}

fn add(command: &mut Cmd, keys: &[String], arguments: &[impl ToRedisArgs]) {
    command.arg(keys.len()).arg(keys).arg(arguments);
}

impl Open {
    async fn send(mut self, link: &Link, command: &Cmd) -> Result<Value, Failed> {
        let answer = command.query_async(&mut self.connection).await;
        link.check_answer(answer, self.number).map_err(Failed::sent)
    }
}

/// Whether the error shows that the server is no longer a master.
fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// The error code of the scripts for an epoch that is not that of the engine record.
const EPOCH_OVER: &str = "EPOCHOVER";

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
    fn unsent(error: RedisError) -> Self {
        Self { error, was_sent: false }
    }

    fn sent(error: RedisError) -> Self {
        Self { error, was_sent: true }
    }

    /// Whether the connection had ended, perhaps long ago: that shows only when a command is sent.
    fn is_dead_connection(&self) -> bool {
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
