//! The trouble of one key, or of one operation, stays with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use latchgate_testkit::node::Node;
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::redis::Redis;
use latchgate_testkit::{eventually, until};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::client::{BIN, acquire, embedded, get, granted, many, on_database, post, pre, release};
use crate::raw::{Raw, posting};

const LONG: Duration = Duration::from_secs(30);

/// Callers that ask for a key, one after the other, until they are stopped.
struct Callers {
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<Vec<String>>,
}

impl Callers {
    fn of(node: &Node, key: &str) -> Self {
        let url = format!("{}/v1/locks/{key}/acquire", node.base_url());
        let (is_over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, counted) = (Arc::clone(&is_over), Arc::clone(&answers));
        let task = tokio::spawn(async move {
            let mut codes = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let answer = post(url.clone(), "{}").await;
                codes.push(format!("{} {}", answer.status.as_u16(), answer.code()));
                counted.fetch_add(1, Ordering::SeqCst);
            }
            codes
        });
        Self { is_over, answers, task }
    }

    /// The answers so far.
    fn count(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// The status and the code of each answer.
    async fn stop(self) -> Vec<String> {
        self.is_over.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }
}

/// Takes and releases other keys, with each of `verbs` of the answers so far of the callers.
async fn others_are_served(node: &Node, callers: &Callers) {
    let mut rounds = 0;
    // The callers get some answers while the others are served.
    while rounds < 30 || callers.count() < 4 {
        for key in ["a", "b", "c"] {
            let grant = granted(node, key, json!({})).await;
            let released = release(node, key, &grant.text("lease_id")).await;
            assert_eq!(released.status, 200, "{}", released.body);
        }
        assert_eq!(get(node, "/readyz").await.status, 200);
        rounds += 1;
    }
    let log = node.log();
    assert!(!log.contains("the store is down"), "{log}");
}

