//! `latchgate lock`: runs a program while holding a lock.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use latchgate_client::clock::Moment;
use latchgate_client::{Client, LeaseState, LockRequest, Problem, Wanted};

use super::node::{LOST, client, failed};
use super::print::complain;
use super::progress::Line;
use super::work::{self, Ended, Hold, Signals, Work};
use crate::config::LockRunArgs;

/// For as long as it takes.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
/// Longest time between the kill and the end of the lease.
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// # Errors
/// When the command line is wrong, or the system refuses what is needed.
pub async fn run(args: &LockRunArgs) -> anyhow::Result<ExitCode> {
    let grace = args.grace()?;
    let client = client(&args.node)?;
    let mut signals = Signals::take()?;
    let notice = Notice { names: args.keys.join(", "), line: Arc::default(), is_quiet: args.quiet };
    let acquired = tokio::select! {
        acquired = request(&client, args, &notice).acquire() => acquired,
        signal = signals.end() => {
            notice.line.clear();
            return Ok(work::code_of(signal).into());
        }
    };
    notice.line.clear();
    let lease = match acquired {
        Ok(lease) => lease,
        Err(error) => return Ok(failed(&error).into()),
    };
    let mut environment = vec![("LATCHGATE_TOKEN", listed(lease.tokens())), ("LATCHGATE_LEASE", lease.id().to_owned())];
    if args.permits.is_some() {
        let slots: Vec<String> = lease.slots().iter().map(|slots| listed(slots)).collect();
        environment.push(("LATCHGATE_SLOT", slots.join(";")));
    }
    let work = Work { command: &args.command, environment, output_max: None, grace, margin: margin(args.ttl) };
    let ended = work::run(&work, lease.state(), hold_of, &mut signals).await;
    let (loss, until) = (lease.check().err(), lease.until());
    let released = lease.release().await;
    let (code, is_cut) = match ended? {
        Ended::NotRun(code) => return Ok(code.into()),
        Ended::Ran { code, is_cut, .. } => (code, is_cut),
    };
    match (loss, released) {
        (Some(loss), _) => complain(loss),
        (None, Err(latchgate_client::Error::LeaseLost(loss))) => complain(format!("{loss}, before CMD had ended")),
        (None, Ok(())) if is_cut => eprintln!("latchgate: CMD was ended, because its lease would have ended"),
        (None, Ok(())) => return Ok(code.into()),
        (None, Err(error)) => {
            let ended = until.is_none_or(Moment::has_passed);
            let then = if ended { "its lease has ended by now" } else { "the lock stays taken until its lease ends" };
            complain(format!("the lock was not released, and {then}: {error}"));
            return Ok(if is_cut { LOST } else { code }.into());
        }
    }
    Ok(LOST.into())
}

fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// How long before the end of its lease a program is killed.
pub fn margin(ttl: Duration) -> Duration {
    (ttl / 10).min(MARGIN_MAX)
}

fn request(client: &Client, args: &LockRunArgs, notice: &Notice) -> LockRequest {
    let wanted = args.keys.iter().map(|key| match args.permits {
        Some((permits, limit)) => Wanted::permits(key, permits, Some(limit)),
        None if args.shared => Wanted::shared(key),
        None => Wanted::exclusive(key),
    });
    let mut request = match &args.keys[..] {
        [key] => match args.permits {
            Some((permits, limit)) => client.lock(key).permits(permits, limit),
            None if args.shared => client.lock(key).shared(),
            None => client.lock(key),
        },
        _ => client.multilock(wanted),
    };
    request = request.ttl(args.ttl).wait(args.wait.unwrap_or(FOR_EVER));
    if let Some(priority) = args.priority {
        request = request.priority(priority);
    }
    if let Some(owner) = &args.owner {
        request = request.owner(owner);
    }
    if let Some(min_hold) = args.min_hold {
        request = request.min_hold(min_hold);
    }
    if let Some(delay) = args.delay {
        request = request.delay(delay);
    }
    let notice = notice.clone();
    request.on_wait(move |problem| notice.show(problem))
}

/// What the state of the lease means for the program.
fn hold_of(state: &LeaseState) -> Hold {
    match state {
        LeaseState::Held { until, revocation: None } => Hold::Held(Some(*until)),
        LeaseState::Held { until, revocation: Some(_) } => Hold::Asked(Some(*until)),
        _ => Hold::Over,
    }
}

/// What is shown during a wait: a line that changes on a terminal, one line otherwise.
#[derive(Clone)]
struct Notice {
    names: String,
    line: Arc<Line>,
    is_quiet: bool,
}

impl Notice {
    fn show(&self, problem: &Problem) {
        let holders = problem.field("holders").as_array().map(Vec::as_slice).unwrap_or_default();
        let count = problem.field("holders_count").as_u64().unwrap_or(0);
        let closed = problem.field("reason").as_str().map(|reason| format!("closed ({reason})"));
        let held_by = match (holders.first().and_then(|holder| holder["owner"].as_str()), count) {
            (Some(owner), 0 | 1) => format!("held by {owner}"),
            (Some(owner), count) => format!("held by {owner} and {} more", count - 1),
            (None, _) if problem.field("delay_left_ms").is_u64() => "delayed".to_owned(),
            (None, _) => "reserved for another waiter".to_owned(),
        };
        let position = problem.field("position").as_u64().map(|at| format!(", position {at}")).unwrap_or_default();
        let held_by = closed.unwrap_or(held_by);
        if !self.is_quiet && (Line::is_on_terminal() || self.line.is_empty()) {
            self.line.show(&format!("waiting for {}: {held_by}{position}", self.names));
        }
    }
}
