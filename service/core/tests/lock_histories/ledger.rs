//! What has truly happened, kept beside the rules and held against them.

use std::collections::{HashMap, VecDeque};

use latchgate_core::Timestamp;
use latchgate_core::lock::{Command, EndReason, Lease, LeaseId, LockState, Outcome, RECENT_MAX, Renew, step};

use crate::repetition::lease_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    OneHolder,
    TokensRise,
    NeverEndedEarly,
    NeverOutlived,
    WaitersAreServed,
    RepetitionsChangeNothing,
    ChangedIsExact,
    EndedStaysEnded,
    LostIsFinal,
    ReasonsAreTrue,
    GiveBackTakesNothingClaimed,
    OnlyItsOwnId,
    RenewalExtends,
    FifoOnOneNode,
    StrictPriority,
    FifoAcrossNodes,
    SurvivesJson,
}

#[derive(Default)]
pub struct Ledger {
    pub broken: Vec<(Promise, String)>,
    token_max: u64,
    /// Until when clients believe that they hold, as they were told last.
    told_until: HashMap<LeaseId, Timestamp>,
    /// Tokens of leases that somebody besides the first receiver has been told of.
    claimed: Vec<(LeaseId, u64)>,
    told_lost: Vec<LeaseId>,
    /// The leases that ended last, oldest first.
    ended: VecDeque<(LeaseId, EndReason)>,
}

impl Ledger {
    pub fn expect(&mut self, is_kept: bool, promise: Promise, how: impl FnOnce() -> String) {
        if !is_kept {
            self.broken.push((promise, how()));
        }
    }

    /// A client has sent a command: from now on it relies on less.
    pub fn sent(&mut self, command: &Command) {
        match command {
            Command::Release(ask) => drop(self.told_until.remove(&ask.lease_id)),
            Command::Renew(Renew { lease_id, ttl_ms: Some(_) }) => drop(self.told_until.remove(lease_id)),
            _ => {}
        }
    }

    /// The store has taken `new` in the place of `old`. Returns the lease that was granted, if one was.
    pub fn committed(
        &mut self,
        at: Timestamp,
        old: &LockState,
        new: &LockState,
        commands: &[(Command, Outcome)],
    ) -> Option<Lease> {
        self.expect(new.holders().len() <= 1, Promise::OneHolder, || format!("{new:?}"));
        self.expect(survives_json(new), Promise::SurvivesJson, || format!("{new:?}"));
        self.expect(new.token() >= old.token(), Promise::TokensRise, || format!("{old:?} became {new:?}"));
        for lease in old.holders() {
            match find(new, lease) {
                Some(kept) => self.check_kept(lease, kept, commands),
                None => self.check_ended(at, lease, new, commands),
            }
        }
        let granted = new.holders().iter().find(|lease| find(old, lease).is_none())?;
        self.check_granted(at, granted);
        Some(granted.clone())
    }

    fn check_kept(&mut self, before: &Lease, after: &Lease, commands: &[(Command, Outcome)]) {
        if before.expires_at == after.expires_at {
            return;
        }
        let renewals: Vec<&Renew> = commands.iter().filter_map(|(command, _)| renewal_of(command, before)).collect();
        self.expect(!renewals.is_empty(), Promise::OnlyItsOwnId, || format!("{before:?} was renewed: {commands:?}"));
        let may_shorten = renewals.iter().any(|ask| ask.ttl_ms.is_some_and(|ttl_ms| ttl_ms < before.ttl_ms));
        self.expect(may_shorten || after.expires_at > before.expires_at, Promise::RenewalExtends, || {
            format!("{before:?} became {after:?}")
        });
    }

