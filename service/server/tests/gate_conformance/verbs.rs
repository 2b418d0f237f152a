//! What every store promises, verb by verb.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use latchgate::store::gate::{Change, EXAMINED_MAX, Filter, ListError, Listing, Stored, WakeUp, Write, Written};
use latchgate_core::gate::{
    CONTENTS_KEPT_MAX_BYTES, Command, Description, Label, OnExpiry, OperationName, OperationRecord, Post, Report,
    Retention, State, step,
};
use latchgate_core::{App, CLOCK_BOUND_MS, Timestamp};
use latchgate_testkit::eventually;

use crate::on_every_store;
use crate::world::{FENCE, HOUR_MS, Operation, World};

on_every_store! {
    an_id_is_claimed_once_and_a_second_claim_is_shown_the_first,
    a_record_comes_back_as_it_was_written,
    a_record_comes_back_with_its_description,
    a_replacement_needs_the_version_that_was_seen,
    a_record_that_was_removed_and_claimed_anew_is_not_taken_for_the_old_one,
    a_clock_that_is_off_writes_nothing,
    apps_do_not_see_each_other,
    a_listing_of_all_apps_has_each_record_with_its_app,
    every_visible_record_is_listed_once_over_all_pages,
    a_rare_record_is_found_behind_more_than_one_page_examines,
    suspects_are_found_among_others,
    what_stays_is_listed_while_other_records_go,
    a_cursor_of_nobody_is_refused,
    what_is_over_goes_a_batch_at_a_time_and_nothing_else_does,
    every_node_is_told_of_an_end_that_is_waited_for,
}

async fn load(world: &World, operation: &Operation) -> Option<Stored> {
    world.stores[1].load(FENCE, &operation.address).await.unwrap().answer
}

async fn replace(world: &World, operation: &Operation, seen: &Stored, record: Option<&OperationRecord>) -> Written {
    loop {
        let change = Change { expected: Some(seen.version), record, wakes: false };
        let replaced = world
            .store()
            .write(Write { fence: FENCE, now: world.now().await, address: &operation.address, change })
            .await
            .unwrap();
        if replaced.answer != Written::ClockOff {
            return replaced.answer;
        }
    }
}

async fn an_id_is_claimed_once_and_a_second_claim_is_shown_the_first(world: World) {
    let operation = world.operation();
    let now = world.now().await;
    let (first, second) = (operation.started(now, |_| {}), operation.started(now, |_| {}));
    world.put(&operation, &first).await;
    let shown = world.stores[1]
        .write(Write {
            fence: FENCE,
            now: world.now().await,
            address: &operation.address,
            change: Change::claim(&second),
        })
        .await
        .unwrap()
        .answer;
    let Written::Exists(shown) = shown else { panic!("{shown:?}") };
    assert_eq!(shown.record, first);
    assert_eq!(load(&world, &operation).await, Some(*shown));
}

