//! The commands `mcp` and `mcp-gate`.

use std::collections::HashMap;
use std::env::current_dir;
use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use latchgate_mcp::gate::{self, Scope};
use latchgate_mcp::locks::{self, Tree};
use latchgate_node::listen::Listen;

use super::duration::some_duration;
use super::{LogArgs, NodeArgs};

/// Run a server of the Model Context Protocol: locks for agents, and work that is done once.
///
/// An agent's program starts it and speaks to it over standard input and output. Its tools are acquire, release, who_holds, begin_once,
/// finish_once and status_of. What a session holds is renewed while it lives and released when it ends. docs/AGENTS.md has the entries for
/// configuration files.
#[derive(Debug, Args)]
pub struct McpArgs {
    /// Serve many clients over HTTP instead, at http://ADDRESS/mcp: HOST:PORT, :PORT or PORT. On another address than loopback, each
    /// request needs an API key, with which it goes to the nodes.
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<Listen>,

    /// Names the repository whose paths are locked; the same for all its checkouts. If absent: the name of the folder that the command is
    /// run in.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_REPOSITORY", value_parser = repository)]
    pub repository: Option<String>,

    /// The owner of the leases, which others see and hooks look for. If absent: the name of the client program and a random id.
    #[arg(long, value_name = "NAME", env = "LATCHGATE_OWNER")]
    pub owner: Option<String>,

    /// Length of a lease between two renewals: so long it outlives a session whose server was killed or cut off.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = some_duration)]
    pub ttl: Duration,

    /// With --http: a session whose client has sent nothing for so long ends, and releases what it holds.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = some_duration, requires = "http")]
    pub idle_max: Duration,

    #[command(flatten)]
    pub node: NodeArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

impl McpArgs {
    /// # Errors
    /// If the repository has no name.
    pub fn settings(&self) -> anyhow::Result<locks::Settings> {
        let folder = current_dir().ok();
        let named = || folder.as_ref()?.file_name()?.to_str().and_then(|name| repository(name).ok());
        let name = self.repository.clone().or_else(named);
        let name = name.ok_or_else(|| anyhow::anyhow!("give the repository a name: --repository"))?;
        let root = folder.filter(|_| self.http.is_none()).map(Into::into);
        Ok(locks::Settings { tree: Tree { name, root }, owner: self.owner.clone(), ttl: self.ttl })
    }
}

/// Stand in front of a server of the Model Context Protocol, and run each of its tool calls once.
///
/// SERVER is run behind it. Tools that only read or may be repeated, by their annotations, pass. A call of any other tool is an operation of
/// the gate: a retry gets the result of the first call, and if that is unknown, no call is made before a person has resolved the operation.
#[derive(Debug, Args)]
pub struct McpGateArgs {
    /// The server, with its arguments.
    #[arg(value_name = "SERVER", last = true, required = true)]
    pub command: Vec<OsString>,

    /// Names the server: operations are mcp/NAME/TOOL. Different servers need different names.
    #[arg(long, value_name = "NAME", value_parser = server)]
    pub name: String,

    /// Which calls with an equal idempotency_key are the same: `app`, all of the app; `session`, those of one run of this command, so a call
    /// that is repeated after a restart is a new one; any other text, those of all runs with this text, for example the id of a conversation.
    #[arg(long, value_name = "SCOPE", env = "LATCHGATE_MCP_SCOPE", default_value = "app", value_parser = scope)]
    pub scope: Scope,

    /// Without an idempotency_key, a call with equal arguments counts as a retry for so long after a success, within the run or the scope's
    /// text.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = some_duration)]
    pub window: Duration,

    /// How long a result is stored under an idempotency_key.
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = some_duration)]
    pub retention: Duration,

    /// Gate only these tools.
    #[arg(long, value_name = "TOOLS", value_delimiter = ',', value_parser = tool, conflicts_with = "except")]
    pub only: Vec<String>,

    /// Do not gate these tools.
    #[arg(long, value_name = "TOOLS", value_delimiter = ',', value_parser = tool)]
    pub except: Vec<String>,

    /// Gate this tool (TOOL=once) or not (TOOL=pass), whatever its annotations say. Can be repeated.
    #[arg(long, value_name = "TOOL=CHOICE", value_parser = treatment)]
    pub treat: Vec<(String, bool)>,

    /// Longest time for the server's answer to a gated call. Then its outcome is unknown.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = some_duration)]
    pub call_timeout: Duration,

    /// Without a heartbeat of this command for so long, the outcome of a call is unknown.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = some_duration)]
    pub lease: Duration,

    #[command(flatten)]
    pub node: NodeArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

impl McpGateArgs {
    pub fn settings(&self) -> gate::Settings {
        let only = self.only.iter().map(|tool| (tool.clone(), true));
        let except = self.except.iter().map(|tool| (tool.clone(), false));
        gate::Settings {
            name: self.name.clone(),
            scope: self.scope.clone(),
            window: self.window,
            retention: self.retention,
            lease: self.lease,
            call_max: self.call_timeout,
            chosen: only.chain(except).chain(self.treat.iter().cloned()).collect::<HashMap<_, _>>(),
            only_chosen: !self.only.is_empty(),
        }
    }
}

/// Keys of paths are `path/REPOSITORY:PATH`.
fn repository(name: &str) -> Result<String, String> {
    let has_form =
        !name.is_empty() && name.len() <= 100 && !name.contains(|letter: char| letter == ':' || letter.is_control());
    has_form.then(|| name.to_owned()).ok_or_else(|| "must be 1 to 100 bytes without `:`".to_owned())
}

/// Operations are `mcp/NAME/TOOL`, of which a tool's name may have `/` in it.
fn server(name: &str) -> Result<String, String> {
    let has_form = !name.is_empty() && !name.contains('/');
    has_form.then(|| name.to_owned()).ok_or_else(|| "must be a name without `/`".to_owned())
}

fn scope(text: &str) -> Result<Scope, String> {
    match text {
        "" => Err("is empty: is a variable unset?".to_owned()),
        "session" => Ok(Scope::Session),
        "app" => Ok(Scope::App),
        text => Ok(Scope::Text(text.to_owned())),
    }
}

/// The tool, and whether it is gated.
fn treatment(text: &str) -> Result<(String, bool), String> {
    let (name, choice) = text.rsplit_once('=').unwrap_or_default();
    match choice.trim() {
        "once" => Ok((tool(name)?, true)),
        "pass" => Ok((tool(name)?, false)),
        _ => Err("must be TOOL=once or TOOL=pass".to_owned()),
    }
}

fn tool(name: &str) -> Result<String, String> {
    let name = name.trim();
    if name.is_empty() { Err("the name of a tool is empty".to_owned()) } else { Ok(name.to_owned()) }
}
