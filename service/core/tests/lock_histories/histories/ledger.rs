//! What has happened, recorded independently of the rules and compared with them.

use std::collections::{HashMap, VecDeque};

use latchgate_core::lock::{
    Command, EndReason, EventKind, Lease, LeaseId, LockState, Lost, Mode, Outcome, Renew, Terms, step,
};
use latchgate_core::{CLOCK_BOUND_MS, Timestamp};

use super::commits::{Commit, Commits, check_states};
use super::grants::{NewGrant, Way};
use super::node::Evaluated;
use super::promise::{Broken, Promise};
use super::steps::Ending;

/// A key remembers so many of the leases that ended last: docs/GUARANTEES.md.
const REMEMBERED: usize = 8;
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

#[derive(Default)]
pub struct Ledger {
    pub broken: Broken,
    commits: Commits,
    /// Of all grants, in order.
    pub tokens: Vec<u64>,
    /// Until when clients rely on their leases, by their last answers.
    live_until: HashMap<LeaseId, (Timestamp, Lease)>,
    /// Leases that were acknowledged after their first answer.
    acknowledged: Vec<(LeaseId, u64)>,
    answered_lost: Vec<LeaseId>,
    /// The leases that ended last, oldest first.
    ended: VecDeque<(LeaseId, EndReason)>,
    /// How and when each lease ended at last, as the commit of its end says.
    ends: HashMap<LeaseId, (EndReason, Timestamp)>,
    limit_set: Option<u32>,
    fenced_max: u64,
}

impl Ledger {
    /// A client has sent a command: from now on it relies on less.
    pub fn sent(&mut self, command: &Command) {
        match command {
            Command::Release(request) => drop(self.live_until.remove(&request.lease_id)),
            Command::Renew(Renew { lease_id, ttl_ms: Some(_), .. }) => drop(self.live_until.remove(lease_id)),
            _ => {}
        }
    }

    /// A holder learns of a revocation, or of the end of its lease, only from its next renewal.
    pub fn intervened(&mut self, state: &LockState) {
        for lease in state.holders() {
            let Some((until, _)) = self.live_until.get_mut(&lease.lease_id) else { continue };
            *until = lease.revocation.as_ref().map_or(*until, |revocation| revocation.deadline.min(*until));
        }
        let ended = &self.ended;
        let is_forced = |id: &LeaseId| ended.iter().any(|(other, why)| other == id && *why == EndReason::Forced);
        self.live_until.retain(|id, _| !is_forced(id));
    }

    /// No evaluation renews a lease that was revoked or forced before.
    pub fn check_over(&mut self, evaluated: &Evaluated) {
        for (command, outcome) in &evaluated.outcomes {
            let (Command::Renew(request), Outcome::Renewed(_)) = (command, outcome) else { continue };
            let why = self.why_ended(&request.lease_id);
            let is_over = matches!(why, Some(EndReason::Revoked | EndReason::Forced));
            self.broken.expect(!is_over, Promise::RevokedIsOver, || format!("{request:?} after it was {why:?}"));
        }
    }

