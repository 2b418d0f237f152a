//! Lines between the client and the server.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use latchgate_client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Settings;
use super::call::Call;
use super::message::{Object, error, field, id, messages, set, text};
use super::tools::Tools;

const LINE_BYTES_MAX: usize = 64 << 20;
/// Lines that wait for a slow reader.
const LINES_MAX: usize = 64;
/// Most calls of gated tools at once.
const CALLS_MAX: usize = 1_000;
/// Most requests for the list of tools at once.
const LISTS_MAX: usize = 100;
/// How long calls that run may go on when their client has gone.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How long the server may take to end by itself, and the reports of the last outcomes.
const END_MAX: Duration = Duration::from_secs(5);
/// The ids of calls at the server. It has no others that begin like this.
const OURS: &str = "latchgate-";

pub struct Relay {
    pub client: Client,
    pub settings: Settings,
    /// Names this run of the gate.
    pub run: String,
    pub to_client: mpsc::Sender<String>,
    pub to_server: mpsc::Sender<String>,
    /// No call begins from now on.
    pub ending: CancellationToken,
    running: TaskTracker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tools: Tools,
    /// By the client's id.
    calls: HashMap<String, Running>,
    /// By our id: who awaits the answer.
    awaited: HashMap<String, oneshot::Sender<Object>>,
    numbers: u64,
    has_ended: bool,
    /// The client's ids of its requests for the list of tools.
    lists: HashSet<String>,
}

#[derive(Default)]
struct Running {
    cancelled: CancellationToken,
    /// Our id, once the server has the call.
    number: Option<String>,
}

/// Runs the server behind the gate, until it ends, the client closes its end, or `stop`. Returns how it has ended; `None` if it was killed.
///
/// # Errors
/// When the server cannot be started.
pub async fn run(
    client: Client,
    settings: Settings,
    command: &[OsString],
    stop: CancellationToken,
) -> std::io::Result<Option<ExitStatus>> {
    let (program, args) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut server = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let (to_server, writing_server) = writer(server.stdin.take());
    let (from, to) = stdio_pipes();
    let (to_client, writing_client) = writer(Some(to));
    let from_server = lines(server.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?);
    let (ending, running, run) = (CancellationToken::new(), TaskTracker::new(), uuid::Uuid::new_v4().to_string());
    let relay = Arc::new(Relay { client, settings, run, to_client, to_server, ending, running, state: Mutex::default() });
    let mut reading_client = tokio::spawn(Arc::clone(&relay).read_client(lines(from)));
    let mut reading_server = tokio::spawn(Arc::clone(&relay).read_server(from_server));
    let client_ended = tokio::select! {
        _ = &mut reading_client => true,
        _ = &mut reading_server => false,
        () = stop.cancelled() => false,
    };
    relay.ending.cancel();
    relay.running.close();
    if client_ended {
        tokio::select! {
            () = relay.running.wait() => {}
            _ = &mut reading_server => {}
            () = stop.cancelled() => {}
            () = tokio::time::sleep(DRAIN_MAX) => {}
        }
    }
    // What the server has not answered is unknown from now on.
    relay.end_calls();
    let _ = timeout(END_MAX, relay.running.wait()).await;
    for task in [&reading_client, &reading_server, &writing_server] {
        task.abort();
    }
    let client = relay.client.clone();
    drop((relay, reading_client, reading_server));
    let status = end(&mut server).await;
    let _ = timeout(END_MAX, async { tokio::join!(writing_client, client.settled()) }).await;
    Ok(status)
}

