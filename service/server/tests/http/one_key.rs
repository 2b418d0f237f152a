//! The trouble of one key, or of one operation, stays with it.

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::until;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::client::{BIN, acquire, embedded, get, granted, many, on_database, pre, release};
use crate::raw::{Raw, posting};

/// While a caller asks for the key `bad`, and is refused, other keys are taken and released.
async fn others_are_served(node: &Node) {
    for _ in 0..30 {
        let others = futures::future::join_all(["a", "b", "c"].map(|key| written(node, key)));
        let (answer, _) = tokio::join!(acquire(node, "bad", json!({})), others);
        assert!(answer.status.is_server_error(), "{} {}", answer.status, answer.body);
        assert_eq!(get(node, "/readyz").await.status, 200);
    }
    let log = node.log();
    assert!(!log.contains("the store is down"), "{log}");
}

/// Takes and releases the key, so that it has a state.
async fn written(node: &Node, key: &str) {
    let grant = granted(node, key, json!({})).await;
    assert_eq!(release(node, key, &grant.text("lease_id")).await.status, 200);
}

#[tokio::test]
async fn an_unreadable_state_fails_only_its_own_key_on_every_store() {
    let (database, on_postgres) = on_database().await;
    let (on_sqlite, redis) = (embedded().await, Redis::start().await);
    let on_redis = Node::start(BIN, &["--locks", &redis.url()]).await;
    for node in [&on_postgres, &on_sqlite, &on_redis] {
        written(node, "bad").await;
    }
    let spoil = "set state = '{\"holders\": 7}', version = version + 1 where key = 'bad'";
    let mut other = PgConnection::connect(&database).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("update latchgate.locks {spoil}"))).execute(&mut other).await.unwrap();
    let file = rusqlite::Connection::open(on_sqlite.dir().join("latchgate.db")).unwrap();
    assert_eq!(file.execute(&format!("update locks {spoil}"), ()).unwrap(), 1);
    redis.ask(&["set", "latchgate:l:7:default:bad", "7 9000000000000000 - 0: nonsense"]);
    for node in [&on_postgres, &on_sqlite, &on_redis] {
        others_are_served(node).await;
        let both = json!({ "locks": [{ "key": "a" }, { "key": "bad" }] });
        for refused in [acquire(node, "bad", json!({})).await, many(node, "acquire", both).await] {
            refused.assert_problem(500, "state-unreadable");
            assert_eq!(refused.body["key"], "bad");
        }
        get(node, "/v1/locks/bad").await.assert_problem(500, "state-unreadable");

        let listed = get(node, "/v1/locks").await.body;
        let keys: Vec<_> = listed["locks"].as_array().unwrap().iter().map(|lock| &lock["key"]).collect();
        assert_eq!((keys, &listed["unreadable"]), ([&json!("a"), &json!("b"), &json!("c")].to_vec(), &json!(["bad"])));
        assert_eq!(get(node, "/v1/locks?app=*").await.body["unreadable"], json!([r#"["default","bad"]"#]));
        let second = get(node, "/v1/locks?limit=1&cursor=a").await.body;
        assert_eq!(second["locks"][0]["key"], "b", "{second}");
    }
    sqlx::query("delete from latchgate.locks where key = 'bad'").execute(&mut other).await.unwrap();
    let is_served = || async { acquire(&on_postgres, "bad", json!({ "lease_id": "next" })).await.status == 200 };
    until("the key is served", is_served).await;
    // A value of another type fails only its own key, too.
    redis.ask(&["del", "latchgate:l:7:default:bad"]);
    redis.ask(&["lpush", "latchgate:l:7:default:bad", "nonsense"]);
    others_are_served(&on_redis).await;
}

/// The same promise for a single pre is in `gate_conformance`.
#[tokio::test]
async fn a_batch_whose_client_has_gone_before_its_answer_is_given_back() {
    let database = shared_database().await;
    let node = Node::start(BIN, &["--locks", &database, "--store-timeout", "4s"]).await;
    let mut other = PgConnection::connect(&database).await.unwrap();
    // No bound for locks ends this wait. A session that is in it holds the advisory lock 7.
    let held_up = "create table latchgate.holds_up (since timestamptz default now());
        create function latchgate.held_up() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_xact_lock_shared(7);
            while exists (select from latchgate.holds_up) loop perform pg_sleep(0.01); end loop;
            return new;
        end $$;
        create trigger held_up before insert on latchgate.operations for each row execute function latchgate.held_up();
        insert into latchgate.holds_up default values";
    sqlx::raw_sql(held_up).execute(&mut other).await.unwrap();
    let charge = json!({ "operation": "charge", "contents": 1, "on_expiry": "block" });
    let mut gone = Raw::connect(&node).await;
    gone.send(posting("/v1/operations/pre/batch", &json!({ "operations": [charge] }))).await;
    until("the claim is in mid-commit", || async { !held_up_at(&database).await.is_empty() }).await;
    let claim = held_up_at(&database).await;
    drop(gone);
    // What gives it back is held up, too.
    until("the node has noticed", || async { held_up_at(&database).await.iter().any(|at| !claim.contains(at)) }).await;
    sqlx::query("delete from latchgate.holds_up").execute(&mut other).await.unwrap();
    until("the operation may go", || async { pre(&node, charge.clone()).await.status == 201 }).await;
    assert_eq!(get(&node, "/v1/operations").await.body["operations"][0]["attempt"], 1);
}

/// The sessions of the database that the trigger holds up. Their ids do not rise for ever.
async fn held_up_at(database: &str) -> Vec<i32> {
    let mut look = PgConnection::connect(database).await.unwrap();
    let waiting = "select held.pid from pg_locks held join pg_stat_activity session using (pid)
        where held.locktype = 'advisory' and held.objid = 7 and session.datname = current_database()";
    sqlx::query_scalar(waiting).fetch_all(&mut look).await.unwrap()
}
