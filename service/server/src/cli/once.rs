//! `latchgate once`: runs a program once for its contents.

use std::io::{IsTerminal as _, stderr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::{Timestamp, ZonedDateTime};
use latchgate_client::{Attempt, AttemptState, Begun, Client, Duplicate, Error, OnExpiry, OnOutage, Operation};
use latchgate_core::gate::says_nothing;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::lock::margin;
use super::node::{LOST, NOT_HAD, UNKNOWN, client, failed, settle};
use super::print::{NOT_PRINTED, complain, rough};
use super::work::{self, Ended, Hold, Printed, Signals, Work};
use crate::config::{Every, OnExpiryChoice, OnOutageChoice, OnceArgs};

/// Longest output that is kept as the result, in JSON: nodes keep no more.
const OUTPUT_BYTES_MAX: usize = 64 * 1_024;
/// The longest retention of a server that is not configured otherwise.
const RETENTION_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// # Errors
/// When the command line is wrong, or the system refuses what is needed.
pub async fn run(args: &OnceArgs) -> anyhow::Result<ExitCode> {
    let grace = args.grace()?;
    // One moment for both, which may be the last of a period.
    let now = args.now()?;
    let contents = contents(args, &now)?;
    let client = client(&args.node)?;
    let mut signals = Signals::take()?;
    let begin = operation(&client, args, &now);
    let begun = tokio::select! {
        begun = begin.begin(&contents) => begun,
        signal = signals.end() => {
            give_back(&client, args, &mut signals).await;
            return Ok(work::code_of(signal).into());
        }
    };
    let attempt = match begun {
        Ok(Begun::Go(attempt)) => attempt,
        Ok(Begun::Duplicate(duplicate)) => return print(&duplicate, args, &mut signals).await,
        Err(Error::InProgress(_)) if args.quiet => return Ok(NOT_HAD.into()),
        Err(error) => {
            let code = failed(&error);
            let may_block = !give_back(&client, args, &mut signals).await && args.on_expiry == OnExpiryChoice::Block;
            return Ok(if may_block { UNKNOWN } else { code }.into());
        }
    };
    if !attempt.is_claimed() {
        eprintln!("latchgate: the gate does not answer: CMD is run without it, and nothing keeps other runs out");
    }
    let work = Work {
        command: &args.command,
        environment: Vec::new(),
        output_max: Some(OUTPUT_BYTES_MAX),
        grace,
        margin: margin(args.lease),
    };
    let ended = work::run(&work, attempt.state(), hold_of, &mut signals).await;
    let (code, is_cut, output, errors) = match ended {
        Ok(Ended::Ran { code, is_cut, output, errors }) => (code, is_cut, output, errors),
        Ok(Ended::NotRun(code)) => {
            give_up(attempt, &client, args, &mut signals).await;
            return Ok(code.into());
        }
        Err(error) => {
            give_up(attempt, &client, args, &mut signals).await;
            return Err(error);
        }
    };
    let (id, is_claimed) = (attempt.id().to_owned(), attempt.is_claimed());
    let detail = evidence(code, is_cut, &errors);
    let (code, is_later) = report(args, attempt, code, is_cut, output, &detail, &mut signals).await;
    if is_claimed && !is_later {
        return Ok(code);
    }
    // An entry, a later report or a give-back goes on in the background.
    if settle(&client, patience(args), &mut signals).await {
        return Ok(code);
    }
    if !is_later {
        say_claimed(args);
        return Ok(code);
    }
    if is_claimed {
        say_not_recorded(args, &id, true, false);
        return Ok(UNKNOWN.into());
    }
    eprintln!("latchgate: CMD was run without the gate, and no node has entered the run: a later run may do it again");
    Ok(code)
}

fn say_not_recorded(args: &OnceArgs, id: &str, has_succeeded: bool, is_over: bool) {
    let ended = if has_succeeded { "succeeded" } else { "failed" };
    let then = if is_over || args.on_expiry == OnExpiryChoice::Retry {
        String::new()
    } else {
        format!(". If it is not, {}", resolving(args, id))
    };
    eprintln!("latchgate: CMD has {ended}, but no node says that this is recorded (operation {id}){then}");
}

/// What a person needs who must decide whether CMD has done its work.
fn evidence(code: u8, is_cut: bool, errors: &[u8]) -> String {
    let how = match code {
        _ if is_cut => "CMD was ended, because its lease would have ended.".to_owned(),
        129.. => format!("CMD has ended with the exit code {code}: the signal {}, if a signal ended it.", code - 128),
        code => format!("CMD has ended with the exit code {code}."),
    };
    match String::from_utf8_lossy(errors).trim() {
        "" => how,
        errors => format!("{how} The end of its standard error:\n{errors}"),
    }
}

/// How long a claim is given back: one that stays may block the operation, but a crontab must not wait for the whole lease.
fn patience(args: &OnceArgs) -> Duration {
    args.node.retry_for.max(work::ANSWER_MAX)
}

/// A claim that is left behind blocks the operation, or is taken over after its lease.
async fn give_back(client: &Client, args: &OnceArgs, signals: &mut Signals) -> bool {
    let is_settled = settle(client, patience(args), signals).await;
    if !is_settled {
        say_claimed(args);
    }
    is_settled
}

/// CMD was never started: the next run may begin.
async fn give_up(attempt: Attempt, client: &Client, args: &OnceArgs, signals: &mut Signals) {
    match timeout(patience(args), answered(attempt.fail(), signals)).await {
        // Of an attempt without a claim, one may be there all the same.
        Ok(Ok(_)) => _ = give_back(client, args, signals).await,
        Ok(Err(error)) if is_over(&error) => {}
        Ok(Err(error)) => {
            failed(&error);
            say_claimed(args);
        }
        Err(_) => say_claimed(args),
    }
}

/// The operation is no longer the attempt's, or the store has no record of it: nothing of the attempt blocks it.
fn is_over(error: &Error) -> bool {
    let codes =
        ["operation-not-found", "stamp-mismatch", "operation-superseded", "operation-ended", "outcome-conflict"];
    matches!(error, Error::Refused(problem) if codes.contains(&problem.code()))
}

/// The answer to a report, which ends some seconds after a signal. One that came while CMD ran counts, too.
async fn answered(
    reporting: impl Future<Output = Result<Value, Error>>,
    signals: &mut Signals,
) -> Result<Value, Error> {
    tokio::select! {
        biased;
        answer = reporting => answer,
        () = signals.end_of_answers() => Err(Error::Unreachable("a signal has ended the report".to_owned())),
    }
}

fn say_claimed(args: &OnceArgs) {
    eprintln!(
        "latchgate: no node says that the operation is free: it may stay claimed until its lease ends{}",
        match args.on_expiry {
            OnExpiryChoice::Block => ", and then block until a person resolves it as failed",
            OnExpiryChoice::Retry => "",
        }
    );
}

/// Returns the exit code, and whether a success is recorded later.
async fn report(
    args: &OnceArgs,
    attempt: Attempt,
    code: u8,
    is_cut: bool,
    output: Option<Printed>,
    detail: &str,
    signals: &mut Signals,
) -> (ExitCode, bool) {
    let (id, is_claimed) = (attempt.id().to_owned(), attempt.is_claimed());
    let may_repeat = args.on_expiry == OnExpiryChoice::Retry || (!is_cut && args.failure_exit.contains(&code));
    let is_printed = output.as_ref().is_none_or(|output| !output.is_lost);
    let mut is_kept = false;
    let is_success = code == 0 && !is_cut;
    let reported = if is_success {
        let kept = match output.map(|output| output.kept.map(String::from_utf8)) {
            Some(Some(Ok(text))) => Some(Value::from(text))
                .filter(|text| text.to_string().len() <= OUTPUT_BYTES_MAX)
                .ok_or("is longer than 64 KiB as JSON"),
            Some(Some(Err(_))) => Err("is not text (UTF-8)"),
            Some(None) => Err("is longer than 64 KiB, or has no end"),
            None => Ok(Value::Null),
        };
        let (why, reported) = match kept {
            Ok(kept) => (None, answered(attempt.succeed(&kept), signals).await),
            Err(why) => (Some(why), answered(attempt.succeed_without_result(), signals).await),
        };
        is_kept = why.is_none();
        if let Some(why) = why {
            eprintln!("latchgate: the output of CMD {why}: it is not kept, and a later run prints nothing");
        }
        reported
    } else if may_repeat {
        answered(attempt.fail(), signals).await
    } else {
        answered(attempt.leave_unknown(detail), signals).await
    };
    let is_later = is_success && matches!(reported, Ok(Value::Null));
    let code = match reported {
        _ if is_cut => {
            let blocks = args.on_expiry == OnExpiryChoice::Block && !reported.is_err_and(|error| is_over(&error));
            let then = if blocks {
                format!("it may be half done, and {}", resolving(args, &id))
            } else {
                "another run may have begun".to_owned()
            };
            eprintln!("latchgate: CMD was ended, because its lease would have ended: {then}");
            LOST
        }
        Ok(_) if code == 0 && !is_printed => {
            let next = if is_kept { ": the next run prints it" } else { "" };
            eprintln!("latchgate: CMD has succeeded, but its output could not be printed{next}");
            NOT_PRINTED
        }
        Ok(_) if code == 0 || may_repeat => code,
        Ok(_) if !is_claimed => {
            eprintln!(
                "latchgate: CMD has failed without the gate, and may be half done: a later run does it again, or is blocked"
            );
            code
        }
        Ok(_) => {
            eprintln!("latchgate: CMD has failed, and may be half done: {}", resolving(args, &id));
            code
        }
        Err(error) => {
            failed(&error);
            say_not_recorded(args, &id, is_success, is_over(&error));
            if is_success { UNKNOWN } else { code }
        }
    };
    (code.into(), is_later)
}

/// What a person does about an operation whose outcome is unknown.
fn resolving(args: &OnceArgs, id: &str) -> String {
    let of_period = if args.every.is_some() { " in this period" } else { "" };
    let needs = if args.node.key.is_some() { ", with an API key of this app with the scope admin" } else { "" };
    format!(
        "no run begins{of_period} until someone checks, then runs `latchgate operations resolve {id} --succeeded --reason …`, or \
         `--failed`{needs}"
    )
}

fn operation(client: &Client, args: &OnceArgs, now: &ZonedDateTime) -> Operation {
    let periods = |every: Every| args.retention.max((every.longest() * 2).min(RETENTION_MAX));
    let retention = args.every.map_or(args.retention, periods);
    let mut operation = client
        .operation(&args.operation)
        .ttl(args.lease)
        .wait(args.wait)
        .label(args.label.clone().unwrap_or_else(|| work::name_of(&args.command)))
        .on_expiry(match args.on_expiry {
            OnExpiryChoice::Retry => OnExpiry::Retry,
            OnExpiryChoice::Block => OnExpiry::Block,
        })
        .on_outage(match args.on_outage {
            OnOutageChoice::Closed => OnOutage::Closed,
            OnOutageChoice::Proceed => OnOutage::Proceed,
        });
    let ends_in = args.every.map(|every| every.ends_in(now)).filter(|ends_in| *ends_in <= RETENTION_MAX);
    if let Some(ends_in) = ends_in {
        operation = operation.ends_in(ends_in);
    }
    operation = if args.permanent { operation.permanent() } else { operation.retention(retention) };
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
fn contents(args: &OnceArgs, now: &ZonedDateTime) -> anyhow::Result<Value> {
    let text = args.contents.trim();
    let contents = if text.starts_with(['{', '[']) {
        serde_json::from_str(text).context("CONTENTS begin like JSON, but are not")?
    } else {
        Value::from(text)
    };
    ensure!(
        !says_nothing(&contents),
        "CONTENTS say nothing ({text:?}), and would be those of every other run that says nothing: is a variable unset?"
    );
    Ok(match args.every {
        // That of the machine whose crontab has started the run.
        Some(every) => json!({ "contents": contents, "period": every.period(now) }),
        None => contents,
    })
}

async fn print(duplicate: &Duplicate, args: &OnceArgs, signals: &mut Signals) -> anyhow::Result<ExitCode> {
    if args.quiet {
        return Ok(args.duplicate_exit.into());
    }
    if stderr().is_terminal() {
        complain(done_before(duplicate, Timestamp::now()));
    }
    let output = match &duplicate.result {
        Value::String(output) => output.clone(),
        Value::Null if duplicate.problem.field("result_omitted") == true => {
            eprintln!("latchgate: done before; its output was too long to be kept, or no text");
            return Ok(args.duplicate_exit.into());
        }
        Value::Null => {
            eprintln!("latchgate: done before; its output was not kept");
            return Ok(args.duplicate_exit.into());
        }
        other => format!("{other}\n"),
    };
    if let Err(error) = work::print(&output, signals).await {
        eprintln!("latchgate: done before, but its output could not be printed: {error}");
        return Ok(NOT_PRINTED.into());
    }
    Ok(args.duplicate_exit.into())
}

/// When, and by which run.
fn done_before(duplicate: &Duplicate, now: Timestamp) -> String {
    let text = |name: &str| duplicate.problem.field(name).as_str();
    let ago = text("at")
        .and_then(|at| at.parse().ok())
        .map(|at: Timestamp| format!(", {} ago", rough(now.duration_since(at).unsigned_abs())));
    let by = text("label").map(|label| format!(", by {label}"));
    format!("done before{}{}", ago.unwrap_or_default(), by.unwrap_or_default())
}

/// What the state of the attempt means for the program.
fn hold_of(state: &AttemptState) -> Hold {
    match state {
        AttemptState::Running { until } => Hold::Held(*until),
        _ => Hold::Over,
    }
}
