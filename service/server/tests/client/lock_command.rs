//! `latchgate lock`.

use std::path::Path;
use std::time::Instant;

use latchgate_client::Client;
use latchgate_testkit::lossy::Lossy;
use latchgate_testkit::node::Node;
use latchgate_testkit::{free_port, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::json;

use crate::world::{Desk, Run, client, desk, force, is_alive, look, node, seconds, two_nodes, until_gone};

/// Ignores SIGTERM, and says its process id.
const STUBBORN: &str = "trap '' TERM; echo $$ >id; while :; do sleep 0.1; done";

#[tokio::test]
async fn a_program_runs_under_its_lock_and_its_exit_code_is_passed_on() {
    let (node, desk) = desk().await;
    let script = r#"curl -s "$LATCHGATE_URL/v1/locks/k" | jq ".holders[0].token == $LATCHGATE_TOKEN"; exit 7"#;
    desk.run(&["lock", "k", "--", "bash", "-c", script]).ends().await.assert(7, "true\n");
    assert_eq!(look(&node, "k").await["held"], false);
    desk.run(&["lock", "a", "b", "--", "sh", "-c", "echo $LATCHGATE_TOKEN | tr -dc ,"]).ends().await.assert(0, ",");
    desk.run(&["lock", "k", "--", "sh", "-c", "kill -9 $$"]).ends().await.assert(137, "");
    desk.run(&["lock", "k", "--", "./absent"]).ends().await.assert(127, "");
    desk.shell("echo through | latchgate lock k -- cat | cat").ends().await.assert(0, "through\n");
    // A process that the program leaves behind in its process group ends with it.
    desk.run(&["lock", "k", "--", "sh", "-c", "sleep 600 & echo $! >left"]).ends().await.assert(0, "");
    until_gone(desk.number("left").await).await;

    let _held = client(&[&node]).lock("k").acquire().await.unwrap();
    desk.run(&["lock", "k", "--wait", "0", "--", "echo", "ran"]).ends().await.assert(75, "");
    let _permit = client(&[&node]).lock("p").permits(1, 2).acquire().await.unwrap();
    desk.run(&["lock", "p", "--permits", "1/2", "--", "echo", "ran"]).ends().await.assert(0, "ran\n");
    desk.run(&["lock", "p", "--permits", "1/3", "--", "echo", "ran"]).ends().await.assert(64, "");
    let away = format!("http://127.0.0.1:{}", free_port());
    let unsent = desk.run(&["lock", "k", "--url", &away, "--retry-for", "1s", "--", "echo", "ran"]).ends().await;
    assert!(unsent.code == Some(69) && !unsent.err.contains("may stay taken"), "{unsent:?}");
}

#[tokio::test]
async fn signals_that_are_ignored_at_the_start_stay_ignored() {
    let (_node, desk) = desk().await;
    // As `nohup`, and a shell without job control for what runs in the background.
    let script = "trap '' HUP INT; echo $$ >id; exec latchgate lock k -- sh -c 'echo $$ >child; until [ -e go ]; do sleep 0.1; done; echo ran'";
    let run = desk.shell(script);
    let (id, child) = (desk.number("id").await, desk.number("child").await);
    for signal in [Signal::SIGHUP, Signal::SIGINT] {
        for id in [id, child] {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), signal).unwrap();
        }
    }
    desk.touch("go");
    run.ends().await.assert(0, "ran\n");
}

#[tokio::test]
async fn a_script_without_an_interpreter_runs_through_the_shell() {
    let (_node, desk) = desk().await;
    std::fs::write(desk.path("script"), "echo ran $1\n").unwrap();
    desk.shell("chmod +x script; latchgate lock k -- ./script 7").ends().await.assert(0, "ran 7\n");
    desk.shell("PATH=$PWD:$PATH latchgate once a -- script 8").ends().await.assert(0, "ran 8\n");
}

#[tokio::test]
async fn a_local_node_is_not_called_through_an_http_proxy() {
    // For another node, the error names the proxy without its password.
    let (_node, desk) = desk().await;
    let away = format!("http://127.0.0.1:{}", free_port());
    desk.shell(&format!("http_proxy={away} latchgate lock k -- echo ran")).ends().await.assert(0, "ran\n");
    let other = format!(
        "http_proxy=http://user:secret@{away} latchgate lock k --url http://node.example --retry-for 1s -- echo ran"
    );
    let refused = desk.shell(&other.replace("@http://", "@")).ends().await;
    assert!(refused.code == Some(69) && refused.err.contains(&format!("through the HTTP proxy {away}")), "{refused:?}");
    assert!(!refused.err.contains("secret"), "{refused:?}");
}

