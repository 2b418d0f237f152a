//! What is recorded.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

#[derive(Clone, Parser)]
pub struct Args {
    /// Nodes of one tier, or load balancers in front of them, as http://HOST:PORT; each call goes to a random one
    #[arg(long, value_delimiter = ',', required = true)]
    pub urls: Vec<String>,
    /// Keys of each kind that the mix has
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..))]
    pub clients: u64,
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Length of each lease, in ms. A client waits at most a third of it, so that some of the lease is left after the wait
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub ttl_ms: u64,
    /// One in this many leases is left to expire; 0: none is
    #[arg(long, default_value_t = 500)]
    pub abandon_one_in: u64,
    /// How much longer than usual clients hold locks and pause
    #[arg(long, default_value_t = 1)]
    pub pace: u32,
    /// What clients do, at random
    #[arg(long, value_delimiter = ',', default_value = "exclusive")]
    pub mix: Vec<Workload>,
    /// Readers of event streams, which go on at other nodes
    #[arg(long, default_value_t = 0)]
    pub readers: u64,
    /// At the end, wait until the locks have no holders and no waiters, and record whether they have
    #[arg(long)]
    pub until_quiet: bool,
    /// No node dies, and no store loses anything: what clients leave when they hang up lasts for ten minutes unless it is given back
    #[arg(long)]
    pub must_give_back: bool,
    /// The file for the recorded calls
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

impl Args {
    /// The defaults.
    pub fn new(urls: Vec<String>, out: PathBuf) -> Self {
        let urls = urls.join(",");
        Self::parse_from(["record".as_ref(), "--urls".as_ref(), urls.as_ref(), "--out".as_ref(), out.as_os_str()])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// One lock after the other. Each client has one key, so that one lock that is not granted for a while does not stop all clients
    Exclusive,
    /// Exclusive and shared leases of the same keys
    Shared,
    /// One or more permits
    Permits,
    /// Permits for groups with a limit of their own
    Groups,
    /// Permits of which only so many begin in a time
    Rates,
    /// Several locks at once
    Multilock,
    /// Short waits with priorities, which go on with tickets
    Tickets,
    /// Nested leases
    Reentrant,
    /// Leases that an operator revokes. The operator also ends the leases of the other workloads, and closes their keys for a while
    Revoke,
    /// Requests whose client hangs up
    HangUp,
    /// Operations that another attempt may take over
    Gate,
    /// Operations that no attempt takes over. They stay until their outcome is known
    Block,
}

impl Workload {
    /// Workloads with one name share keys.
    pub fn keys(self) -> &'static str {
        match self {
            Self::Exclusive | Self::HangUp => "lock",
            Self::Shared | Self::Multilock | Self::Tickets | Self::Reentrant => "shared",
            Self::Revoke => "revoked",
            Self::Permits => "permits",
            Self::Groups => "groups",
            Self::Rates => "rates",
            Self::Gate => "retry",
            Self::Block => "block",
        }
    }
}
