//! A gate of two stores that was switched from one to the other, or may be.
//!
//! Each operation lives in one store: where it was claimed. New ones are claimed in the active engine, by a right that all
//! nodes hold for the same one. Whoever claims looks into the other first: an operation that lives there goes on there, and
//! nothing but its re-entry is ever claimed there. So whatever moves between the stores is put into the active one before
//! it is removed from the other: one of the two looks finds it.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::gate::{Claim, Command, Durability, OperationAddress, OperationRecord, Post, Shelf, State};

use super::outage::{self, Removed};
use super::pre::{Broken, Wait, Way};
use super::stamp::Home;
use super::{Inner, OnOutage, Operations, PreTold, Side, Told, failure_of, is_down};
use crate::runtime::gate::Told as GateTold;
use crate::runtime::{Answer, Failure};
use crate::store::StoreError;
use crate::store::engines::gate::{GateStatus, Standing};
use crate::store::engines::{EngineStatus, SwitchFailure};
use crate::store::gate::{At, Stored};

/// The stores as the record in force has them.
struct Sides<'a> {
    active: &'a Side,
    other: &'a Side,
    is_first: bool,
}

pub(super) fn unconfirmed() -> Failure {
    Failure::StoreUnavailable("the gate's stores do not confirm which of them is active".to_owned())
}

impl Operations {
    /// Has new operations claimed in the engine of this name by all nodes: see [`GateEngines::switch`].
    ///
    /// [`GateEngines::switch`]: crate::store::engines::gate::GateEngines::switch
    ///
    /// # Errors
    /// Says why nothing was decided.
    pub async fn switch(&self, engine: &str, force: bool, patience: Duration) -> Result<(), SwitchFailure> {
        match &self.inner.engines {
            Some(engines) => engines.switch(engine, force, patience).await,
            None if engine == self.store_name() => Ok(()),
            None => Err(SwitchFailure::UnknownEngine),
        }
    }

    pub fn engines(&self) -> GateStatus {
        if let Some(engines) = &self.inner.engines {
            return engines.status();
        }
        let (kind, answers) = (self.store_name(), !self.inner.outage.is_down());
        GateStatus {
            epoch: 0,
            active: kind.to_owned(),
            is_serving: true,
            is_moving: false,
            is_by_force: false,
            engines: vec![EngineStatus { name: kind.to_owned(), kind, answers, trouble: String::new() }],
        }
    }
}

impl Inner {
    fn sides<'a>(&'a self, second: &'a Side, standing: &Standing) -> Sides<'a> {
        let is_first = standing.is_first();
        let (active, other) = if is_first { (&self.primary, second) } else { (second, &self.primary) };
        Sides { active, other, is_first }
    }

    fn standing(&self) -> Option<Arc<Standing>> {
        self.engines.as_ref().map(|engines| engines.standing())
    }

    pub(super) fn was_switched(&self) -> bool {
        self.standing().is_some_and(|standing| standing.was_switched())
    }

    /// Whether this node may claim by `standing`. A primary that is active and does not answer is away: that is no matter
    /// of rights.
    pub(super) async fn confirm(&self, standing: &Arc<Standing>) -> Result<(), Broken> {
        let Some(engines) = &self.engines else { return Ok(()) };
        if standing.may_claim() {
            return Ok(());
        }
        let confirmed = engines.confirmed().await;
        if !Arc::ptr_eq(&confirmed.clone().unwrap_or_else(|| engines.standing()), standing) {
            return Err(Broken::LookAgain);
        }
        if confirmed.is_some() {
            return Ok(());
        }
        if standing.is_first() && !standing.is_moving() {
            self.ask_primary(self.primary.gate.now_or_ask()).await.map_err(Broken::Store)?;
        }
        Err(Broken::NoClaim(unconfirmed()))
    }

