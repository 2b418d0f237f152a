//! May I do it? Where that is asked, and what becomes of it when the store does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, Durability, Go, OperationAddress, Outcome, Post, Report, Shelf};

use super::outage::{self, Primary};
use super::stamp::Home;
use super::{Inner, LOOK_AGAIN, OnOutage, Operations, PreAsk, PreTold, Side, StampText, failure_of, is_down, ms};
use crate::runtime::gate::fresh_stamp;
use crate::runtime::{Answer, Failure};
use crate::store::StoreError;
use crate::store::engines::gate::Standing;

/// How often a pre goes from the fallback store back to a primary that comes and goes.
const PRE_ROUNDS_MAX: usize = 3;
/// How often a pre looks again because the operation, or the place for new ones, was another by then.
const LOOKS_MAX: usize = 64;

/// How long a pre waits, and since when.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    asked: Instant,
    patience: Duration,
}

impl Wait {
    pub(super) fn told(self, outcome: Outcome, now: latchgate_core::Timestamp) -> PreTold {
        PreTold::Refused { outcome, waited: self.asked.elapsed(), now }
    }
}

/// How one store is asked.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub home: Home,
    /// A claim is made by the right that this has.
    pub standing: Option<&'a Arc<Standing>>,
    /// Nothing is claimed anew: the operation lives here, or is looked for elsewhere.
    pub only_living: bool,
    /// The caller is to be told that the other store could not be looked at.
    pub is_degraded: bool,
    /// After a wait, all is looked at once more.
    pub waits_once: bool,
}

impl Way<'_> {
    pub(super) fn to(home: Home) -> Self {
        let is_degraded = home == Home::Fallback;
        Self { home, standing: None, only_living: false, is_degraded, waits_once: false }
    }
}

/// Why a pre has no answer.
pub(super) enum Broken {
    Store(StoreError),
    Failed(Failure),
    /// Nobody can tell, or agree, whether it may go: the fallback store could not either.
    NoClaim(Failure),
    /// Asked in the fallback store: the primary has come back, and its answer counts.
    PrimaryIsBack,
    /// The operation, or the place for new ones, is elsewhere by now.
    LookAgain,
    /// Somebody's attempt may have ended meanwhile.
    Waited,
}

impl Broken {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Store(error) => failure_of(error),
            Self::Failed(failure) | Self::NoClaim(failure) => failure,
            Self::PrimaryIsBack => Failure::OutcomeUnknown("the gate's store comes and goes".to_owned()),
            Self::LookAgain | Self::Waited => Failure::Overloaded("for this operation"),
        }
    }
}

impl Operations {
    /// May I do it?
    ///
    /// # Errors
    /// When there is no answer; `OutcomeUnknown` if the claim may have been made: repeat it with the same attempt id.
    pub async fn pre(&self, app: &App, ask: PreAsk) -> Answer<PreTold> {
        let inner = &self.inner;
        let address = OperationAddress { app: app.clone(), id: ask.fingerprint.id };
        let claim = Claim {
            operation: ask.operation.clone(),
            sha256: ask.fingerprint.sha256,
            checked: ask.checked,
            stamp: fresh_stamp(),
            attempt_id: ask.attempt_id.clone(),
            lease_ms: ask.lease_ms,
            on_expiry: ask.on_expiry,
            durability: ask.durability,
            shelf: Shelf::Primary,
            waits_until: None,
        };
        let wait = Wait { asked: Instant::now(), patience: ask.wait };
        // Durable operations live in the second store, whatever a switch says.
        if let (Durability::Durable, Some(second)) = (ask.durability, &inner.second) {
            if let Some(refused) = inner.refused_in_front(&address, &claim, wait).await {
                return Ok(refused);
            }
            return inner.pre_on(second, Way::to(Home::Durable), &address, claim, wait).await.map_err(Broken::failure);
        }
        if ask.durability == Durability::Durable && !inner.primary.gate.store().is_durable() {
            return Err(Failure::NoDurableStore);
        }
        inner.pre_fast(&address, claim, wait, ask.on_outage).await
    }
}

