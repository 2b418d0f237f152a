use std::sync::Arc;

use futures::poll;
use latchgate_core::lock::{Event, EventKind, Mode, Note, Owner};
use latchgate_core::{Address, Timestamp};
use latchgate_node::store::{Change, CommitResult, EventCursor, LoggedEvent, Rule, Version, Watched};

use crate::worlds::{EPOCH, FOREVER, World, at, change, event, new, state, tokens};

pub async fn an_event_comes_back_as_it_was(world: &World) {
    let owner = |text: &str| Owner::parse(text).unwrap();
    let awkward = "it's \"so\" \\ {a,b} null \u{2028}🔒 é";
    let full = |kind: EventKind| Event {
        kind,
        at: Timestamp::from_ms(1_700_000_000_000),
        owner: Some(owner(awkward)),
        mode: Mode::Permits(u32::MAX),
        token: (1 << 53) - 1,
        waited_ms: u64::from(u32::MAX) * 1_000,
        held_ms: Some(0),
        expires_at: Some(FOREVER),
        note: Note { reason: Some(awkward.into()), by: Some(owner("by")) },
    };
    let mut events: Vec<Event> = EventKind::ALL.into_iter().map(full).collect();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(1)] {
        events.push(Event::waited(None, mode, 0, Timestamp::from_ms(1)));
        events.push(Event { mode, note: Note::default(), held_ms: None, ..full(EventKind::Granted) });
    }
    let key = at("it's \"a\" {key}🔒");
    world.write_events(&key, &events).await;
    let other = at("other");
    world.store.log(EPOCH, &[(other.clone(), full(EventKind::Waited))]).await.unwrap();
    let mut read = world.all_events().await;
    assert_eq!(read.pop().map(|logged| logged.address), Some(other));
    assert!(read.iter().all(|logged| logged.address == key));
    assert_eq!(read.into_iter().map(|logged| logged.event).collect::<Vec<_>>(), events);
}

pub async fn events_are_read_in_the_order_in_which_they_happened(world: &World) {
    const KEYS: u64 = 300;
    const EVENTS: u64 = 3;
    let keys: Vec<Address> = (0..KEYS).map(|number| at(&format!("key-{number}"))).collect();
    let mut versions = vec![Version::ABSENT; keys.len()];
    let mut expected = vec![Vec::new(); keys.len()];
    // The first round inserts rows, the others update them.
    for round in 1..=3 {
        let mut batch = Vec::new();
        for ((key, version), expected) in keys.iter().zip(&versions).zip(&mut expected) {
            let numbers = round * 10..round * 10 + EVENTS;
            expected.extend(numbers.clone());
            let events = numbers.map(|number| event(EventKind::Granted, number)).collect();
            batch.push(Change { events, ..change(key, *version, state(round)) });
        }
        versions = world.commit(&batch).await.into_iter().map(Option::unwrap).collect();
    }
    let read = world.all_events().await;
    assert_eq!(read.len() as u64, 3 * KEYS * EVENTS);
    for (key, expected) in keys.iter().zip(expected) {
        let of_key: Vec<LoggedEvent> = read.iter().filter(|logged| logged.address == *key).cloned().collect();
        assert_eq!(tokens(&of_key), expected, "{key:?}");
    }
    assert!(read.is_sorted_by(|one, next| one.cursor < next.cursor));
}

