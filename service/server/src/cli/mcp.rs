//! `latchgate mcp` and `latchgate mcp-gate`.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use anyhow::Context as _;
use latchgate_mcp::{gate, locks};
use latchgate_node::listen;
use latchgate_node::observe::logs;
use tokio_util::sync::CancellationToken;

use super::node::client;
use super::print::complain;
use crate::config::{CLIENT_TIMEOUT, McpArgs, McpGateArgs};
use crate::serve::stop_signal;

/// # Errors
/// When the settings are not valid, or the address cannot be had.
pub async fn mcp(args: McpArgs) -> anyhow::Result<()> {
    let settings = args.settings()?;
    logs::start(&format!("{},rmcp=warn", args.log.filter), args.log.format, None)?;
    let (client, stop) = (client(&args.node)?, stopped_by_signal());
    let Some(http) = &args.http else {
        return Ok(locks::serve_stdio(client, settings, stop).await?);
    };
    let bound = listen::bind(&http.resolve().await?)?;
    let address = bound.address();
    let listener = bound.listen(CLIENT_TIMEOUT)?;
    complain(format_args!("serves the Model Context Protocol on http://{address}/mcp"));
    Ok(locks::serve_http(listener, client, settings, args.idle_max, stop).await?)
}

/// # Errors
/// When the settings are not valid, or the server cannot be started.
pub async fn gate(args: McpGateArgs) -> anyhow::Result<ExitCode> {
    logs::start(&format!("{},rmcp=warn", args.log.filter), args.log.format, None)?;
    let ended = gate::run(client(&args.node)?, args.settings(), &args.command, stopped_by_signal()).await;
    let ended = ended.with_context(|| format!("cannot run {}", args.command[0].display()))?;
    let code = ended.map_or(Some(137), |ended| ended.code().or_else(|| ended.signal().map(|signal| 128 + signal)));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1).into())
}

fn stopped_by_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        if stop_signal().await.is_ok() {
            stopped.cancel();
        }
    });
    stop
}
