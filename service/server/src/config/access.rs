//! Access: the API key of the configuration, and the commands `app` and `api-key`.

use clap::{Args, Subcommand};
use latchgate_core::access::{KeyId, Scope};
use latchgate_node::access::FixedKey;
use latchgate_node::access::operator::QuotasRequest;

use super::duration::duration_ms;
use super::{ShowArgs, StoreArgs};

#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// The first API key of an operator, from `latchgate api-key generate`; `ps` shows flags, so prefer the variable
    #[arg(long, value_name = "API_KEY")]
    pub admin_api_key: Option<String>,

    /// Serve /metrics without an API key, also once other requests need one
    #[arg(long)]
    pub open_metrics: bool,
}

impl AccessArgs {
    /// # Errors
    /// When the admin's key is not an API key.
    pub fn fixed_key(&self) -> anyhow::Result<FixedKey> {
        FixedKey::new(self.admin_api_key.as_deref())
    }
}

#[derive(Debug, Subcommand)]
pub enum AppCommand {
    /// Create an app, or enable it again.
    Create {
        /// 1 to 64 bytes of UTF-8.
        app: String,
    },
    /// List the apps.
    List,
    /// Limit how much an app may use of each node. Without a flag, show its quotas. What is not named stays as it is.
    Quota {
        /// The app's name.
        app: String,
        #[command(flatten)]
        quotas: QuotasRequest,
    },
    /// Refuse all API keys of an app, until it is created again. Its locks and operations stay.
    Disable {
        /// The app's name.
        app: String,
    },
    /// Delete an app that has no API keys, no locks in use and no operations.
    Delete {
        /// The app's name.
        app: String,
    },
    /// Set after what time a lock that is held is a notice, `held_too_long`.
    WarnAfter {
        /// The app's name.
        app: String,
        /// `90d`, `12h`, `30m`, `45s`. If absent: never.
        #[arg(value_name = "DURATION", value_parser = duration_ms)]
        after: Option<u64>,
    },
}

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create an API key, and print it: it is not shown again.
    Create(KeyCreateArgs),
    /// List the API keys, without their secrets.
    List {
        /// Only those of this app.
        #[arg(long)]
        app: Option<String>,
    },
    /// Revoke an API key, at all nodes within two seconds. Its waits and event streams end.
    Revoke {
        /// The 12 digits after `lgk_`.
        id: KeyId,
    },
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
    /// What the API key is for, as operators see it in lists.
    #[arg(long)]
    pub name: Option<String>,
    /// Only locks whose keys begin with this. May be given several times.
    #[arg(long)]
    pub prefix: Vec<String>,
    /// When the API key expires, from now: `90d`, `12h`, `30m`, `45s`. If absent: never.
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub expires: Option<u64>,
}

/// A command to a node.
#[derive(Debug, Args)]
pub struct OperatorCommand<C: Subcommand> {
    #[command(subcommand)]
    pub command: C,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Args)]
pub struct BesideArgs {
    /// Call no node, but work on the stores that --locks and --gate name. A SQLite file cannot be used while a node runs on it.
    #[arg(long)]
    pub beside_store: bool,

    /// The longest lease that nodes grant, unless the store says it
    #[arg(long = "ttl-max", value_name = "DURATION", default_value = "5m", value_parser = duration_ms, help_heading = "Stores")]
    pub ttl_ms_max: u64,

    /// The longest lease of an operation that nodes grant, unless the store says it
    #[arg(long = "operation-ttl-max", value_name = "DURATION", default_value = "1h", value_parser = duration_ms, help_heading = "Stores")]
    pub operation_lease_ms_max: u64,

    #[command(flatten)]
    pub store: StoreArgs,
}
