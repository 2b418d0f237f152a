//! In which term a commit is made, and on which server.

use latchgate::store::postgres::PostgresStore;
use latchgate::store::{Change, CommitResult, LockStore, Stored, Version};
use sqlx::{Connection, PgConnection};

use crate::worlds::{World, at, change, new, postgres_config, state};

impl World {
    /// Of a commit judged in the term that the store knows.
    async fn commit_in_term(&self, change: Change) -> CommitResult {
        loop {
            let now = self.now().await;
            let change = Change { term: self.store.term().id, ..change.clone() };
            let result = self.store.commit(now, &[change]).await.unwrap().result;
            if result != CommitResult::ClockOff {
                return result;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_judged_in_a_term_that_is_over_writes_nothing() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let world = World::of(PostgresStore::open(&config).await.unwrap());
    let before = world.store.term();
    PostgresStore::hold_off(&config, Some(600_000)).await.unwrap();

    assert_eq!(world.store.term(), before, "nobody has told it yet");
    let key = at("key");
    let late = Change { term: before.id, ..new(&key, state(1)) };
    let (loaded, locked) = world.store.lock(std::slice::from_ref(&key)).await.unwrap();
    assert_eq!(
        world.store.commit(loaded.now, std::slice::from_ref(&late)).await.unwrap().result,
        CommitResult::TermOver
    );
    let now = world.store.term();
    assert!(now.id != before.id && now.hold_off(loaded.now).is_some());
    assert_eq!(locked.commit_all(loaded.now, &[late]).await.unwrap().result, CommitResult::TermOver);
    assert_eq!(world.load(&key).await.version, Version::ABSENT);
    assert!(
        matches!(world.commit_in_term(new(&key, state(1))).await, CommitResult::Checked(versions) if versions[0].is_some())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_another_timeline_the_first_to_come_begins_a_hold_off_of_the_longest_lease() {
    let config = postgres_config().await;
    PostgresStore::migrate(&config).await.unwrap();
    let (one, other) = (PostgresStore::open(&config).await.unwrap(), PostgresStore::open(&config).await.unwrap());
    one.expect_leases_of(700_000).await.unwrap();
    other.expect_leases_of(300_000).await.unwrap();
    // As if this server had been promoted since.
    let mut connection = PgConnection::connect(&config.url).await.unwrap();
    sqlx::query("update cluster set timeline = '00000000'").execute(&mut connection).await.unwrap();

    let (one, other) = (World::of(one), World::of(other));
    let change = Change { term: one.store.term().id, ..new(&at("key"), state(1)) };
    let now = other.now().await;
    assert_eq!(one.store.commit(now, &[change]).await.unwrap().result, CommitResult::TermOver);
    let now = other.now().await;
    let (begun, known) = (one.store.term(), other.store.term());
    assert_eq!(begun, known);
    let left_ms = known.hold_off(now).unwrap().ms_since(now);
    assert!((600_000..=700_200).contains(&left_ms), "{left_ms}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_of_a_lost_commit_is_not_given_again() {
    let world = crate::worlds::postgres().await;
    let key = at("key");
    let first = world.write(&key, state(1), crate::worlds::FOREVER).await;
    // Two servers go on from here, each with a commit of its own.
    let here = world.commit(&[change(&key, first, state(2))]).await[0].unwrap();
    let there = crate::worlds::postgres().await;
    let same = there.write(&key, state(1), crate::worlds::FOREVER).await;
    let elsewhere = there.commit(&[change(&key, same, state(3))]).await[0].unwrap();
    assert_ne!(here, elsewhere);
    assert_eq!(there.commit(&[change(&key, here, state(4))]).await, [None]);
    assert_eq!(there.load(&key).await, Stored { version: elsewhere, state: state(3) });
}
