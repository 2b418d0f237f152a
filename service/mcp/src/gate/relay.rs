//! Lines between the client and the server.

use std::collections::HashMap;
use std::ffi::OsString;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt as _, Stream, StreamExt as _};
use latchgate_client::Client;
use parking_lot::Mutex;
use rmcp::transport::io::stdio_pipes;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Settings;
use super::call::Call;
use super::message::{Object, answer, field, set, text};
use super::tools::Tools;

const LINE_BYTES_MAX: usize = 64 << 20;
/// Lines that wait for a slow reader.
const LINES_MAX: usize = 64;
/// Most calls of gated tools at once.
const CALLS_MAX: usize = 1_000;
/// How long calls that run may go on when their client has gone.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How long the server may take to end by itself, and the reports of the last outcomes.
const END_MAX: Duration = Duration::from_secs(5);
/// Variables of the gate that the server does not get.
const OWN_SECRETS: [&str; 2] = ["LATCHGATE_API_KEY", "LATCHGATE_ADMIN_API_KEY"];

pub struct Relay {
    pub client: Client,
    pub settings: Settings,
    /// Names this run of the gate. The server gets gated calls under ids that begin with it, which no client uses.
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
    numbers: u64,
    /// By the client's id, as it was sent: the id at the server, and whether the client has cancelled the call.
    calls: HashMap<String, (String, CancellationToken)>,
    /// By the id at the server.
    awaited: HashMap<String, Awaited>,
    /// Lines of the server that were no answers.
    lines_of_server: u64,
}

struct Awaited {
    to: oneshot::Sender<Answer>,
    /// `lines_of_server` before the call.
    lines_before: u64,
}

/// The server's answer to a gated call.
#[derive(Default)]
pub struct Answer {
    pub message: Object,
    /// Since the call, the server has sent nothing but answers: it has asked the client for nothing and reported nothing.
    pub is_first: bool,
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
    let mut server = Command::new(program);
    for secret in OWN_SECRETS {
        server.env_remove(secret);
    }
    let mut server = server.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let no_pipe = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let (to, from_server) = (server.stdin.take().ok_or_else(no_pipe)?, server.stdout.take().ok_or_else(no_pipe)?);
    let (to_server, _) = writer(to);
    let (from_client, to) = stdio_pipes();
    let (to_client, written) = writer(to);
    let (ending, running, run) = (CancellationToken::new(), TaskTracker::new(), uuid::Uuid::new_v4().to_string());
    let reports = client.clone();
    let relay = Relay { client, settings, run, to_client, to_server, ending, running, state: Mutex::default() };
    let relay = Arc::new(relay);
    {
        let mut server_ended = pin!(relay.read_server(from_server));
        tokio::select! {
            () = relay.read_client(from_client) => {
                relay.ending.cancel();
                relay.running.close();
                tokio::select! {
                    () = relay.running.wait() => {}
                    () = &mut server_ended => {}
                    () = stop.cancelled() => {}
                    () = sleep(DRAIN_MAX) => {}
                }
            }
            () = &mut server_ended => {}
            () = stop.cancelled() => {}
        }
    }
    relay.end_calls();
    let _ = timeout(END_MAX, relay.running.wait()).await;
    // With the last sender, the server's input closes, which asks it to end.
    drop(relay);
    let status = timeout(END_MAX, server.wait()).await.ok().and_then(Result::ok);
    if status.is_none() {
        let _ = server.kill().await;
    }
    let _ = timeout(END_MAX, async { tokio::join!(written, reports.settled()) }).await;
    Ok(status)
}

/// Writes lines until all senders are gone or the reader is.
fn writer(to: impl AsyncWrite + Unpin + Send + 'static) -> (mpsc::Sender<String>, JoinHandle<()>) {
    let (sender, mut lines) = mpsc::channel::<String>(LINES_MAX);
    let mut to = FramedWrite::new(to, LinesCodec::new());
    let writing = tokio::spawn(async move {
        while let Some(line) = lines.recv().await
            && to.send(line).await.is_ok()
        {}
    });
    (sender, writing)
}