/// The key `bad` has an unreadable state, and the keys `a`, `b` and `c` have others.
async fn an_unreadable_state_fails_only_its_own_key(node: &Node) {
    let callers = Callers::of(node, "bad");
    others_are_served(node, &callers).await;
    let codes = callers.stop().await;
    assert!(codes.iter().all(|code| code == "500 state-unreadable"), "{codes:?}");
    let refused = acquire(node, "bad", json!({})).await;
    refused.assert_problem(500, "state-unreadable");
    assert_eq!(refused.body["key"], "bad");
    let refused = many(node, "acquire", json!({ "locks": [{ "key": "a" }, { "key": "bad" }] })).await;
    refused.assert_problem(500, "state-unreadable");
    assert_eq!(refused.body["key"], "bad");
    get(node, "/v1/locks/bad").await.assert_problem(500, "state-unreadable");

    let listed = get(node, "/v1/locks").await;
    assert_eq!(listed.status, 200, "{}", listed.body);
    let keys: Vec<&str> =
        listed.body["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap()).collect();
    assert_eq!((keys, &listed.body["unreadable"]), (vec!["a", "b", "c"], &json!(["bad"])));
    assert_eq!(get(node, "/v1/locks?app=*").await.body["unreadable"], json!([r#"["default","bad"]"#]));
    let second: Value = get(node, "/v1/locks?limit=1&cursor=a").await.body;
    assert_eq!(second["locks"][0]["key"], "b", "{second}");
}

/// Writes the key, so that its state can be spoilt.
async fn written(node: &Node, key: &str) {
    let grant = granted(node, key, json!({})).await;
    assert_eq!(release(node, key, &grant.text("lease_id")).await.status, 200);
}

#[tokio::test]
async fn an_unreadable_state_in_postgres_fails_only_its_own_key() {
    let (database, node) = on_database().await;
    written(&node, "bad").await;
    let mut other = PgConnection::connect(&database).await.unwrap();
    let spoil = "update latchgate.locks set state = '{\"holders\": 7}', version = version + 1 where key = 'bad'";
    assert_eq!(sqlx::query(spoil).execute(&mut other).await.unwrap().rows_affected(), 1);
    an_unreadable_state_fails_only_its_own_key(&node).await;
    sqlx::query("delete from latchgate.locks where key = 'bad'").execute(&mut other).await.unwrap();
    let is_served = || async { acquire(&node, "bad", json!({ "lease_id": "next" })).await.status == 200 };
    assert!(eventually(LONG, is_served).await);
}

#[tokio::test]
async fn an_unreadable_state_in_sqlite_fails_only_its_own_key() {
    let node = embedded().await;
    written(&node, "bad").await;
    let spoil = "update locks set state = 'nonsense', version = version + 1 where key = 'bad'";
    let file = rusqlite::Connection::open(node.dir().join("latchgate.db")).unwrap();
    assert_eq!(file.execute(spoil, ()).unwrap(), 1);
    an_unreadable_state_fails_only_its_own_key(&node).await;
}

#[tokio::test]
async fn an_unreadable_state_in_redis_fails_only_its_own_key() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    written(&node, "bad").await;
    redis.ask(&["set", "latchgate:l:7:default:bad", "7 9000000000000000 - 0: nonsense"]);
    an_unreadable_state_fails_only_its_own_key(&node).await;
}

#[tokio::test]
async fn a_key_of_another_type_in_redis_fails_only_its_own_lock() {
    let redis = Redis::start().await;
    let node = Node::start(BIN, &["--locks", &redis.url()]).await;
    redis.ask(&["lpush", "latchgate:l:7:default:bad", "nonsense"]);
    let callers = Callers::of(&node, "bad");
    others_are_served(&node, &callers).await;
    let codes = callers.stop().await;
    assert!(codes.iter().all(|code| code.starts_with('5')), "{codes:?}");
}

#[tokio::test]
async fn a_slow_operation_does_not_refuse_another() {
    let (database, node) = on_database().await;
    let mut other = PgConnection::connect(&database).await.unwrap();
    let slow = "create function latchgate.slow() returns trigger language plpgsql as $$
        begin if new.operation = 'slow' then perform pg_sleep(0.55); end if; return new; end $$;
        create trigger slow before insert on latchgate.operations for each row execute function latchgate.slow()";
    sqlx::raw_sql(slow).execute(&mut other).await.unwrap();
    for number in 0..2 {
        let body = |operation: &str| json!({ "operation": operation, "contents": number });
        let paid = async {
            // Claims that arrive together share a statement, and its fate.
            let sleeps = "select 1 from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
            let is_begun = async { while sqlx::query(sleeps).fetch_optional(&mut other).await.unwrap().is_none() {} };
            tokio::time::timeout(Duration::from_secs(60), is_begun).await.expect("the slow claim is under way");
            pre(&node, body("pay")).await
        };
        let (_, next) = futures::future::join(pre(&node, body("slow")), paid).await;
        assert_eq!(next.status, 201, "{}", next.body);
    }
}

#[tokio::test]
async fn a_claim_whose_client_has_gone_before_its_answer_is_given_back() {
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
    let charge = |contents: u32| json!({ "operation": "charge", "contents": contents, "on_expiry": "block" });
    let calls = [("/v1/operations/pre", charge(1)), ("/v1/operations/pre/batch", json!({ "operations": [charge(2)] }))];
    for (contents, (path, call)) in (1..).zip(calls) {
        let mut gone = Raw::connect(&node).await;
        gone.send(posting(path, &call)).await;
        until("the claim is in mid-commit", || async { !held_up_at(&database).await.is_empty() }).await;
        let claim = held_up_at(&database).await;
        drop(gone);
        // What gives it back is held up, too.
        until("the node has noticed", || async { held_up_at(&database).await.iter().any(|at| !claim.contains(at)) })
            .await;
        sqlx::query("delete from latchgate.holds_up").execute(&mut other).await.unwrap();
        until("the operation may go", || async { pre(&node, charge(contents)).await.status == 201 }).await;
        sqlx::query("insert into latchgate.holds_up default values").execute(&mut other).await.unwrap();
    }
    let operations = get(&node, "/v1/operations").await.body["operations"].as_array().unwrap().clone();
    assert!(operations.iter().all(|record| record["attempt"] == 1), "{operations:?}");
}

/// The sessions of the database that the trigger holds up. Their ids do not rise for ever.
async fn held_up_at(database: &str) -> Vec<i32> {
    let mut look = PgConnection::connect(database).await.unwrap();
    let waiting = "select held.pid from pg_locks held join pg_stat_activity session using (pid)
        where held.locktype = 'advisory' and held.objid = 7 and session.datname = current_database()";
    sqlx::query_scalar(waiting).fetch_all(&mut look).await.unwrap()
}
