//! Rows of operations. What the same code promises of rows of locks is not tested again.

use std::collections::{BTreeMap, BTreeSet};

use latchgate_core::gate::{
    CONTENTS_KEPT_MAX_BYTES, Claim, Command, Description, Label, OnExpiry, OperationId, OperationName, OperationRecord,
    Post, Report, Retention, State, step,
};
use latchgate_core::{Address, App, Timestamp};
use latchgate_node::store::operation_rows::EXAMINED_MAX;
use latchgate_node::store::{Change, CopiedState, Filter, Listing, Rows, Stored, Version};

use crate::worlds::{EPOCH, FOREVER, World, copied, new, pages, state};

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

    async fn replace(&self, address: &Address, expected: Version, record: Row) -> Option<Version> {
        self.commit(&[change(address, expected, record)]).await[0]
    }

    pub async fn put(&self, address: &Address, record: &OperationRecord) -> Version {
        self.replace(address, Version::ABSENT, Some(record.clone())).await.unwrap()
    }

    /// All pages of a listing.
    pub async fn list_operations(
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

/// Records of two apps, as a copy has them.
pub async fn write_awkward(world: &World) -> Vec<CopiedState<Row>> {
    let now = world.now().await;
    let mut changes = Vec::new();
    for number in 0..10 {
        let end = ended(now, |_| {});
        changes.push(change(&of_app(["a\",\"b", "🔒"][number % 2], number), Version::ABSENT, Some(end)));
        changes.push(change(&at(number), Version::ABSENT, Some(started(now, |_| {}))));
    }
    assert!(world.commit(&changes).await.iter().all(Option::is_some));
    changes.sort_by(|a, b| a.address.cmp(&b.address));
    changes.into_iter().map(copied).collect()
}

pub async fn a_record_comes_back_as_it_was_beside_a_lock_of_that_name(world: &World) {
    let now = world.now().await;
    assert!(world.commit(&[new(&at(0), state(1))]).await[0].is_some());
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
    assert_eq!(world.load(&at(0)).await.state, state(1));
    // A listing reads no payload.
    let listed = world.list_operations(Some("default"), &Filter::default(), 3).await;
    let expected = records.iter().enumerate().map(|(number, record)| (at(number), record.without_payload()));
    assert_eq!(listed, expected.collect::<BTreeMap<_, _>>());
}

pub async fn each_visible_record_is_listed_once_over_all_pages(world: &World) {
    let now = world.now().await;
    let long_ago = Timestamp::from_ms(now.as_ms() - HOUR_MS);
    let apps = ["a", "a:b", "1:a", "**", "[a-z]", "a\\", "\"b\"", "ä", "🔒", "default"];
    let names = ["charge", "mail"].map(|name| OperationName::parse(name).unwrap());
    let mut visible = BTreeMap::new();
    for app in apps {
        // The same ids in every app, which no fingerprint would give.
        for number in 0..12 {
            let record = match number % 6 {
                0 => started(now, |_| {}),
                1 => ended(now, |post| post.report = Report::Unknown),
                2 => suspect(now),
                3 => ended(now, |post| post.report = Report::Failure),
                4 => ended(long_ago, |post| post.retention = Some(Retention::Ms(1))),
                _ => step(Some(suspect(now)), Command::Forget { force: true }, now).record.unwrap(),
            };
            let record = OperationRecord { operation: names[number / 6].clone(), ..record };
            world.put(&of_app(app, number), &record).await;
            if number % 6 < 3 {
                visible.insert(of_app(app, number), record.without_payload());
            }
        }
    }
    let (operation, state) = (Some(names[1].clone()), Some(State::Unknown));
    let filters = [
        Filter::default(),
        Filter { suspect: true, ..Filter::default() },
        Filter { operation: operation.clone(), ..Filter::default() },
        Filter { state, ..Filter::default() },
        Filter { operation, state, ..Filter::default() },
    ];
    let pages = [(None, 1), (None, 7), (None, 1_000), (Some("default"), 1), (Some("default"), 2)];
    for (app, limit) in pages.into_iter().chain(apps.map(|app| (Some(app), 4))) {
        for filter in &filters {
            let is_expected = |(address, record): &(&Address, &OperationRecord)| {
                app.is_none_or(|app| address.app.as_str() == app)
                    && filter.operation.as_ref().is_none_or(|operation| record.operation == *operation)
                    && filter.state.is_none_or(|state| record.state() == state)
                    && (!filter.suspect || record.is_suspect())
            };
            let listed = world.list_operations(app, filter, limit).await;
            assert!(listed.iter().eq(visible.iter().filter(is_expected)), "{filter:?} of {app:?}, {limit} at a time");
        }
    }
}

pub async fn a_rare_record_is_found_behind_more_than_one_page_examines(world: &World) {
    let now = world.now().await;
    let common = started(now, |_| {});
    let numbers: Vec<usize> = (0..EXAMINED_MAX + 10).collect();
    for numbers in numbers.chunks(500) {
        let changes: Vec<Change<Row>> =
            numbers.iter().map(|number| change(&at(*number), Version::ABSENT, Some(common.clone()))).collect();
        assert!(world.commit(&changes).await.iter().all(Option::is_some));
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

pub async fn what_stays_is_listed_while_other_records_are_collected(world: &World) {
    let record = started(world.now().await, |_| {});
    for number in 0..60 {
        world.put(&at(number), &record).await;
    }
    let (mut listed, mut cursor) = (BTreeSet::new(), None);
    let mut removed = 0;
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
        let steps = pages(async |from| {
            let collected = world.operations().collect(EPOCH, from, 7).await.unwrap();
            assert!(collected.removed <= 7 && collected.due.is_empty());
            (collected.removed, collected.next)
        });
        removed += steps.await.into_iter().sum::<u64>();
    }
    assert_eq!(removed, 30);
    let missing: Vec<usize> = (0..60).filter(|number| number % 2 == 1 && !listed.contains(&at(*number))).collect();
    assert_eq!(missing, [0; 0]);
}
