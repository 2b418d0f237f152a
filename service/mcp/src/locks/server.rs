//! What a client sees of a session: the tools, and what it must know before their answers.

use std::borrow::Cow;

use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ContentBlock};
use rmcp::model::{Implementation, ProtocolVersion, ServerCapabilities, ServerConfig};
use rmcp::{ErrorData, ServerHandler, tool_handler};

use super::session::{Context, Session};

#[tool_handler(router = Self::tools())]
impl ServerHandler for Session {
    fn get_info(&self) -> ServerConfig {
        let mut config = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        config.server_info = Implementation::new("latchgate", env!("CARGO_PKG_VERSION"));
        config.instructions = Some(include_str!("instructions.txt").trim().to_owned());
        config
    }

    /// Leases last as long as their session: not the version of the protocol that has none over HTTP.
    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> Result<CallToolResponse, ErrorData> {
        // The call finds no lease that is lost.
        self.notices();
        let cancelled = context.ct.clone();
        let mut answer = Self::tools().call(ToolCallContext::new(self, request, context)).await?;
        let notices = self.notices();
        if let CallToolResponse::Complete(result) = &mut answer
            && !notices.is_empty()
            // A cancelled call has no answer.
            && !cancelled.is_cancelled()
        {
            self.held.lock().losses.retain(|loss| !notices.contains(loss));
            result.content.splice(0..0, notices.iter().map(ContentBlock::text));
            result.structured_content.get_or_insert_default()["notices"] = notices.into();
        }
        Ok(answer)
    }
}
