//! The rules of locks against random histories: several nodes with clocks of their own, one store between them, and
//! everything that goes wrong around them. Each test is one promise; `PROPTEST_CASES` makes them longer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod history;
mod ledger;
mod node;
mod repetition;
mod store;
mod world;

use latchgate_core::Timestamp;
use latchgate_core::lock::{Acquire, Command, GiveBack, LeaseId, LockState, NodeId, Outcome, Place, step};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::history::{History, histories};
use crate::ledger::Promise;
use crate::world::{Seen, run};

/// Small enough for all promises together to take some seconds without optimisation.
const CASES: u32 = 512;

fn config() -> Config {
    // `Config::default` reads PROPTEST_CASES; its own 256 are a little much.
    let is_told = std::env::var_os("PROPTEST_CASES").is_some();
    let by_default = Config { failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    if is_told { by_default } else { Config { cases: CASES, ..by_default } }
}

fn keeps(promise: Promise, history: &History) -> Result<(), TestCaseError> {
    let broken: Vec<String> =
        run(history).broken.into_iter().filter(|(which, _)| *which == promise).map(|(_, how)| how).collect();
    prop_assert!(broken.is_empty(), "{promise:?} is broken: {broken:#?}");
    Ok(())
}

macro_rules! promises {
    ($($name:ident: $promise:ident;)+) => {
        proptest! {
            #![proptest_config(config())]
            $(
                #[test]
                fn $name(history in histories()) {
                    keeps(Promise::$promise, &history)?;
                }
            )+
        }
    };
}

promises! {
    there_are_never_two_live_holders: OneHolder;
    tokens_strictly_rise_over_all_grants: TokensRise;
    a_lease_is_never_ended_before_its_expiry: NeverEndedEarly;
    a_lease_outlives_its_expiry_by_no_more_than_twice_the_clock_bound: NeverOutlived;
    a_live_waiter_is_granted_once_the_lock_is_free: WaitersAreServed;
    a_repeated_command_changes_nothing: RepetitionsChangeNothing;
    a_step_says_exactly_whether_it_changed_anything: ChangedIsExact;
    a_lease_id_that_has_ended_is_never_granted_again: EndedStaysEnded;
    who_is_told_that_a_lease_is_lost_is_told_so_by_every_node: LostIsFinal;
    a_lost_lease_is_remembered_with_its_reason: ReasonsAreTrue;
    a_give_back_never_takes_a_lease_that_somebody_was_told_of_since: GiveBackTakesNothingClaimed;
    only_its_own_lease_id_renews_or_ends_a_lease: OnlyItsOwnId;
    a_renewal_extends_and_never_shortens_what_it_was_not_asked_to: RenewalExtends;
    the_queue_of_one_node_is_served_in_order: FifoOnOneNode;
    a_higher_priority_is_never_overtaken: StrictPriority;
    across_nodes_nobody_is_overtaken_by_more_than_the_clock_bound: FifoAcrossNodes;
    every_state_survives_json: SurvivesJson;
}

/// Promises about what never happens prove nothing.
#[test]
fn histories_reach_what_the_promises_are_about() {
    let mut runner = TestRunner::deterministic();
    let mut seen = Seen::default();
    for _ in 0..300 {
        let history = histories().new_tree(&mut runner).unwrap().current();
        seen.add(&run(&history).seen);
    }
    let never = seen.never();
    assert!(never.is_empty(), "no history had {never:?}: {seen:?}");
}

/// Too rare in a history: given back, granted anew, and the first give-back comes a second time.
#[test]
fn a_give_back_of_an_old_grant_leaves_the_new_one_alone() {
    let now = Timestamp::from_ms(1_700_000_000_000);
    let lease_id = LeaseId::parse("lease").unwrap();
    let acquire = Command::Acquire(Acquire {
        lease_id: lease_id.clone(),
        owner: None,
        ttl_ms: 1_000,
        node: NodeId::new("node"),
        place: Place { priority: 1, arrival: now },
        behind: false,
        metadata: None,
    });
    let mut state = LockState::default();
    let Outcome::Granted(first) = step(&mut state, &acquire, now).outcome else { panic!("not granted") };
    let give_back = Command::GiveBack(GiveBack { lease_id, token: first.lease.token });
    assert!(step(&mut state, &give_back, now).changed);
    let Outcome::Granted(second) = step(&mut state, &acquire, now).outcome else { panic!("not granted anew") };
    assert!(second.lease.token > first.lease.token);
    assert!(!step(&mut state, &give_back, now).changed);
    assert_eq!(state.holders(), [second.lease]);
}
