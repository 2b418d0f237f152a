//! `latchgate once`: runs a program once for its contents.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use latchgate_client::{Attempt, AttemptState, Begun, Client, Duplicate, Error, OnExpiry, OnOutage, Operation};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::lock::margin;
use super::node::{LOST, UNKNOWN, client, failed, settle};
use super::print::NOT_PRINTED;
use super::work::{self, Ended, Hold, Printed, Signals, Work};
use crate::config::{OnExpiryChoice, OnOutageChoice, OnceArgs};

/// Longest output that is kept as the result. As JSON it may be longer, and the server keeps 64 KiB.
const OUTPUT_BYTES_MAX: usize = 48 * 1_024;
/// How long the command gives back a claim whose answer was lost, at least: a claim that stays may block the operation, but a crontab must not
/// wait for the whole lease.
const GIVE_BACK_MIN: Duration = Duration::from_secs(5);
/// How far ahead of a period's begin a run may count for it.
const EARLY_MAX: Duration = Duration::from_secs(60);
/// The longest retention of a server that is not configured otherwise.
const RETENTION_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// # Errors
/// When the command line is wrong, or the system refuses what is needed.
pub async fn run(args: &OnceArgs) -> anyhow::Result<ExitCode> {
    let grace = args.grace()?;
    let contents = contents(args)?;
    let client = client(&args.node)?;
    let mut signals = Signals::take()?;
    let begin = operation(&client, args);
    let begun = tokio::select! {
        begun = begin.begin(&contents) => begun,
        signal = signals.end() => {
            give_back(&client, args, &mut signals).await;
            return Ok(work::code_of(signal).into());
        }
    };
    let attempt = match begun {
        Ok(Begun::Go(attempt)) => attempt,
        Ok(Begun::Duplicate(duplicate)) => return print(&duplicate, args.duplicate_exit),
        Err(error) => {
            let code = failed(&error);
            if let Error::OutcomeUnknown(problem) = &error
                && problem.field("why") != "record_may_be_lost"
            {
                eprintln!("latchgate: {}", resolving(problem.field("id").as_str().unwrap_or("ID")));
            }
            let may_block = !give_back(&client, args, &mut signals).await && args.on_expiry == OnExpiryChoice::Block;
            return Ok(if may_block { UNKNOWN } else { code }.into());
        }
    };
    let work = Work {
        command: &args.command,
        environment: Vec::new(),
        output_max: Some(OUTPUT_BYTES_MAX),
        grace,
        margin: margin(args.lease),
    };
    let ended = work::run(&work, attempt.state(), hold_of, &mut signals).await;
    let (code, is_cut, output) = match ended {
        Ok(Ended::Ran { code, is_cut, output }) => (code, is_cut, output),
        Ok(Ended::NotRun(code)) => {
            let _ = attempt.fail().await;
            return Ok(code.into());
        }
        Err(error) => {
            let _ = attempt.fail().await;
            return Err(error);
        }
    };
    report(args, attempt, code, is_cut, output).await
}

/// As [`settle`], but for [`GIVE_BACK_MIN`] at least: a claim that is left behind blocks the operation, or is taken over after its lease.
async fn give_back(client: &Client, args: &OnceArgs, signals: &mut Signals) -> bool {
    let is_settled = settle(client, args.node.retry_for.max(GIVE_BACK_MIN), signals).await;
    if !is_settled {
        eprintln!(
            "latchgate: CMD was not run, but no node says whether the operation was claimed: it may stay claimed until its lease ends{}",
            match args.on_expiry {
                OnExpiryChoice::Block => ", and then block until a person resolves it as failed",
                OnExpiryChoice::Retry => "",
            }
        );
    }
    is_settled
}

