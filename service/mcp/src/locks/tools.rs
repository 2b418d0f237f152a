//! The tools, as a model reads them.

use std::borrow::Cow;

use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, Implementation, ProtocolVersion, ServerCapabilities, ServerConfig};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::answers::{Answer, result};
use super::session::Session;

const INSTRUCTIONS: &str = include_str!("instructions.txt");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// Names of things that only one session may use at a time, for example "deploy/production".
    #[serde(default)]
    pub keys: Vec<String>,
    /// Files or folders of the repository, relative to its root: "src/billing/" is held with all that is below it.
    #[serde(default)]
    pub paths: Vec<String>,
    /// How long to wait if another session holds one of them, in seconds. If absent: not at all. After 45 s the answer is a `ticket`.
    #[serde(default)]
    pub wait_s: u64,
    /// What you do with it, in one line. Other sessions see it while they wait.
    pub note: Option<String>,
    /// From the refusal of a call that waited, less than a minute ago: keeps your place in the queue. Repeat keys and paths.
    pub ticket: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The number from acquire. If absent: everything that this session holds.
    pub lease: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhoHolds {
    /// One key.
    pub key: Option<String>,
    /// All held keys that begin with this; "" for all.
    pub prefix: Option<String>,
    /// A file or a folder: who holds it, a folder above it, or something below it.
    pub path: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginOnce {
    /// The kind of work, for example "send-invoice".
    pub operation: String,
    /// What identifies this piece of work, and nothing else: {"order": 42}. Not the time, nor a random number.
    pub contents: Map<String, Value>,
    /// One line for the person who must decide, if you never say how it ended.
    pub label: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishOnce {
    /// From begin_once.
    pub id: String,
    pub outcome: Outcome,
    /// With `done`: what later callers get instead of doing the work.
    pub result: Option<Map<String, Value>>,
    /// With `unknown`: what you know, for the person who must decide.
    pub detail: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done, and you have seen that.
    Done,
    /// Certainly nothing was done: it may be begun again.
    NothingDone,
    /// It may have been done: a person must find out.
    Unknown,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusOf {
    /// From begin_once, or from a refusal.
    pub id: String,
}

pub struct Tools {
    pub session: Session,
}

impl Tools {
    /// Answers with what the session must know first, also of what happened during the call.
    async fn answer(&self, work: impl Future<Output = Answer>) -> CallToolResult {
        let mut notices = self.session.notices();
        let answer = work.await;
        let mut later = self.session.notices();
        later.retain(|notice| !notices.contains(notice));
        notices.append(&mut later);
        result(answer, &notices)
    }
}

#[tool_router]
impl Tools {
    /// Take locks, all or none, before you change what other agents may change too. A path covers everything below it; sessions in different
    /// folders do not disturb each other. The lease is renewed until you release it or this session ends. If it is refused, the answer says
    /// who holds what, why, and what to do next.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn acquire(
        &self,
        Parameters(args): Parameters<Acquire>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        self.answer(self.session.acquire(args, context)).await
    }

    /// Release what acquire has given, as soon as the work is done. If a lease was lost meanwhile, the answer says so.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn release(&self, Parameters(args): Parameters<Release>) -> CallToolResult {
        self.answer(self.session.release(args)).await
    }

    /// Show who holds locks, since when, and why. Give one of key, prefix and path.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn who_holds(
        &self,
        Parameters(args): Parameters<WhoHolds>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        self.answer(self.session.who_holds(args, context)).await
    }

    /// Ask whether work that must not be done twice may begin. Do it only if `go` is true, then call finish_once. If it was done before, the
    /// answer has its result.
    #[tool(annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false))]
    async fn begin_once(
        &self,
        Parameters(args): Parameters<BeginOnce>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        self.answer(self.session.begin_once(args, context)).await
    }

    /// Say how work ended that begin_once let you begin. If you are not sure that it was done, say `unknown`.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn finish_once(&self, Parameters(args): Parameters<FinishOnce>) -> CallToolResult {
        self.answer(self.session.finish_once(args)).await
    }

    /// Show what is known of an operation: whether it runs, is done, or waits for a person.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn status_of(
        &self,
        Parameters(args): Parameters<StatusOf>,
        context: RequestContext<RoleServer>,
    ) -> CallToolResult {
        self.answer(self.session.status_of(args, context)).await
    }
}

#[tool_handler]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let mut config = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        config.server_info = Implementation::new("latchgate", env!("CARGO_PKG_VERSION"));
        config.instructions = Some(INSTRUCTIONS.trim().to_owned());
        config
    }

    /// Leases last as long as their session: not the version of the protocol that has none over HTTP.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
    }
}
