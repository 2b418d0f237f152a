//! Posts within transactions.

use std::sync::Arc;

use latchgate_core::gate::{
    Claim, Command, OnExpiry, OperationId, OperationName, OperationRecord, Outcome, Post, Posted, Report, Retention,
    Stamp, step,
};
use latchgate_core::{Address, App, Timestamp};
use latchgate_node::store::engine_record::{EngineRecord, EngineState, Epoch};
use latchgate_node::store::postgres::PostgresStore;
use latchgate_node::store::{Change, CommitResult, RecordStore as _, Rows as _, Stored, Version};
use rand::RngExt as _;
use sqlx::{Connection as _, PgConnection};

use crate::config;

const RECORDS: usize = 400;
const REPORTS: [Report; 3] = [Report::Success, Report::Failure, Report::Unknown];

/// When a row may be removed whose record is kept for ever.
const NEVER: Timestamp = Timestamp::from_ms(1 << 52);

#[tokio::test]
async fn a_post_in_a_transaction_is_accepted_and_applied_by_the_rule_of_core() {
    let config = config().await;
    let store = PostgresStore::open(&config).await.unwrap();
    let epoch = Epoch::from_number(1_000);
    let record = EngineRecord::new(EngineState::Active, epoch, &[], 60_000);
    assert!(store.write_record(&store.read_record().await.unwrap(), &record).await.unwrap());
    let mut connection = PgConnection::connect(&config.url).await.unwrap();
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for number in 0..RECORDS {
        let now = store.ping().await.unwrap();
        let (record, stamps) = at_random(now);
        let Some(record) = record else { continue };
        let id = OperationId::from_bytes((number as u128).to_be_bytes());
        let address = Address { app: App::default(), key: id.into() };
        let change = Change {
            address: address.clone(),
            expected: Version::ABSENT,
            state: Some(record.clone()),
            events: Vec::new(),
            notice_at: None,
            keep_until: record.goes_at().unwrap_or(NEVER),
            epoch,
        };
        let CommitResult::Checked(written) = store.commit(now, &[change]).await.unwrap().result else { continue };
        let mut random = rand::rng();
        let stamp = stamps[random.random_range(0..stamps.len())];
        let report = REPORTS[random.random_range(0..REPORTS.len())];
        let given = random.random_bool(0.5).then_some(5_000_i64);
        let posted: Result<i32, sqlx::Error> =
            sqlx::query_scalar("select latchgate.post($1, $2, '{\"receipt\":7}', $3, retention_ms => $4)")
                .bind(address.key.as_str())
                .bind(stamp.to_string())
                .bind(serde_json::to_value(report).unwrap().as_str().unwrap())
                .bind(given)
                .fetch_one(&mut connection)
                .await;
        let columns = "select (posted ->> 'at')::bigint, phase, keep_until from latchgate.operations where key = $1";
        let query = sqlx::query_as(columns).bind(address.key.as_str());
        let (at, phase, keep_until): (Option<i64>, String, i64) = query.fetch_one(&mut connection).await.unwrap();
        let now = at.map_or(now, |at| Timestamp::from_ms(at.cast_unsigned()));
        let result = Some(Arc::from("{\"receipt\":7}"));
        let retention = given.map(|ms| Retention::Ms(ms.cast_unsigned()));
        let post = Post { result, retention, ..Post::new(stamp, report) };
        let expected = step(Some(record.clone()), Command::Post(post), now);
        let code = match &posted {
            Ok(attempt) => {
                assert_eq!(*attempt, i32::try_from(record.attempt).unwrap());
                "done".to_owned()
            }
            Err(error) => error.as_database_error().unwrap().code().unwrap().into_owned(),
        };
        assert_eq!(code, code_of(&expected.outcome), "{report:?} of {stamp} to {record:?}");
        *seen.entry(code).or_default() += 1;
        let Stored::<Option<OperationRecord>> { version, state } =
            store.load(epoch, std::slice::from_ref(&address)).await.unwrap().states.remove(0);
        if posted.is_err() {
            assert_eq!((Some(version), state), (written[0], Some(record)), "a refused post changes nothing");
            continue;
        }
        let expected = expected.record.unwrap();
        assert_eq!(state.as_ref(), Some(&expected));
        assert_eq!(phase, expected.state().as_str());
        assert_eq!(Timestamp::from_ms(keep_until.cast_unsigned()), expected.goes_at().unwrap_or(NEVER));
        assert_ne!(Some(version), written[0], "what a node has evaluated before is stale");
    }
    let codes = ["LG004", "LG005", "LG006", "LG007", "done"];
    assert!(codes.iter().all(|code| seen.get(*code).is_some_and(|count| *count > 2)), "{seen:?}");
}

fn code_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Posted(Posted { replayed: false, .. }) => "done",
        Outcome::Posted(_) | Outcome::OutcomeConflict { .. } => "LG006",
        Outcome::Superseded { .. } => "LG007",
        Outcome::StampMismatch => "LG005",
        Outcome::NotFound => "LG004",
        other => panic!("{other:?}"),
    }
}

/// A record after some random calls, the last of them at `now`; and the stamps of all attempts, and of none.
fn at_random(now: Timestamp) -> (Option<OperationRecord>, Vec<Stamp>) {
    let mut random = rand::rng();
    let mut at = Timestamp::from_ms(now.as_ms() - 100_000);
    let mut stamps = vec![Stamp::from_bits(0)];
    let mut record = None;
    for _ in 0..random.random_range(1..9) {
        let stamp = stamps[random.random_range(0..stamps.len())];
        let report = REPORTS[random.random_range(0..REPORTS.len())];
        let command = match random.random_range(0..10) {
            0..6 => Command::Pre(claim(stamps.len() as u128)),
            6..8 => Command::Post(Post {
                retention: random.random_bool(0.1).then_some(Retention::Forever),
                ..Post::new(stamp, report)
            }),
            8 => Command::Heartbeat { stamp, lease_ms: None },
            _ => Command::Forget { force: random.random_bool(0.7) },
        };
        let step = step(record, command, at);
        if let Outcome::Go(go) = &step.outcome
            && !stamps.contains(&go.stamp)
        {
            stamps.push(go.stamp);
        }
        record = step.record;
        at = at.plus_ms(random.random_range(0..12_000));
    }
    (record, stamps)
}

fn claim(stamp: u128) -> Claim {
    let mut random = rand::rng();
    Claim {
        lease_ms: random.random_range(1_000..20_000),
        on_expiry: if random.random_bool(0.7) { OnExpiry::Retry } else { OnExpiry::Block },
        retention: [Retention::default(), Retention::Ms(9_000), Retention::Forever][random.random_range(0..3)],
        ..latchgate_testkit::stores::claim(OperationName::parse("charge").unwrap(), stamp)
    }
}
