//! `latchgate lock`: runs a program while holding a lock.

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use latchgate_client::clock::Moment;
use latchgate_client::{Client, LeaseState, LockRequest, Problem, Revocation, Wanted};

use super::node::{LOST, client, failed, settle};
use super::print::{complain, rough};
use super::progress::Line;
use super::terraform;
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
    let notice = Notice { names: args.locked_keys().join(", "), line: Arc::default(), is_quiet: args.quiet };
    let acquired = tokio::select! {
        acquired = request(&client, args, &notice).acquire() => acquired,
        signal = signals.end() => {
            notice.line.clear();
            give_back(&client, args, &mut signals).await;
            return Ok(work::code_of(signal).into());
        }
    };
    notice.line.clear();
    let lease = match acquired {
        Ok(lease) => lease,
        Err(error) => {
            let code = failed(&error);
            give_back(&client, args, &mut signals).await;
            return Ok(code.into());
        }
    };
    let mut environment = vec![("LATCHGATE_TOKEN", listed(lease.tokens())), ("LATCHGATE_LEASE", lease.id().to_owned())];
    if args.permits.is_some() {
        let slots: Vec<String> = lease.slots().iter().map(|slots| listed(slots)).collect();
        environment.push(("LATCHGATE_SLOT", slots.join(";")));
    }
    let terraform = match args.terraform.as_ref().map(|_| terraform::serve(lease.state())) {
        Some(serving) => match serving.await {
            Ok(serving) => Some(serving),
            Err(error) => {
                let _ = lease.release().await;
                return Err(error);
            }
        },
        None => None,
    };
    if let Some((address, _)) = &terraform {
        for (name, value) in [
            ("TF_HTTP_LOCK_ADDRESS", address.as_str()),
            ("TF_HTTP_UNLOCK_ADDRESS", address),
            // The environment may have those of another backend, GitLab's say.
            ("TF_HTTP_LOCK_METHOD", "LOCK"),
            ("TF_HTTP_UNLOCK_METHOD", "UNLOCK"),
        ] {
            environment.push((name, value.to_owned()));
        }
    }
    let work = Work { command: &args.command, environment, output_max: None, grace, margin: margin(args.ttl) };
    let revoked = RefCell::new(None);
    let noting = |state: &LeaseState| {
        if let LeaseState::Held { revocation: Some(revocation), .. } = state {
            *revoked.borrow_mut() = Some(revocation.clone());
        }
        hold_of(state)
    };
    let ended = work::run(&work, lease.state(), noting, &mut signals).await;
    if let Some((_, serving)) = terraform {
        serving.abort();
    }
    let (loss, until) = (lease.check().err(), lease.until());
    let released = lease.release().await;
    let (code, is_cut) = match ended? {
        Ended::NotRun(code) => return Ok(code.into()),
        Ended::Ran { code, is_cut, .. } => (code, is_cut),
    };
    if is_cut && let Some(revocation) = revoked.take() {
        complain(format!("CMD was ended, because {}", said(&revocation)));
        return Ok(LOST.into());
    }
    match (loss, released) {
        (Some(loss), _) => complain(loss),
        (None, Err(latchgate_client::Error::LeaseLost(loss))) => complain(format!("{loss}, before CMD had ended")),
        (None, Ok(())) if is_cut => eprintln!("latchgate: CMD was ended, because its lease would have ended"),
        (None, Ok(())) => return Ok(code.into()),
        (None, Err(error)) => {
            let ended = until.is_none_or(Moment::has_passed);
            let then = if ended { "its lease has ended by now" } else { "the lock stays taken until its lease ends" };
            if is_cut {
                complain("CMD was ended, because no renewal was answered in time");
            }
            complain(format!("the lock was not released, and {then}: {error}"));
            return Ok(if is_cut { LOST } else { code }.into());
        }
    }
    Ok(LOST.into())
}

/// A lease that may have been granted is released.
async fn give_back(client: &Client, args: &LockRunArgs, signals: &mut Signals) {
    if !settle(client, args.node.retry_for, signals).await {
        let ttl = args.ttl;
        eprintln!(
            "latchgate: CMD was not run, but the lock may stay taken for up to {ttl:?}: no node says whether it was granted"
        );
    }
}

/// Names the operator or client that has revoked the lock, and the reason.
fn said(revocation: &Revocation) -> String {
    let by = revocation.by.as_deref().unwrap_or("an operator");
    let reason = revocation.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{by} has revoked the lock{reason}")
}

fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// How long before the end of its lease a program is killed.
pub fn margin(ttl: Duration) -> Duration {
    (ttl / 10).min(MARGIN_MAX)
}

fn request(client: &Client, args: &LockRunArgs, notice: &Notice) -> LockRequest {
    let in_group = |wanted: Wanted| match &args.group {
        Some(group) => wanted.group(group, args.group_limit),
        None => wanted,
    };
    let keys = args.locked_keys();
    let wanted = keys.iter().map(|key| match args.permits {
        Some((permits, limit)) => in_group(Wanted::permits(key, permits, Some(limit))),
        None if args.shared => Wanted::shared(key),
        None => Wanted::exclusive(key),
    });
    let mut request = match &keys[..] {
        [key] => match args.permits {
            Some((permits, limit)) => client.lock(key).permits(permits, limit),
            None if args.shared => client.lock(key).shared(),
            None => client.lock(key),
        },
        _ => client.multilock(wanted),
    };
    if let ([_], Some(group)) = (&args.keys[..], &args.group) {
        request = request.group(group, args.group_limit);
    }
    request = request.ttl(args.ttl).wait(args.wait.unwrap_or(FOR_EVER));
    if let Some(priority) = args.priority {
        request = request.priority(priority);
    }
    request = request.owner(args.owner.clone().unwrap_or_else(|| work::name_of(&args.command)));
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
            (None, _) => match problem.field("delay_left_ms").as_u64() {
                Some(ms) => format!("no node grants it for {}", rough(Duration::from_millis(ms))),
                None => "reserved for another waiter".to_owned(),
            },
        };
        let position = problem.field("position").as_u64().map(|at| format!(", position {at}")).unwrap_or_default();
        let number = |name| problem.field(name).as_u64();
        let is_at_limit = number("group_limit").is_some_and(|limit| number("group_held") >= Some(limit));
        let at_limit = is_at_limit.then(|| "its group is at its limit".to_owned());
        let quota = problem.field("quota").as_str();
        let quota = quota.map(|quota| format!("the app's quota of {} is used up", quota.replace('_', " ")));
        let held_by = quota.or(closed).or(at_limit).unwrap_or(held_by);
        if !self.is_quiet && (Line::is_on_terminal() || self.line.is_empty()) {
            self.line.show(&format!("waiting for {}: {held_by}{position}", self.names));
        }
    }
}
