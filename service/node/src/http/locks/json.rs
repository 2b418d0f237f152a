//! Leases and refusals, as clients see them.

use latchgate_core::Timestamp;
use latchgate_core::lock::{
    EndReason, KeyFull, Lease, LeaseId, LimitMismatch, Lost, Outcome, Refusal, STATE_BYTES_MAX,
};
use serde_json::value::RawValue;

use super::fields::ModeName;
use crate::format::{DateTime, answers, ms, rfc3339};
use crate::http::problem::{Code, Problem};
use crate::locks::{Failure, GroupHeld, Refused};

/// Longest `retry_after_ms` for a held lock: it may be released long before its lease ends.
pub const RETRY_AFTER_MAX_MS: u64 = 1_000;

/// Most holders in a refusal and in a listing. A GET of the key names all.
pub const HOLDERS_SHOWN_MAX: usize = 16;

answers! {
    /// A lease as other clients see it: without its id.
    pub struct Holder {
        owner: String,
        #[schema(value_type = ModeName)]
        mode: &'static str,
        /// How many permits the lease has, if its mode is `permits`.
        permits?: Option<u32>,
        /// The numbers of its permits.
        slots?: Vec<u32>,
        /// The group that its permits count for.
        group?: Option<String>,
        token: u64,
        granted_at: DateTime,
        expires_at: DateTime,
        /// What is left of the lease, in ms.
        ttl_ms: u64,
        /// The requested length of the lease, in ms.
        lease_ms: u64,
        /// When the lease ends at the latest, however often it is renewed (`max_hold_ms`).
        hold_until?: Option<DateTime>,
        revocation?: Option<RevocationAnswer>,
        #[schema(value_type = Object)]
        metadata?: Option<Box<RawValue>>,
    }

    /// The lease is released. The first waiter gets the lock.
    pub struct ReleaseAnswer {
        /// Leases of this key that the same owner still holds. Not in the answer to a repeated release.
        pub still_held?: Option<u32>,
        /// The lease had been released by an earlier request.
        pub already?: bool,
    }

    /// The lock has been revoked.
    pub struct RevocationAnswer {
        #[schema(required)]
        reason: Option<String>,
        #[schema(required)]
        by: Option<String>,
        /// When the lease ends, by the store's clock.
        deadline: DateTime,
        /// Time from this answer to the deadline, in ms.
        deadline_ms: u64,
    }
}

impl RevocationAnswer {
    pub fn of(lease: &Lease, now: Timestamp) -> Option<Self> {
        let revocation = lease.revocation.as_ref()?;
        Some(Self {
            reason: revocation.note.reason.as_deref().map(str::to_owned),
            by: revocation.note.by.as_ref().map(|by| by.as_str().to_owned()),
            deadline: rfc3339(revocation.deadline),
            deadline_ms: revocation.deadline.ms_since(now),
        })
    }
}

/// What is left of a lease, never more than its length: the estimate of the store's clock may go back by a ms.
pub fn left_ms(lease: &Lease, now: Timestamp) -> u64 {
    lease.expires_at.ms_since(now).min(lease.ttl_ms)
}

/// How many permits a lease has; `None` in other modes.
pub fn permits(lease: &Lease) -> Option<u32> {
    Some(lease.mode.permits()).filter(|permits| *permits > 0)
}

pub fn holders<'a>(leases: impl IntoIterator<Item = &'a Lease>, now: Timestamp) -> Vec<Holder> {
    leases.into_iter().map(|lease| holder(lease, now)).collect()
}

fn holder(lease: &Lease, now: Timestamp) -> Holder {
    let metadata = lease.metadata.as_ref();
    Holder {
        owner: lease.owner.as_str().to_owned(),
        mode: lease.mode.as_str(),
        permits: permits(lease),
        slots: lease.slots.iter().collect(),
        group: lease.group.as_ref().map(|group| group.as_str().to_owned()),
        token: lease.token,
        granted_at: rfc3339(lease.granted_at),
        expires_at: rfc3339(lease.expires_at),
        ttl_ms: lease.expires_at.ms_since(now),
        lease_ms: lease.ttl_ms,
        hold_until: lease.hold_until.map(rfc3339),
        revocation: RevocationAnswer::of(lease, now),
        metadata: metadata.and_then(|metadata| RawValue::from_string(metadata.as_json_text().to_owned()).ok()),
    }
}

