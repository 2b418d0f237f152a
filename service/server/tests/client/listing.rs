//! What the commands that list and show print, and their usage.

use latchgate_client::Method;
use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::{free_port, until};
use serde_json::{Value, json};

use crate::world::{BIN, Desk, client, desk, look};

#[tokio::test]
async fn an_empty_list_says_so_and_prints_nothing() {
    let (_node, desk) = desk().await;
    for (args, said) in [
        (&["locks", "list"][..], "There are no held locks.\n"),
        (&["locks", "list", "--all"], "There are no locks.\n"),
        (&["locks", "list", "--prefix", "k"], "There are no locks that match.\n"),
        (&["operations", "list", "--undecided"], "There are no operations that match.\n"),
        (&["operations", "list"][..], "There are no operations.\n"),
        (&["keys", "list"][..], "There are no API keys.\n"),
        (&["locks", "history", "k"][..], "There are no events.\n"),
    ] {
        let listed = desk.run(args).ends().await;
        assert_eq!((listed.code, listed.out.as_str(), listed.err.as_str()), (Some(0), "", said), "{args:?}");
    }
    let listed = desk.run(&["locks", "list", "--json"]).ends().await;
    assert_eq!((listed.code, listed.out.as_str(), listed.err.as_str()), (Some(0), "", ""));
}

#[tokio::test]
async fn locks_are_listed_with_their_times_in_a_chosen_order_and_number() {
    let (node, desk) = desk().await;
    let client = client(&[&node]);
    let mut leases = Vec::new();
    for (key, owner) in [("b", "first"), ("a", "second")] {
        leases.push(client.lock(key).owner(owner).acquire().await.unwrap());
    }
    desk.run(&["locks", "close", "free", "--reason", "moving"])
        .ends()
        .await
        .assert(0, "free is closed. `latchgate locks open` opens it.\n");
    let keys = async |args: &[&str]| {
        let listed = desk.run(&[&["locks", "list"][..], args].concat()).ends().await;
        assert_eq!(listed.code, Some(0), "{listed:?}");
        listed.out.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]).await, ["a", "b"]);
    assert_eq!(keys(&["--sort", "held-since"]).await, ["b", "a"]);
    assert_eq!(keys(&["--sort", "held-since", "--limit", "1"]).await, ["b"]);
    assert_eq!(keys(&["--all"]).await, ["a", "b", "free"]);
    assert_eq!(keys(&["--closed"]).await, ["free"]);
    desk.run(&["locks", "close", "free", "--reason", "moving", "--for", "1h"]).ends().await;
    let closed = desk.run(&["locks", "list", "--closed"]).ends().await;
    assert!(closed.out.contains("\tmoving, until 20"), "{closed:?}");
    desk.run(&["lock", "free", "--wait", "0", "--", "echo", "ran"]).ends().await.assert(75, "");
    desk.run(&["locks", "open", "free"]).ends().await.assert(0, "free is open.\n");
    desk.run(&["locks", "open", "free"]).ends().await.assert(0, "free was not closed.\n");

    let listed = desk.run(&["locks", "list", "--prefix", "b"]).ends().await;
    let cells: Vec<&str> = listed.out.trim_end_matches('\n').split('\t').collect();
    let holder = look(&node, "b").await["holders"][0].clone();
    let token = holder["token"].to_string();
    let granted_at = holder["granted_at"].as_str().unwrap();
    assert_eq!(cells[..4], ["b", "exclusive", "first", granted_at], "{listed:?}");
    assert!(cells[4] > granted_at && cells[5..] == ["0", &token, ""], "{listed:?}");
}

