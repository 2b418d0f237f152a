//! `latchgate mcp-gate`: stands in front of a server over stdio, and runs each of its tool calls once.
//!
//! Lines pass as they are. Three kinds are changed: the list of tools, where each gated tool gets an argument more; a call of a gated tool,
//! which becomes an operation of the gate and goes on under an id of ours; and the cancellation of such a call, which names that id.

mod answers;
mod call;
mod message;
mod operation;
mod relay;
mod tools;

use std::collections::HashMap;
use std::time::Duration;

pub use self::relay::run;

/// What the gate does, and for how long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names the server: operations are `mcp/NAME/TOOL`.
    pub name: String,
    pub scope: Scope,
    /// Without a key, a call with equal arguments counts as a retry for so long after a success.
    pub window: Duration,
    /// How long a result is stored under a key.
    pub retention: Duration,
    /// Without a heartbeat of this process for so long, the outcome of a call is unknown.
    pub lease: Duration,
    /// Longest time for the server's answer, and for that of another gate. Then the outcome is unknown.
    pub call_max: Duration,
    /// Whether these tools are gated, whatever their annotations say.
    pub chosen: HashMap<String, bool>,
    /// All other tools pass.
    pub only_chosen: bool,
}

/// Which calls with equal keys or arguments are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of one run of the gate.
    Session,
    /// Those with equal keys of all gates of the app. Without keys, those of one run of the gate.
    App,
    /// Those of all gates with this text, for example the id of a conversation.
    Text(String),
}
