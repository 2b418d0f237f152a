//! `latchgate once`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use latchgate_testkit::lossy::Lossy;
use latchgate_testkit::{free_port, until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::world::{desk, gateway, is_alive, seconds, until_gone};

#[tokio::test]
async fn of_a_hundred_runs_of_one_content_one_runs_and_all_print_its_output() {
    let (_node, desk) = desk().await;
    let args = ["once", r#"{"order": 42}"#, "--wait", "50s", "--", "sh", "-c", "echo ran >>log; echo receipt 7"];
    let runs: Vec<_> = (0..100).map(|_| desk.run(&args)).collect();
    for run in runs {
        run.ends().await.assert(0, "receipt 7\n");
    }
    assert_eq!(desk.read("log"), "ran\n");
}

#[tokio::test]
async fn the_exit_code_of_the_program_says_whether_the_next_run_begins() {
    let (_node, desk) = desk().await;
    let once = |contents: &str, more: &[&str], script: &str| {
        let args = [&["once", contents, "--duplicate-exit", "9"], more, &["--", "sh", "-c", script]].concat();
        desk.run(&args).ends()
    };
    once("a", &[], "echo first").await.assert(0, "first\n");
    once("a", &[], "echo second").await.assert(9, "first\n");
    once("a", &["--operation", "other"], "echo other").await.assert(0, "other\n");
    once("b", &["--failure-exit", "3"], "exit 3").await.assert(3, "");
    once("b", &["--failure-exit", "3"], "exit 4").await.assert(4, "");
    let unknown = once("b", &[], "echo ran").await;
    assert!(unknown.code == Some(70) && unknown.out.is_empty(), "{unknown:?}");
    let listed = desk.shell("latchgate operations list --state unknown --json | jq -r .id").ends().await;
    let resolve = format!("latchgate operations resolve {} --succeeded --reason …", listed.out.trim());
    assert!(unknown.err.contains(&format!("`{resolve}`")), "{unknown:?}");
    let shown = desk.run(&["operations", "show", listed.out.trim()]).ends().await;
    assert!(shown.code == Some(0) && shown.err.contains(&resolve), "{shown:?}");
    once("long", &["--permanent"], "echo ran").await.assert(0, "ran\n");
    once("too-long", &["--retention", "3650d"], "echo ran").await.assert(64, "");
    once("c", &["--on-expiry", "retry"], "exit 4").await.assert(4, "");
    once("c", &["--on-expiry", "retry"], "echo ran").await.assert(0, "ran\n");
    let monthly = ["--every", "1month", "--tz", "Europe/Berlin"];
    once("d", &monthly, "echo ran").await.assert(0, "ran\n");
    once("d", &monthly, "echo again").await.assert(9, "ran\n");
    let mailed = desk
        .shell("LATCHGATE_ENVIRONMENT=x latchgate once d --quiet --every 1month --tz Europe/Berlin -- echo ran")
        .ends()
        .await;
    assert_eq!((mailed.code, &*mailed.out, &*mailed.err), (Some(0), "", ""));
    let misspelt = desk.shell("TZ=Europe/Berln latchgate once d --every 1d -- echo ran").ends().await;
    assert!(misspelt.code == Some(1) && misspelt.out.is_empty() && misspelt.err.contains("TZ"), "{misspelt:?}");
    desk.run(&["once", "e", "--", "./absent"]).ends().await.assert(127, "");
    once("e", &[], "echo ran").await.assert(0, "ran\n");
    once("{no json", &[], "echo ran").await.assert(1, "");
    let away = format!("http://127.0.0.1:{}", free_port());
    once("f", &["--url", &away, "--retry-for", "1s", "--lease", "3s"], "echo ran").await.assert(69, "");
}

#[tokio::test]
async fn a_run_ended_half_way_leaves_no_program_and_blocks_the_operation() {
    let (_node, desk) = desk().await;
    for (contents, signal) in [("terminated", Signal::SIGTERM), ("killed", Signal::SIGKILL)] {
        let file = format!("{contents}.id");
        let run = desk.run(&["once", contents, "--", "sh", "-c", &format!("echo $$ >{file}; sleep 600")]);
        let id = desk.number(&file).await;
        desk.run(&["once", contents, "--", "echo", "ran"]).ends().await.assert(75, "");
        run.signal(signal);
        let ended = run.ends().await;
        until_gone(id).await;
        let next = desk.run(&["once", contents, "--", "echo", "ran"]).ends().await;
        match signal {
            Signal::SIGTERM => assert_eq!((ended.code, next.code), (Some(143), Some(70)), "{}", ended.err),
            // Nothing could be reported: the lease still runs.
            _ => assert_eq!(next.code, Some(75), "{}", next.err),
        }
        assert_eq!(next.out, "");
    }
}

#[tokio::test]
async fn an_interrupted_run_whose_grant_was_lost_does_not_block_the_next_run() {
    let (node, desk) = desk().await;
    let lossy = Lossy::of_all(&node, "/pre").await;
    let run = desk.run(&["once", "a", "--url", &lossy.base_url(), "--failure-exit", "130", "--", "echo", "ran"]);
    lossy.until_lost_one().await;
    run.signal(Signal::SIGINT);
    lossy.pass_all();
    let ended = run.ends().await;
    // It may have begun, and even have ended, before the signal.
    assert!([Some(0), Some(130)].contains(&ended.code), "{}", ended.err);
    desk.run(&["once", "a", "--", "echo", "ran"]).ends().await.assert(0, "ran\n");
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_given_back_for_some_seconds() {
    let (node, desk) = desk().await;
    let lossy = Lossy::of_all(&node, "/pre").await;
    let url = lossy.base_url();
    let once = |contents: &str, more: &[&str]| {
        let args = ["once", contents, "--url", &url, "--retry-for", "2s"];
        desk.run(&[&args[..], more, &["--", "echo", "ran"]].concat())
    };
    let mut run = once("a", &["--lease", "60s"]);
    // The command says that no node answers, and goes on for longer than --retry-for.
    let mut said = [0];
    run.child.stderr.as_mut().unwrap().read_exact(&mut said).await.unwrap();
    tokio::time::sleep(seconds(3)).await;
    lossy.pass_all();
    run.ends().await.assert(69, "");
    desk.run(&["once", "a", "--wait", "0", "--", "echo", "ran"]).ends().await.assert(0, "ran\n");
}

#[tokio::test]
async fn a_claim_in_doubt_is_given_back_if_the_program_cannot_be_started() {
    let (node, desk) = desk().await;
    let lossy = Lossy::of_all(&node, "/pre").await;
    let args =
        ["once", "a", "--on-outage", "proceed", "--retry-for", "3s", "--url", &lossy.base_url(), "--", "./absent"];
    let mut run = desk.run(&args);
    // It says that the gate does not answer, and tries to start the program.
    let mut said = [0];
    run.child.stderr.as_mut().unwrap().read_exact(&mut said).await.unwrap();
    lossy.pass_all();
    run.ends().await.assert(127, "");
    desk.run(&["once", "a", "--wait", "0", "--", "echo", "ran"]).ends().await.assert(0, "ran\n");
}

#[tokio::test]
async fn a_signal_during_the_report_does_not_change_what_is_said_of_the_run() {
    let (node, desk) = desk().await;
    // Several times, because it may have come too late.
    for (number, (script, code)) in [("exit 3", 3), ("exit 0", 0)].into_iter().cycle().take(8).enumerate() {
        let lossy = Lossy::of_all(&node, "/post").await;
        let contents = format!("{number}");
        let run = desk.run(&["once", &contents, "--url", &lossy.base_url(), "--", "sh", "-c", script]);
        lossy.until_lost_one().await;
        run.signal(Signal::SIGTERM);
        lossy.pass_all();
        let ended = run.ends().await;
        assert!(ended.code == Some(code) && !ended.err.contains("recorded"), "{script}: {ended:?}");
    }
}

/// Without a signal, it is repeated for as long as the lease lasts.
#[tokio::test]
async fn a_report_that_no_node_answers_ends_some_seconds_after_a_signal() {
    let (node, desk) = desk().await;
    for (program, code, said) in
        [("false", 1, "has failed, but"), ("true", 70, "has succeeded, but"), ("./absent", 127, "may stay claimed")]
    {
        let lossy = Lossy::of_all(&node, "/post").await;
        let run = desk.run(&["once", program, "--lease", "1h", "--url", &lossy.base_url(), "--", program]);
        lossy.until_lost_one().await;
        run.signal(Signal::SIGTERM);
        let ended = run.ends().await;
        ended.assert(code, "");
        assert!(ended.err.contains(said), "{ended:?}");
    }
    // One that came while CMD ran.
    let lossy = Lossy::of_all(&node, "/post").await;
    let script = "trap 'exit 3' TERM; echo $$ >id; sleep 600 & wait";
    let run = desk.run(&["once", "a", "--lease", "1h", "--url", &lossy.base_url(), "--", "sh", "-c", script]);
    desk.number("id").await;
    run.signal(Signal::SIGTERM);
    run.ends().await.assert(3, "");
}

#[tokio::test]
async fn several_signals_do_not_end_a_report_that_a_node_answers() {
    let (node, desk) = desk().await;
    for (program, code) in [("true", 0), ("./absent", 127)] {
        let lossy = Lossy::of_all(&node, "/post").await;
        let run = desk.run(&["once", program, "--lease", "1h", "--url", &lossy.base_url(), "--", program]);
        lossy.until_lost_one().await;
        for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTERM] {
            run.signal(signal);
        }
        lossy.pass_all();
        let ended = run.ends().await;
        ended.assert(code, "");
        assert!(!ended.err.contains("no node says"), "{ended:?}");
    }
}

#[tokio::test]
async fn a_claim_that_may_stay_is_said_and_the_outcome_is_unknown_if_it_blocks() {
    let (node, desk) = desk().await;
    let lossy = Lossy::of_all(&node, "/pre").await;
    for (on_expiry, code) in [("block", 70), ("retry", 69)] {
        let url = lossy.base_url();
        let args = ["--url", &url, "--retry-for", "3s", "--lease", "3s", "--on-expiry", on_expiry, "--", "echo", "ran"];
        let ended = desk.run(&[&["once", on_expiry][..], &args].concat()).ends().await;
        assert!(ended.code == Some(code) && ended.out.is_empty(), "{ended:?}");
        assert!(ended.err.contains("it may stay claimed"), "{ended:?}");
    }
}

fn problem(code: &str) -> Value {
    json!({ "type": format!("/errors/{code}"), "code": code, "detail": "refused by the test" })
}

/// What a node answers to a pre: a claim.
fn claim(ttl_ms: u64) -> Option<(u16, Value)> {
    Some((201, json!({ "id": "a".repeat(32), "stamp": "b".repeat(32), "attempt": 1, "ttl_ms": ttl_ms })))
}

#[tokio::test]
async fn a_claim_that_cannot_be_given_back_is_said_and_exits_with_70() {
    let (_node, desk) = desk().await;
    // A report that is refused; one that a gateway refuses, which is repeated, and has no end before the command gives up; and an operation
    // whose outcome is unknown, perhaps because the lease of this claim has passed.
    let unknown = (409, problem("operation-unknown"));
    for (pre, refusal) in [
        (claim(60_000).unwrap(), (401, problem("unauthorized"))),
        (claim(60_000).unwrap(), (404, json!({}))),
        (unknown.clone(), unknown),
    ] {
        let (is_back, pres) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let answers = {
            let (is_back, pres) = (is_back.clone(), pres.clone());
            move |path: &str| match path {
                "/v1/operations/pre" if is_back.load(Ordering::SeqCst) => {
                    pres.fetch_add(1, Ordering::SeqCst);
                    Some(pre.clone())
                }
                "/v1/operations/pre" => Some((500, json!({}))),
                _ => Some(refusal.clone()),
            }
        };
        let url = gateway(answers).await;
        let mut run = desk.run(&["once", "a", "--url", &url, "--retry-for", "3s", "--", "echo", "ran"]);
        // The command says that no node answers, and gives the claim back.
        let mut said = [0];
        run.child.stderr.as_mut().unwrap().read_exact(&mut said).await.unwrap();
        is_back.store(true, Ordering::SeqCst);
        let ended = run.ends().await;
        ended.assert(70, "");
        assert!(ended.err.contains("it may stay claimed") && pres.load(Ordering::SeqCst) > 0, "{ended:?}");
    }
}

#[tokio::test]
async fn heartbeats_without_a_lease_and_those_of_an_unknown_stamp_end_the_run() {
    let (_node, desk) = desk().await;
    let unknown = (403, problem("stamp-mismatch"));
    for (on_expiry, beat) in [("retry", (200, json!({}))), ("retry", (200, json!([]))), ("block", unknown)] {
        let answers = move |path: &str| match path.rsplit('/').next() {
            Some("pre") => claim(2_000),
            Some("heartbeat") => Some(beat.clone()),
            _ => Some((200, json!({ "outcome": "unknown" }))),
        };
        let url = gateway(answers).await;
        let args = ["once", "a", "--url", &url, "--lease", "2s", "--on-expiry", on_expiry, "--", "sleep", "20"];
        let ended = desk.run(&args).ends().await;
        ended.assert(76, "");
        assert_eq!(ended.err.contains("operations resolve"), on_expiry == "block", "{ended:?}");
    }
}

#[tokio::test]
async fn a_success_that_only_a_gateway_has_answered_is_not_recorded() {
    let (_node, desk) = desk().await;
    let url = gateway(|path| if path.ends_with("/pre") { claim(2_000) } else { Some((200, json!({}))) }).await;
    let args = ["once", "a", "--url", &url, "--lease", "2s", "--retry-for", "3s", "--", "echo", "ran"];
    let ended = desk.run(&args).ends().await;
    ended.assert(70, "ran\n");
    assert!(ended.err.contains("no node says that this is recorded"), "{ended:?}");
}

#[tokio::test]
async fn with_retry_the_next_run_begins_after_one_that_has_lost_its_lease() {
    let (mut node, desk) = desk().await;
    let once = ["once", "a", "--on-expiry", "retry", "--lease", "5s", "--", "sh", "-c"];
    let run = desk.run(&[&once[..], &["echo $$ >id; sleep 600"]].concat());
    let id = desk.number("id").await;
    node.pause();
    until_gone(id).await;
    node.resume();
    assert_eq!(run.ends().await.code, Some(76));
    desk.run(&[&once[..], &["echo ran"]].concat()).ends().await.assert(0, "ran\n");
}

#[tokio::test]
async fn a_success_whose_output_cannot_be_printed_is_kept_and_exits_with_74() {
    let (_node, desk) = desk().await;
    let once = |contents: &str, more: &str| {
        desk.shell(&format!("latchgate once {contents} -- sh -c 'for i in 1 2 3; do echo receipt $i; done' {more}"))
            .ends()
    };
    once("full-disk", ">/dev/full").await.assert(74, "");
    once("full-disk", "").await.assert(0, "receipt 1\nreceipt 2\nreceipt 3\n");
    once("full-disk", ">/dev/full").await.assert(74, "");
    once("reader-gone", "| true; exit ${PIPESTATUS[0]}").await;
    once("reader-gone", "").await.assert(0, "receipt 1\nreceipt 2\nreceipt 3\n");
}

#[tokio::test]
async fn an_output_that_is_not_kept_is_named_by_the_first_run() {
    let (_node, desk) = desk().await;
    let binary = desk.run(&["once", "a", "--", "sh", "-c", "printf '\\377'"]).ends().await;
    assert!(binary.code == Some(0) && binary.err.contains("is not text (UTF-8): it is not kept"), "{}", binary.err);
    // As JSON, each of the first bytes has six.
    for (contents, print) in [("b", "head -c 30000 /dev/zero"), ("c", "head -c 70000 /dev/zero | tr '\\0' a")] {
        let long = desk.run(&["once", contents, "--", "sh", "-c", print]).ends().await;
        assert!(long.code == Some(0) && long.err.contains("is longer than 64 KiB"), "{}", long.err);
        let next = desk.run(&["once", contents, "--", "echo", "ran"]).ends().await;
        assert!(
            next.code == Some(0) && next.out.is_empty() && next.err.contains("done before; its output was"),
            "{next:?}"
        );
    }
    let kept = desk.run(&["once", "d", "--", "sh", "-c", "head -c 60000 /dev/zero | tr '\\0' a"]).ends().await;
    assert_eq!((kept.code, kept.out.len(), kept.err.as_str()), (Some(0), 60_000, ""));
    desk.run(&["once", "d", "--", "echo", "ran"]).ends().await.assert(0, &kept.out);
    let none = desk.run(&["once", "e", "--", "true"]).ends().await;
    assert_eq!((none.code, none.err.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn a_slow_reader_gets_all_of_the_output_and_a_signal_ends_the_wait_for_it() {
    let (_node, desk) = desk().await;
    // More than the pipe to the reader takes, and less than that and the pipe from the program. The reader begins long after the program has ended.
    let script = "head -c 100000 /dev/zero | tr '\\0' a; echo done >done";
    let reads = "(until [ -e done ]; do sleep 0.1; done; sleep 8; wc -c)";
    let once = |contents: &str, reader: &str| {
        desk.shell(&format!(
            "latchgate once {contents} --lease 4s -- sh -c '{script}' | {reader}; echo ${{PIPESTATUS[0]}}"
        ))
    };
    once("slow", reads).ends().await.assert(0, "100000\n0\n");
    std::fs::remove_file(desk.path("done")).unwrap();

    let stuck = desk.shell(&format!(
        "(echo $BASHPID >id; exec latchgate once stuck -- sh -c '{script}') | (until [ -e go ]; do sleep 0.1; done; wc -c >/dev/null); echo ${{PIPESTATUS[0]}}"
    ));
    let id = desk.number("id").await;
    until("the program has ended", async || desk.path("done").exists()).await;
    // A signal that comes before `once` has seen the end of the program is passed on to the program.
    until("a signal ends the wait", async || {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), Signal::SIGTERM);
        !is_alive(id)
    })
    .await;
    desk.touch("go");
    let ended = stuck.ends().await;
    assert!(ended.out == "74\n" && ended.err.contains("could not be printed"), "{ended:?}");
    desk.shell("latchgate once stuck -- echo again | wc -c").ends().await.assert(0, "0\n");
}

#[tokio::test]
async fn contents_that_say_nothing_are_refused_before_anything_runs() {
    let (_node, desk) = desk().await;
    for nothing in ["", "  ", "{}", "[]", r#"{"order": ""}"#, "[null]"] {
        for every in [&[][..], &["--every", "1h"]] {
            let refused = desk.run(&[&["once", nothing][..], every, &["--", "touch", "ran"]].concat()).ends().await;
            assert!(refused.code == Some(1) && refused.err.contains("say nothing"), "{nothing}: {refused:?}");
        }
    }
    assert!(!desk.path("ran").exists());
    // White space around contents does not make them others.
    desk.run(&["once", r#" {"order": 42}"#, "--", "echo", "ran"]).ends().await.assert(0, "ran\n");
    desk.run(&["once", "{\"order\":42}\n", "--", "echo", "again"]).ends().await.assert(0, "ran\n");
}

#[tokio::test]
async fn on_a_terminal_a_replay_says_when_and_by_which_run_the_work_was_done() {
    let (_node, desk) = desk().await;
    desk.run(&["once", "a", "--label", "the first", "--", "echo", "receipt"]).ends().await.assert(0, "receipt\n");
    desk.run(&["once", "a", "--", "echo", "again"]).ends().await.assert(0, "receipt\n");
    let shown = desk.shell("script -qec 'latchgate once a -- echo again' /dev/null").ends().await.out;
    assert!(
        shown.contains("done before, ") && shown.contains(" ago, by the first") && shown.contains("receipt"),
        "{shown}"
    );
}

#[tokio::test]
async fn of_five_quiet_runs_at_once_one_runs_and_four_say_nothing() {
    let (_node, desk) = desk().await;
    let script = "echo ran; until [ -e go ]; do sleep 0.1; done";
    let line = ["once", "report", "--every", "1d", "--quiet", "--", "sh", "-c", script];
    let first = desk.run(&line);
    until("the first one runs", async || {
        let listed = desk.shell("latchgate operations list --state started | wc -l").ends().await;
        listed.out == "1\n"
    })
    .await;
    for _ in 0..4 {
        let other = desk.run(&line).ends().await;
        assert_eq!((other.code, other.out.as_str(), other.err.as_str()), (Some(75), "", ""));
    }
    desk.touch("go");
    first.ends().await.assert(0, "ran\n");
    let later = desk.run(&line).ends().await;
    assert_eq!((later.code, later.out.as_str(), later.err.as_str()), (Some(0), "", ""));
}

#[tokio::test]
async fn an_unknown_outcome_of_a_period_is_forgotten_with_the_period() {
    let (_node, desk) = desk().await;
    for (line, ends) in [(&["once", "a", "--every", "1d"][..], true), (&["once", "b"][..], false)] {
        let failed = desk.run(&[line, &["--", "sh", "-c", "exit 4"]].concat()).ends().await;
        assert!(failed.code == Some(4) && failed.err.contains("in this period") == ends, "{failed:?}");
    }
    let listed = desk.run(&["operations", "list", "--undecided", "--json"]).ends().await;
    let mut left: Vec<Option<u64>> = listed
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["ttl_ms"].as_u64())
        .collect();
    left.sort();
    let hours = |ms: u64| ms.div_ceil(3_600_000);
    assert!(matches!(left[..], [None, Some(ms)] if (1..=26).contains(&hours(ms))), "{listed:?}");
}

#[tokio::test]
async fn an_unknown_outcome_has_evidence_and_is_found_by_a_prefix_of_its_id() {
    let (_node, desk) = desk().await;
    let script = "echo charging >&2; echo no answer of the bank >&2; exit 4";
    let failed = desk.run(&["once", "a", "--operation", "charge", "--", "sh", "-c", script]).ends().await;
    assert!(failed.code == Some(4) && failed.err.contains("no answer of the bank"), "{failed:?}");
    desk.run(&["once", "b", "--", "true"]).ends().await.assert(0, "");
    let undecided = desk.run(&["operations", "list", "--undecided", "--limit", "5"]).ends().await;
    let cells: Vec<&str> = undecided.out.trim_end().split('\t').collect();
    assert_eq!((cells.len(), cells[1], cells[2]), (7, "unknown", "charge"), "{undecided:?}");
    let status = desk.run(&["status"]).ends().await;
    assert!(status.code == Some(0) && status.out.contains("\n1 operation to decide\n  2"), "{status:?}");
    let order = format!(": charge: latchgate operations show {} --app default\n", cells[6]);
    assert!(status.out.contains(&order), "{status:?}");
    let shown = desk.run(&["operations", "show", &cells[6][..6]]).ends().await;
    for evidence in ["exit code 4", "charging\nno answer of the bank", "last heartbeat"] {
        assert!(shown.out.contains(evidence), "{shown:?}");
    }
    desk.run(&["operations", "resolve", &cells[6][..6], "--failed", "--reason", "looked"]).ends().await;
    desk.run(&["operations", "list", "--undecided"]).ends().await.assert(0, "");
    let absent = desk.run(&["operations", "show", "0000"]).ends().await;
    assert!(absent.code == Some(64) && absent.err.contains("operation-not-found"), "{absent:?}");
}

#[tokio::test]
async fn a_run_in_an_outage_proceeds_if_that_was_said_and_is_entered_afterwards() {
    let (mut node, desk) = desk().await;
    node.kill9();
    let once = ["once", "a", "--retry-for", "1s", "--on-outage"];
    desk.run(&[&once[..], &["closed", "--", "echo", "ran"]].concat()).ends().await.assert(69, "");
    let run = desk.run(&[&once[..], &["proceed", "--", "sh", "-c", "echo ran"]].concat()).ends().await;
    run.assert(0, "ran\n");
    assert!(run.err.contains("no node has entered the run"), "{run:?}");
    let run = desk.run(&[&once[..], &["proceed", "--", "false"]].concat()).ends().await;
    assert!(run.code == Some(1) && run.err.contains("CMD has failed without the gate"), "{run:?}");

    let script = "echo $$ >id; until [ -e go ]; do sleep 0.1; done; echo entered";
    let entering = desk.run(&[&once[..], &["proceed", "--", "sh", "-c", script]].concat());
    desk.number("id").await;
    node.start_again().await;
    desk.touch("go");
    entering.ends().await.assert(0, "entered\n");
    desk.run(&["once", "a", "--", "echo", "again"]).ends().await.assert(0, "entered\n");

    // One that has a claim, and whose success no node records.
    let script = "echo $$ >claimed; until [ -e end ]; do sleep 0.1; done; echo ran";
    let args = ["once", "b", "--retry-for", "3s", "--lease", "6s", "--on-outage", "proceed", "--", "sh", "-c", script];
    let claimed = desk.run(&args);
    desk.number("claimed").await;
    node.kill9();
    desk.touch("end");
    let ended = claimed.ends().await;
    ended.assert(70, "ran\n");
    assert!(ended.err.contains("CMD has succeeded, but no node says that this is recorded"), "{ended:?}");
}