#[tokio::test]
async fn a_terminal_shows_states_in_colour_unless_that_is_not_wanted() {
    const GREEN: &str = "\u{1b}[32m";
    const RED: &str = "\u{1b}[31m";
    let (node, desk) = desk().await;
    let _held = client(&[&node]).lock("k").owner("me").acquire().await.unwrap();
    desk.run(&["once", "contents", "--", "sh", "-c", "kill -9 $$"]).ends().await;
    desk.run(&["locks", "force", "k", "--reason", "tried"]).ends().await;
    let _held = client(&[&node]).lock("k").owner("me").acquire().await.unwrap();
    let on_terminal = async |variables: &str, args: &str| {
        let shown =
            desk.shell(&format!("{variables} TERM=xterm script -qec 'latchgate {args}' /dev/null")).ends().await;
        assert_eq!(shown.code, Some(0), "{shown:?}");
        shown.out
    };
    for (args, shown) in [
        ("locks list", format!("{GREEN}me")),
        ("locks show k", format!("{GREEN}held")),
        ("locks history k", format!("{RED}forced")),
        ("operations list", format!("{RED}unknown")),
        ("engines list", format!("{GREEN}active")),
    ] {
        let coloured = on_terminal("", args).await;
        assert!(coloured.contains(&shown), "{coloured:?}");
        let plain = on_terminal("NO_COLOR=1", args).await;
        assert!(!plain.contains('\u{1b}') && !on_terminal("", &format!("{args} --json")).await.contains('\u{1b}'));
        // Colours move no column.
        let mut columns = coloured.clone();
        for code in ["[1m", "[0m", "[31m", "[32m", "[33m", "[39m"] {
            columns = columns.replace(&format!("\u{1b}{code}"), "");
        }
        let at = |text: &str, word: &str| text.lines().find_map(|line| line.find(word));
        for word in ["MODE", "exclusive", "EVENT", "forced", "STATE", "unknown"] {
            assert_eq!(at(&columns, word), at(&plain, word), "{word} in {columns}");
        }
    }
    let piped = desk.run(&["locks", "list"]).ends().await;
    assert!(!piped.out.contains('\u{1b}'), "{piped:?}");
}

#[tokio::test]
async fn each_event_has_all_its_values_between_tabs() {
    let (_node, desk) = desk().await;
    let script = "latchgate locks watch k >lines & while ! [ -s lines ]; do latchgate lock k -- true; done; kill $!; head -n 1 lines";
    let event = desk.shell(script).ends().await;
    assert_eq!(event.out.split('\t').count(), 9, "{event:?}");
}

#[tokio::test]
async fn a_list_is_shown_again_with_watch() {
    let (node, desk) = desk().await;
    let _held = client(&[&node]).lock("k").acquire().await.unwrap();
    let listed = desk.shell("latchgate locks list --watch | head -n 2 | cut -f 1").ends().await;
    listed.assert(0, "k\nk\n");
}

#[tokio::test]
async fn a_refusal_after_a_wait_says_who_holds_the_lock() {
    let (node, desk) = desk().await;
    let _held = client(&[&node]).lock("k").owner("nightly").acquire().await.unwrap();
    let refused = desk.run(&["lock", "k", "--wait", "100ms", "--quiet", "--", "true"]).ends().await;
    assert!(refused.code == Some(75) && refused.err.contains("nightly holds the lock"), "{refused:?}");
    for order in ["force", "revoke"] {
        let stale = desk.run(&["locks", order, "k", "--token", "7"]).ends().await;
        assert!(stale.code == Some(64) && stale.err.contains("stale-token"), "{stale:?}");
    }
    let waiting = desk.run(&["lock", "k", "--owner", "second", "--", "true"]);
    until("a waiter", async || look(&node, "k").await["waiters"] == 1).await;
    let shown = desk.run(&["locks", "show", "k"]).ends().await;
    assert!(shown.out.starts_with("k: held, 1 waiter\n") && shown.out.contains("\nsecond\texclusive\t"), "{shown:?}");
    drop(waiting);
}