async fn report(
    args: &OnceArgs,
    attempt: Attempt,
    code: u8,
    is_cut: bool,
    output: Option<Printed>,
) -> anyhow::Result<ExitCode> {
    let id = attempt.id().to_owned();
    let may_repeat = args.on_expiry == OnExpiryChoice::Retry || (!is_cut && args.failure_exit.contains(&code));
    let is_printed = output.as_ref().is_none_or(|output| !output.is_lost);
    let reported = if code == 0 && !is_cut {
        let kept = match output.map(|output| output.kept.map(String::from_utf8)) {
            Some(Some(Ok(text))) => Ok(Value::from(text)),
            Some(Some(Err(_))) => Err("is not text (UTF-8)".to_owned()),
            Some(None) => Err(format!("is longer than {} KiB, or has no end", OUTPUT_BYTES_MAX / 1_024)),
            None => Ok(Value::Null),
        };
        if let Err(why) = &kept {
            eprintln!("latchgate: the output of CMD {why}: it is not kept, and a later run prints nothing");
        }
        attempt.succeed(&kept.unwrap_or(Value::Null)).await
    } else if may_repeat {
        attempt.fail().await
    } else {
        attempt.leave_unknown().await
    };
    match reported {
        _ if is_cut => {
            eprintln!("latchgate: CMD was ended, because its lease would have ended: another run may have begun");
            Ok(LOST.into())
        }
        Ok(_) if code == 0 && !is_printed => {
            eprintln!("latchgate: CMD has succeeded, but its output could not be printed: the next run prints it");
            Ok(NOT_PRINTED.into())
        }
        Ok(_) if code == 0 || may_repeat => Ok(code.into()),
        Ok(_) => {
            eprintln!("latchgate: CMD has failed, and may be half done: {}", resolving(&id));
            Ok(code.into())
        }
        Err(error) if code == 0 => {
            failed(&error);
            let then = if may_repeat { String::new() } else { format!(": {}", resolving(&id)) };
            eprintln!("latchgate: CMD has succeeded, but no node has recorded it (operation {id}){then}");
            Ok(UNKNOWN.into())
        }
        Err(error) => {
            failed(&error);
            Ok(code.into())
        }
    }
}

/// What a person does about an operation whose outcome is unknown.
fn resolving(id: &str) -> String {
    format!(
        "no run begins until someone checks, then runs `latchgate operations resolve {id} --succeeded --reason …`, or `--failed`"
    )
}

fn operation(client: &Client, args: &OnceArgs) -> Operation {
    let retention = args.every.map_or(args.retention, |every| args.retention.max((every * 2).min(RETENTION_MAX)));
    let mut operation = client
        .operation(&args.operation)
        .ttl(args.lease)
        .wait(args.wait)
        .retention(retention)
        .label(args.label.clone().unwrap_or_else(|| work::name_of(&args.command)))
        .on_expiry(match args.on_expiry {
            OnExpiryChoice::Retry => OnExpiry::Retry,
            OnExpiryChoice::Block => OnExpiry::Block,
        })
        .on_outage(match args.on_outage {
            OnOutageChoice::Closed => OnOutage::Closed,
            OnOutageChoice::Fallback => OnOutage::Fallback,
            OnOutageChoice::Open => OnOutage::Open,
        });
    if let Some(checked) = &args.checked {
        operation = operation.checked(checked.as_str());
    }
    if args.keep_contents {
        operation = operation.keep_contents();
    }
    if args.durable {
        operation = operation.durable();
    }
    operation
}

/// JSON if it begins as an object or an array; else a text.
fn contents(args: &OnceArgs) -> anyhow::Result<Value> {
    let contents = if args.contents.starts_with(['{', '[']) {
        serde_json::from_str(&args.contents).context("CONTENTS begin like JSON, but are not")?
    } else {
        Value::from(args.contents.as_str())
    };
    match args.every {
        Some(every) => {
            // That of the machine whose crontab has started the run.
            let now = OffsetDateTime::now_utc().into();
            Ok(json!({ "contents": contents, "period": period(now, every)? }))
        }
        None => Ok(contents),
    }
}

/// When the period of `now` has begun; shortly before its end, when the next one begins.
fn period(now: SystemTime, every: Duration) -> anyhow::Result<String> {
    let since = now.duration_since(SystemTime::UNIX_EPOCH)? + EARLY_MAX.min(every / 10);
    let period_ms = since.as_millis() / every.as_millis() * every.as_millis();
    let begin = OffsetDateTime::from_unix_timestamp_nanos(i128::try_from(period_ms)? * 1_000_000)?;
    Ok(begin.format(&Rfc3339)?)
}

fn print(duplicate: &Duplicate, code: u8) -> anyhow::Result<ExitCode> {
    let output = match &duplicate.result {
        Value::String(output) => output.clone(),
        Value::Null => {
            eprintln!("latchgate: done before; its output was not kept");
            return Ok(code.into());
        }
        other => format!("{other}\n"),
    };
    let mut stdout = std::io::stdout();
    if let Err(error) = stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        eprintln!("latchgate: done before, but its output could not be printed: {error}");
        return Ok(NOT_PRINTED.into());
    }
    Ok(code.into())
}

/// What the state of the attempt means for the program.
fn hold_of(state: &AttemptState) -> Hold {
    match state {
        AttemptState::Running { until } => Hold::Held(*until),
        _ => Hold::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shortly_before_a_period_counts_for_it() {
        let hour = Duration::from_secs(3_600);
        let at = |seconds: u64| period(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), hour).unwrap();
        assert_eq!(at(3_600), "1970-01-01T01:00:00Z");
        assert_eq!((at(3_545), at(3_700), at(7_100)), (at(3_600), at(3_600), at(3_600)));
        assert_ne!(at(3_500), at(3_600));
    }
}