impl Inner {
    async fn pre_fast(
        &self,
        address: &OperationAddress,
        mut claim: Claim,
        wait: Wait,
        on_outage: OnOutage,
    ) -> Answer<PreTold> {
        let (mut rounds, mut looks, mut may_be_in_second) = (0, 0, false);
        // What has to be durable never goes unguarded.
        let may_be_unguarded = on_outage == OnOutage::Open && claim.durability == Durability::Fast;
        while rounds < PRE_ROUNDS_MAX && looks < LOOKS_MAX {
            let standing = self.engines.as_ref().map(|engines| engines.standing());
            let told = match &standing {
                // The cheap case is that of a gate that was never switched: nothing can live elsewhere.
                Some(standing) if standing.was_switched() => {
                    self.pre_switched(standing, address, &claim, wait, on_outage).await
                }
                _ => self.pre_on_primary(standing.as_ref(), address, &claim, wait, may_be_in_second).await,
            };
            let error = match told {
                Ok(told) => return Ok(told),
                Err(Broken::Waited) => continue,
                Err(Broken::LookAgain) => {
                    looks += 1;
                    continue;
                }
                Err(Broken::NoClaim(_)) if may_be_unguarded => {
                    // A claim by this one may have been taken back.
                    claim.stamp = fresh_stamp();
                    return Ok(PreTold::Unguarded { stamp: self.sign(address, &claim) });
                }
                // It answers: that is no outage.
                Err(Broken::Store(error @ StoreError::Contended(_))) => return Err(failure_of(error)),
                Err(Broken::Store(error)) => error,
                Err(broken) => return Err(broken.failure()),
            };
            self.outage.begin(&error);
            match (on_outage, &self.second) {
                (OnOutage::Fallback, Some(second)) => {
                    // The same stamp: should the claim have reached the primary after all, it is the same attempt.
                    claim.shelf = Shelf::Fallback;
                    match self.pre_on(second, Way::to(Home::Fallback), address, claim.clone(), wait).await {
                        Err(Broken::PrimaryIsBack) => {}
                        told => return told.map_err(Broken::failure),
                    }
                    claim.shelf = Shelf::Primary;
                    may_be_in_second = true;
                    rounds += 1;
                }
                _ if may_be_unguarded => return Ok(PreTold::Unguarded { stamp: self.sign(address, &claim) }),
                _ => return Err(failure_of(error)),
            }
        }
        Err(if looks < LOOKS_MAX { Broken::PrimaryIsBack } else { Broken::LookAgain }.failure())
    }

    /// Asks the primary unless it is away. While it returns, what the second store has of the operation is carried to it
    /// first; `may_be_in_second`: this very claim may be there.
    async fn pre_on_primary(
        &self,
        standing: Option<&Arc<Standing>>,
        address: &OperationAddress,
        claim: &Claim,
        wait: Wait,
        may_be_in_second: bool,
    ) -> Result<PreTold, Broken> {
        let state = self.outage.state();
        if state == Primary::Down {
            return Err(Broken::Store(is_down()));
        }
        if state == Primary::Returning || may_be_in_second {
            outage::carry_one_back(self, address).await.map_err(Broken::Store)?;
        }
        let way = Way { standing, ..Way::to(Home::Primary) };
        self.pre_on(&self.primary, way, address, claim.clone(), wait).await
    }

