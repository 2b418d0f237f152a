//! Lines between the client and the server.

use std::collections::HashMap;
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use latchgate_client::Client;
use parking_lot::Mutex;
use rmcp::transport::io::stdio_pipes;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Settings;
use super::call::Call;
use super::message::{Line, Lines, Object, answer, field, set, text};
use super::tools::Tools;

const LINE_BYTES_MAX: u64 = 64 << 20;
/// The part of a longer line in which its id is looked for, at either end.
const END_BYTES: usize = 1_024;
const TOO_LONG: &str = "a line is longer than 64 MiB: it is not passed on";
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
    pub to_client: Lines,
    pub to_server: Lines,
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
    /// By the id at the server, with `lines_of_server` before the call.
    awaited: HashMap<String, (oneshot::Sender<ServerAnswer>, u64)>,
    /// Lines of the server that were no answers.
    lines_of_server: u64,
}

/// The server's answer to a gated call.
#[derive(Default)]
pub struct ServerAnswer {
    pub message: Object,
    /// Since the call, the server has sent nothing but answers: it has asked the client for nothing and reported nothing.
    pub is_first: bool,
}

/// Runs the server behind the gate, until it ends, the client closes its end, or `stop`. Returns how it has ended; `None` if it was killed.
///
/// # Errors
/// When the server cannot be started.
pub fn run(
    client: Client,
    settings: Settings,
    command: &[OsString],
    stop: CancellationToken,
) -> BoxFuture<'_, std::io::Result<Option<ExitStatus>>> {
    Box::pin(relay(client, settings, command, stop))
}