pub async fn only_changes_that_are_made_have_events(world: &World) {
    let (changed, stale, taken, fresh) = (at("changed"), at("stale"), at("taken"), at("fresh"));
    let mut expected = world.write(&changed, state(1), FOREVER).await;
    let outdated = world.write(&stale, state(1), FOREVER).await;
    world.write(&stale, state(2), FOREVER).await;
    world.write(&taken, state(1), FOREVER).await;
    let with_events = |change: Change, number: u64| Change { events: two_events(number), ..change };

    // The first batch only updates rows, the second also inserts some.
    let batch =
        [with_events(change(&stale, outdated, state(3)), 10), with_events(change(&changed, expected, state(3)), 20)];
    let versions = world.commit(&batch).await;
    assert!(versions[0].is_none() && versions[1].is_some(), "{versions:?}");
    expected = versions[1].unwrap();
    let batch = [
        with_events(new(&taken, state(4)), 30),
        with_events(new(&fresh, state(4)), 40),
        with_events(change(&stale, outdated, state(4)), 50),
        change(&changed, expected, state(4)),
    ];
    let versions = world.commit(&batch).await;
    assert_eq!(versions.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, true]);
    assert_eq!(tokens(&world.all_events().await), [20, 21, 40, 41]);
}

pub async fn locked_commits_write_events(world: &World) {
    let (there, fresh) = (at("a"), at("b"));
    let version = world.write(&there, state(1), FOREVER).await;
    let with_events = |expected: Version, number: u64| {
        let there = Change { events: two_events(number), ..change(&there, expected, state(number)) };
        [there, Change { events: two_events(number + 2), ..new(&fresh, state(number)) }]
    };
    let made = world.commit_all(&with_events(version, 10)).await;
    let version = made[0].unwrap();
    // The second row exists by now, so neither change is made and no event is written.
    assert_eq!(world.commit_all(&with_events(version, 20)).await, [None, None]);
    loop {
        let (loaded, locked) = world.locks().lock(EPOCH, std::slice::from_ref(&there)).await.unwrap();
        let committed = locked.commit(loaded.now, &with_events(version, 30), Rule::Each).await.unwrap();
        let CommitResult::Checked(versions) = committed.result else { continue };
        assert!(versions[0].is_some() && versions[1].is_none());
        break;
    }
    assert_eq!(tokens(&world.all_events().await), [10, 11, 12, 13, 30, 31]);
}

pub async fn events_without_a_change_are_written(world: &World) {
    let (a, b) = (at("a"), at("b"));
    let before = world.write(&a, state(1), FOREVER).await;
    let events = [(&b, 1), (&a, 2), (&b, 3)];
    let events = events.map(|(key, number)| (key.clone(), event(EventKind::Waited, number)));
    world.store.log(EPOCH, &events).await.unwrap();
    world.store.log(EPOCH, &[]).await.unwrap();
    let read: Vec<_> = world.all_events().await.into_iter().map(|logged| (logged.address, logged.event)).collect();
    assert_eq!(read, events);
    assert_eq!(world.load(&a).await.version, before);
}

pub async fn a_commit_dropped_half_way_has_its_events_if_it_was_made(world: &World) {
    let key = at("key");
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    for polls in (0..60).step_by(3) {
        let dropped = 1_000 + polls;
        let expected = world.load(&key).await.version;
        let change_of = |expected: Version, number: u64| Change {
            events: vec![event(EventKind::Granted, number)],
            ..change(&key, expected, state(number))
        };
        let changes = [change_of(expected, dropped)];
        let now = world.now().await;
        let mut commit = world.store.commit(now, &changes);
        for _ in 0..polls {
            if poll!(&mut commit).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(commit);
        // The replaced state shows whether the dropped commit was made. After this commit it can no longer be.
        let replaced = loop {
            let stored = world.load(&key).await;
            if world.commit(&[change_of(stored.version, 2_000 + polls)]).await[0].is_some() {
                break stored.state;
            }
        };
        let mut made = made.lock().unwrap();
        if replaced == state(dropped) {
            made.push(dropped);
        }
        made.push(2_000 + polls);
    }
    let of_key = world.all_events().await;
    assert_eq!(tokens(&of_key), *made.lock().unwrap());
    let history = world.events_until(&Watched::Key(key.key.clone()), EventCursor::START, 7, 2_057).await;
    assert_eq!(history, of_key);
}

fn two_events(number: u64) -> Vec<Event> {
    vec![event(EventKind::Granted, number), event(EventKind::Released, number + 1)]
}
