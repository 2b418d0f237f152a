//! More promises to nodes that share a Postgres.

use std::time::{Duration, Instant};

use latchgate_core::lock::NodeId;
use latchgate_node::store::postgres::{PostgresConfig, PostgresStore};
use latchgate_node::store::{Change, CommitResult, RecordStore as _, Rule, StoreError, Stored, WakeUp};
use latchgate_testkit::postgres::shared_database;
use latchgate_testkit::proxy::Proxy;
use latchgate_testkit::stores::{self, Place};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::waking::next;
use crate::worlds::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_a_schema_is_refused_until_nodes_that_start_make_it() {
    let config = stores::postgres_config(shared_database().await);
    let Err(error) = PostgresStore::open(&config).await else { panic!("opened without a schema") };
    assert!(error.to_string().contains("latchgate migrate"), "{error}");
    let start = || async {
        PostgresStore::migrate(&config).await?;
        PostgresStore::open(&config).await
    };
    for store in futures::future::join_all([start(), start(), start()]).await {
        store.unwrap().ping().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_all_makes_no_change_if_another_commit_inserts_one_of_its_rows() {
    // A row that does not exist cannot be locked.
    let world = postgres().await;
    // The other commit is made, or waits for a row that the locker has locked.
    for is_waiting in [false, true] {
        let attempt = async |round| {
            let [fresh, there] = ["a", "b"].map(|key| at(&format!("{round}-{is_waiting}-{key}")));
            let version = world.write(&there, state(1), FOREVER).await;
            let changes = |number| vec![new(&fresh, state(number)), change(&there, version, state(number))];
            let (_, locked) = world.locks().lock(EPOCH, &[fresh.clone(), there.clone()]).await.unwrap();
            let other = tokio::spawn({
                let (world, mut changes) = (world.clone(), changes(2));
                changes.truncate(if is_waiting { 2 } else { 1 });
                async move { world.store.commit(world.now().await, &changes).await }
            });
            let has_waited = until_waiting(&world, 1, &other).await;
            let committed = locked.commit(world.now().await, &changes(3), Rule::AllOrNone).await.unwrap();
            let other = other.await.unwrap().unwrap();
            let results = [&committed.result, &other.result];
            let is_in_time = has_waited == is_waiting && !results.contains(&&CommitResult::ClockOff);
            if is_in_time {
                assert_eq!(committed.result, CommitResult::Checked(vec![None, None]));
                assert!(matches!(other.result, CommitResult::Checked(made) if made.iter().all(Option::is_some)));
                assert_eq!(world.load(&fresh).await.state, state(2));
                assert_eq!(world.load(&there).await.state, state(if is_waiting { 2 } else { 1 }));
            }
            is_in_time
        };
        until_in_time(attempt).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_insert_and_update_the_same_rows_do_not_deadlock() {
    let world = postgres().await;
    let commit = |changes: Vec<Change>| {
        let world = world.clone();
        tokio::spawn(async move { world.store.commit(world.now().await, &changes).await })
    };
    let mut blocker = world.session().await;
    let attempt = async |round| {
        let [a, b, c] = ["a", "b", "c"].map(|key| at(&format!("{round}-{key}")));
        let version = world.write(&c, state(1), FOREVER).await;
        // The first batch inserts a, and waits because the blocker is inserting b.
        let insert = format!(
            "begin; insert into latchgate.locks (app, key, version, replaces, keep_until, state)
             values ('default', '{}', 1, 0, 0, '')",
            b.key.as_str()
        );
        run(&mut blocker, &insert).await;
        // It tries to insert c, which exists.
        let first = commit(vec![new(&a, state(2)), new(&b, state(2)), new(&c, state(2))]);
        let first_waits = until_waiting(&world, 1, &first).await;
        // The second batch updates c, and waits because the first is inserting a.
        let second = commit(vec![new(&a, state(3)), change(&c, version, state(3))]);
        let both_wait = first_waits && until_waiting(&world, 2, &second).await;
        run(&mut blocker, "rollback").await;
        let made = [first.await.unwrap().unwrap().result, second.await.unwrap().unwrap().result];
        assert!(both_wait || made.contains(&CommitResult::ClockOff), "{made:?}");
        if both_wait {
            let made = made.map(|result| match result {
                CommitResult::Checked(versions) => versions.iter().map(Option::is_some).collect(),
                CommitResult::ClockOff => vec![],
            });
            assert_eq!(made, [vec![true, true, false], vec![false, true]]);
        }
        both_wait
    };
    until_in_time(attempt).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_inserted_while_locking_waits_is_locked_too() {
    let world = postgres().await;
    let [fresh, there] = ["a", "b"].map(at);
    world.write(&there, state(1), FOREVER).await;
    let mut blocker = world.session().await;
    run(&mut blocker, "begin; select from latchgate.locks where key = 'b' for update").await;
    let locking = tokio::spawn({
        let (world, addresses) = (world.clone(), [fresh.clone(), there.clone()]);
        async move { world.locks().lock(EPOCH, &addresses).await }
    });
    assert!(until_waiting(&world, 1, &locking).await);
    let version = world.write(&fresh, state(2), FOREVER).await;
    run(&mut blocker, "rollback").await;
    let (loaded, locked) = locking.await.unwrap().unwrap();
    assert_eq!(loaded.states[0], Stored { version, state: state(2) });
    let other = tokio::spawn({
        let (world, change) = (world.clone(), change(&fresh, version, state(3)));
        async move { world.commit(&[change]).await }
    });
    assert!(until_waiting(&world, 1, &other).await, "a row that was loaded is not locked");
    locked.give_up().await.unwrap();
    assert!(other.await.unwrap()[0].is_some());
}

/// The store also keeps its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_postgres_leaves_no_doubt_about_a_commit() {
    let world = postgres().await;
    world.write(&at("key"), state(1), FOREVER).await;
    let mut other = world.session().await;
    let before = backends(&mut other).await;
    run(&mut other, "alter table latchgate.locks rename to away").await;
    let committed = loop {
        match world.store.commit(world.now().await, &[new(&at("other"), state(1))]).await {
            Ok(committed) if committed.result == CommitResult::ClockOff => {} // The machine was too slow.
            result => break result,
        }
    };
    assert!(matches!(committed, Err(StoreError::Unavailable(_))), "{committed:?}");
    assert!(matches!(world.store.probe().await, Err(StoreError::Unavailable(_))));
    run(&mut other, "alter table latchgate.away rename to locks").await;
    world.store.probe().await.unwrap();
    assert!(world.commit(&[new(&at("other"), state(1))]).await[0].is_some());
    // On a busy machine the store may have opened another one beside it.
    let after = backends(&mut other).await;
    assert!(
        before.iter().all(|pid| after.contains(pid)),
        "of {before:?}, only {after:?} are left: a connection was closed"
    );
}

/// The server's processes for connections to this database.
async fn backends(observer: &mut PgConnection) -> Vec<i32> {
    let pids = "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'
        order by pid";
    sqlx::query_scalar(pids).fetch_all(observer).await.unwrap()
}

async fn run(session: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(session).await.unwrap();
}

/// How many sessions of the store's database are so.
async fn count(observer: &mut PgConnection, condition: &str) -> i64 {
    let count = format!("select count(*) from pg_stat_activity where datname = current_database() and {condition}");
    sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(observer).await.unwrap()
}

/// Waits until `sessions` of them wait for a lock. Returns `false` if `done` has finished before.
pub async fn until_waiting<T>(world: &World, sessions: i64, done: &tokio::task::JoinHandle<T>) -> bool {
    let mut watch = world.session().await;
    while count(&mut watch, "wait_event_type = 'Lock'").await != sessions {
        if done.is_finished() {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_the_server_refuses_fails_no_other_change_of_its_batch() {
    let Place::Postgres(config) = Place::postgres().await else { unreachable!() };
    let config = PostgresConfig { row_wait: Duration::from_millis(100), ..config };
    let world = World::on(Place::Postgres(config)).await;
    let refuse = "alter table latchgate.locks add constraint none_is_bad check (key not like 'bad%')";
    run(&mut world.session().await, refuse).await;
    let is_bad = |number: &usize| number % 7 == 3;
    let addresses: Vec<_> =
        (0..14).map(|number| at(&format!("{}-{number}", if is_bad(&number) { "bad" } else { "good" }))).collect();
    let (bad, good): (Vec<usize>, Vec<usize>) = (0..14).partition(is_bad);
    let (mut left, mut busy) = ((0..14).collect::<Vec<usize>>(), Vec::new());
    let until = Instant::now() + PATIENCE;
    // While the machine is too slow, an attempt writes nothing, or not all.
    while !left.is_empty() && Instant::now() < until {
        let changes: Vec<Change> = left.iter().map(|index| new(&addresses[*index], state(1))).collect();
        let committed = match world.store.commit(world.now().await, &changes).await {
            Err(StoreError::Unavailable(_)) if left.len() == 1 => break,
            committed => committed.unwrap(),
        };
        let CommitResult::Checked(versions) = committed.result else { continue };
        busy.extend(committed.busy.iter().map(|position| left[*position]));
        let (_, rest) = left.iter().zip(versions).partition::<Vec<_>, _>(|(_, version)| version.is_some());
        left = rest.into_iter().map(|(index, _)| *index).filter(|index| !busy.contains(index)).collect();
    }
    busy.extend(left);
    busy.sort_unstable();
    assert_eq!(busy, bad);
    for index in good {
        assert_eq!(world.load(&addresses[index]).await.state, state(1));
    }
    // Alone it fails, and says why.
    let alone = world.store.commit(world.now().await, &[new(&addresses[bad[0]], state(1))]).await;
    assert!(matches!(&alone, Err(StoreError::Unavailable(why)) if why.contains("none_is_bad")), "{alone:?}");
}

/// Waits until no session of the store is so.
async fn until_none(watch: &mut PgConnection, condition: &str) {
    while count(watch, &format!("application_name = 'latchgate' and {condition}")).await > 0 {}
}

/// Sessions that have been idle for longer than those that are used without asking are rested.
const WORKING: &str = "(state <> 'idle' or state_change > now() - interval '200 ms')";

/// A burst of everything: writing, reading and locked states.
async fn burst(world: &World, round: u64) {
    let once = async |number: u64| {
        let address = at(&format!("{round}-{number}"));
        world.write(&address, state(1), FOREVER).await;
        world.store.last_event().await.unwrap();
        let (loaded, locked) = world.locks().lock(EPOCH, std::slice::from_ref(&address)).await.unwrap();
        assert_eq!(loaded.states[0].state, state(1));
        locked.give_up().await.unwrap();
    };
    futures::future::join_all((0..6).map(once)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_were_closed_while_idle_cost_no_call() {
    let Place::Postgres(config) = Place::postgres().await else { unreachable!() };
    let mut watch = PgConnection::connect(&config.url).await.unwrap();
    let (port, database) = config.url.rsplit_once(':').unwrap().1.split_once('/').unwrap();
    let (port, database) = (port.parse().unwrap(), database.split('?').next().unwrap());
    let link = Proxy::start(port).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/{database}", link.port());
    let world = World::on(Place::Postgres(PostgresConfig { url, ..config })).await;
    let node = NodeId::new("node");
    let mut receiver = world.store.wake_ups(&node).await.unwrap();
    burst(&world, 0).await;
    until_none(&mut watch, WORKING).await;
    let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and application_name = 'latchgate'";
    run(&mut watch, terminate).await;
    // The listener comes back at once.
    let is_of_pool = "query not ilike 'listen%'";
    until_none(&mut watch, is_of_pool).await;
    burst(&world, 1).await;
    assert_eq!(next(&mut receiver).await, WakeUp::All);
    until_none(&mut watch, WORKING).await;
    // As a firewall that has forgotten them.
    link.cut();
    until_none(&mut watch, is_of_pool).await;
    link.point_at(port);
    burst(&world, 2).await;
    assert_eq!(next(&mut receiver).await, WakeUp::All);
    world.store.wake(&[(node, at("key"))]).await.unwrap();
    assert_eq!(next(&mut receiver).await, WakeUp::Key(at("key")));
}
