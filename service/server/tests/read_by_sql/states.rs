//! The leases of a state, and how others have ended.

use latchgate_core::lock::{Command, LeaseId, LockState, Mode, Outcome, Renew, Terms, step};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use crate::config;
use crate::histories::arbitrary::histories;
use crate::histories::world::{lease_id, run};

/// Enough for about 20 000 states.
const HISTORIES: usize = 400;
/// Lease ids of the histories, and one that they do not have.
const LEASES: usize = 17;

const READ: &str = "
select
    (select coalesce(json_agg(to_jsonb(h)), '[]') from latchgate.leases_of(c.state, c.at) h),
    (
        select json_agg(jsonb_build_array(e.why, e.at) order by i.position)
        from unnest($3::text[]) with ordinality as i (id, position), latchgate.end_of_lease(c.state, i.id, null) e
    )
from unnest($1::text[], $2::bigint[]) with ordinality as c (state, at, position)
order by c.position";

#[tokio::test]
async fn postgres_reads_every_state_of_random_histories_as_core_does() {
    let mut connection = PgConnection::connect(&config().await.url).await.unwrap();
    let ids: Vec<LeaseId> = (0..LEASES).map(lease_id).collect();
    let mut runner = TestRunner::default();
    let mut seen = [0; 3];
    for _ in 0..HISTORIES {
        let history = histories().new_tree(&mut runner).unwrap().current();
        let cases: Vec<(Timestamp, LockState)> = run(&history).states.into_iter().flat_map(at_times).collect();
        if cases.is_empty() {
            continue;
        }
        let rows: Vec<(Value, Value)> = sqlx::query_as(READ)
            .bind(cases.iter().map(|(_, state)| state.to_json().unwrap()).collect::<Vec<_>>())
            .bind(cases.iter().map(|(at, _)| at.as_ms().cast_signed()).collect::<Vec<_>>())
            .bind(ids.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>())
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(rows.len(), cases.len());
        for ((at, state), (leases, ends)) in cases.iter().zip(rows) {
            assert_eq!(leases, live(state, *at), "at {at:?} of {state:?}");
            for (id, end) in ids.iter().zip(ends.as_array().unwrap()) {
                compare_end(state, *at, id, end, &leases, &mut seen);
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "live, ended or unknown leases are too few: {seen:?}");
}

/// The state when it was written, and around the end of each lease.
fn at_times((at, state): (Timestamp, LockState)) -> Vec<(Timestamp, LockState)> {
    let ends = state.holders().iter().flat_map(|lease| {
        let end = lease.expires_at.as_ms();
        [end - 1, end, end + CLOCK_BOUND_MS].map(Timestamp::from_ms)
    });
    let times: Vec<Timestamp> = std::iter::once(at).chain(ends).collect();
    times.into_iter().map(|at| (at, state.clone())).collect()
}

fn live(state: &LockState, at: Timestamp) -> Value {
    let leases = state.holders().iter().filter(|lease| at < lease.expires_at).map(|lease| {
        json!({
            "lease_id": lease.lease_id, "owner": lease.owner, "mode": lease.mode.as_str(),
            "permits": if let Mode::Permits(permits) = lease.mode { json!(permits) } else { Value::Null },
            "token": lease.token, "since": lease.granted_at, "until": lease.expires_at,
        })
    });
    leases.collect()
}

/// What the holder itself is answered when it renews the lease is what a guard finds.
fn compare_end(state: &LockState, at: Timestamp, id: &LeaseId, end: &Value, live: &Value, seen: &mut [u32; 3]) {
    let renew = Command::Renew(Renew { lease_id: id.clone(), ttl_ms: None, metadata: None });
    let outcome = step(&mut state.clone(), &renew, at, Terms::FREE).outcome;
    let is_live = live.as_array().unwrap().iter().any(|lease| lease["lease_id"] == id.as_str());
    match outcome {
        Outcome::Renewed(_) => {
            // Within the bound of the clock, a node may still renew what a guard refuses.
            let lease = state.holders().iter().find(|lease| lease.lease_id == *id).unwrap();
            assert_eq!(is_live, at < lease.expires_at, "{id:?} at {at:?} of {state:?}");
            seen[0] += 1;
        }
        Outcome::LeaseLost(lost) => {
            assert!(!is_live, "{id:?} at {at:?} of {state:?}");
            // A node that ends leases forgets older ones for them.
            let forgets = lost.why.is_none() && state.holders().iter().any(|lease| lease.has_expired(at));
            let expected = json!([lost.why.map(|why| why.as_str()), lost.at]);
            assert!(forgets || *end == expected, "{end} and not {expected}: {id:?} at {at:?} of {state:?}");
            seen[if lost.why.is_some() { 1 } else { 2 }] += 1;
        }
        other => panic!("{other:?}"),
    }
}