/// `hold_off_ms`: for how long nodes grant no lock at all. It is told after a wait.
pub fn refusal(refused: &Refused, hold_off_ms: u64) -> Problem {
    let first = refused.holders.first().map_or("Another client", |lease| lease.owner.as_str());
    let expiry = refused.holders.iter().map(|lease| lease.live_until().ms_since(refused.now)).min();
    let problem = |code, detail: String| {
        Problem::new(code, detail)
            .with("holders", holders(refused.holders.iter().take(HOLDERS_SHOWN_MAX), refused.now))
            .with("holders_count", refused.holders.len())
            .with("waiters", refused.waiters)
            .with("position", refused.queue_number)
            .retry_after_ms(expiry.unwrap_or(RETRY_AFTER_MAX_MS).clamp(1, RETRY_AFTER_MAX_MS))
    };
    let left_ms = |until: Timestamp| until.ms_since(refused.now);
    let delayed = |until, detail| {
        let problem = problem(Code::LockDelayed, detail).with("delayed_until", rfc3339(until));
        problem.with("delay_left_ms", left_ms(until)).retry_after_ms(left_ms(until).max(1))
    };
    let problem = match refused.why {
        Refusal::Held => problem(Code::LockHeld, held_by(first, refused.holders.len())),
        Refusal::GroupAtLimit => problem(Code::LockHeld, at_group_limit(refused.group.as_ref())),
        Refusal::Reserved => {
            problem(Code::LockReserved, "The lock is free, but other requests wait for it and come first.".to_owned())
        }
        Refusal::Delayed(until) => {
            let why = "a lease expired with a lock-delay, or ended before its min_hold_ms";
            delayed(until, format!("The lock is not granted for {} ms more: {why}.", left_ms(until)))
        }
        Refusal::HeldOff(until) => {
            let why = "The store may have lost leases";
            delayed(until, format!("{why}: for {} ms more, a hold-off keeps nodes from granting.", left_ms(until)))
        }
        Refusal::WaitTimeout => {
            // From the first arrival, over all calls with a ticket, as in a grant.
            let waited_ms = ms(refused.waited).max(refused.now.ms_since(refused.position.arrival));
            let holders = refused.holders.len();
            let hold_off = Some(hold_off_ms).filter(|ms| *ms > 0 && holders == 0);
            let why = match (&refused.closed, hold_off) {
                (Some(closing), _) => format!(" {}{}", CLOSED, closing.reason),
                (None, Some(ms)) => {
                    format!(" For {ms} ms more, a hold-off keeps nodes from granting: the store may have lost leases.")
                }
                (None, None) if holders > 0 => format!(" {}", held_by(first, holders)),
                (None, None) => String::new(),
            };
            let detail = format!("The request waited {waited_ms} ms and did not get the lock.{why}");
            problem(Code::WaitTimeout, detail).with("waited_ms", waited_ms).with_some("delay_left_ms", hold_off)
        }
        Refusal::Closed => {
            let reason = refused.closed.as_ref().map_or("", |closing| &closing.reason);
            problem(Code::LockClosed, format!("{CLOSED}{reason}"))
        }
    };
    let group = refused.group.as_ref();
    // Why and until when the key is closed, whatever the code of the refusal.
    let closed = refused.closed.as_ref();
    let until = closed.and_then(|closing| closing.until);
    problem
        .with_some("group", group.map(|held| held.group.as_str()))
        .with_some("group_held", group.map(|held| held.held))
        .with_some("group_limit", group.and_then(|held| held.limit))
        .with_some("reason", closed.map(|closing| &closing.reason))
        .with_some("until", until.map(rfc3339))
        .with_some("until_ms", until.map(left_ms))
}

fn held_by(first: &str, holders: usize) -> String {
    match holders {
        0 | 1 => format!("{first} holds the lock."),
        _ => format!("{first} and {} more hold the lock.", holders - 1),
    }
}

fn at_group_limit(group: Option<&GroupHeld>) -> String {
    match group {
        Some(GroupHeld { group, limit: Some(limit), held }) => {
            format!("The group {} has {held} of the {limit} permits that group_limit allows it.", group.as_str())
        }
        _ => "The group of the request has as many permits as it may have.".to_owned(),
    }
}

/// The problem of an outcome that its handler has no answer for.
pub fn problem(outcome: &Outcome) -> Problem {
    match outcome {
        Outcome::LeaseIdReused => Problem::new(
            Code::LeaseIdReused,
            "A live lease with another owner or mode has this lease_id: send a new one with every acquire.",
        ),
        Outcome::KeyFull(full) => key_full(*full),
        Outcome::LimitMismatch(mismatch) => limit_mismatch(*mismatch),
        Outcome::UpgradeBlocked => Problem::new(
            Code::UpgradeBlocked,
            "Other leases share the lock, or a lock-delay runs: release yours, then acquire it exclusively.",
        ),
        Outcome::LeaseLost(lost) => lease_lost(lost),
        other => {
            tracing::error!(outcome = ?other, "a command has an outcome that it cannot have");
            Problem::defect()
        }
    }
}

fn key_full(full: KeyFull) -> Problem {
    let KeyFull { bytes } = full;
    let detail = format!("The state of this key would be {bytes} bytes long: at most {STATE_BYTES_MAX} are allowed.");
    Problem::new(Code::KeyFull, detail).with("bytes", bytes).with("bytes_max", STATE_BYTES_MAX)
}

fn limit_mismatch(mismatch: LimitMismatch) -> Problem {
    let by = if mismatch.is_set { "An operator has set the limit of this key to" } else { "The limit of this key is" };
    let detail = match mismatch.limit {
        Some(limit) => format!("{by} {limit}: the request names another limit or more permits."),
        None => "This key has no limit of permits yet: send limit.".to_owned(),
    };
    Problem::new(Code::LimitMismatch, detail).with("limit", mismatch.limit)
}

fn lease_lost(lost: &Lost) -> Problem {
    let why = lost.why.map_or("unknown", |why| why.as_str());
    let detail = match lost.why {
        Some(why @ (EndReason::Forced | EndReason::Revoked)) => {
            format!("This lease has ended: {why}. The history of the lock says by whom, and why.")
        }
        Some(why) => format!("This lease has ended: {why}."),
        None => "This key has no record of the lease.".to_owned(),
    };
    Problem::new(Code::LeaseLost, detail).with("why", why).with("at", lost.at.map(rfc3339))
}

const CLOSED: &str = "An operator has closed this key: ";

/// The answer to a call that failed.
pub fn unanswered(failure: &Failure, lease_id: &LeaseId) -> Problem {
    let repeated = matches!(failure, Failure::OutcomeUnknown(_)).then(|| lease_id.as_str());
    Problem::of_failure(failure).with_some("lease_id", repeated)
}