/// Its input is closed, which asks it to end; then it is asked by a signal.
async fn end(server: &mut Child) -> Option<ExitStatus> {
    if let Ok(status) = timeout(END_MAX, server.wait()).await {
        return status.ok();
    }
    if let Some(pid) = server.id().and_then(|id| i32::try_from(id).ok()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if let Ok(status) = timeout(END_MAX, server.wait()).await {
        return status.ok();
    }
    let _ = server.kill().await;
    None
}

fn lines(from: impl AsyncRead + Unpin) -> impl Stream<Item = Result<String, LinesCodecError>> + Unpin {
    FramedRead::new(from, LinesCodec::new_with_max_length(LINE_BYTES_MAX))
}

/// Writes lines until all senders are gone or the reader is.
fn writer(to: Option<impl AsyncWrite + Unpin + Send + 'static>) -> (mpsc::Sender<String>, JoinHandle<()>) {
    let (sender, mut lines) = mpsc::channel::<String>(LINES_MAX);
    let writing = tokio::spawn(async move {
        let Some(mut to) = to else { return };
        while let Some(mut line) = lines.recv().await {
            line.push('\n');
            if to.write_all(line.as_bytes()).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    });
    (sender, writing)
}

/// What becomes of a message of the client.
enum FromClient {
    Passes,
    /// The server gets this in its place.
    Becomes(String),
    /// The client has its answer.
    Answered(String),
    Call(Box<Call>, CancellationToken),
    Nothing,
}

/// What becomes of a message of the server.
enum FromServer {
    Passes,
    Becomes(String),
    /// It is the answer to a call of ours.
    Taken,
}

impl Relay {
    async fn read_client(self: Arc<Self>, mut lines: impl Stream<Item = Result<String, LinesCodecError>> + Unpin) {
        while let Some(line) = next(&mut lines, "the client").await {
            let Some((messages, is_batch)) = messages(&line) else {
                // The server might read a call in it.
                let _ = self.to_client.send(error(None, -32_700, "the line is not JSON-RPC")).await;
                continue;
            };
            for message in messages {
                let sent = match self.from_client(&message) {
                    FromClient::Passes if is_batch => self.to_server.send(text(&message)).await,
                    FromClient::Passes => self.to_server.send(line.clone()).await,
                    FromClient::Becomes(other) => self.to_server.send(other).await,
                    FromClient::Answered(answer) => self.to_client.send(answer).await,
                    FromClient::Call(call, cancelled) => {
                        self.running.spawn(Arc::clone(&self).call(*call, cancelled));
                        Ok(())
                    }
                    FromClient::Nothing => Ok(()),
                };
                // The end of a reader is found by the task that reads from it.
                drop(sent);
            }
        }
    }

    async fn read_server(self: Arc<Self>, mut lines: impl Stream<Item = Result<String, LinesCodecError>> + Unpin) {
        while let Some(line) = next(&mut lines, "the server").await {
            let Some((messages, is_batch)) = messages(&line) else {
                let _ = self.to_client.send(line).await;
                continue;
            };
            for message in messages {
                let sent = match self.from_server(&message) {
                    FromServer::Passes if is_batch => self.to_client.send(text(&message)).await,
                    FromServer::Passes => self.to_client.send(line.clone()).await,
                    FromServer::Becomes(other) => self.to_client.send(other).await,
                    FromServer::Taken => Ok(()),
                };
                drop(sent);
            }
        }
    }

    fn from_client(&self, message: &Object) -> FromClient {
        let method: Option<String> = field(message, "method");
        match (method.as_deref(), id(message, "id")) {
            (Some("tools/call"), Some(id)) => self.called(message, id),
            (Some("tools/call"), None) => FromClient::Answered(error(None, -32_600, "a call needs an id")),
            (Some("tools/list"), Some(id)) => {
                let mut state = self.state.lock();
                if state.lists.len() < LISTS_MAX {
                    state.lists.insert(id);
                }
                FromClient::Passes
            }
            (Some("notifications/cancelled"), _) => self.cancelled(message),
            (None, _) if message.contains_key("method") => FromClient::Answered(error(None, -32_600, "the method is not a text")),
            _ => FromClient::Passes,
        }
    }

    fn called(&self, message: &Object, id: String) -> FromClient {
        let (params, raw_id): (Object, _) = (field(message, "params").unwrap_or_default(), message["id"].clone());
        let Some(tool) = field::<String>(&params, "name") else {
            return FromClient::Answered(error(Some(&raw_id), -32_602, "the call names no tool"));
        };
        let mut state = self.state.lock();
        if !state.tools.is_gated(&self.settings, &tool) {
            return FromClient::Passes;
        }
        if state.calls.len() >= CALLS_MAX || state.calls.contains_key(&id) {
            let words = "a call with this id runs, or too many calls do: the tool was not called";
            return FromClient::Answered(error(Some(&raw_id), -32_600, words));
        }
        let known = state.tools.get(&tool);
        match Call::parse(message.clone(), raw_id, tool, known) {
            Ok(call) => FromClient::Call(Box::new(call), state.calls.entry(id).or_default().cancelled.clone()),
            Err(answer) => FromClient::Answered(answer),
        }
    }

    /// The server learns of it under the id that it knows. If it answers all the same, that is recorded.
    fn cancelled(&self, message: &Object) -> FromClient {
        let Some(mut params) = field::<Object>(message, "params") else { return FromClient::Passes };
        let state = self.state.lock();
        let Some(running) = id(&params, "requestId").and_then(|id| state.calls.get(&id)) else { return FromClient::Passes };
        running.cancelled.cancel();
        let Some(number) = &running.number else { return FromClient::Nothing };
        let mut message = message.clone();
        set(&mut params, "requestId", number);
        set(&mut message, "params", &params);
        FromClient::Becomes(text(&message))
    }

    fn from_server(&self, message: &Object) -> FromServer {
        if message.contains_key("method") {
            return FromServer::Passes;
        }
        let mut state = self.state.lock();
        if let Some(number) = field::<String>(message, "id").filter(|number| number.starts_with(OURS)) {
            let awaits = state.awaited.remove(&number);
            if !awaits.is_some_and(|awaits| awaits.send(message.clone()).is_ok()) {
                tracing::warn!(call = number, "the server has answered late, or twice: the answer is dropped");
            }
            return FromServer::Taken;
        }
        let is_list = id(message, "id").is_some_and(|id| state.lists.remove(&id));
        let result = message.get("result").filter(|_| is_list);
        match result.and_then(|result| state.tools.listed(&self.settings, result)) {
            Some(listed) => {
                let mut message = message.clone();
                set(&mut message, "result", &listed);
                FromServer::Becomes(text(&message))
            }
            None => FromServer::Passes,
        }
    }

    /// The server gets the call now: the id that it gets it under, and its answer. `None` if it has ended, or the client has cancelled.
    pub fn expect(&self, id: &str) -> Option<(String, oneshot::Receiver<Object>)> {
        let mut state = self.state.lock();
        let number = format!("{OURS}{}", state.numbers);
        let has_ended = state.has_ended;
        let running = state.calls.get_mut(id).filter(|running| !has_ended && !running.cancelled.is_cancelled())?;
        running.number = Some(number.clone());
        state.numbers += 1;
        let (awaits, answered) = oneshot::channel();
        state.awaited.insert(number.clone(), awaits);
        Some((number, answered))
    }

    /// An answer that comes later is dropped.
    pub fn give_up(&self, number: &str) {
        self.state.lock().awaited.remove(number);
    }

    pub fn forget(&self, id: &str) {
        self.state.lock().calls.remove(id);
    }

    fn end_calls(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.awaited.clear();
    }
}

async fn next(lines: &mut (impl Stream<Item = Result<String, LinesCodecError>> + Unpin), of: &str) -> Option<String> {
    let line = lines.next().await?;
    line.inspect_err(|error| tracing::error!(%error, "cannot read a line of {of}")).ok()
}