    /// The store has taken the evaluated's state, which is `new` now, in place of `old`.
    pub fn committed(&mut self, at: Timestamp, old: &LockState, new: &LockState, evaluated: &Evaluated) {
        self.broken.expect(survives_json(new), Promise::SurvivesJson, || format!("{new:?}"));
        for ending in &evaluated.endings {
            self.check_ended(at, ending);
        }
        for (command, outcome) in &evaluated.outcomes {
            match (command, outcome) {
                (Command::Force(_), Outcome::Forced { .. }) => {
                    // It may end the delay of a lease whose holder was answered by an early clock that its time is over.
                    self.live_until.retain(|id, _| new.holders().iter().any(|lease| lease.lease_id == *id));
                    self.commits.frees(at.plus_ms(1));
                }
                (Command::Close(request), Outcome::Closed(_)) => {
                    self.commits.closes(Some(request.until.unwrap_or(Timestamp::from_ms(u64::MAX))));
                }
                (Command::Open, Outcome::Opened { .. }) => self.commits.closes(None),
                _ => {}
            }
        }
        let commit = Commit { before: old, after: new, events: Some(&evaluated.events), now: at };
        let wrong = self.commits.check(&commit, |lease| Some(lease.expires_at));
        for what in check_states(&commit).into_iter().chain(wrong) {
            self.broken.expect(false, Promise::CommitsAreSound, || what);
        }
        for grant in &evaluated.grants {
            self.check_granted(at, grant);
        }
        for (id, why) in &self.ended {
            let remembered = remembered(new, id);
            self.broken.expect(remembered == self.why_ended(id), Promise::ReasonsAreTrue, || {
                format!("{id:?} ended as {why:?}, but {new:?} says {remembered:?}")
            });
        }
        self.intervened(new);
        for (command, _) in &evaluated.outcomes {
            if let Command::SetLimit(permits) = command {
                self.limit_set = *permits;
            }
        }
        let is_told = |outcome: &Outcome| !matches!(outcome, Outcome::LimitMismatch(mismatch) if mismatch.is_set != self.limit_set.is_some());
        let are_told = evaluated.answered.iter().all(|(_, outcome)| is_told(outcome));
        let is_in_force = new.limit_in_force() == self.limit_set && new.idle_from() > at.plus_ms(YEAR_MS);
        let is_kept = are_told && (is_in_force || self.limit_set.is_none());
        self.broken.expect(is_kept, Promise::LimitIsKept, || format!("{:?} was set: {new:?}", self.limit_set));
    }

    fn check_ended(&mut self, at: Timestamp, ending: &Ending) {
        let Ending { lease, why, is_by_command, .. } = ending;
        // Its holder was to be answered that it has ended: the clock of the node that did it was ahead.
        let is_asked = *is_by_command && matches!(why, EventKind::Expired | EventKind::Revoked);
        let is_early = is_asked && lease.expires_at > at;
        let mut relied = self.live_until.remove(&lease.lease_id);
        if let Some((until, lease)) = relied.take_if(|_| is_early) {
            self.live_until.insert(lease.lease_id.clone(), (until.min(ending.lease.expires_at), lease));
        }
        let why = match why {
            EventKind::Expired => EndReason::Expired,
            EventKind::Revoked => EndReason::Revoked,
            EventKind::Released => EndReason::Released,
            EventKind::Forced => EndReason::Forced,
            _ => {
                let is_relied_on =
                    relied.is_some() || self.acknowledged.contains(&(lease.lease_id.clone(), lease.token));
                let promise = Promise::GiveBackTakesNothingClaimed;
                self.broken.expect(!is_relied_on, promise, || format!("{lease:?} was given back"));
                return;
            }
        };
        if matches!(why, EndReason::Expired | EndReason::Revoked) {
            let is_over = is_asked || lease.expires_at <= at && relied.is_none_or(|(until, _)| until <= at);
            self.broken.expect(is_over, Promise::NeverEndedEarly, || format!("{lease:?} ended at {at:?}"));
        }
        if why == EndReason::Revoked {
            let deadline = lease.revocation.as_ref().map(|revocation| revocation.deadline);
            let is_due = is_asked || deadline.is_some_and(|deadline| deadline <= at);
            self.broken.expect(is_due, Promise::RevokedByTheDeadline, || format!("{lease:?} ended at {at:?}"));
        }
        self.ends.insert(lease.lease_id.clone(), (why, ending.at));
        self.ended.push_back((lease.lease_id.clone(), why));
        if self.ended.len() > REMEMBERED {
            self.ended.pop_front();
        }
    }