    pub(super) async fn pre_switched(
        &self,
        standing: &Arc<Standing>,
        address: &OperationAddress,
        claim: &Claim,
        wait: Wait,
        on_outage: OnOutage,
    ) -> Result<PreTold, Broken> {
        let Some(second) = &self.second else { return Err(Broken::LookAgain) };
        let sides = self.sides(second, standing);
        if sides.is_first && self.outage.is_down() {
            return Err(Broken::Store(is_down()));
        }
        let once = Way { waits_once: true, ..Way::to(Home::Primary) };
        let found = self.ask(sides.other, sides.other.gate.find(address)).await;
        let is_unseen = match found {
            Ok(Some(stored)) if self.lives_in_other(&sides, address, &stored).await? => {
                let home = if sides.is_first { Home::Second } else { Home::Primary };
                let way = Way { home, only_living: true, ..once };
                let told = self.pre_on(sides.other, way, address, claim.clone(), wait).await;
                return told.map_err(|broken| self.of_other(sides.other, broken));
            }
            Ok(Some(stored)) if stored.record.durability == Durability::Durable => false,
            Ok(Some(stored)) => {
                self.bring_over(standing, &sides, address, &stored).await?;
                false
            }
            Ok(None) => false,
            // It may live there, or be done: who goes all the same is told so.
            Err(_) if standing.is_by_force() || on_outage == OnOutage::Fallback => true,
            Err(error) => return Err(Broken::NoClaim(failure_of(error))),
        };
        let (home, shelf) = match (sides.is_first, is_unseen) {
            (true, _) => (Home::Primary, Shelf::Primary),
            (false, false) => (Home::Second, Shelf::Primary),
            // Looked into when the primary is back.
            (false, true) => (Home::Fallback, Shelf::Fallback),
        };
        let way = Way { home, standing: Some(standing), is_degraded: is_unseen, ..once };
        let claim = Claim { shelf, ..claim.clone() };
        let told = self.pre_on(sides.active, way, address, claim, wait).await;
        told.map_err(|broken| match broken {
            Broken::PrimaryIsBack => Broken::LookAgain,
            broken => self.of_active(&sides, broken),
        })
    }

    /// Whether an operation that has a record in the other store is to go on there: not if it lives in the active one too,
    /// or was claimed there for want of the primary.
    async fn lives_in_other(
        &self,
        sides: &Sides<'_>,
        address: &OperationAddress,
        stored: &Stored,
    ) -> Result<bool, Broken> {
        let is_fallback = sides.is_first && stored.record.claimed_in == Shelf::Fallback;
        let is_durable = stored.record.durability == Durability::Durable;
        // Durable records stay in the second store.
        if sides.is_first && is_durable {
            return Ok(true);
        }
        if is_fallback {
            return Ok(false);
        }
        let here = self.ask(sides.active, sides.active.gate.find(address)).await;
        Ok(here.map_err(|error| self.of_active(sides, Broken::Store(error)))?.is_none())
    }

    /// Unites both stores' records of an operation in the active one.
    async fn bring_over(
        &self,
        standing: &Standing,
        sides: &Sides<'_>,
        address: &OperationAddress,
        stored: &Stored,
    ) -> Result<(), Broken> {
        if !standing.may_claim() {
            return Err(Broken::NoClaim(unconfirmed()));
        }
        let carried = outage::carry(sides.other, sides.active, address, stored, || standing.may_claim()).await;
        match carried.map_err(|error| self.of_active(sides, Broken::Store(error)))? {
            Removed::Changed => Err(Broken::LookAgain),
            Removed::Yes | Removed::Failed => Ok(()),
        }
    }

    /// For a primary that is active there is the fallback; the second store has none.
    fn of_active(&self, sides: &Sides<'_>, broken: Broken) -> Broken {
        if sides.is_first { broken } else { self.of_other(sides.active, broken) }
    }

    /// What comes of a store whose place no fallback takes.
    fn of_other(&self, side: &Side, broken: Broken) -> Broken {
        match broken {
            Broken::Store(error) if !matches!(error, StoreError::Contended(_)) => {
                if std::ptr::eq(side, &raw const self.primary) {
                    self.outage.begin(&error);
                }
                Broken::NoClaim(failure_of(error))
            }
            broken => broken,
        }
    }

