//! `/readyz` says whether a lock can be granted, and why not.

use latchgate_testkit::node::Node;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::client::{BIN, acquire, embedded, get, granted, on_database};

async fn until_not_ready(node: &Node, why: &str) {
    until(format!("the node is not ready: {why}"), || async {
        let answer = get(node, "/readyz").await;
        answer.status == 503 && answer.text("detail").contains(why)
    })
    .await;
    get(node, "/readyz").await.assert_problem(503, "store-unavailable");
}

async fn until_ready(node: &Node) {
    until("the node is ready", || async { get(node, "/readyz").await.status == 200 }).await;
}

/// A node serves unless something is done to its store, which `run` does. Without callers, it finds that out by itself. Calls are refused
/// without a doubt about what was done.
async fn is_not_ready_while(node: &Node, cases: &[(&str, &str, &str)], run: impl AsyncFn(&str)) {
    for (number, (breaks, why, mends)) in cases.iter().enumerate() {
        let key = format!("k{number}");
        run(breaks).await;
        until_not_ready(node, why).await;
        acquire(node, &key, json!({})).await.assert_problem(503, "store-unavailable");
        assert_eq!(get(node, "/healthz").await.status, 200);
        assert_metric(node, "latchgate_ready 0").await;
        run(mends).await;
        until_ready(node).await;
        granted(node, &key, json!({})).await;
    }
    let log = node.log();
    let times = ["the store is down", "the store is up"].map(|text| log.matches(text).count());
    assert_eq!(times, [cases.len(); 2], "{log}");
}

#[tokio::test]
async fn a_node_whose_postgres_refuses_what_a_grant_writes_is_not_ready() {
    let (database, node) = on_database().await;
    let url = format!("{database}?options[search_path]=latchgate&options[default_transaction_read_only]=off");
    let name = database.rsplit_once('/').unwrap().1;
    let read_only = |value: &str| {
        format!(
            "begin; alter database {name} set default_transaction_read_only = {value}; commit;
            select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}' and pid <> pg_backend_pid()"
        )
    };
    let raises = |event: &str, what: &str| {
        format!(
            "create function f() returns trigger language plpgsql as $$ begin {what}; end $$;
            create trigger t before {event} on locks for each row execute function f()"
        )
    };
    let (fails, keeps_nothing) = (raises("insert", "raise 'no grants today'"), raises("insert", "return null"));
    let renews_nothing = raises("update", "raise 'no renewals'");
    let drop = "drop trigger t on locks; drop function f";
    // An index is made of the rows that are there, too.
    let index = |of: &str| format!("truncate locks, lock_events; create index wrong on {of}");
    let cases = [
        (&*read_only("on"), "default_transaction_read_only is on", &*read_only("off")),
        ("alter table locks rename to away", "locks", "alter table away rename to locks"),
        ("alter table lock_events rename to away", "lock_events", "alter table away rename to lock_events"),
        (
            "select setval('lock_event_numbers', 9223372036854775807)",
            "maximum value",
            "alter sequence lock_event_numbers restart 1000000000",
        ),
        (&index("lock_events ((at::integer))"), "out of range", "drop index wrong"),
        (&index("locks ((keep_until::integer))"), "out of range", "drop index wrong"),
        (&fails, "no grants today", drop),
        (&keeps_nothing, "does not keep", drop),
        (&renews_nothing, "no renewals", drop),
    ];
    is_not_ready_while(&node, &cases, async |statements: &str| {
        let mut other = PgConnection::connect(&url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut other).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_node_whose_file_refuses_what_a_grant_writes_is_not_ready() {
    let node = embedded().await;
    let other = rusqlite::Connection::open(node.dir().join("latchgate.db")).unwrap();
    let cases = [
        ("begin immediate", "another program has the file locked", "rollback"),
        (
            "create trigger t before insert on locks begin select raise(abort, 'no grants today'); end",
            "no grants today",
            "drop trigger t",
        ),
        ("create trigger t before update on locks begin select raise(ignore); end", "does not keep", "drop trigger t"),
        ("alter table lock_events rename to away", "no such table", "alter table away rename to lock_events"),
        (
            "update lock_event_numbers set last = 9223372036854775807",
            "lock_event_numbers",
            "update lock_event_numbers set last = 1000",
        ),
    ];
    is_not_ready_while(&node, &cases, async |statements: &str| other.execute_batch(statements).unwrap()).await;
}

#[tokio::test]
async fn a_node_whose_redis_refuses_what_a_grant_writes_is_not_ready() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    granted(&node, "first", json!({})).await;
    let event = "rename kept latchgate:event";
    let cases = [
        ("config set maxmemory 1", "OOM", "config set maxmemory 0"),
        ("rename latchgate:event kept;set latchgate:event 18446744073709551615", "ID", event),
        ("rename latchgate:event kept;set latchgate:event x", "number", event),
        ("rename latchgate:event kept;lpush latchgate:event x", "WRONGTYPE", event),
        ("rename latchgate:events kept;set latchgate:events x", "WRONGTYPE", "rename kept latchgate:events"),
        ("rename latchgate:index kept;set latchgate:index x", "WRONGTYPE", "rename kept latchgate:index"),
    ];
    is_not_ready_while(&node, &cases, async |commands: &str| {
        for command in commands.split(';') {
            let answer = redis.ask(&command.split(' ').collect::<Vec<_>>());
            assert!(answer.starts_with("OK") || answer.trim() == "1", "{command}: {answer}");
        }
    })
    .await;
    // A server that has lost the scripts cannot be given them again.
    redis.ask(&["acl", "setuser", "default", "-eval"]);
    redis.ask(&["script", "flush"]);
    until_not_ready(&node, "eval").await;
    redis.ask(&["acl", "setuser", "default", "+@all"]);
    until_ready(&node).await;
}

#[tokio::test]
async fn nobody_sees_what_a_probe_writes() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    let before = redis.ask(&["get", "latchgate:event"]);
    until("the node has probed", || async { redis.ask(&["get", "latchgate:event"]) != before }).await;
    assert_eq!(redis.ask(&["xlen", "latchgate:events"]).trim(), "0");
    assert_eq!(redis.ask(&["zcard", "latchgate:index"]).trim(), "0");
    assert_eq!(redis.ask(&["keys", "latchgate:[lh]:*"]).trim(), "");
    assert_eq!(get(&node, "/readyz").await.status, 200);
}

