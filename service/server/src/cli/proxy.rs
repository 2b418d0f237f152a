//! `latchgate proxy`.

use anyhow::Context as _;
use latchgate_node::listen;
use latchgate_node::observe::logs;
use latchgate_proxy::Proxy;
use tokio_util::sync::CancellationToken;

use super::node::client;
use super::print::println_or_exit;
use crate::config::ProxyArgs;
use crate::serve::stop_signal;

/// # Errors
/// When the settings are not valid, or the address cannot be had.
pub async fn run(args: ProxyArgs) -> anyhow::Result<()> {
    let settings = args.settings();
    logs::start(&args.log.filter, args.log.format, None)?;
    let proxy = Proxy::new(client(&args.node)?, settings);
    let bound = listen::bind(&args.listen.resolve().await?)?;
    let address = bound.address();
    let listener = bound.listen(args.client_timeout)?;
    println_or_exit(format_args!("Latchgate's proxy of {} listens on http://{address}", args.upstream));
    let stop = CancellationToken::new();
    let serving = tokio::spawn(proxy.serve(listener, stop.clone()));
    let signal = stop_signal().await?;
    tracing::info!(signal, "shutting down");
    stop.cancel();
    serving.await.context("the proxy has ended")
}