    /// Asks a store; the primary only unless it is known to be away.
    async fn ask<T>(&self, side: &Side, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        if std::ptr::eq(side, &raw const self.primary) { self.ask_primary(call).await } else { call.await }
    }

    /// Whether this node may move records to the primary, or to the second store if not `to_first`: only into the active
    /// engine.
    pub(super) fn may_carry(&self, to_first: bool) -> bool {
        let is_so = |standing: Arc<Standing>| standing.may_claim() && standing.is_first() == to_first;
        self.standing().map_or(to_first, is_so)
    }

    /// The stores in the order in which an operation that moves from one to the other is not missed.
    pub(super) fn in_order<'a>(&'a self, second: &'a Side) -> [&'a Side; 2] {
        match self.standing() {
            Some(standing) if standing.was_switched() && standing.is_first() => [second, &self.primary],
            _ => [&self.primary, second],
        }
    }

    /// The record that counts: one that somebody holds, if there is one in either store.
    pub(super) async fn get(&self, address: &OperationAddress) -> Result<Option<At<OperationRecord>>, StoreError> {
        let Some(second) = &self.second else {
            let At { now, answer } = self.ask_primary(self.primary.gate.get(address)).await?;
            return Ok(answer.map(|answer| At { now, answer }));
        };
        let (mut vacant, mut failure) = (None, None);
        for side in self.in_order(second) {
            match self.ask(side, side.gate.get(address)).await {
                Ok(At { now, answer: Some(answer) }) => {
                    let is_held = answer.state() != State::Vacant;
                    let at = At { now, answer };
                    if is_held || !self.was_switched() {
                        return Ok(Some(at));
                    }
                    vacant = vacant.or(Some(at));
                }
                Ok(At { answer: None, .. }) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (vacant, failure) {
            (None, Some(error)) => Err(error),
            (vacant, _) => Ok(vacant),
        }
    }

    /// An attempt that was claimed in the primary: its record may have been united with one of the second store.
    pub(super) async fn apply_at_first(
        &self,
        second: &Side,
        address: &OperationAddress,
        command: &Command,
    ) -> Result<GateTold, StoreError> {
        let here = self.ask_primary(self.primary.gate.apply(address, command)).await;
        if !self.was_switched() {
            return here;
        }
        match here {
            Ok(told) if !super::is_elsewhere(&told) => Ok(told),
            Err(error @ (StoreError::OutcomeUnknown(_) | StoreError::Contended(_))) => Err(error),
            here => match second.gate.apply(address, command).await {
                Ok(told) if !super::is_elsewhere(&told) => Ok(told),
                Ok(_) => here,
                Err(error) => Err(error),
            },
        }
    }

    /// Enters an unguarded run where the operation lives, else in the active engine; `None`: in the primary.
    pub(super) async fn enter_switched(
        &self,
        address: &OperationAddress,
        claim: &Claim,
        post: &Post,
    ) -> Answer<Option<Told>> {
        let (Some(standing), Some(second)) = (self.standing(), &self.second) else { return Ok(None) };
        if !standing.was_switched() {
            return Ok(None);
        }
        let sides = self.sides(second, &standing);
        let entry = Command::Enter { claim: claim.clone(), post: post.clone() };
        let in_other = self.ask(sides.other, sides.other.gate.apply_if_living(address, &entry)).await;
        let shelf = match in_other {
            Ok(Some(told)) => return Ok(Some(Told::Outcome { outcome: told.outcome, now: told.now })),
            Ok(None) => Shelf::Primary,
            Err(StoreError::Unavailable(_)) => Shelf::Fallback,
            Err(error) => return Err(failure_of(error)),
        };
        if sides.is_first {
            return Ok(None);
        }
        let entry = Command::Enter { claim: Claim { shelf, ..claim.clone() }, post: post.clone() };
        let told = second.gate.apply(address, &entry).await.map_err(failure_of)?;
        Ok(Some(Told::Outcome { outcome: told.outcome, now: told.now }))
    }
}