async fn relay(
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
    // It can be waited for, and takes calls all the same.
    running.close();
    let reports = client.clone();
    let relay = Relay { client, settings, run, to_client, to_server, ending, running, state: Mutex::default() };
    let relay = Arc::new(relay);
    {
        let Relay { to_client, to_server, .. } = &*relay;
        let client_ends = async {
            pass_on(from_client, to_server, to_client, |line| relay.of_client(line)).await;
            relay.ending.cancel();
            let _ = timeout(DRAIN_MAX, relay.running.wait()).await;
        };
        tokio::select! {
            () = client_ends => {}
            () = pass_on(from_server, to_client, to_server, |line| Ok(relay.of_server(line))) => {}
            () = stop.cancelled() => {}
        }
    }
    relay.ending.cancel();
    // What the server has not answered is unknown from now on.
    relay.state.lock().awaited.clear();
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
fn writer(mut to: impl AsyncWrite + Unpin + Send + 'static) -> (Lines, JoinHandle<()>) {
    let (sender, mut lines) = mpsc::channel::<Line>(LINES_MAX);
    let writing = tokio::spawn(async move {
        while let Some(mut line) = lines.recv().await {
            line.push(b'\n');
            if to.write_all(&line).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    });
    (sender, writing)
}

/// What becomes of a line: what the other side gets, if anything, or the answer to the side that has sent it.
type Passes = Result<Option<Line>, Line>;

async fn pass_on(from: impl AsyncRead + Unpin, there: &Lines, back: &Lines, passes: impl Fn(Line) -> Passes) {
    let mut from = BufReader::new(from);
    while let Some(line) = next_line(&mut from).await {
        // If a reader has gone, the task that reads from it finds out: sending does not.
        match line.and_then(&passes) {
            Ok(Some(line)) => drop(there.send(line).await),
            Ok(None) => {}
            Err(answer) => drop(back.send(answer).await),
        }
    }
}

/// The next line; `None` at the end. In place of an answer that is too long there is an error, and of such a request the error is `Err`.
async fn next_line(mut from: impl AsyncBufRead + Unpin) -> Option<Result<Line, Line>> {
    loop {
        let (mut line, mut last) = (Line::new(), Line::new());
        (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await.ok().filter(|bytes| *bytes > 0)?;
        if line.pop_if(|byte| *byte == b'\n').is_some() || (line.len() as u64) < LINE_BYTES_MAX {
            return Some(Ok(line));
        }
        while !last.ends_with(b"\n") {
            last.drain(..last.len().saturating_sub(END_BYTES));
            (&mut from).take(END_BYTES as u64).read_until(b'\n', &mut last).await.ok().filter(|bytes| *bytes > 0)?;
        }
        let known = members(&String::from_utf8_lossy(&line[..END_BYTES]), &String::from_utf8_lossy(&last));
        tracing::error!(?known, TOO_LONG);
        if let Some(id) = known.get("id") {
            let error = refused(id, -32_603, TOO_LONG);
            return Some(if known.contains_key("method") { Err(error) } else { Ok(error) });
        }
    }
}

/// The members of a message that are before the first object in it, and behind the last one.
fn members(first: &str, last: &str) -> Object {
    let before = || Some(first.strip_prefix('{')?.split('{').next()?.rsplit_once(',')?.0);
    let behind = || Some(last.trim_end().strip_suffix('}')?.rsplit('}').next()?.split_once(',')?.1);
    let read = |members| serde_json::from_str::<Object>(&format!("{{{members}}}")).ok();
    [before(), behind()].into_iter().flatten().filter_map(read).flatten().collect()
}

impl Relay {
    /// The server gets what was read here, once each: of two members with one name, another program might read the first.
    fn of_client(self: &Arc<Self>, mut line: Line) -> Passes {
        // Between the parts of a message it is a blank. Some servers end a line there, and would read what is behind it as a message.
        line.iter_mut().filter(|byte| **byte == b'\r').for_each(|byte| *byte = b' ');
        let Ok(message) = serde_json::from_slice::<Object>(&line) else {
            // The server might read a call in it: older versions of the protocol have batches.
            return Err(refused(RawValue::NULL, -32_700, "the line is not one message of JSON-RPC"));
        };
        if has_other_case(&message, &["id", "method", "params"]) {
            return Err(refused(RawValue::NULL, -32_600, "the names of id, method and params are in lower case"));
        }
        match field::<String>(&message, "method").as_deref() {
            Some("tools/call") => self.called(message),
            Some("notifications/cancelled") => Ok(Some(self.cancelled(message))),
            _ => Ok(Some(text(&message))),
        }
    }

    fn called(self: &Arc<Self>, mut message: Object) -> Passes {
        let params: Object = field(&message, "params").unwrap_or_default();
        let is_clear = !has_other_case(&params, &["name", "arguments"]);
        let (Some(id), Some(tool), true) = (message.get("id"), field::<String>(&params, "name"), is_clear) else {
            let id = message.get("id").map_or(RawValue::NULL, AsRef::as_ref);
            return Err(refused(id, -32_600, "a call needs an id and the name of a tool"));
        };
        let mut state = self.state.lock();
        if !state.tools.is_gated(&self.settings, &tool) {
            set(&mut message, "params", &params);
            return Ok(Some(text(&message)));
        }
        if state.calls.len() >= CALLS_MAX || state.calls.contains_key(id.get()) {
            return Err(refused(id, -32_600, "a call with this id runs, or too many do: the tool was not called"));
        }
        let (known, id_at_server) = (state.tools.get(&tool), format!("{}-{}", self.run, state.numbers));
        state.tools.know(&tool, known);
        let call = Call::parse(message, id_at_server.clone(), tool, known)?;
        let cancelled = CancellationToken::new();
        state.numbers += 1;
        state.calls.insert(call.id.get().to_owned(), (id_at_server, cancelled.clone()));
        self.running.spawn(Arc::clone(self).call(call, cancelled));
        Ok(None)
    }

    /// The server learns of it under the id that it knows. If it answers all the same, that is recorded.
    fn cancelled(&self, mut message: Object) -> Line {
        let mut params: Object = field(&message, "params").unwrap_or_default();
        let state = self.state.lock();
        let call = params.get("requestId").and_then(|id| state.calls.get(id.get()));
        let Some((id_at_server, cancelled)) = call else { return text(&message) };
        cancelled.cancel();
        set(&mut params, "requestId", id_at_server);
        set(&mut message, "params", &params);
        text(&message)
    }

    /// What the client gets of a line of the server, if anything.
    fn of_server(&self, line: Line) -> Option<Line> {
        let message = serde_json::from_str::<Object>(&String::from_utf8_lossy(&line));
        let mut state = self.state.lock();
        let is_answer = message.as_ref().is_ok_and(|message| !message.contains_key("method"));
        state.lines_of_server += u64::from(!is_answer);
        let Ok(mut message) = message else { return Some(line) };
        if let Some(id) = field::<String>(&message, "id").filter(|id| id.starts_with(&self.run)) {
            let lines = state.lines_of_server;
            let arrives =
                |(to, before): (oneshot::Sender<_>, _)| to.send(ServerAnswer { message, is_first: lines == before });
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
    pub fn expect(&self, call: &Call) -> Option<oneshot::Receiver<ServerAnswer>> {
        let (to, answered) = oneshot::channel();
        let mut state = self.state.lock();
        let awaited = (to, state.lines_of_server);
        // Under the lock, which `run` takes after it.
        (!self.ending.is_cancelled()).then(|| state.awaited.insert(call.id_at_server.clone(), awaited))?;
        Some(answered)
    }

    pub fn forget(&self, call: &Call) {
        let mut state = self.state.lock();
        state.calls.remove(call.id.get());
        state.awaited.remove(&call.id_at_server);
    }
}

/// Whether a member has one of these names but for its case, in which some programs take it for that one.
fn has_other_case(object: &Object, names: &[&str]) -> bool {
    let is_like =
        |member: &String| names.iter().any(|name| member != name && member.to_uppercase() == name.to_uppercase());
    object.keys().any(is_like)
}

fn refused(id: &RawValue, code: i64, words: &str) -> Line {
    answer(id, "error", &json!({ "code": code, "message": words }))
}
