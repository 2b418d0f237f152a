//! Claims whose callers may not go, or have gone: they are given back.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, Durability, OperationAddress};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::stamp::Home;
use super::{Inner, OnOutage, PreCall, PreReply};
use crate::failure::{Answer, Failure};

/// Before giving back is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// A claim whose caller has no answer yet. Dropped before the answer, because the client has gone, it is given back.
pub(super) struct Unanswered {
    inner: Arc<Inner>,
    address: OperationAddress,
    pub claim: Claim,
    is_durable: bool,
    on_outage: OnOutage,
    /// Where it may have been made.
    homes: Vec<Home>,
}

impl Unanswered {
    pub(super) fn new(inner: &Arc<Inner>, app: &App, call: &PreCall) -> Self {
        let mut unanswered = Self {
            inner: Arc::clone(inner),
            address: OperationAddress { app: app.clone(), id: call.fingerprint.id },
            claim: call.claim(),
            is_durable: call.durability == Durability::Durable && inner.second.is_some(),
            on_outage: call.on_outage,
            homes: Vec::new(),
        };
        unanswered.homes = unanswered.homes_of(&Err(Failure::OutcomeUnknown(String::new())));
        unanswered
    }

    /// The caller has the answer: it decides.
    pub(super) fn answered(mut self) {
        self.homes.clear();
    }

    /// Tries once. If the store does not answer, giving back goes on in the background until it does, or the lease has passed.
    pub(super) async fn give_back(mut self, item: &Answer<PreReply>) {
        self.homes = self.homes_of(item);
        if self.inner.try_to_give_back(&self.address, &self.claim, &self.homes).await.is_ok() {
            self.homes.clear();
        }
    }

    /// A repeated claim is that of an earlier call, which may rely on it.
    fn homes_of(&self, item: &Answer<PreReply>) -> Vec<Home> {
        match item {
            Ok(PreReply::Go { go, .. }) if go.repeated => Vec::new(),
            Ok(PreReply::Go { degraded: true, .. }) => vec![Home::Fallback],
            Ok(PreReply::Go { .. }) | Err(Failure::OutcomeUnknown(_)) if self.is_durable => vec![Home::Durable],
            Err(Failure::OutcomeUnknown(_)) if self.on_outage == OnOutage::Fallback => {
                vec![Home::Primary, Home::Fallback]
            }
            Ok(PreReply::Go { .. }) | Err(Failure::OutcomeUnknown(_)) => vec![Home::Primary],
            _ => Vec::new(),
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let homes = std::mem::take(&mut self.homes);
        let Ok(runtime) = Handle::try_current() else { return };
        if homes.is_empty() {
            return;
        }
        let Ok(permit) = Arc::clone(&self.inner.in_background).try_acquire_owned() else {
            tracing::warn!(id = %self.address.id, "a claim that no caller has stays until its lease passes");
            return;
        };
        let (inner, address, claim) = (Arc::clone(&self.inner), self.address.clone(), self.claim.clone());
        let closing = inner.closing.clone();
        runtime.spawn(closing.run_until_cancelled_owned(async move {
            let _permit = permit;
            let passes = Instant::now() + Duration::from_millis(claim.lease_ms);
            while inner.try_to_give_back(&address, &claim, &homes).await.is_err() && Instant::now() < passes {
                sleep(PAUSE).await;
            }
        }));
    }
}

impl Inner {
    async fn try_to_give_back(&self, address: &OperationAddress, claim: &Claim, homes: &[Home]) -> Answer<()> {
        let command = Command::GiveBack(Box::new(claim.clone()));
        for home in homes {
            self.apply_at(*home, address, &command).await?;
            if *home == Home::Fallback {
                // The claim may have been carried back by now.
                self.apply_at(Home::Primary, address, &command).await?;
            }
        }
        Ok(())
    }
}