    fn check_granted(&mut self, at: Timestamp, grant: &NewGrant) {
        let NewGrant { lease, way, limit } = grant;
        self.tokens.push(lease.token);
        let has_ended = self.why_ended(&lease.lease_id).is_some();
        self.broken.expect(!has_ended, Promise::EndedStaysEnded, || format!("{lease:?} is granted once more"));
        self.granted_anew(&lease.lease_id);
        let relied = self.live_until.iter().filter(|(id, (until, _))| **id != lease.lease_id && *until > at);
        let relied: Vec<&Lease> = relied.map(|(_, (_, relied))| relied).collect();
        let taken: u32 = relied.iter().map(|relied| relied.mode.permits()).sum();
        let goes = |relied: &&Lease| match (lease.mode, relied.mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits(permits), Mode::Permits(_)) => limit.is_some_and(|limit| taken + permits <= limit),
            (Mode::Permits(_), _) | (_, Mode::Permits(_)) => false,
            _ => matches!(way, Way::Nested | Way::Upgrade) && relied.owner == lease.owner,
        };
        let others: Vec<&&Lease> = relied.iter().filter(|relied| !goes(relied)).collect();
        self.broken.expect(others.is_empty(), Promise::GoTogether, || {
            format!("{lease:?} is granted at {at:?}, and these clients rely on their leases: {others:?}")
        });
    }

    /// So many leases have ended since the end of this id's that it is forgotten.
    pub fn granted_anew(&mut self, lease_id: &LeaseId) {
        self.answered_lost.retain(|id| id != lease_id);
    }

    /// A client has received its lease.
    pub fn answered_holding(&mut self, lease: &Lease, is_first: bool) {
        let id = &lease.lease_id;
        let is_lost = self.answered_lost.contains(id);
        self.broken.expect(!is_lost, Promise::LostIsFinal, || format!("{lease:?} was answered as lost before"));
        self.live_until.insert(id.clone(), (lease.expires_at, lease.clone()));
        if !is_first {
            self.acknowledged.push((id.clone(), lease.token));
        }
    }

    /// A client has been answered that its lease is lost.
    pub fn answered_lost(&mut self, lease_id: &LeaseId, lost: Lost) {
        let Lost { why, at } = lost;
        let truth = self.why_ended(lease_id);
        self.broken.expect(truth.is_none() || why == truth, Promise::ReasonsAreTrue, || {
            format!("{lease_id:?}: answered {why:?}, in truth {truth:?}")
        });
        // Another node does not know of an end that no commit has written.
        let end = self.ends.get(lease_id);
        self.broken.expect(why.is_none() || why.zip(at).as_ref() == end, Promise::OneEnd, || {
            format!("{lease_id:?} is answered {lost:?}, but its commit says {end:?}")
        });
        self.live_until.remove(lease_id);
        if why.is_some() {
            self.answered_lost.push(lease_id.clone());
        }
    }

    pub fn answered_released(&mut self, lease_id: &LeaseId) {
        let truth = self.why_ended(lease_id);
        self.broken.expect(truth.is_none_or(|why| why == EndReason::Released), Promise::ReasonsAreTrue, || {
            format!("{lease_id:?}: answered as released, in truth {truth:?}")
        });
    }

    /// A resource has been answered that the token passes.
    pub fn answered_fenced(&mut self, token: u64, is_live: bool) {
        let is_known = self.tokens.contains(&token);
        let is_good = is_known && (is_live || token >= self.fenced_max);
        self.broken.expect(is_good, Promise::FenceIsFinal, || format!("{token} passes after {}", self.fenced_max));
        self.fenced_max = self.fenced_max.max(token);
    }

    /// No lease outlives its expiry, by any clock.
    pub fn check_outlived(&mut self, state: &LockState, store_now: Timestamp) {
        for lease in state.holders() {
            let latest = lease.expires_at.plus_ms(2 * CLOCK_BOUND_MS);
            let promise =
                if lease.revocation.is_some() { Promise::RevokedByTheDeadline } else { Promise::NeverOutlived };
            self.broken.expect(store_now < latest, promise, || format!("{lease:?} is still held at {store_now:?}"));
        }
    }

    fn why_ended(&self, lease_id: &LeaseId) -> Option<EndReason> {
        self.ended.iter().rev().find(|(id, _)| id == lease_id).map(|(_, why)| *why)
    }
}

/// By a command that lets no time pass.
fn remembered(state: &LockState, lease_id: &LeaseId) -> Option<EndReason> {
    let request = Command::Renew(Renew::new(lease_id.clone(), None));
    match step(&mut state.clone(), &request, Timestamp::default(), Terms::FREE).outcome {
        Outcome::LeaseLost(lost) => lost.why,
        _ => None,
    }
}

fn survives_json(state: &LockState) -> bool {
    let text = state.to_json().unwrap();
    let is_about_as_long = text.len() <= state.bytes() + 50 && state.bytes() <= 2 * text.len() + 100;
    is_about_as_long && serde_json::from_str::<LockState>(&text).is_ok_and(|read| read == *state)
}
