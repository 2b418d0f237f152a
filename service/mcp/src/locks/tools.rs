//! The tools, as a model reads them.

use std::borrow::Cow;

use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, Implementation, ProtocolVersion, ServerCapabilities, ServerConfig};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::answers::{Answer, Said};
use super::session::{Session, short};

const INSTRUCTIONS: &str = "\
Other agents work on the same things at the same time. Before you change files that they may change, acquire their paths; before you deploy, \
migrate or use anything that only one may use at a time, acquire a key for it. Release as soon as the work is done. Before you do something \
that must not happen twice (a payment, a message, a release), call begin_once, and do it only if `go` is true. If a result says LOST or UNKNOWN, \
stop and do what it says.";

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
    pub ticket: Option<String>,
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
    pub(super) session: Session,
    /// What the session takes of the most that a server over HTTP has.
    _room: Option<OwnedSemaphorePermit>,
}

impl Tools {
    pub fn over_stdio(session: Session) -> Self {
        Self { session, _room: None }
    }

    pub fn over_http(session: Session, room: OwnedSemaphorePermit) -> Self {
        Self { session, _room: Some(room) }
    }

    /// Answers with what the session must know first.
    async fn answer(&self, work: impl Future<Output = Answer>) -> CallToolResult {
        let before = self.session.notices();
        let answer = work.await;
        let notices = before.into_iter().chain(self.session.notices()).collect();
        answer.map_or_else(|refused| refused.into_result(true, &notices), |said| said.into_result(false, &notices))
    }
}

/// Who calls.
pub struct Caller {
    pub client: latchgate_client::Client,
    /// The name and the version of the client program, as it says.
    pub program: String,
    pub version: String,
}

impl Caller {
    pub fn of(session: &Session, context: &RequestContext<RoleServer>) -> Result<Self, Said> {
        let header = context.extensions.get::<Parts>().and_then(|parts| parts.headers.get(AUTHORIZATION));
        let api_key = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let client = session.client(api_key).map_err(Said::refused)?;
        let info = context.client_info();
        let (program, version) = info.map_or_else(|| ("agent".to_owned(), String::new()), |info| (info.name, info.version));
        Ok(Self { client, program: short(&program, 60), version: short(&version, 20) })
    }
}

#[tool_router]
impl Tools {
    /// Take locks, all or none, before you change what other agents may change too. A path covers everything below it; sessions in different
    /// folders do not disturb each other. The lease is renewed until you release it or this session ends. If it is refused, the answer says
    /// who holds what, why, and what to do next.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn acquire(&self, Parameters(args): Parameters<Acquire>, context: RequestContext<RoleServer>) -> CallToolResult {
        self.answer(self.session.acquire(args, context)).await
    }

    /// Release what acquire has given, as soon as the work is done. If a lease was lost meanwhile, the answer says so.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn release(&self, Parameters(args): Parameters<Release>) -> CallToolResult {
        self.answer(self.session.release(args)).await
    }

    /// Show who holds locks, since when, and why. Give one of key, prefix and path.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn who_holds(&self, Parameters(args): Parameters<WhoHolds>, context: RequestContext<RoleServer>) -> CallToolResult {
        self.answer(self.session.who_holds(args, context)).await
    }

    /// Ask whether work that must not be done twice may begin. Do it only if `go` is true, then call finish_once. If it was done before, the
    /// answer has its result.
    #[tool(annotations(destructive_hint = false, idempotent_hint = false, open_world_hint = false))]
    async fn begin_once(&self, Parameters(args): Parameters<BeginOnce>, context: RequestContext<RoleServer>) -> CallToolResult {
        self.answer(self.session.begin_once(args, context)).await
    }

    /// Say how work ended that begin_once let you begin. If you are not sure that it was done, say `unknown`.
    #[tool(annotations(destructive_hint = false, idempotent_hint = true, open_world_hint = false))]
    async fn finish_once(&self, Parameters(args): Parameters<FinishOnce>) -> CallToolResult {
        self.answer(self.session.finish_once(args)).await
    }

    /// Show what is known of an operation: whether it runs, is done, or waits for a person.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn status_of(&self, Parameters(args): Parameters<StatusOf>, context: RequestContext<RoleServer>) -> CallToolResult {
        self.answer(self.session.status_of(args, context)).await
    }
}

#[tool_handler]
impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let mut config = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        config.server_info = Implementation::new("latchgate", env!("CARGO_PKG_VERSION"));
        config.instructions = Some(INSTRUCTIONS.to_owned());
        config
    }

    /// Leases last as long as their session: not the version of the protocol that has none over HTTP.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
    }
}