fn lines(from: impl AsyncRead + Unpin) -> impl Stream<Item = String> {
    let lines = FramedRead::new(from, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    lines.filter_map(async |line| line.inspect_err(|error| tracing::error!(%error, "cannot read a line")).ok())
}

/// What becomes of a client's line: what the server gets, if anything, or the client's answer.
type Passes = Result<Option<String>, String>;

impl Relay {
    // If a reader has gone, the task that reads from it finds out: sending does not.
    async fn read_client(self: &Arc<Self>, from: impl AsyncRead + Unpin) {
        let mut lines = pin!(lines(from));
        while let Some(line) = lines.next().await {
            match self.of_client(line) {
                Ok(Some(line)) => drop(self.to_server.send(line).await),
                Ok(None) => {}
                Err(answer) => drop(self.to_client.send(answer).await),
            }
        }
    }

    async fn read_server(&self, from: impl AsyncRead + Unpin) {
        let mut lines = pin!(lines(from));
        while let Some(line) = lines.next().await {
            if let Some(line) = self.of_server(line) {
                let _ = self.to_client.send(line).await;
            }
        }
    }

    fn of_client(self: &Arc<Self>, line: String) -> Passes {
        let Ok(message) = serde_json::from_str::<Object>(&line) else {
            // The server might read a call in it: older versions of the protocol have batches.
            return Err(refused(RawValue::NULL, -32_700, "the line is not one message of JSON-RPC"));
        };
        match field::<String>(&message, "method").as_deref() {
            Some("tools/call") => self.called(message, line),
            Some("notifications/cancelled") => Ok(Some(self.cancelled(message, line))),
            _ => Ok(Some(line)),
        }
    }

    fn called(self: &Arc<Self>, message: Object, line: String) -> Passes {
        let params: Object = field(&message, "params").unwrap_or_default();
        let (Some(id), Some(tool)) = (message.get("id"), field::<String>(&params, "name")) else {
            let id = message.get("id").map_or(RawValue::NULL, AsRef::as_ref);
            return Err(refused(id, -32_600, "a call needs an id and the name of a tool"));
        };
        let mut state = self.state.lock();
        if !state.tools.is_gated(&self.settings, &tool) {
            return Ok(Some(line));
        }
        if state.calls.len() >= CALLS_MAX || state.calls.contains_key(id.get()) {
            return Err(refused(id, -32_600, "a call with this id runs, or too many do: the tool was not called"));
        }
        let (known, id_at_server) = (state.tools.get(&tool), format!("{}-{}", self.run, state.numbers));
        let call = Call::parse(message, id_at_server.clone(), tool, known)?;
        let cancelled = CancellationToken::new();
        state.numbers += 1;
        state.calls.insert(call.id.get().to_owned(), (id_at_server, cancelled.clone()));
        self.running.spawn(Arc::clone(self).call(call, cancelled));
        Ok(None)
    }

    /// The server learns of it under the id that it knows. If it answers all the same, that is recorded.
    fn cancelled(&self, mut message: Object, line: String) -> String {
        let mut params: Object = field(&message, "params").unwrap_or_default();
        let state = self.state.lock();
        let call = params.get("requestId").and_then(|id| state.calls.get(id.get()));
        let Some((id_at_server, cancelled)) = call else { return line };
        cancelled.cancel();
        set(&mut params, "requestId", id_at_server);
        set(&mut message, "params", &params);
        text(&message)
    }

    /// What the client gets of a line of the server, if anything.
    fn of_server(&self, line: String) -> Option<String> {
        let message = serde_json::from_str::<Object>(&line);
        let mut state = self.state.lock();
        let is_answer = message.as_ref().is_ok_and(|message| !message.contains_key("method"));
        state.lines_of_server += u64::from(!is_answer);
        let Ok(mut message) = message else { return Some(line) };
        if let Some(id) = field::<String>(&message, "id").filter(|id| id.starts_with(&self.run)) {
            let lines = state.lines_of_server;
            let arrives = |Awaited { to, lines_before }| to.send(Answer { message, is_first: lines == lines_before });
            if state.awaited.remove(&id).is_none_or(|awaits| arrives(awaits).is_err()) {
                tracing::warn!(call = id, "the server has answered late, or twice: the answer is dropped");
            }
            return None;
        }
        let listed = message.get("result").and_then(|result| state.tools.listed(&self.settings, result));
        let Some(listed) = listed else { return Some(line) };
        set(&mut message, "result", &listed);
        Some(text(&message))
    }

    /// Where the server's answer arrives; `None` if no call begins any more.
    pub fn expect(&self, call: &Call) -> Option<oneshot::Receiver<Answer>> {
        let (to, answered) = oneshot::channel();
        let mut state = self.state.lock();
        let awaited = Awaited { to, lines_before: state.lines_of_server };
        // Under the lock, which `end_calls` takes after it.
        (!self.ending.is_cancelled()).then(|| state.awaited.insert(call.id_at_server.clone(), awaited))?;
        Some(answered)
    }

    pub fn forget(&self, call: &Call) {
        let mut state = self.state.lock();
        state.calls.remove(call.id.get());
        state.awaited.remove(&call.id_at_server);
    }

    /// What the server has not answered is unknown from now on.
    fn end_calls(&self) {
        self.ending.cancel();
        self.running.close();
        self.state.lock().awaited.clear();
    }
}

fn refused(id: &RawValue, code: i64, words: &str) -> String {
    answer(id, "error", &json!({ "code": code, "message": words }))
}
