//! A connection that is opened again when it breaks. A command that was sent is never sent again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ServerErrorKind,
    ToRedisArgs, Value,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::info::Info;
use super::scripts::{Program, read};
use super::url::Target;
use crate::store::StoreError;

/// How long other Sentinels may take to answer, after one has named a master that answers.
const GRACE: Duration = Duration::from_millis(100);
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
    shared: Arc<LinkInner>,
}

struct LinkInner {
    target: Target,
    timeout: Duration,
    current: Mutex<Current>,
    /// The run id of the server that it leads to, or led to last.
    server: watch::Sender<Arc<str>>,
    connecting: tokio::sync::Mutex<()>,
    /// This one leads to the same server as that one.
    beside: Option<Link>,
}

#[derive(Default)]
struct Current {
    open: Option<Open>,
    /// How many connections have been opened.
    number: u64,
}

#[derive(Clone)]
pub(super) struct Open {
    connection: MultiplexedConnection,
    /// Of the server that it leads to. A server that is started again has another one, and ends its connections before.
    run_id: Arc<str>,
    number: u64,
}

impl Target {
    /// Connects to the server that says it is the master. All Sentinels are asked at once, because some may not answer, or name a server
    /// that was left. If they name several masters, the one that was promoted last is preferred.
    pub(super) async fn reach(&self, time_out: Duration) -> RedisResult<(Client, Open)> {
        let (sentinels, service, login) = match self {
            Self::One(client) => return reach(client.clone(), time_out).await,
            Self::Master { sentinels, service, login } => (sentinels, service, login),
        };
        let asking = sentinels.iter().map(async |sentinel| {
            let (server, promotion) = master_of(sentinel, service, time_out).await?;
            Ok((promotion, reach(login.client(&server)?, time_out).await?))
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut best: Option<(u64, (Client, Open))> = None;
        let mut last: Option<RedisError> = None;
        loop {
            let next = match best {
                Some(_) => timeout(GRACE, asking.next()).await.ok().flatten(),
                None => asking.next().await,
            };
            match next {
                Some(Ok(found)) => best = best.filter(|best| best.0 >= found.0).or(Some(found)),
                Some(Err(error)) => last = Some(error),
                None => {
                    let none = || last.unwrap_or_else(|| std::io::Error::other("no Sentinel is named").into());
                    return best.map(|(_, reached)| reached).ok_or_else(none);
                }
            }
        }
    }
}

/// Connects to a server that says it is a master.
async fn reach(client: Client, time_out: Duration) -> RedisResult<(Client, Open)> {
    let mut connection = connect(&client, time_out).await?;
    let run_id = Info::of(&mut connection).await?.run_id_of_master()?.into();
    Ok((client, Open { connection, run_id, number: 0 }))
}

/// The server that a Sentinel names, and the number of its promotion.
async fn master_of(sentinel: &Client, service: &str, time_out: Duration) -> RedisResult<(String, u64)> {
    let mut connection = connect(sentinel, time_out).await?;
    let mut ask = redis::cmd("SENTINEL");
    let master: Option<(String, u16)> =
        ask.arg("get-master-addr-by-name").arg(service).query_async(&mut connection).await?;
    let (host, port) = master.ok_or_else(|| std::io::Error::other("the Sentinel does not know this service"))?;
    let mut ask = redis::cmd("SENTINEL");
    // A Sentinel may refuse the command.
    let details: RedisResult<HashMap<String, String>> =
        ask.arg("master").arg(service).query_async(&mut connection).await;
    let promotion = details.ok().and_then(|details| details.get("config-epoch")?.parse().ok()).unwrap_or(0);
    Ok((server_of(&host, port), promotion))
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
        Self::of(target, timeout, None)
    }

    /// Another connection to the server that this one leads to: what is read on it delays no call on this one.
    pub(in crate::store) fn beside(&self) -> Self {
        Self::of(self.shared.target.clone(), self.shared.timeout, Some(self.clone()))
    }

    fn of(target: Target, timeout: Duration, beside: Option<Self>) -> Self {
        let server = watch::Sender::new(Arc::from(""));
        let (current, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { shared: Arc::new(LinkInner { target, timeout, current, server, connecting, beside }) }
    }

    pub(super) fn target(&self) -> &Target {
        &self.shared.target
    }

    /// Changes when the connection leads to another server.
    pub(super) fn server(&self) -> watch::Receiver<Arc<str>> {
        self.shared.server.subscribe()
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
            let answer = self.answer(commands.query_async(&mut open.connection), open.number).await;
            answer.map(|answer| (answer, open.run_id)).map_err(Failed::sent)
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
        let info = self.answer(Info::of(&mut open.connection), open.number).await.map_err(Failed::unsent)?;
        if info.run_id_of_master().is_ok_and(|run_id| *run_id == *open.run_id) {
            return Ok(());
        }
        self.close(open.number);
        Err(Failed::unsent(std::io::Error::other("another server answers on this connection").into()))
    }

    async fn connection(&self) -> RedisResult<Open> {
        let server = match &self.shared.beside {
            Some(link) => Some(Box::pin(link.connection()).await?.run_id),
            None => None,
        };
        let leads_there = |open: &Open| server.as_ref().is_none_or(|server| *server == open.run_id);
        if let Some(open) = self.open().filter(leads_there) {
            return Ok(open);
        }
        let _turn = self.shared.connecting.lock().await;
        if let Some(open) = self.open().filter(leads_there) {
            return Ok(open);
        }
        let (_, fresh) = self.shared.target.reach(self.shared.timeout).await?;
        if !leads_there(&fresh) {
            return Err(std::io::Error::other("two servers answer as the master").into());
        }
        let run_id = Arc::clone(&fresh.run_id);
        self.shared.server.send_if_modified(|server| std::mem::replace(server, Arc::clone(&run_id)) != run_id);
        let mut current = self.shared.current.lock();
        current.number += 1;
        let fresh = Open { number: current.number, ..fresh };
        current.open = Some(fresh.clone());
        Ok(fresh)
    }

    fn open(&self) -> Option<Open> {
        self.shared.current.lock().open.clone()
    }

    /// The answer of a call on a connection, which is closed if the answer shows that it cannot be used any longer, or if there is none: a
    /// server that hangs may have a successor. Callers may give up before this connection does.
    async fn answer<T>(&self, call: impl Future<Output = RedisResult<T>>, number: u64) -> RedisResult<T> {
        let mut unanswered = CloseUnlessAnswered { link: self, number, sent: Instant::now(), is_answered: false };
        let answer = call.await;
        unanswered.is_answered = !answer.as_ref().is_err_and(|error| {
            error.is_unrecoverable_error() || error.is_connection_dropped() || error.is_timeout() || is_demoted(error)
        });
        if !unanswered.is_answered {
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
        link.answer(command.query_async(&mut self.connection), self.number).await.map_err(Failed::sent)
    }
}

struct CloseUnlessAnswered<'a> {
    link: &'a Link,
    number: u64,
    sent: Instant,
    is_answered: bool,
}

impl Drop for CloseUnlessAnswered<'_> {
    fn drop(&mut self) {
        // A caller that gives up sooner says nothing of the server.
        if !self.is_answered && self.sent.elapsed() >= self.link.shared.timeout / 2 {
            self.link.close(self.number);
        }
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