#[tokio::test]
async fn engines_and_status_show_hold_off_reasons_nodes_and_recent_refusals() {
    let (node, desk) = desk().await;
    assert_eq!(desk.run(&["status"]).ends().await.code, Some(0));
    let ordered = desk.run(&["engines", "hold-off", "--for", "5m"]).ends().await;
    ordered.assert(0, "The hold-off is in force: no node grants new leases for 5 min. Unless the gate has a store of its own, operations have one too: see `latchgate engines list`.\n");
    let listed = desk.run(&["engines", "list"]).ends().await;
    assert_eq!(listed.code, Some(1), "{listed:?}");
    for text in
        [" min left: an operator has ordered it", &format!("127.0.0.1:{}", node.port()), env!("CARGO_PKG_VERSION")]
    {
        assert!(listed.out.contains(text), "{text} in {listed:?}");
    }
    assert!(listed.err.contains("an operator has ordered it"), "{listed:?}");
    desk.run(&["lock", "k", "--wait", "0", "--", "true"]).ends().await.assert(75, "");
    let waited = desk.run(&["lock", "k", "--wait", "100ms", "--", "true"]).ends().await;
    assert!(waited.code == Some(75) && waited.err.contains("a hold-off keeps nodes from granting"), "{waited:?}");
    let refused = async || -> Value {
        let status = desk.run(&["status", "--json"]).ends().await;
        serde_json::from_str::<Value>(&status.out).unwrap()["refused"].clone()
    };
    until("the refusal is counted", async || refused().await["423"].as_u64() >= Some(1)).await;
    let status = desk.run(&["status"]).ends().await;
    assert!(status.out.contains("has refused in the last minutes: 423: "), "{status:?}");
    desk.run(&["engines", "hold-off", "--for", "0"]).ends().await;
    let ended = desk.run(&["engines", "list"]).ends().await;
    assert!(ended.err.contains("ended a hold-off early") && !ended.out.contains("ordered"), "{ended:?}");
    assert_eq!((ended.code, desk.run(&["status"]).ends().await.code), (Some(0), Some(0)));
}

#[tokio::test]
async fn a_status_counts_all_that_a_person_must_decide_and_shows_five() {
    let (node, desk) = desk().await;
    let client = client(&[&node]);
    for contents in 0..7 {
        let begun = json!({ "operation": "charge", "contents": contents });
        let go = client.call(Method::POST, "/v1/operations/pre", Some(&begun)).await.unwrap();
        let path = format!("/v1/operations/{}/post", go["id"].as_str().unwrap());
        let unknown = json!({ "stamp": go["stamp"], "outcome": "unknown" });
        client.call(Method::POST, &path, Some(&unknown)).await.unwrap();
    }
    // Once there is an API key, every request needs one.
    let created =
        desk.run(&["keys", "create", "--scope", "admin", "--scope", "read", "--scope", "locks", "--json"]).ends().await;
    let admin = serde_json::from_str::<Value>(&created.out).unwrap()["api_key"].as_str().unwrap().to_owned();
    let run = async |command: &str| {
        let ended = desk.shell(&format!("LATCHGATE_API_KEY={admin} latchgate {command}")).ends().await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out
    };
    let mut ids = Vec::new();
    for expires in ["6d", "1h", "30d", "2d"] {
        let created = run(&format!("keys create --scope read --expires {expires} --json")).await;
        ids.push(serde_json::from_str::<Value>(&created).unwrap()["id"].as_str().unwrap().to_owned());
    }
    // An operator may mean another app.
    for (command, said) in [
        ("locks show k", "k: free in the app default (--app names another one), 0 waiters\n"),
        ("locks force k", "k is free in the app default (--app names another one): there is nothing to end.\n"),
        ("locks revoke k", "k is free in the app default (--app names another one): there is nothing to revoke.\n"),
        ("locks force k --app default", "k is free: there is nothing to end.\n"),
    ] {
        assert_eq!(run(command).await, said);
    }
    let status = run("status").await;
    assert!(status.contains("\n7 operations to decide, 5 of 7 shown\n"), "{status}");
    assert_eq!(status.matches(": charge: latchgate operations show ").count(), 5, "{status}");
    assert!(status.contains("\n3 API keys to expire within a week, or just expired\n"), "{status}");
    // The earliest first.
    let at = [1, 3, 0].map(|key: usize| status.find(&ids[key]).unwrap());
    assert!(at.is_sorted() && !status.contains(&ids[2]), "{status}");
    // What has just ended is why programs are refused now.
    run("keys create --scope read --expires 1s --name nightly").await;
    until("the status says so", async || run("status").await.contains(" of default, nightly, expired\n")).await;
}