/// Fails unless the metrics have this line.
pub async fn assert_metric(node: &Node, line: &str) {
    let metrics = get(node, "/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains(line), "{metrics}");
}

#[tokio::test]
async fn a_redis_that_begins_to_evict_makes_a_node_not_ready_unless_allowed() {
    let (redis, other) = (Redis::start().await, Redis::start().await);
    let on_locks = Node::start(BIN, &["--locks", &redis.url(), "--gate", "sqlite:gate.db"]).await;
    let on_gate = Node::start(BIN, &["--gate", &redis.url()]).await;
    let args = ["--locks", &other.url(), "--allow-eviction"];
    let allowed = Node::start(BIN, &args).await;
    for redis in [&redis, &other] {
        redis.ask(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    }
    for node in [&on_locks, &on_gate] {
        until_not_ready(node, "maxmemory-policy allkeys-lru").await;
        assert_metric(node, "latchgate_may_forget 1").await;
        assert!(node.log().contains("maxmemory-policy allkeys-lru"), "{}", node.log());
    }
    let says_so = || async { get(&allowed, "/metrics").await.body.to_string().contains("latchgate_may_forget 1") };
    until("the other says so too", says_so).await;
    assert_eq!(get(&allowed, "/readyz").await.status, 200);
    let begun = Node::start(BIN, &[&args[..], &["--new"]].concat()).await;
    let warnings = begun.log().lines().filter(|line| line.contains("allkeys-lru")).count();
    assert_eq!(warnings, 1, "a start says a warning once: {}", begun.log());
    redis.ask(&["config", "set", "maxmemory-policy", "noeviction"]);
    for node in [&on_locks, &on_gate] {
        until_ready(node).await;
        assert_metric(node, "latchgate_may_forget 0").await;
    }
}
