//! The nodes that a command calls, and what the refusals of a node mean for the exit code.

use std::time::Duration;

use anyhow::Context as _;
use latchgate_client::{Client, Error};
use tokio::time::timeout;

use super::print::complain;
use super::work::Signals;
use crate::config::NodeArgs;

pub const REFUSED: u8 = 64;
pub const UNREACHABLE: u8 = 69;
pub const UNKNOWN: u8 = 70;
pub const NOT_HAD: u8 = 75;
pub const LOST: u8 = 76;
pub const NOT_PERMITTED: u8 = 77;

/// Longest time for an order that a node carries out before it answers, such as the switch to another engine.
pub const ORDER_MAX: Duration = Duration::from_secs(60);

/// # Errors
/// When a URL, the API key or a certificate has the wrong form, or the certificates cannot be read.
pub fn client(args: &NodeArgs) -> anyhow::Result<Client> {
    anyhow::ensure!(!args.url.trim().is_empty(), "no node is named: LATCHGATE_URL is empty, or --url is");
    let mut client = Client::new([&args.url])?.patience(args.retry_for);
    if let Some(ca) = &args.ca {
        let read = std::fs::read(ca).with_context(|| format!("cannot read the certificates in {}", ca.display()))?;
        client = client.authorities(&read).with_context(|| format!("cannot use {}", ca.display()))?;
    }
    // `$(cat admin.key)` in another directory is empty.
    Ok(match args.key.as_deref().map(str::trim) {
        Some(key) if !key.is_empty() => client.api_key(key)?,
        _ => client,
    })
}

/// Waits for what goes on in the background, such as giving back what may have been granted: for `max`, and no more than some seconds after a
/// signal. Returns whether it has ended. A node that was only frozen gives back by itself, because this client has gone.
pub async fn settle(client: &Client, max: Duration, signals: &mut Signals) -> bool {
    tokio::select! {
        biased;
        is_settled = timeout(max, client.settled()) => is_settled.unwrap_or(false),
        () = signals.end_of_answers() => false,
    }
}

/// Prints the error; returns the exit code for it.
pub fn failed(error: &Error) -> u8 {
    complain(error);
    code_of(error)
}

pub fn code_of(error: &Error) -> u8 {
    match error {
        Error::NotAcquired(_) | Error::InProgress(_) => NOT_HAD,
        Error::Refused(problem) if problem.status() == 429 => NOT_HAD,
        Error::LeaseLost(_) | Error::AttemptLost(_) => LOST,
        Error::OutcomeUnknown(_) => UNKNOWN,
        Error::Refused(problem) if [401, 403].contains(&problem.status()) => NOT_PERMITTED,
        Error::Unreachable(_) => UNREACHABLE,
        _ => REFUSED,
    }
}