async fn a_record_comes_back_as_it_was_written(world: World) {
    let now = world.now().await;
    let texts = [r#"{"text":"\u0000 é 🔒 \\ \" \n","big":1e20}"#.to_owned(), format!("\"{}\"", "x".repeat(65_000))];
    let records = texts.map(|text| with_result(&world, now, text));
    let (blocked, permanent) = (world.operation(), world.operation());
    let blocked_record = blocked.started(now, |claim| claim.on_expiry = OnExpiry::Block);
    let permanent_record = permanent.ended(now, |post| post.retention = Some(Retention::Forever));
    let more = [(blocked, blocked_record), (permanent, permanent_record)];
    for (operation, record) in records.into_iter().chain(more) {
        world.put(&operation, &record).await;
        assert_eq!(load(&world, &operation).await.unwrap().record, record);
    }
    assert_eq!(load(&world, &world.operation()).await, None);
}

async fn a_record_comes_back_with_its_description(world: World) {
    let now = world.now().await;
    let description = Description {
        label: Label::parse("büro-7: \" \\ 🔒 \u{202e}").ok(),
        metadata: Some(r#"{"a":"\u0000\n","n":1e20}"#.into()),
        contents: Some(format!(r#"["\u0000","{}"]"#, "x".repeat(CONTENTS_KEPT_MAX_BYTES - 13)).into()),
        api_key: "0123456789ab".parse().ok(),
    };
    assert!(description.label.is_some() && description.api_key.is_some());
    let stored = description.into_stored();
    let operation = world.operation();
    let record = operation.started(now, |claim| claim.description.clone_from(&stored));
    world.put(&operation, &record).await;
    assert_eq!(load(&world, &operation).await.unwrap().record, record);
    // A take-over remembers it with the attempt that it replaces.
    let later = now.plus_ms(2 * HOUR_MS);
    let taken_over = step(Some(record), operation.claim_with(|_| {}), later).record.unwrap();
    let seen = load(&world, &operation).await.unwrap();
    assert!(matches!(replace(&world, &operation, &seen, Some(&taken_over)).await, Written::Done(_)));
    assert_eq!(load(&world, &operation).await.unwrap().record, taken_over);
    assert!(format!("{:?}", taken_over.phase).contains("büro-7") && taken_over.description.is_none());
    let (mut listed, _) = list_all(&world, &App::default(), &Filter::default(), 1_000).await;
    assert_eq!(listed.remove(&operation.address.id.to_string()), Some(taken_over));
}

fn with_result(world: &World, now: Timestamp, result: String) -> (Operation, OperationRecord) {
    let operation = world.operation();
    let record = operation.ended(now, |post| post.result = Some(result.into()));
    (operation, record)
}

async fn a_replacement_needs_the_version_that_was_seen(world: World) {
    let operation = world.operation();
    let now = world.now().await;
    world.put(&operation, &operation.started(now, |_| {})).await;
    let first = load(&world, &operation).await.unwrap();
    let done = operation.ended(now, |_| {});
    assert!(matches!(replace(&world, &operation, &first, Some(&done)).await, Written::Done(_)));
    let second = load(&world, &operation).await.unwrap();
    assert_eq!(second.record, done);
    assert_ne!(second.version, first.version);

    assert_eq!(replace(&world, &operation, &first, Some(&first.record)).await, Written::Moved);
    assert_eq!(replace(&world, &operation, &first, None).await, Written::Moved);
    assert_eq!(load(&world, &operation).await.as_ref(), Some(&second));

    assert!(matches!(replace(&world, &operation, &second, None).await, Written::Done(_)));
    assert_eq!(load(&world, &operation).await, None);
    assert_eq!(replace(&world, &operation, &second, Some(&done)).await, Written::Moved);
    assert_eq!(load(&world, &operation).await, None);
}

async fn a_record_that_was_removed_and_claimed_anew_is_not_taken_for_the_old_one(world: World) {
    let operation = world.operation();
    let record = operation.started(world.now().await, |_| {});
    world.put(&operation, &record).await;
    let old = load(&world, &operation).await.unwrap();
    assert!(matches!(replace(&world, &operation, &old, None).await, Written::Done(_)));
    world.put(&operation, &record).await;
    assert_eq!(replace(&world, &operation, &old, None).await, Written::Moved);
    assert_eq!(load(&world, &operation).await.unwrap().record, record);
}

async fn a_clock_that_is_off_writes_nothing(world: World) {
    let (claimed, unclaimed) = (world.operation(), world.operation());
    let now = world.now().await;
    world.put(&claimed, &claimed.started(now, |_| {})).await;
    let seen = load(&world, &claimed).await.unwrap();
    let (ahead, behind) = (now.plus_ms(HOUR_MS), Timestamp::from_ms(now.as_ms() - HOUR_MS));
    for wrong in [ahead, behind] {
        let claim = world
            .store()
            .write(Write {
                fence: FENCE,
                now: wrong,
                address: &unclaimed.address,
                change: Change::claim(&unclaimed.started(wrong, |_| {})),
            })
            .await
            .unwrap();
        assert_eq!(claim.answer, Written::ClockOff);
        assert!(claim.now.ms_apart(now) < HOUR_MS / 2, "it tells the right time");
        assert_eq!(load(&world, &unclaimed).await, None);
        for record in [Some(&seen.record), None] {
            let change = Change { expected: Some(seen.version), record, wakes: false };
            let replaced = world
                .store()
                .write(Write { fence: FENCE, now: wrong, address: &claimed.address, change })
                .await
                .unwrap();
            assert_eq!(replaced.answer, Written::ClockOff);
            assert!(replaced.now.ms_apart(now) < HOUR_MS / 2, "it tells the right time");
            assert_eq!(load(&world, &claimed).await.as_ref(), Some(&seen));
        }
    }
}

async fn apps_do_not_see_each_other(world: World) {
    let apps = ["a", "a:b", "1:a", "**", "[a-z]", "a\\", "ä"].map(|name| App::parse(name).unwrap());
    let now = world.now().await;
    for app in &apps {
        // The same id in every app, which no fingerprint would give.
        let mut operation = Operation::of(&apps[0], "charge", "one");
        operation.address.app = app.clone();
        world.put(&operation, &operation.started(now, |_| {})).await;
    }
    for app in &apps {
        let (listed, _) = list_all(&world, app, &Filter::default(), 100).await;
        assert_eq!(listed.len(), 1, "{app:?}");
    }
}

async fn a_listing_of_all_apps_has_each_record_with_its_app(world: World) {
    let now = world.now().await;
    let (mut all, mut suspects) = (BTreeSet::new(), BTreeSet::new());
    for app in ["a", "a:b", "\"b\"", "🔒", "default"].map(|name| App::parse(name).unwrap()) {
        for number in 0..7 {
            let operation = Operation::of(&app, "refund", &number.to_string());
            world.put(&operation, &operation.started(now, |_| {})).await;
            all.insert(operation.address);
        }
        let operation = world.operation_of(&app);
        let first = world.passed(&operation, OnExpiry::Retry).await;
        world.go(1, &operation).await;
        world.post(0, &operation, first, Report::Success).await;
        all.insert(operation.address.clone());
        suspects.insert(operation.address);
    }
    for (suspect, expected) in [(false, &all), (true, &suspects)] {
        let filter = Filter { suspect, ..Filter::default() };
        for limit in [1, 3, 8, 100] {
            let (mut listed, mut cursor) = (BTreeSet::new(), None::<String>);
            loop {
                let listing = Listing { app: None, filter: &filter, cursor: cursor.as_deref(), limit };
                let page = world.store().list(listing).await.unwrap();
                assert!(page.records.len() <= limit);
                listed.extend(page.records.into_iter().map(|(address, _)| address));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(&listed, expected, "suspect: {suspect}, limit: {limit}");
        }
    }
}

/// All pages of a listing, and how many there were.
async fn list_all(
    world: &World,
    app: &App,
    filter: &Filter,
    limit: usize,
) -> (BTreeMap<String, OperationRecord>, usize) {
    let (mut listed, mut cursor, mut pages) = (BTreeMap::new(), None::<String>, 0);
    loop {
        let page =
            world.store().list(Listing { app: Some(app), filter, cursor: cursor.as_deref(), limit }).await.unwrap();
        assert!(page.records.len() <= limit);
        pages += 1;
        for (address, record) in page.records {
            let twice = listed.insert(address.id.to_string(), record.unwrap()).is_some();
            assert!(!twice || world.lists_twice, "{address:?} was listed twice");
        }
        cursor = page.next;
        if cursor.is_none() {
            return (listed, pages);
        }
        assert!(pages < 1_000, "a listing must end");
    }
}

async fn every_visible_record_is_listed_once_over_all_pages(world: World) {
    let now = world.now().await;
    let mut records = BTreeMap::new();
    for number in 0..60 {
        let operation = Operation::of(&App::default(), ["charge", "mail"][number % 2], &number.to_string());
        let record = match number % 4 {
            0 => operation.started(now, |_| {}),
            1 => operation.ended(now, |_| {}),
            2 => operation.ended(now, |post| post.report = Report::Unknown),
            _ => operation.ended(now, |post| post.report = Report::Failure),
        };
        world.put(&operation, &record).await;
        records.insert(operation.address.id.to_string(), record);
    }
    let expected = |admits: &dyn Fn(&OperationRecord) -> bool| -> BTreeMap<String, OperationRecord> {
        let visible = records.iter().filter(|(_, record)| record.state() != State::Vacant && admits(record));
        visible.map(|(id, record)| (id.clone(), record.clone())).collect()
    };
    for limit in [1, 7, 1_000] {
        assert_eq!(list_all(&world, &App::default(), &Filter::default(), limit).await.0, expected(&|_| true));
    }
    let mail = OperationName::parse("mail").unwrap();
    let by_name = Filter { operation: Some(mail.clone()), ..Filter::default() };
    assert_eq!(list_all(&world, &App::default(), &by_name, 4).await.0, expected(&|record| record.operation == mail));
    let by_state = Filter { state: Some(State::Unknown), ..Filter::default() };
    assert_eq!(
        list_all(&world, &App::default(), &by_state, 4).await.0,
        expected(&|record| record.state() == State::Unknown)
    );
    let by_both = Filter { state: Some(State::Unknown), operation: Some(mail), ..Filter::default() };
    assert_eq!(list_all(&world, &App::default(), &by_both, 4).await.0, BTreeMap::new());
}

async fn a_rare_record_is_found_behind_more_than_one_page_examines(world: World) {
    let now = world.now().await;
    for number in 0..=EXAMINED_MAX {
        let operation = Operation::of(&App::default(), "charge", &number.to_string());
        world.put(&operation, &operation.started(now, |_| {})).await;
    }
    let rare = Operation::of(&App::default(), "mail", "rare");
    world.put(&rare, &rare.started(world.now().await, |_| {})).await;
    let filter = Filter { operation: Some(OperationName::parse("mail").unwrap()), ..Filter::default() };
    let (listed, pages) = list_all(&world, &App::default(), &filter, 10).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), [&rare.address.id.to_string()]);
    assert!(pages > 1);
    assert_eq!(list_all(&world, &App::default(), &Filter::default(), 1_000).await.0.len(), EXAMINED_MAX + 2);
}

async fn suspects_are_found_among_others(world: World) {
    let now = world.now().await;
    for _ in 0..5 {
        let operation = world.operation();
        world.put(&operation, &operation.ended(now, |_| {})).await;
    }
    let mut suspects = BTreeMap::new();
    for _ in 0..5 {
        let operation = world.operation();
        let first = world.passed(&operation, OnExpiry::Retry).await;
        world.go(1, &operation).await;
        world.post(0, &operation, first, Report::Success).await;
        suspects.insert(operation.address.id.to_string(), operation);
    }
    let filter = Filter { suspect: true, ..Filter::default() };
    for limit in [1, 2, 5, 100] {
        let (listed, _) = list_all(&world, &App::default(), &filter, limit).await;
        assert!(listed.keys().eq(suspects.keys()));
        assert!(listed.values().all(OperationRecord::is_suspect));
    }
    // A suspicion ends with its record, and with its being forgotten.
    let (_, operation) = suspects.pop_first().unwrap();
    world.tell(0, &operation, &Command::Forget { force: true }).await;
    let (listed, _) = list_all(&world, &App::default(), &filter, 3).await;
    assert!(listed.keys().eq(suspects.keys()));
}

async fn what_stays_is_listed_while_other_records_go(world: World) {
    let mut listed = BTreeSet::new();
    let (mut goes, mut stays) = (Vec::new(), BTreeSet::new());
    for number in 0..900 {
        let operation = world.operation();
        world.put(&operation, &operation.started(world.now().await, |_| {})).await;
        if number % 2 == 0 {
            goes.push(operation);
        } else {
            stays.insert(operation.address.id.to_string());
        }
    }
    let mut cursor = None::<String>;
    loop {
        let (app, filter) = (&App::default(), &Filter::default());
        let page = world
            .store()
            .list(Listing { app: Some(app), filter, cursor: cursor.as_deref(), limit: 100 })
            .await
            .unwrap();
        listed.extend(page.records.iter().map(|(address, _)| address.id.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
        for operation in goes.drain(..) {
            let seen = load(&world, &operation).await.unwrap();
            assert!(matches!(replace(&world, &operation, &seen, None).await, Written::Done(_)));
        }
    }
    assert_eq!(stays.difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new());
}

async fn a_cursor_of_nobody_is_refused(world: World) {
    for suspect in [false, true] {
        let filter = Filter { suspect, ..Filter::default() };
        let of_another_app = r#"["another","056c7eac583ac3135a9673fd4e9b8b8e"]"#;
        for cursor in ["nobody's", "nobody:s", "0:1:nobody", "0:056c7eac583ac3135a9673fd4e9b8b8e", of_another_app] {
            let listing = Listing { app: Some(&App::default()), filter: &filter, cursor: Some(cursor), limit: 10 };
            let refused = world.store().list(listing).await;
            assert!(matches!(refused, Err(ListError::InvalidCursor)), "{cursor}: {refused:?}");
        }
    }
}

async fn what_is_over_goes_a_batch_at_a_time_and_nothing_else_does(world: World) {
    let now = world.now().await;
    let long_ago = Timestamp::from_ms(now.as_ms() - HOUR_MS);
    let mut over = Vec::new();
    for _ in 0..5 {
        let operation = world.operation();
        world.put(&operation, &operation.ended(long_ago, |post| post.retention = Some(Retention::Ms(1)))).await;
        over.push(operation);
    }
    let mut kept = Vec::new();
    for change in [|_: &mut _| {}, |post: &mut Post| post.retention = Some(Retention::Forever)] {
        let operation = world.operation();
        world.put(&operation, &operation.ended(long_ago, change)).await;
        kept.push(operation);
    }
    if !world.expires_by_itself {
        assert_eq!(world.store().expire(3).await.unwrap(), 3);
        assert_eq!(world.store().expire(3).await.unwrap(), 2);
        assert_eq!(world.store().expire(3).await.unwrap(), 0);
    }
    for operation in &over {
        let gone = eventually(Duration::from_secs(10), || async { load(&world, operation).await.is_none() }).await;
        assert!(gone);
    }
    for operation in &kept {
        assert!(load(&world, operation).await.is_some());
    }
    // Not within the clock bound: somebody's clock may be behind.
    if !world.expires_by_itself {
        let operation = world.operation();
        let now = world.now().await;
        let just_over = Timestamp::from_ms(now.as_ms() + HOUR_MS - CLOCK_BOUND_MS / 2);
        let record = operation.ended(long_ago, |post| post.retention = Some(Retention::Ms(just_over.ms_since(now))));
        assert!(record.goes_at().is_some_and(|at| at <= now));
        world.put(&operation, &record).await;
        if world.store().expire(10).await.unwrap() > 0 {
            assert!(world.now().await >= record.goes_at().unwrap().plus_ms(CLOCK_BOUND_MS));
        }
    }
}

async fn every_node_is_told_of_an_end_that_is_waited_for(world: World) {
    let mut told = [world.stores[0].wake_ups().await.unwrap(), world.stores[1].wake_ups().await.unwrap()];
    let (unawaited, awaited) = (world.operation(), world.operation());
    let go = world.go(0, &unawaited).await;
    world.post(0, &unawaited, go.stamp, Report::Success).await;
    let go = world.go(0, &awaited).await;
    let until = world.now().await.plus_ms(10_000);
    world.tell(1, &awaited, &awaited.claim_with(|claim| claim.waits_until = Some(until))).await;
    world.post(0, &awaited, go.stamp, Report::Failure).await;
    for receiver in &mut told {
        let first = tokio::time::timeout(Duration::from_secs(10), receiver.recv()).await.unwrap();
        assert_eq!(first, Some(WakeUp::Operation(awaited.address.clone())), "and of nothing before it");
    }
}