    fn check_ended(&mut self, at: Timestamp, lease: &Lease, new: &LockState, commands: &[(Command, Outcome)]) {
        let id = &lease.lease_id;
        let is_asked = |wanted: fn(&Command) -> bool| {
            commands.iter().any(|(command, _)| wanted(command) && lease_of(command) == Some(id))
        };
        match remembered(new, id) {
            Some(EndReason::Released) => {
                let is_released = is_asked(|command| matches!(command, Command::Release(_)));
                self.expect(is_released, Promise::OnlyItsOwnId, || format!("{lease:?} was released: {commands:?}"));
            }
            Some(EndReason::Expired) => {
                self.expect(lease.expires_at <= at, Promise::NeverEndedEarly, || format!("{lease:?} ended at {at:?}"));
            }
            None => {
                let is_given_back = commands.iter().any(|(command, _)| {
                    matches!(command, Command::GiveBack(ask) if ask.lease_id == *id && ask.token == lease.token)
                });
                self.expect(is_given_back, Promise::OnlyItsOwnId, || format!("{lease:?} was given back: {commands:?}"));
                let is_claimed = self.claimed.contains(&(id.clone(), lease.token));
                self.expect(!is_claimed, Promise::GiveBackTakesNothingClaimed, || {
                    format!("{lease:?} was given back: {commands:?}")
                });
            }
        }
        if let Some(why) = remembered(new, id) {
            self.ended.push_back((id.clone(), why));
            if self.ended.len() > RECENT_MAX {
                self.ended.pop_front();
            }
        }
    }

    fn check_granted(&mut self, at: Timestamp, lease: &Lease) {
        let token_max = self.token_max;
        self.expect(lease.token > token_max, Promise::TokensRise, || format!("{lease:?} after {token_max}"));
        self.token_max = self.token_max.max(lease.token);
        let has_ended = self.why_ended(&lease.lease_id).is_some();
        self.expect(!has_ended, Promise::EndedStaysEnded, || format!("{lease:?} is granted once more"));
        let others: Vec<String> = self
            .told_until
            .iter()
            .filter(|(id, until)| **id != lease.lease_id && **until > at)
            .map(|(id, until)| format!("{id:?} was told that it holds until {until:?}"))
            .collect();
        self.expect(others.is_empty(), Promise::OneHolder, || format!("{lease:?} is granted at {at:?}: {others:?}"));
    }

    /// A client has been told of its lease.
    pub fn told_holding(&mut self, lease: &Lease, is_first: bool) {
        let id = &lease.lease_id;
        self.expect(!self.told_lost.contains(id) || self.why_ended(id).is_none(), Promise::LostIsFinal, || {
            format!("{lease:?} was told lost before")
        });
        self.told_until.insert(id.clone(), lease.expires_at);
        if !is_first {
            self.claimed.push((id.clone(), lease.token));
        }
    }

    /// A client has been told that its lease is lost, from a state in which that is so.
    pub fn told_lost(&mut self, lease_id: &LeaseId, why: Option<EndReason>) {
        let truth = self.why_ended(lease_id);
        self.expect(truth.is_none() || why == truth, Promise::ReasonsAreTrue, || {
            format!("{lease_id:?}: told {why:?}, in truth {truth:?}")
        });
        // Of an end that no commit has written down, another node knows nothing.
        self.expect(why.is_none() || truth.is_some(), Promise::LostIsFinal, || {
            format!("{lease_id:?} is told {why:?}, and that is nowhere written")
        });
        self.told_until.remove(lease_id);
        if why.is_some() {
            self.told_lost.push(lease_id.clone());
        }
    }

    pub fn told_released(&mut self, lease_id: &LeaseId) {
        let truth = self.why_ended(lease_id);
        self.expect(truth.is_none_or(|why| why == EndReason::Released), Promise::ReasonsAreTrue, || {
            format!("{lease_id:?}: told released, in truth {truth:?}")
        });
    }

    fn why_ended(&self, lease_id: &LeaseId) -> Option<EndReason> {
        self.ended.iter().rev().find(|(id, _)| id == lease_id).map(|(_, why)| *why)
    }
}

fn find<'s>(state: &'s LockState, lease: &Lease) -> Option<&'s Lease> {
    state.holders().iter().find(|other| other.lease_id == lease.lease_id && other.token == lease.token)
}

fn renewal_of<'c>(command: &'c Command, lease: &Lease) -> Option<&'c Renew> {
    match command {
        Command::Renew(ask) if ask.lease_id == lease.lease_id => Some(ask),
        _ => None,
    }
}

/// Asked in a way that lets no time pass.
fn remembered(state: &LockState, lease_id: &LeaseId) -> Option<EndReason> {
    let ask = Command::Renew(Renew { lease_id: lease_id.clone(), ttl_ms: None });
    match step(&mut state.clone(), &ask, Timestamp::default()).outcome {
        Outcome::LeaseLost(lost) => lost.why,
        _ => None,
    }
}

fn survives_json(state: &LockState) -> bool {
    let text = serde_json::to_string(state).unwrap();
    serde_json::from_str::<LockState>(&text).is_ok_and(|read| read == *state)
}