#[tokio::test]
async fn an_unknown_variable_is_named_and_stops_no_command() {
    let (_node, desk) = desk().await;
    let run = desk.shell("LATCHGATE_TOKENS=1 LATCHGATE_CAA=a latchgate lock k -- echo ran").ends().await;
    run.assert(0, "ran\n");
    assert!(run.err.contains("LATCHGATE_TOKENS") && run.err.contains("LATCHGATE_CAA"), "{run:?}");
}

#[tokio::test]
async fn a_lease_whose_grant_is_lost_is_given_back_before_the_command_ends() {
    let (node, desk) = desk().await;
    for is_interrupted in [false, true] {
        let lossy = Lossy::of_all(&node, "/acquire").await;
        let retry_for = if is_interrupted { "30s" } else { "4s" };
        let args = ["--url", &lossy.base_url(), "--ttl", "5m", "--retry-for", retry_for, "--", "echo", "ran"];
        let run = desk.run(&[&["lock", "k"][..], &args].concat());
        lossy.until_lost_one().await;
        if is_interrupted {
            run.signal(Signal::SIGINT);
        }
        run.ends().await.assert(if is_interrupted { 130 } else { 69 }, "");
        assert_eq!(look(&node, "k").await["held"], false);
    }
}

#[tokio::test]
async fn a_lease_that_may_stay_is_said() {
    let (node, desk) = desk().await;
    // The answer to the release is lost, too.
    let lossy = Lossy::of_all(&node, "").await;
    let run =
        desk.run(&["lock", "k", "--url", &lossy.base_url(), "--retry-for", "3s", "--", "echo", "ran"]).ends().await;
    assert!(run.code == Some(69) && run.err.contains("may stay taken for up to"), "{run:?}");
}

