//! An independent judge of small histories: is there an order of all calls, each at a moment between its request and its answer, in
//! which one lock with leases gives these answers? The search is of another project, and the lock below knows nothing of core's.

use std::collections::{BTreeSet, HashMap};

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use super::{Call, Verb};

/// A holder may be told this much before its expiry that its lease has ended.
const EARLY_US: u64 = 100_000;
/// How long a call without an answer may still be carried out, and a lease that was never seen may last.
const LONG_US: u64 = 60_000_000;

type Id = usize;

#[derive(Clone, Copy, Debug)]
enum Step {
    Granted(Id, u64),
    /// There was no answer.
    MaybeGranted(Id),
    Renewed(Id),
    Released(Id),
    MaybeReleased(Id),
    /// The answer was that the lease is not live.
    Lost(Id),
    /// The answer was that another lease holds the lock.
    Refused(Id),
    /// The lock ends a lease by itself.
    Expires(Id),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lock {
    holder: Option<Id>,
    token: u64,
    released: BTreeSet<Id>,
}

struct OneLock;

impl Specification for OneLock {
    type State = Lock;
    type Operation = Step;

    fn init() -> Lock {
        Lock::default()
    }

    fn apply(step: &Step, lock: &Lock) -> (bool, Lock) {
        let mut next = lock.clone();
        let has = |id: &Id| lock.holder == Some(*id);
        let is_valid = match step {
            Step::Granted(id, token) => {
                let is_new = lock.holder.is_none() && *token > lock.token;
                next.holder = Some(*id);
                // The token of a grant without an answer is not known.
                let is_repeated = has(id) && *token >= lock.token;
                next.token = *token;
                is_new || is_repeated
            }
            Step::MaybeGranted(id) => {
                next.holder = lock.holder.or(Some(*id));
                true
            }
            Step::Renewed(id) => has(id),
            Step::Released(id) => {
                next.holder = lock.holder.filter(|_| !has(id));
                next.released.insert(*id) && has(id) || lock.released.contains(id)
            }
            Step::MaybeReleased(id) => {
                next.holder = lock.holder.filter(|_| !has(id));
                if has(id) {
                    next.released.insert(*id);
                }
                true
            }
            Step::Lost(id) => !has(id),
            Step::Refused(id) => lock.holder.is_some() && !has(id),
            Step::Expires(id) => {
                next.holder = lock.holder.filter(|_| !has(id));
                true
            }
        };
        if is_valid { (true, next) } else { (false, lock.clone()) }
    }
}

/// Whether one exclusive lock, without nested leases and operators, can have given these answers. The time grows steeply with calls
/// that overlap: for a few hundred calls of a few clients.
pub fn judge(calls: &[Call]) -> bool {
    let mut ids: HashMap<&str, Vec<&Call>> = HashMap::new();
    calls
        .iter()
        .filter(|call| call.is_about_a_lease())
        .for_each(|call| ids.entry(&call.lease_id).or_default().push(call));
    let mut steps: Vec<(u64, u64, Step)> = Vec::new();
    for (id, calls) in ids.into_values().enumerate() {
        steps.extend(calls.iter().filter_map(|call| Some((call.sent_us, answered_us(call), step(id, call)?))));
        steps.extend(expiry(&calls).map(|(from_us, to_us)| (from_us, to_us, Step::Expires(id))));
    }
    let mut actions: Vec<(u64, bool, usize)> = Vec::new();
    for (process, (from_us, to_us, _)) in steps.iter().enumerate() {
        actions.extend([(*from_us, false, process), ((*to_us).max(*from_us), true, process)]);
    }
    actions.sort_unstable();
    let action = |(_, is_answer, process): (u64, bool, usize)| {
        let step = steps[process].2;
        (process, if is_answer { Action::Response(step) } else { Action::Call(step) })
    };
    let actions: Vec<_> = actions.into_iter().map(action).collect();
    actions.is_empty() || WGLChecker::<OneLock>::is_linearizable(History::from_actions(actions))
}

fn answered_us(call: &Call) -> u64 {
    if call.is_outcome_unknown() { call.received_us + LONG_US } else { call.received_us }
}

/// `None` for an answer that says nothing, or a renewal that may not have been carried out: it ends nothing.
fn step(id: Id, call: &Call) -> Option<Step> {
    match (call.verb, call.is_success()) {
        (Verb::Acquire, true) => Some(Step::Granted(id, call.token.unwrap_or(0))),
        (Verb::Acquire, false) if call.is_outcome_unknown() => Some(Step::MaybeGranted(id)),
        (Verb::Acquire, false) if call.code() == "lock-held" => Some(Step::Refused(id)),
        (Verb::Renew, true) => Some(Step::Renewed(id)),
        (Verb::Release, true) => Some(Step::Released(id)),
        (Verb::Release, false) if call.is_outcome_unknown() => Some(Step::MaybeReleased(id)),
        _ if call.is_lost() => Some(Step::Lost(id)),
        _ => None,
    }
}

/// When a lease may have ended by itself, unless its client has released it.
fn expiry(calls: &[&Call]) -> Option<(u64, u64)> {
    if calls.iter().any(|call| call.verb == Verb::Release && call.is_success()) {
        return None;
    }
    let grants = calls.iter().filter(|call| call.verb != Verb::Release && call.may_count());
    let answered = grants.clone().filter(|call| call.is_success()).map(|call| call.expires_us()).max();
    let from_us = answered.or_else(|| grants.clone().map(|call| call.sent_us + call.asked.ttl_ms * 1_000).min())?;
    let to_us = grants.map(|call| call.received_us).max()? + LONG_US;
    Some((from_us.saturating_sub(EARLY_US), to_us.max(from_us)))
}
