//! `latchgate proxy`.

use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::config::ProxyArgs;
use crate::listen;
use crate::observe::logs;
use crate::proxy::{Gate, Proxy};
use crate::serve::stop_signal;

/// # Errors
/// When the settings are not valid, or the address cannot be had.
pub async fn run(args: ProxyArgs) -> anyhow::Result<()> {
    let limits = args.limits()?;
    logs::start(&args.log.filter, args.log.format, None)?;
    let gate = Gate::new(
        args.url,
        args.key.as_deref(),
        args.operation,
        Duration::from_millis(args.lease_ms),
        args.retention_ms,
        Duration::from_millis(args.gate_timeout_ms),
    )?;
    let bound = listen::bind(&args.listen.resolve().await?)?;
    let address = bound.address();
    let listener = bound.listen(limits.client_timeout)?;
    println!("Latchgate's proxy of {} listens on http://{address}", args.upstream.name());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(Proxy::new(gate, args.upstream, limits).serve(listener, stop.clone()));
    let signal = stop_signal().await?;
    tracing::info!(signal, "shutting down");
    stop.cancel();
    serving.await.context("the proxy has ended")
}