#[tokio::test]
async fn a_status_shows_the_engines_of_a_store_that_does_not_answer() {
    let mut redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url(), "--new"]).await;
    let desk = Desk::new(&[&node]);
    desk.run(&["status"]).ends().await;
    redis.pause();
    until("the node notices it", async || desk.run(&["engines", "list"]).ends().await.code != Some(0)).await;
    let status = desk.shell("LATCHGATE_RETRY_FOR=5s latchgate status").ends().await;
    redis.resume();
    assert!(status.code.is_some_and(|code| code != 0) && status.out.starts_with("locks\tredis\t"), "{status:?}");
    assert!(status.err.contains("operations cannot be read: "), "{status:?}");
}

/// The variables of [`Desk`] are set.
#[tokio::test]
async fn a_usage_line_names_no_flag_only_because_its_variable_is_set() {
    let (_node, desk) = desk().await;
    let empty = desk.run(&["operations", "show", ""]).ends().await;
    assert!(empty.code == Some(1) && empty.err.contains("the id is empty"), "{empty:?}");
    for args in [&["locks", "show"][..], &["keys", "create"], &["lock"], &["once"]] {
        let refused = desk.run(args).ends().await;
        assert!(refused.code == Some(2) && refused.err.contains("Usage: latchgate"), "{refused:?}");
        assert!(!refused.err.contains("--url") && !refused.err.contains("--retry-for"), "{refused:?}");
    }
}

#[tokio::test]
async fn an_empty_variable_is_absent_unless_another_service_would_be_called() {
    let (_node, desk) = desk().await;
    desk.shell("LATCHGATE_RETRY_FOR= LATCHGATE_API_KEY= latchgate lock k -- echo ran").ends().await.assert(0, "ran\n");
    for variable in ["LATCHGATE_URL", "LATCHGATE_CA"] {
        let refused = desk.shell(&format!("{variable}= latchgate lock k -- echo ran")).ends().await;
        assert!(![Some(0), Some(75)].contains(&refused.code) && refused.out.is_empty(), "{refused:?}");
    }
}