#[tokio::test]
async fn a_program_with_permits_is_told_their_numbers() {
    let (node, desk) = desk().await;
    let _held = client(&[&node]).lock("pool").permits(1, 4).acquire().await.unwrap();
    let show = ["--", "sh", "-c", "echo \"$LATCHGATE_SLOT\""];
    let with = |args: &[&'static str]| [args, &show[..]].concat();
    desk.run(&with(&["lock", "pool", "--permits", "2/4"])).ends().await.assert(0, "1,2\n");
    desk.run(&with(&["lock", "pool", "other", "--permits", "1/4"])).ends().await.assert(0, "1;0\n");
    desk.run(&with(&["lock", "plain"])).ends().await.assert(0, "\n");
    // Its group is at its limit, although permits are free.
    let tenant = ["lock", "shared-pool", "--permits", "1/4", "--group", "a", "--group-limit", "1", "--wait", "0", "--"];
    let _member = client(&[&node]).lock("shared-pool").permits(1, 4).group("a", Some(1)).acquire().await.unwrap();
    desk.run(&[&tenant[..], &["echo", "ran"]].concat()).ends().await.assert(75, "");
    let other = ["lock", "shared-pool", "other", "--permits", "1/4", "--group", "b", "--", "echo", "ran"];
    desk.run(&other).ends().await.assert(0, "ran\n");
    // A rate: one start in ten hours.
    desk.run(&["lock", "rate", "--permits", "1/1", "--min-hold", "10h", "--", "true"]).ends().await.assert(0, "");
    desk.run(&["lock", "rate", "--permits", "1/1", "--wait", "0", "--", "echo", "ran"]).ends().await.assert(75, "");
    desk.run(&["lock", "plain", "--min-hold", "10h", "--", "true"]).ends().await.assert(0, "");
    let shown = desk.run(&["locks", "show", "plain"]).ends().await;
    assert!(shown.out.starts_with("plain: not held, but not granted yet"), "{shown:?}");
}

#[tokio::test]
async fn signals_reach_the_program_and_the_lock_is_released_after_it() {
    let (node, desk) = desk().await;
    for (signal, code) in [(Signal::SIGINT, 41), (Signal::SIGTERM, 42), (Signal::SIGHUP, 43)] {
        let script =
            "trap 'exit 41' INT; trap 'exit 42' TERM; trap 'exit 43' HUP; echo $$ >id; while :; do sleep 0.1; done";
        let run = desk.run(&["lock", "k", "--", "bash", "-c", script]);
        desk.number("id").await;
        run.signal(signal);
        run.ends().await.assert(code, "");
        assert_eq!(look(&node, "k").await["held"], false);
        std::fs::remove_file(desk.path("id")).unwrap();
    }
    let _held = client(&[&node]).lock("k").acquire().await.unwrap();
    let run = desk.run(&["lock", "k", "--", "echo", "ran"]);
    crate::world::until_waiting(&node, "k", 1).await;
    run.signal(Signal::SIGINT);
    run.ends().await.assert(130, "");
    crate::world::until_waiting(&node, "k", 0).await;
}

#[tokio::test]
async fn the_program_is_gone_before_another_holder_begins_whatever_happens() {
    let (mut a, b) = two_nodes().await;
    let (killed, stopped, away) = (Desk::new(&[&b]), Desk::new(&[&b]), Desk::new(&[&a]));
    let other = client(&[&b]);
    tokio::join!(
        is_gone_before_the_next(&killed, &other, "killed", |run| run.signal(Signal::SIGKILL)),
        is_gone_before_the_next(&stopped, &other, "stopped", |run| run.signal(Signal::SIGSTOP)),
        // The server does not answer.
        is_gone_before_the_next(&away, &other, "away", |_| a.pause()),
    );
    a.resume();
}

async fn is_gone_before_the_next(desk: &Desk, other: &Client, key: &str, happens: impl FnOnce(&Run)) {
    let run = desk.run(&["lock", key, "--ttl", "10s", "--", "bash", "-c", STUBBORN]);
    let id = desk.number("id").await;
    happens(&run);
    let lease = other.lock(key).wait(seconds(60)).acquire().await.unwrap();
    assert!(!is_alive(id), "{key}: two holders");
    lease.release().await.unwrap();
    if key == "stopped" {
        run.signal(Signal::SIGCONT);
    }
    if key != "killed" {
        let ended = run.ends().await;
        assert_eq!(ended.code, Some(76), "{key}: {}", ended.err);
    }
}

#[tokio::test]
async fn a_forced_end_of_the_lease_ends_all_processes_of_the_program() {
    // A revocation asks the program to end.
    let (node, desk) = desk().await;
    // A shell with jobs gives each of them a process group of its own.
    let script =
        "set -m; (trap '' TERM; echo $BASHPID >job; while :; do sleep 0.1; done) & trap '' TERM; echo $$ >id; wait";
    let run = desk.run(&["lock", "k", "--ttl", "6s", "--", "bash", "-c", script]);
    let (id, job) = (desk.number("id").await, desk.number("job").await);
    force(&node, "k").await;
    let ended = run.ends().await;
    assert_eq!(ended.code, Some(76), "{}", ended.err);
    until_gone(id).await;
    until_gone(job).await;

    let script = "trap 'echo asked; exit 0' TERM; echo $$ >revoked; while :; do sleep 0.1; done";
    let run = desk.run(&["lock", "k", "--ttl", "6s", "--", "bash", "-c", script]);
    desk.number("revoked").await;
    let body = json!({ "grace_ms": 30_000, "reason": "a deploy", "by": "ann" });
    client(&[&node]).call(latchgate_client::Method::POST, "/v1/locks/k/revoke", Some(&body)).await.unwrap();
    let ended = run.ends().await;
    ended.assert(76, "asked\n");
    assert!(ended.err.contains("ann has revoked the lock: a deploy"), "{}", ended.err);
    until("the lock is free", || async { look(&node, "k").await["held"] == false }).await;
}

#[tokio::test]
async fn a_warden_that_is_killed_takes_the_program_with_it() {
    let (node, desk) = desk().await;
    let run = desk.run(&["lock", "k", "--", "sh", "-c", "cut -d' ' -f5 /proc/$$/stat >group; echo $$ >id; sleep 600"]);
    let id = desk.number("id").await;
    let group = desk.read("group").trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(group), Signal::SIGKILL).unwrap();
    assert_eq!(run.ends().await.code, Some(76));
    until_gone(id).await;
    let client: Client = client(&[&node]);
    client.lock("k").wait(seconds(60)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn latchgate_ends_soon_after_its_lease_when_no_server_answers() {
    let (mut node, desk) = desk().await;
    // The program ends before its lease, and at its end.
    for (key, script) in
        [("early", "echo $$ >id; until [ -e go ]; do sleep 0.1; done"), ("late", "echo $$ >id; sleep 600")]
    {
        let run = desk.run(&["lock", key, "--ttl", "3s", "--grace", "100ms", "--", "bash", "-c", script]);
        let id = desk.number("id").await;
        node.pause();
        desk.touch("go");
        until_gone(id).await;
        let gone = Instant::now();
        let ended = run.ends().await;
        // A lease has 3 s at most from here, a second for the release, and the machine may be busy; before, it took 8 s more.
        assert!(gone.elapsed() < seconds(10), "{key}: {:?} {}", gone.elapsed(), ended.err);
        assert!(ended.err.contains("lease has ended") || ended.err.contains("lost"), "{key}: {}", ended.err);
        node.resume();
        std::fs::remove_file(desk.path("id")).unwrap();
    }
}

#[tokio::test]
async fn each_command_ends_in_time_when_the_node_is_frozen() {
    let (mut node, desk) = desk().await;
    let script = "echo $$ >id; until [ -e go ]; do sleep 0.1; done";
    let run = desk.run(&["lock", "held", "--retry-for", "2s", "--", "sh", "-c", script]);
    let id = desk.number("id").await;
    node.pause();
    desk.touch("go");
    until_gone(id).await;
    let began = Instant::now();
    let mut commands = vec![("release", 0, run)];
    for (args, code) in [
        ("lock k -- echo ran", 69),
        ("lock k --wait 3s -- echo ran", 69),
        ("once k -- echo ran", 70),
        ("locks list", 69),
        ("locks force k", 69),
        ("events", 69),
        ("app list", 69),
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let args_with_bound = [&words[..at], &["--retry-for", "2s"], &words[at..]].concat();
        commands.push((args, code, desk.run(&args_with_bound)));
    }
    for (name, code, run) in commands {
        let ended = run.ends().await;
        // 2 s, and as long again for a lease that is given back, or 5 s for a claim; the machine may be busy. Before, it took up to 70 s.
        assert!(began.elapsed() < seconds(40), "{name}: {:?}", began.elapsed());
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{name}: {}", ended.err);
        assert!(ended.err.contains(&node.base_url()), "{name} names no URL: {}", ended.err);
    }
    node.resume();
}

#[tokio::test]
async fn a_command_that_is_refused_says_what_the_user_has_to_know() {
    let (node, desk) = desk().await;
    let says = async |code: i32, args: &[&str]| -> String {
        let ended = desk.run(args).ends().await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{args:?}: {}", ended.err);
        ended.err
    };
    let said = says(2, &["lock", "deploy", "echo", "hi"]).await;
    assert!(said.contains("latchgate lock KEY -- CMD"), "{said}");
    let said = says(2, &["once", "order-7", "echo", "hi"]).await;
    assert!(said.contains("latchgate once CONTENTS -- CMD"), "{said}");
    let said = says(2, &["lock", "k", "--ttl", "30", "--", "true"]).await;
    assert!(said.contains("30s is 30 seconds"), "{said}");
    let said = says(69, &["lock", "k", "--retry-for", "1s", "--url", "http://127.0.0.1:1", "--", "true"]).await;
    assert!(said.contains("http://127.0.0.1:1"), "{said}");
    let https = node.base_url().replace("http://", "https://");
    let said = says(69, &["lock", "k", "--retry-for", "3s", "--url", &https, "--", "true"]).await;
    assert!(said.contains("is it http:// there?"), "{said}");
    desk.run(&["locks", "limit", "p", "3"]).ends().await;
    let said = says(64, &["lock", "p", "--permits", "1/5", "--", "true"]).await;
    assert!(said.contains("An operator has set the limit of this key to 3"), "{said}");
    let _held = client(&[&node]).lock("k").owner("ann").acquire().await.unwrap();
    let said = says(75, &["lock", "k", "--wait", "1500ms", "--", "true"]).await;
    let waited = said.split("waited ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(waited.is_some_and(|ms| ms >= 1_400), "the whole wait: {said}");
    // Commands that print pages end quietly when their reader has gone.
    let piped = desk.shell("{ latchgate man; echo $? >code; } | head -c 1").ends().await;
    assert!(piped.err.is_empty() && ["0\n", "74\n"].contains(&desk.read("code").as_str()), "{piped:?}");
}

#[tokio::test]
async fn terraform_locks_under_the_lease_of_the_command() {
    let (node, desk) = desk().await;
    let script = r#"call() { curl -s -o /dev/null -w '%{http_code} ' -X $1 "$2" -d "{\"ID\":\"$3\"}"; }
        call LOCK $TF_HTTP_LOCK_ADDRESS a; call LOCK $TF_HTTP_LOCK_ADDRESS b; call UNLOCK $TF_HTTP_UNLOCK_ADDRESS b
        call UNLOCK $TF_HTTP_UNLOCK_ADDRESS a; call LOCK $TF_HTTP_LOCK_ADDRESS b; call LOCK ${TF_HTTP_LOCK_ADDRESS}x b
        send() { curl -s -o /dev/null -w '%{http_code} ' -X $1 $TF_HTTP_LOCK_ADDRESS -d "$2"; }
        send UNLOCK nonsense; send UNLOCK ''; send LOCK '{}'; send LOCK '{}'; send UNLOCK '{}'; send UNLOCK ''
        echo $TF_HTTP_LOCK_ADDRESS >address"#;
    let run = desk.run(&["lock", "--terraform", "network", "--", "bash", "-c", script]);
    run.ends().await.assert(0, "200 423 409 200 200 404 409 200 200 423 409 200 ");
    assert_eq!(look(&node, "terraform%2Fnetwork").await["held"], false);
    let after = desk.shell("curl -s -X LOCK $(cat address) -d '{}'; echo $?").ends().await;
    assert_ne!(after.out, "0\n", "the address ends with the command");
    let script = "TF_HTTP_LOCK_METHOD=POST TF_HTTP_UNLOCK_METHOD=DELETE latchgate lock --terraform network -- \
                  sh -c 'echo $TF_HTTP_LOCK_METHOD $TF_HTTP_UNLOCK_METHOD'";
    desk.shell(script).ends().await.assert(0, "LOCK UNLOCK\n");
}

/// A directory in which programs can become another user. On Debian, those in a RAM disk cannot.
async fn desk_on_disk() -> (Node, Desk) {
    let node = node().await;
    let desk = Desk::below(Path::new("/var/tmp"), &[&node]);
    (node, desk)
}

/// Installs `own`, a latchgate for everybody, and `as-root`, which becomes root as `sudo` does. Only root can make such a program.
const BECOMES_ROOT: &str = r#"
    bin=$(command -v latchgate)
    chmod 755 . && { ln "$bin" own 2>/dev/null || cp "$bin" own; } && cp "$(command -v setpriv)" as-root && chmod 4755 as-root
    as_nobody="setpriv --reuid nobody --regid nogroup --clear-groups""#;

#[tokio::test]
async fn a_process_that_runs_on_as_another_user_is_named() {
    if !Uid::effective().is_root() {
        return;
    }
    let (_node, desk) = desk_on_disk().await;
    let script = format!(
        "{BECOMES_ROOT}
        exec $as_nobody ./own lock k --grace 1s -- sh -c './as-root --reuid root -- sleep 600 >/dev/null 2>&1 & echo $! >id; wait' 2>errors"
    );
    std::fs::write(desk.path("id"), "").unwrap();
    std::fs::set_permissions(desk.path("id"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let run = desk.shell(&script);
    let id = desk.number("id").await;
    let line = || std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    until("it has become root", || std::future::ready(line().starts_with("sleep"))).await;
    run.signal(Signal::SIGTERM);
    run.ends().await.assert(143, "");
    assert!(desk.read("errors").contains("a process that CMD has started runs on"), "{}", desk.read("errors"));
    assert!(is_alive(id));
    kill(Pid::from_raw(id), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_program_that_becomes_another_user_is_named_before_it_starts() {
    // latchgate names it again when no signal reaches it.
    if !Uid::effective().is_root() {
        return;
    }
    let (node, desk) = desk_on_disk().await;
    let script = format!(
        "{BECOMES_ROOT}
        exec $as_nobody ./own lock k -- ./as-root --reuid root -- sh -c 'echo $$ >id; exec sleep 600' 2>errors"
    );
    let run = desk.shell(&script);
    let id = desk.number("id").await;
    assert!(desk.read("errors").contains("as-root becomes another user"), "{}", desk.read("errors"));
    force(&node, "k").await;
    let says = || std::future::ready(desk.read("errors").contains("no signal of latchgate reaches it"));
    until("it says that it cannot end CMD", says).await;
    assert!(is_alive(id));
    kill(Pid::from_raw(id), Signal::SIGKILL).unwrap();
    run.ends().await.assert(76, "");
}