    pub(super) async fn pre_on(
        &self,
        side: &Side,
        way: Way<'_>,
        address: &OperationAddress,
        mut claim: Claim,
        wait: Wait,
    ) -> Result<PreTold, Broken> {
        let deadline = wait.asked + wait.patience;
        let mut place = None;
        if !wait.patience.is_zero() {
            place = Some(side.waits.join(address).map_err(Broken::Failed)?);
        }
        let is_over = || way.home == Home::Fallback && !self.outage.is_down();
        loop {
            if is_over() {
                return Err(Broken::PrimaryIsBack);
            }
            if let Some(standing) = way.standing
                && let Err(broken) = self.confirm(standing).await
            {
                return self.refused_all_the_same(side, address, &claim, wait, broken).await;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            claim.waits_until = (!left.is_zero()).then(|| side.gate.clock_now().plus_ms(ms(left)));
            if let Some(place) = &mut place {
                place.listen();
            }
            let pre = Command::Pre(claim.clone());
            let told = if way.only_living {
                let told = side.gate.apply_if_living(address, &pre).await.map_err(Broken::Store)?;
                told.ok_or(Broken::LookAgain)?
            } else {
                side.gate.apply(address, &pre).await.map_err(Broken::Store)?
            };
            let remaining_ms = match told.outcome {
                // Others are served by the primary already: it decides who may go.
                Outcome::Go(_) if is_over() => return Err(Broken::PrimaryIsBack),
                // New operations may be claimed elsewhere by now: nobody is to rely on this.
                Outcome::Go(go) if way.standing.is_some_and(|standing| !standing.covers(told.now)) => {
                    return Err(self.give_back(side, address, &go).await);
                }
                Outcome::Go(go) => {
                    return Ok(PreTold::Go {
                        stamp: StampText::guarded(way.home, go.stamp),
                        attempt: go.attempt,
                        lease_ms: go.remaining_ms,
                        lease_until: go.lease_until,
                        reentry: go.reentry,
                        repeated: go.repeated,
                        degraded: way.is_degraded,
                    });
                }
                Outcome::InProgress { remaining_ms, .. } if !left.is_zero() && !self.closing.is_cancelled() => {
                    remaining_ms
                }
                outcome => return Ok(wait.told(outcome, told.now)),
            };
            let next_look = left.min(LOOK_AGAIN).min(Duration::from_millis(remaining_ms + 1));
            if let Some(place) = &mut place {
                tokio::select! {
                    () = place.rung() => {}
                    () = tokio::time::sleep(next_look) => {}
                    () = self.outage.ended(), if way.home == Home::Fallback => {}
                    () = self.closing.cancelled() => {}
                }
            }
            if way.waits_once {
                return Err(Broken::Waited);
            }
        }
    }

    /// Nobody may claim by this node, but what is known already is told.
    async fn refused_all_the_same(
        &self,
        side: &Side,
        address: &OperationAddress,
        claim: &Claim,
        wait: Wait,
        broken: Broken,
    ) -> Result<PreTold, Broken> {
        let Broken::NoClaim(_) = &broken else { return Err(broken) };
        let Ok(at) = side.gate.get(address).await else { return Err(broken) };
        let step = latchgate_core::gate::step(at.answer, Command::Pre(claim.clone()), at.now);
        match step.outcome {
            Outcome::Go(_) => Err(broken),
            outcome => Ok(wait.told(outcome, at.now)),
        }
    }

    /// A claim that was not made by right is taken back: nobody was told of it. If that fails its lease passes, and
    /// whatever else was claimed meanwhile counts.
    async fn give_back(&self, side: &Side, address: &OperationAddress, go: &Go) -> Broken {
        if !go.repeated {
            let (stamp, report) = (go.stamp, Report::Failure);
            let post = Post { stamp, report, result: None, retention_ms: 0, permanent: false };
            let _ = side.gate.apply(address, &Command::Post(post)).await;
        }
        Broken::NoClaim(super::switched::unconfirmed())
    }

    /// What the primary, in front of the second store, already knows of an operation whose claim must be durable.
    async fn refused_in_front(&self, address: &OperationAddress, claim: &Claim, wait: Wait) -> Option<PreTold> {
        let at = self.ask_primary(self.primary.gate.get(address)).await.ok()?;
        let record = at.answer?;
        let step = latchgate_core::gate::step(Some(record), Command::Pre(claim.clone()), at.now);
        match step.outcome {
            Outcome::Go(_) => None,
            // It is waited for where its end is told.
            Outcome::InProgress { .. } if !wait.patience.is_zero() => None,
            outcome => Some(wait.told(outcome, at.now)),
        }
    }
}
