//! API keys: those that the node knows from its configuration, and the commands `app` and `key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use latchgate_core::access::{KeyId, QUOTA_MAX, Scope};

use super::duration::duration_ms;
use super::{NodeArgs, StoreArgs};
use crate::access::FixedKeys;

#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// The first API key of an operator, from `latchgate api-key generate`; `ps` shows flags, so prefer the variable
    #[arg(long, value_name = "API_KEY")]
    pub admin_api_key: Option<String>,

    /// A JSON file of further API keys (docs/ACCESS.md), read again when it changes
    #[arg(long, value_name = "PATH")]
    pub api_keys_file: Option<PathBuf>,

    /// Serve /metrics without an API key, also once other requests need one
    #[arg(long)]
    pub open_metrics: bool,
}

impl AccessArgs {
    /// # Errors
    /// When the admin's key is not an API key.
    pub fn fixed_keys(&self) -> anyhow::Result<FixedKeys> {
        FixedKeys::new(self.admin_api_key.as_deref(), self.api_keys_file.clone())
    }
}

#[derive(Debug, Subcommand)]
pub enum AppCommand {
    /// Create an app, or enable it again.
    Create(AppNameArgs),
    /// List the apps.
    List(TargetArgs),
    /// Limit how much an app may use of each node. Without a flag, show its quotas.
    Quota(AppQuotaArgs),
    /// Refuse all API keys of an app, until it is created again. Its locks and operations stay.
    Disable(AppNameArgs),
    /// Set after what time a lock that is held is a notice, `held_too_long`.
    WarnAfter(WarnAfterArgs),
}

#[derive(Debug, Args)]
pub struct AppNameArgs {
    /// 1 to 64 bytes of UTF-8.
    pub app: String,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// What is not named stays as it is.
#[derive(Debug, Args)]
pub struct AppQuotaArgs {
    /// The app's name.
    pub app: String,
    /// Requests in a second, or `none`. Renewals, releases, posts and heartbeats are refused only beyond ten times as many.
    #[arg(long, value_name = "N", value_parser = quota)]
    pub requests_per_second: Option<QuotaArg>,
    /// Requests that wait at once, or `none`.
    #[arg(long, value_name = "N", value_parser = quota)]
    pub waiters: Option<QuotaArg>,
    /// Leases that a node granted and that may be live, or `none`.
    #[arg(long, value_name = "N", value_parser = quota)]
    pub leases: Option<QuotaArg>,
    /// Operations that a node let start and that may be running, or `none`.
    #[arg(long, value_name = "N", value_parser = quota)]
    pub operations: Option<QuotaArg>,
    /// Open streams of events, or `none`.
    #[arg(long, value_name = "N", value_parser = quota)]
    pub event_streams: Option<QuotaArg>,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaArg(pub Option<u32>);

fn quota(text: &str) -> Result<QuotaArg, String> {
    if text == "none" {
        return Ok(QuotaArg(None));
    }
    let limit = text.parse().ok().filter(|limit| *limit <= QUOTA_MAX);
    limit.map(|limit| QuotaArg(Some(limit))).ok_or_else(|| format!("must be none, or a number up to {QUOTA_MAX}"))
}

#[derive(Debug, Args)]
pub struct WarnAfterArgs {
    /// 1 to 64 bytes of UTF-8.
    pub app: String,
    /// `90d`, `12h`, `30m`, `45s`. If absent: never.
    #[arg(value_name = "DURATION", value_parser = duration_ms)]
    pub after: Option<u64>,
    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub enum KeyCommand {
    /// Create an API key, and print it: it is not shown again.
    Create(KeyCreateArgs),
    /// List the API keys, without their secrets.
    List(KeyListArgs),
    /// Revoke an API key, at all nodes within two seconds. Its waits and event streams end.
    Revoke(KeyRevokeArgs),
    /// Print a new API key without entering it anywhere: for LATCHGATE_ADMIN_API_KEY, or for a file of API keys.
    Generate,
}

#[derive(Debug, Args)]
pub struct KeyCreateArgs {
    /// The app that the API key belongs to.
    #[arg(long, default_value = "default")]
    pub app: String,
    /// `read`, `locks`, `operations`, `admin`, separated by commas.
    #[arg(long, value_delimiter = ',', required = true)]
    pub scope: Vec<Scope>,
    /// Only locks whose keys begin with this. May be given several times.
    #[arg(long)]
    pub prefix: Vec<String>,
    /// When the API key expires, from now: `90d`, `12h`, `30m`, `45s`. If absent: never.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub expires: Option<u64>,
    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct KeyListArgs {
    /// Only those of this app.
    #[arg(long)]
    pub app: Option<String>,
    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct KeyRevokeArgs {
    /// The 12 digits after `lgk_`.
    pub id: KeyId,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// What an operator's command works on: a node, or the stores themselves.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// Print the answer as JSON, for scripts: of a list, an item a line.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub beside: BesideArgs,
}

#[derive(Debug, Args)]
pub struct BesideArgs {
    /// Call no node, but work on the stores that --locks and --gate name. A SQLite file cannot be used while a node runs on it.
    #[arg(long)]
    pub beside_store: bool,

    /// The longest lease that nodes grant
    #[arg(long = "ttl-max", value_name = "DURATION", default_value = "1h", value_parser = duration_ms, help_heading = "Stores")]
    pub ttl_ms_max: u64,

    /// The longest lease of an operation that nodes grant
    #[arg(long = "operation-ttl-max", value_name = "DURATION", default_value = "1d", value_parser = duration_ms, help_heading = "Stores")]
    pub operation_lease_ms_max: u64,

    #[command(flatten)]
    pub store: StoreArgs,
}