#[tokio::test]
async fn shells_complete_keys_and_apps() {
    let (node, desk) = desk().await;
    let client = client(&[&node]);
    let mut leases = Vec::new();
    for key in ["jobs/nightly", "jobs/two words", "other"] {
        leases.push(client.lock(key).acquire().await.unwrap());
    }
    let completed = async |shell: &str, words: &str| {
        let script = match shell {
            "bash" => format!(
                "source <(latchgate completions bash); COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _latchgate_names latchgate \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            ),
            // What its completion would call.
            "zsh" => format!(
                "latchgate completions zsh >names; zsh -f -c 'compdef() {{ :; }}; compadd() {{ print -rl -- $names; }}; source ./names; \
                 words=({words}); CURRENT=$#words; _latchgate_names'"
            ),
            _ => {
                format!("fish --no-config -c 'latchgate completions fish | source; complete -C \"{words}\"' | cut -f 1")
            }
        };
        desk.shell(&script).ends().await.out
    };
    for shell in ["bash", "zsh", "fish"] {
        let two_words = if shell != "bash" { "jobs/two words" } else { "jobs/two\\ words" };
        assert_eq!(
            completed(shell, "latchgate locks show jobs/").await,
            format!("jobs/nightly\n{two_words}\n"),
            "{shell}"
        );
        assert_eq!(completed(shell, "latchgate lock o").await, "other\n", "{shell}");
        for app in ["locks list --app d", "app quota d", "apps delete d"] {
            assert_eq!(completed(shell, &format!("latchgate {app}")).await, "default\n", "{shell} {app}");
        }
    }
    assert_eq!(completed("bash", "latchgate locks his").await, "history\n");
    assert_eq!(completed("bash", "latchgate wa").await, "\n");
}

#[tokio::test]
async fn every_command_says_by_its_exit_code_why_it_has_failed() {
    let (_node, desk) = desk().await;
    let scopes = ["admin", "read", "locks", "operations"].map(|scope| ["--scope", scope]).concat();
    let created = desk.run(&[&["keys", "create", "--json"][..], &scopes].concat()).ends().await;
    let api_key = serde_json::from_str::<Value>(&created.out).unwrap()["api_key"].as_str().unwrap().to_owned();
    let away = format!("LATCHGATE_RETRY_FOR=300ms LATCHGATE_URL=http://127.0.0.1:{}", free_port());
    let long = "k".repeat(600);
    // With an argument that is refused, if there is any.
    for (command, refused) in [
        ("locks list --prefix", Some(&*long)),
        ("locks show", Some(&long)),
        ("locks watch", Some(&long)),
        ("locks history", Some(&long)),
        ("locks revoke", Some(&long)),
        ("locks force", Some(&long)),
        ("locks close --reason x", Some(&long)),
        ("locks open", Some(&long)),
        ("locks limit", Some(&format!("{long} 1"))),
        ("operations list --operation", Some(&long)),
        ("operations show", Some(&long)),
        ("operations resolve --failed --reason x", Some(&long)),
        ("operations forget", Some(&long)),
        ("engines list", None),
        ("engines hold-off --for 0", None),
        ("status", None),
        ("events --prefix", Some(&long)),
        ("keys list", None),
        ("keys create --scope read --app", Some(&long)),
        ("keys revoke", Some("000000000000")),
        ("app list", None),
        ("app create", Some(&long)),
        ("app disable", Some(&long)),
    ] {
        let run = async |variables: &str| {
            let (command, argument) = (format!("latchgate {command}"), refused.unwrap_or_default());
            let ended = desk.shell(&format!("{variables} {command} {argument}")).ends().await;
            assert!(ended.out.is_empty() && ended.err.starts_with("latchgate: "), "{command}: {ended:?}");
            ended.code
        };
        assert_eq!((run("").await, run(&away).await), (Some(77), Some(69)), "{command}");
        if refused.is_some() {
            assert_eq!(run(&format!("LATCHGATE_API_KEY={api_key}")).await, Some(64), "{command}");
        }
    }
}

#[tokio::test]
async fn a_command_whose_output_cannot_be_written_ends_with_exit_code_74() {
    // An API key that could not be printed is revoked.
    let (_node, desk) = desk().await;
    desk.run(&["lock", "k", "--", "true"]).ends().await.assert(0, "");
    for command in [
        "locks list --all",
        "locks show k",
        "locks history k --json",
        "engines list",
        "api-key list --json; latchgate api-key generate",
        "app list",
        "openapi",
    ] {
        let ended = desk.shell(&format!("latchgate {command} >/dev/full")).ends().await;
        assert_eq!(ended.code, Some(74), "{command}: {}", ended.err);
        assert!(!ended.err.contains("panicked"), "{command}: {}", ended.err);
    }
    let created = desk.shell("latchgate api-key create --scope admin >/dev/full").ends().await;
    assert_eq!(created.code, Some(74), "{}", created.err);
    assert!(created.err.contains("is revoked"), "{}", created.err);
}
