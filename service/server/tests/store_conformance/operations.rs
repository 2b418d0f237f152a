//! Rows of operations. What the same code promises of rows of locks is not tested again.

use std::collections::{BTreeMap, BTreeSet};

use latchgate_core::gate::{
    CONTENTS_KEPT_MAX_BYTES, Claim, Command, Description, Label, OnExpiry, OperationId, OperationName, OperationRecord,
    Post, Report, Retention, State, step,
};
use latchgate_core::{Address, App, Timestamp};
use latchgate_node::store::engine_record::{EngineState, Epoch};
use latchgate_node::store::operation_rows::EXAMINED_MAX;
use latchgate_node::store::{Change, CommitResult, Filter, Listing, Rows, StoreError, Stored, Version};

use crate::worlds::{EPOCH, FOREVER, World, new, pages, state};

const HOUR_MS: u64 = 3_600_000;
const OVER: Timestamp = Timestamp::from_ms(1);

pub type Row = Option<OperationRecord>;

impl World {
    pub fn operations(&self) -> &dyn Rows<Row> {
        &*self.store
    }

    pub async fn load_operation(&self, address: &Address) -> Stored<Row> {
        self.operations().load(EPOCH, std::slice::from_ref(address)).await.unwrap().states.remove(0)
    }

    /// Commits with the right time. On a busy machine it may have to repeat the commit.
    async fn replace(&self, address: &Address, expected: Version, record: Row) -> Option<Version> {
        let change = change(address, expected, record);
        self.replace_all(&[change]).await[0]
    }

    async fn replace_all(&self, changes: &[Change<Row>]) -> Vec<Option<Version>> {
        loop {
            let committed = self.store.commit(self.now().await, changes).await.unwrap();
            if let CommitResult::Checked(versions) = committed.result {
                return versions;
            }
        }
    }

    pub async fn put(&self, address: &Address, record: &OperationRecord) -> Version {
        self.replace(address, Version::ABSENT, Some(record.clone())).await.unwrap()
    }

    /// All pages of a listing.
    async fn list_operations(
        &self,
        app: Option<&str>,
        filter: &Filter,
        limit: usize,
    ) -> BTreeMap<Address, OperationRecord> {
        let app = app.map(|app| App::parse(app).unwrap());
        let pages = pages(async |cursor| {
            let cursor = cursor.map(str::to_owned);
            let listing = Listing { app: app.clone(), filter: filter.clone(), cursor, limit };
            let page = self.store.list_operations(&listing).await.unwrap();
            assert!(page.records.len() <= limit);
            (page.records, page.next)
        });
        let mut listed = BTreeMap::new();
        for (address, record) in pages.await.concat() {
            assert_eq!(listed.insert(address, record.unwrap()), None, "it was listed twice");
        }
        listed
    }
}

fn change(address: &Address, expected: Version, state: Row) -> Change<Row> {
    let keep_until = state.as_ref().map_or(OVER, |record| record.goes_at().unwrap_or(FOREVER));
    let address = address.clone();
    Change { address, expected, state, events: Vec::new(), notice_at: None, keep_until, epoch: EPOCH }
}

