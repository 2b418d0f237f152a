use latchgate_core::{Address, App, Timestamp};
use latchgate_node::store::engine_record::{EngineState, Epoch};
use latchgate_node::store::{Change, Collected, Stored};
use latchgate_testkit::eventually;

use crate::worlds::{EPOCH, FOREVER, PATIENCE, World, at, change, is_over, new, of_app, pages, state};

const OVER: Timestamp = Timestamp::from_ms(1);

pub async fn only_rows_past_their_time_are_collected_page_by_page(world: &World) {
    let of_each = |app| (0..7).map(move |number| of_app(app, &format!("key-{number}")));
    let addresses: Vec<Address> = ["b", "default", "a"].into_iter().flat_map(of_each).collect();
    let ends = [OVER, FOREVER, world.now().await.plus_ms(3_600_000)];
    let row = |(index, address): (usize, &Address)| Change { keep_until: ends[index % 3], ..new(address, state(1)) };
    let batch: Vec<Change> = addresses.iter().enumerate().map(row).collect();
    assert!(world.commit(&batch).await.iter().all(Option::is_some));
    // It is renewed.
    world.write(&addresses[0], state(1), FOREVER).await;

    let steps = pages(async |from| {
        let collected = world.locks().collect(EPOCH, from, 4).await.unwrap();
        assert!(collected.next.as_deref() > from || collected.next.is_none(), "{:?} after {from:?}", collected.next);
        (collected.removed, collected.next)
    });
    let removed = steps.await;
    assert!(removed.len() <= 6 && removed.iter().all(|removed| *removed <= 4), "{removed:?}");
    assert_eq!(removed.iter().sum::<u64>(), 6);
    for (index, address) in addresses.iter().enumerate() {
        let is_there = world.load(address).await.state == state(1);
        assert_eq!(is_there, index == 0 || index % 3 != 0, "{address:?}");
    }
    assert_eq!(world.collect(100).await, Collected::default());
}

pub async fn a_row_is_due_from_its_notice_until_a_commit_has_handled_it(world: &World) {
    let later = world.now().await.plus_ms(3_600_000);
    let keys = ["first", "last", "later", "never", "settled"].map(at);
    let [first, last, is_later, never, settled] = &keys;
    let over = Change { keep_until: OVER, ..new(first, state(1)) };
    let batch = [
        Change { notice_at: Some(OVER), ..over.clone() },
        Change { notice_at: Some(OVER), ..new(last, state(1)) },
        Change { notice_at: Some(later), ..new(is_later, state(1)) },
        new(never, state(1)),
        Change { notice_at: Some(OVER), ..new(settled, state(1)) },
    ];
    let versions = world.commit(&batch).await;
    // A change without a notice removes the old notice.
    assert!(world.commit(&[change(settled, versions[4].unwrap(), state(2))]).await[0].is_some());
    for _ in 0..2 {
        let due = vec![first.clone(), last.clone()];
        assert_eq!(world.collect(100).await, Collected { due, ..Collected::default() });
    }
    let page = world.collect(1).await;
    assert_eq!(page.due, std::slice::from_ref(first));
    assert_eq!(world.locks().collect(EPOCH, page.next.as_deref(), 100).await.unwrap().due, std::slice::from_ref(last));
    assert!(world.commit(&[Change { expected: versions[0].unwrap(), ..over }]).await[0].is_some());
    let due = vec![last.clone()];
    assert_eq!(world.collect(100).await, Collected { removed: 1, due, ..Collected::default() });
}

pub async fn a_state_is_collected_only_in_an_epoch_whose_tokens_are_all_higher(world: &World) {
    for (key, number) in [("lower", EPOCH.number() - 1), ("equal", EPOCH.number()), ("higher", EPOCH.number() + 5)] {
        world.write(&at(key), state(number), OVER).await;
    }
    let higher = state(EPOCH.number() + 5).token();
    for removed in [1, 0] {
        let collected = world.collect(100).await;
        assert_eq!((collected.removed, collected.token_kept), (removed, Some(higher)));
        assert_eq!(world.keys("").await, ["equal", "higher"]);
    }
    let above = Epoch::above_token(higher);
    is_over(world.locks().collect(above, None, 100).await);
    assert_eq!(world.keys("").await, ["equal", "higher"]);
    world.turn(EngineState::Active, above).await;
    is_over(world.locks().collect(EPOCH, None, 100).await);
    let collected = world.locks().collect(above, None, 100).await.unwrap();
    assert_eq!((collected.removed, collected.token_kept), (2, None));
    assert!(world.keys("").await.is_empty());
    // What was evaluated before the states were removed, with lower tokens, is refused.
    is_over(world.store.commit(world.now().await, &[new(&at("higher"), state(1))]).await);
}

pub async fn a_row_created_again_never_has_an_old_version(world: &World) {
    let key = at("key");
    let mut versions = Vec::new();
    for round in 0..3 {
        for number in 1..=4 {
            let version = world.write(&key, state(10 * round + number), OVER).await;
            assert!(!versions.contains(&version), "{version:?} after {versions:?}");
            versions.push(version);
        }
        assert_eq!(world.collect(10).await.removed, 1);
        // A batch with new rows is another statement.
        let late = change(&key, *versions.last().unwrap(), state(100));
        assert_eq!(world.commit(std::slice::from_ref(&late)).await, [None]);
        let made = world.commit(&[late, new(&at(&format!("other-{round}")), state(1))]).await;
        assert!(made[0].is_none() && made[1].is_some(), "{made:?}");
        assert_eq!(world.load(&key).await, Stored::default());
        // Versions are made from the clock, in ms. Nodes keep every row for at least a minute, so they never collide.
        let collected_at = world.now().await;
        assert!(eventually(PATIENCE, || async { world.now().await > collected_at }).await);
    }
    world.write(&key, state(99), FOREVER).await;
    for old in versions {
        assert_eq!(world.commit(&[change(&key, old, state(100))]).await, [None]);
    }
    assert_eq!(world.load(&key).await.state, state(99));
}

pub async fn rows_that_name_no_lock_stop_neither_collection_nor_a_copy(world: &World) {
    let unnamed = world.write_unnamed().await;
    for limit in [1, 2, 100] {
        world.write(&at("over"), state(1), OVER).await;
        let steps = pages(async |from| {
            let collected = world.locks().collect(EPOCH, from, limit).await.unwrap();
            ((collected.removed, collected.unnamed), collected.next)
        });
        assert_eq!(sums(steps.await), (1, unnamed), "{limit} at a time");
    }
    world.write(&at("over"), state(1), OVER).await;
    for limit in [1, 2, 100] {
        let dumped = pages(async |from| {
            let page = world.locks().dump(from, limit).await.unwrap();
            ((page.items.len() as u64, page.unreadable.len() as u64), page.next)
        });
        assert_eq!(sums(dumped.await), (1, unnamed), "{limit} at a time");
        let listed = world.store.list(&App::default(), "", None, limit).await.unwrap();
        assert_eq!(listed.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["over"], "{limit} at a time");
    }
}

fn sums(pages: Vec<(u64, u64)>) -> (u64, u64) {
    pages.into_iter().fold((0, 0), |(one, other), page| (one + page.0, other + page.1))
}
