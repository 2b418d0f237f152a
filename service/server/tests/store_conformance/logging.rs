use futures::poll;
use latchgate_core::Timestamp;
use latchgate_core::lock::{Event, EventKind, Mode, Note, Owner};
use latchgate_node::store::{Change, EventCursor, Rule, Version, Watched};

use crate::worlds::{EPOCH, FOREVER, World, at, change, event, new, state, tokens};

/// With a change, or without one.
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
    let (key, other) = (at("it's \"a\" {key}🔒"), at("other"));
    world.write_events(&key, &events).await;
    let before = world.load(&key).await.version;
    let alone =
        [(&other, 1), (&key, 2), (&other, 3)].map(|(key, number)| (key.clone(), event(EventKind::Waited, number)));
    world.store.log(EPOCH, &alone).await.unwrap();
    world.store.log(EPOCH, &[]).await.unwrap();
    assert_eq!(world.load(&key).await.version, before);
    let read = world.all_events().await.into_iter().map(|logged| (logged.address, logged.event));
    let written = events.into_iter().map(|event| (key.clone(), event)).chain(alone);
    assert_eq!(read.collect::<Vec<_>>(), written.collect::<Vec<_>>());
}

pub async fn locked_commits_write_events(world: &World) {
    let (there, fresh) = (at("a"), at("b"));
    let version = world.write(&there, state(1), FOREVER).await;
    let with_events = |expected: Version, number: u64| {
        let there = Change { events: two_events(number), ..change(&there, expected, state(number)) };
        [there, Change { events: two_events(number + 2), ..new(&fresh, state(number)) }]
    };
    let version = world.commit_locked(&with_events(version, 10), Rule::AllOrNone).await[0].unwrap();
    // The second row exists by now. Of all or none, no change is made and no event is written.
    assert_eq!(world.commit_locked(&with_events(version, 20), Rule::AllOrNone).await, [None, None]);
    let versions = world.commit_locked(&with_events(version, 30), Rule::Each).await;
    assert!(versions[0].is_some() && versions[1].is_none());
    assert_eq!(tokens(&world.all_events().await), [10, 11, 12, 13, 30, 31]);
}

pub async fn a_commit_dropped_half_way_has_its_events_if_it_was_made(world: &World) {
    let key = at("key");
    let mut made = Vec::new();
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
        if replaced == state(dropped) {
            made.push(dropped);
        }
        made.push(2_000 + polls);
    }
    let of_key = world.all_events().await;
    assert_eq!(tokens(&of_key), made);
    let history = world.events_until(&Watched::Key(key.key.clone()), EventCursor::START, 7, 2_057).await;
    assert_eq!(history, of_key);
}

fn two_events(number: u64) -> Vec<Event> {
    vec![event(EventKind::Granted, number), event(EventKind::Released, number + 1)]
}