fn of_app(app: &str, number: usize) -> Address {
    // As if they were digests: listings are in the order of ids.
    let id = (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Address { app: App::parse(app).unwrap(), key: OperationId::from_bytes(id.to_be_bytes()).into() }
}

pub fn at(number: usize) -> Address {
    of_app("default", number)
}

fn claim() -> Claim {
    latchgate_testkit::stores::claim(OperationName::parse("charge").unwrap(), rand::random())
}

/// The record that a first pre at `now` makes.
fn started(now: Timestamp, change: impl FnOnce(&mut Claim)) -> OperationRecord {
    let mut claim = claim();
    change(&mut claim);
    step(None, Command::Pre(claim), now).record.unwrap()
}

/// The record after a pre and a post at `now`.
pub fn ended(now: Timestamp, change: impl FnOnce(&mut Post)) -> OperationRecord {
    let started = started(now, |_| {});
    let result = Some(r#"{"receipt":7}"#.into());
    let mut post = Post { result, ..Post::new(started.stamp().unwrap(), Report::Success) };
    change(&mut post);
    step(Some(started), Command::Post(post), now).record.unwrap()
}

/// The first attempt reports a success after another one has taken over.
fn suspect(now: Timestamp) -> OperationRecord {
    let first = started(Timestamp::from_ms(now.as_ms() - HOUR_MS), |_| {});
    let late = Post::new(first.stamp().unwrap(), Report::Success);
    let second = step(Some(first), Command::Pre(claim()), now).record;
    step(second, Command::Post(late), now).record.unwrap()
}

pub async fn a_second_claim_loses_and_a_lock_of_that_name_is_another_row(world: &World) {
    let (address, now) = (at(1), world.now().await);
    let (first, second) = (started(now, |_| {}), started(now, |_| {}));
    let lock = new(&address, state(1));
    assert!(world.commit(std::slice::from_ref(&lock)).await[0].is_some());
    let version = world.put(&address, &first).await;
    assert_eq!(world.replace(&address, Version::ABSENT, Some(second)).await, None);
    assert_eq!(world.load_operation(&address).await, Stored { version, state: Some(first) });
    assert_eq!(world.load(&address).await.state, state(1));
    assert_eq!(world.load_operation(&at(2)).await, Stored::default());
}

pub async fn a_record_comes_back_as_it_was_written(world: &World) {
    let now = world.now().await;
    let description = Description {
        label: Label::parse("büro-7: \" \\ 🔒 \u{202e}").ok(),
        metadata: Some(r#"{"a":"\u0000\n","n":1e20}"#.into()),
        contents: Some(format!(r#"["\u0000","{}"]"#, "x".repeat(CONTENTS_KEPT_MAX_BYTES - 13)).into()),
        api_key: "0123456789ab".parse().ok(),
    };
    assert!(description.label.is_some() && description.api_key.is_some());
    let described = started(now, |claim| claim.description = description.into_stored());
    // A take-over remembers it with the attempt that it replaces.
    let taken_over = step(Some(described.clone()), Command::Pre(claim()), now.plus_ms(2 * HOUR_MS)).record.unwrap();
    let of_result = |result: String| ended(now, |post| post.result = Some(result.into()));
    let records = [
        of_result(r#"{"text":"\u0000 é 🔒 \\ \" \n","big":1e20}"#.to_owned()),
        of_result(format!("\"{}\"", "x".repeat(65_000))),
        started(now, |claim| claim.on_expiry = OnExpiry::Block),
        ended(now, |post| post.retention = Some(Retention::Forever)),
        suspect(now),
        described,
        taken_over,
    ];
    for (number, record) in records.iter().enumerate() {
        world.put(&at(number), record).await;
        assert_eq!(world.load_operation(&at(number)).await.state.as_ref(), Some(record));
    }
    // A listing reads no payload.
    let listed = world.list_operations(Some("default"), &Filter::default(), 3).await;
    let expected = records.iter().enumerate().map(|(number, record)| (at(number), record.without_payload()));
    assert_eq!(listed, expected.collect::<BTreeMap<_, _>>());
}

/// The node does not know whether its claim was made, and gives it back before the store has received it.
pub async fn a_claim_that_arrives_after_it_was_given_back_does_nothing(world: &World) {
    let (fresh, passed, now) = (at(1), at(2), world.now().await);
    world.put(&passed, &started(Timestamp::from_ms(now.as_ms() - HOUR_MS), |_| {})).await;
    for address in [&fresh, &passed] {
        let Stored { version, state: before } = world.load_operation(address).await;
        let claim = claim();
        let late = step(before.clone(), Command::Pre(claim.clone()), now).record;
        let given_back = step(before, Command::GiveBack(Box::new(claim)), now);
        assert!(given_back.changed);
        assert!(world.replace(address, version, given_back.record.clone()).await.is_some());
        assert_eq!(world.replace(address, version, late).await, None);
        assert_eq!(world.load_operation(address).await.state, given_back.record);
    }
}

pub async fn a_listing_has_each_record_with_its_app(world: &World) {
    let now = world.now().await;
    let apps = ["a", "a:b", "1:a", "**", "[a-z]", "a\\", "\"b\"", "ä", "🔒", "default"];
    let (mut all, mut suspects) = (BTreeSet::new(), BTreeSet::new());
    for app in apps {
        // The same ids in every app, which no fingerprint would give.
        for number in 0..3 {
            world.put(&of_app(app, number), &started(now, |_| {})).await;
            all.insert(of_app(app, number));
        }
        world.put(&of_app(app, 3), &suspect(now)).await;
        all.insert(of_app(app, 3));
        suspects.insert(of_app(app, 3));
    }
    for (suspect, expected) in [(false, &all), (true, &suspects)] {
        let filter = Filter { suspect, ..Filter::default() };
        for limit in [1, 3, 4, 100] {
            let listed = world.list_operations(None, &filter, limit).await;
            assert!(listed.keys().eq(expected), "suspect: {suspect}, limit: {limit}");
        }
        for app in apps {
            let listed = world.list_operations(Some(app), &filter, 3).await;
            let expected = expected.iter().filter(|address| address.app.as_str() == app);
            assert!(listed.keys().eq(expected), "suspect: {suspect}, app: {app}");
        }
    }
}

pub async fn every_visible_record_is_listed_once_over_all_pages(world: &World) {
    let now = world.now().await;
    let long_ago = Timestamp::from_ms(now.as_ms() - HOUR_MS);
    let mut records = BTreeMap::new();
    for number in 0..60 {
        let name = OperationName::parse(["charge", "mail"][number % 2]).unwrap();
        let record = match number % 5 {
            0 => started(now, |_| {}),
            1 => ended(now, |_| {}),
            2 => ended(now, |post| post.report = Report::Unknown),
            3 => ended(now, |post| post.report = Report::Failure),
            _ => ended(long_ago, |post| post.retention = Some(Retention::Ms(1))),
        };
        let record = OperationRecord { operation: name, ..record };
        world.put(&at(number), &record).await;
        if number % 5 < 3 {
            records.insert(at(number), record.without_payload());
        }
    }
    let expected = |admits: &dyn Fn(&OperationRecord) -> bool| -> BTreeMap<Address, OperationRecord> {
        records.iter().filter(|(_, record)| admits(record)).map(|(at, record)| (at.clone(), record.clone())).collect()
    };
    let list = async |filter: Filter, limit: usize| world.list_operations(Some("default"), &filter, limit).await;
    for limit in [1, 7, 1_000] {
        assert_eq!(list(Filter::default(), limit).await, expected(&|_| true), "{limit} at a time");
    }
    let mail = OperationName::parse("mail").unwrap();
    let by_name = Filter { operation: Some(mail.clone()), ..Filter::default() };
    assert_eq!(list(by_name, 4).await, expected(&|record| record.operation == mail));
    let by_state = Filter { state: Some(State::Unknown), ..Filter::default() };
    assert_eq!(list(by_state, 4).await, expected(&|record| record.state() == State::Unknown));
    let by_both = Filter { state: Some(State::Unknown), operation: Some(mail.clone()), ..Filter::default() };
    assert_eq!(
        list(by_both, 4).await,
        expected(&|record| record.state() == State::Unknown && record.operation == mail)
    );
}

pub async fn a_rare_record_is_found_behind_more_than_one_page_examines(world: &World) {
    let now = world.now().await;
    let common = started(now, |_| {});
    let numbers: Vec<usize> = (0..EXAMINED_MAX + 10).collect();
    for numbers in numbers.chunks(500) {
        let changes: Vec<Change<Row>> =
            numbers.iter().map(|number| change(&at(*number), Version::ABSENT, Some(common.clone()))).collect();
        assert!(world.replace_all(&changes).await.iter().all(Option::is_some));
    }
    let last = Address { app: App::default(), key: OperationId::from_bytes([0xff; 16]).into() };
    let mail = OperationName::parse("mail").unwrap();
    world.put(&last, &OperationRecord { operation: mail.clone(), ..common }).await;
    let filter = Filter { operation: Some(mail), ..Filter::default() };
    let listed = world.list_operations(Some("default"), &filter, 10).await;
    assert_eq!(listed.keys().collect::<Vec<_>>(), [&last]);
    let listed = world.list_operations(Some("default"), &Filter::default(), 1_000).await;
    assert_eq!(listed.len(), EXAMINED_MAX + 11);
}

pub async fn a_suspicion_is_listed_until_it_is_forgotten(world: &World) {
    let now = world.now().await;
    for number in 0..5 {
        world.put(&at(number), &ended(now, |_| {})).await;
        world.put(&at(100 + number), &suspect(now)).await;
    }
    let mut suspects: BTreeSet<Address> = (0..5).map(|number| at(100 + number)).collect();
    let filter = Filter { suspect: true, ..Filter::default() };
    let forgotten = suspects.pop_first().unwrap();
    let Stored { version, state } = world.load_operation(&forgotten).await;
    let vacant = step(state, Command::Forget { force: true }, now).record;
    assert!(world.replace(&forgotten, version, vacant).await.is_some());
    for limit in [1, 2, 4, 100] {
        let listed = world.list_operations(Some("default"), &filter, limit).await;
        assert!(listed.keys().eq(&suspects) && listed.values().all(OperationRecord::is_suspect));
    }
}

pub async fn what_stays_is_listed_while_other_records_go(world: &World) {
    let record = started(world.now().await, |_| {});
    for number in 0..60 {
        world.put(&at(number), &record).await;
    }
    let (mut listed, mut cursor) = (BTreeSet::new(), None);
    let mut goes: Vec<usize> = (0..60).filter(|number| number % 2 == 0).collect();
    loop {
        let listing = Listing { app: Some(App::default()), filter: Filter::default(), cursor, limit: 8 };
        let page = world.store.list_operations(&listing).await.unwrap();
        listed.extend(page.records.into_iter().map(|(address, _)| address));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
        for number in goes.drain(..) {
            let version = world.load_operation(&at(number)).await.version;
            assert!(world.replace(&at(number), version, None).await.is_some());
        }
        world.operations().collect(EPOCH, None, 1_000).await.unwrap();
    }
    let missing: Vec<usize> = (0..60).filter(|number| number % 2 == 1 && !listed.contains(&at(*number))).collect();
    assert_eq!(missing, [0; 0]);
}

pub async fn an_unknown_cursor_is_refused(world: &World) {
    let of_another_app = r#"["another","056c7eac583ac3135a9673fd4e9b8b8e"]"#;
    for (suspect, cursor) in
        [false, true].into_iter().flat_map(|suspect| ["unknown", "[]", of_another_app].map(|at| (suspect, at)))
    {
        let filter = Filter { suspect, ..Filter::default() };
        let listing = Listing { app: Some(App::default()), filter, cursor: Some(cursor.to_owned()), limit: 10 };
        assert!(!listing.is_valid());
        let refused = world.store.list_operations(&listing).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{cursor}: {refused:?}");
    }
}

pub async fn what_is_over_is_collected_a_batch_at_a_time_and_nothing_else(world: &World) {
    let now = world.now().await;
    let long_ago = Timestamp::from_ms(now.as_ms() - HOUR_MS);
    for number in 0..7 {
        let over = ended(long_ago, |post| post.retention = Some(Retention::Ms(1)));
        world.put(&at(number), &over).await;
    }
    let kept = [
        ended(long_ago, |_| {}),
        ended(long_ago, |post| post.retention = Some(Retention::Forever)),
        ended(long_ago, |post| post.report = Report::Unknown),
        started(long_ago, |claim| claim.on_expiry = OnExpiry::Block),
        started(long_ago, |_| {}),
    ];
    for (number, record) in kept.iter().enumerate() {
        world.put(&at(100 + number), record).await;
    }
    let steps = pages(async |from| {
        let collected = world.operations().collect(EPOCH, from, 3).await.unwrap();
        assert!(collected.removed <= 3 && collected.due.is_empty());
        (collected.removed, collected.next)
    });
    let removed = steps.await;
    assert!(removed.len() < 10 && removed.iter().sum::<u64>() == 7, "{removed:?}");
    for number in 0..7 {
        assert_eq!(world.load_operation(&at(number)).await, Stored::default());
    }
    for (number, record) in kept.into_iter().enumerate() {
        assert_eq!(world.load_operation(&at(100 + number)).await.state, Some(record));
    }
}

pub async fn records_are_copied_as_they_are(world: &World) {
    let now = world.now().await;
    for number in 0..10 {
        world.put(&of_app(["a\",\"b", "🔒"][number % 2], number), &ended(now, |_| {})).await;
        world.put(&at(number), &started(now, |_| {})).await;
    }
    let dump = async |limit: usize| {
        let pages = pages(async |from| {
            let page = world.operations().dump(from, limit).await.unwrap();
            assert!(page.items.len() <= limit && page.unreadable.is_empty());
            (page.items, page.next)
        });
        let mut copied = pages.await.concat();
        copied.sort_by(|a, b| a.address.cmp(&b.address));
        copied
    };
    let copied = dump(1_000).await;
    assert_eq!(copied.len(), 20);
    for limit in [1, 7, 20] {
        assert_eq!(dump(limit).await, copied, "{limit} at a time");
    }
    for copied in &copied {
        assert_eq!(world.load_operation(&copied.address).await.state, copied.state);
    }
    assert!(!world.store.fill(EPOCH, &copied, 20).await.unwrap(), "it is not filling");
    let later = Epoch::from_number(EPOCH.number() + 1);
    world.turn(EngineState::Filling, later).await;
    assert!(!world.store.fill(EPOCH, &copied, 20).await.unwrap(), "it is not filling in this epoch");
    assert!(world.store.clear(later).await.unwrap());
    assert_eq!(dump(10).await, []);
    // Records are written twice, as by two copiers, and moved to the clock of this store.
    let moved: Vec<_> = copied.into_iter().map(|copied| copied.moved(5_000)).collect();
    for _ in 0..2 {
        assert!(world.store.fill(later, &moved, 20).await.unwrap());
    }
    assert_eq!(world.store.read_record().await.unwrap().copied, 20);
    world.turn(EngineState::Active, later).await;
    assert_eq!(dump(7).await, moved);
    assert_eq!(world.list_operations(None, &Filter::default(), 7).await.len(), 20);
}
