//! Several pres at once.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, Durability, OperationAddress};
use tokio::time::{Instant, sleep};

use super::stamp::Home;
use super::{BatchReply, Inner, OnOutage, Operations, PreCall, PreReply};
use crate::failure::{Answer, Failure};

/// Before giving back is tried again.
const GIVE_BACK_PAUSE: Duration = Duration::from_millis(500);

impl Operations {
    /// Several pres at once; with `all_or_nothing`, none is claimed in the end unless all may go.
    ///
    /// The claims are made one by one, and are given back if one of them is refused. Until then other callers find them in
    /// progress.
    pub async fn pre_all(&self, app: &App, calls: &[PreCall], all_or_nothing: bool) -> BatchReply {
        let claims: Vec<Claim> = calls.iter().map(|call| Claim { tentative: all_or_nothing, ..call.claim() }).collect();
        let pres = calls.iter().zip(&claims).map(|(call, claim)| self.pre_with(app, call, claim.clone()));
        let items = join_all(pres).await;
        let may_go = |item: &_| matches!(item, Ok(PreReply::Go { .. } | PreReply::Unguarded { .. }));
        let all_may_go = items.iter().all(may_go);
        if !all_may_go && all_or_nothing {
            let give_backs = calls.iter().zip(claims).zip(&items).filter_map(|((call, claim), item)| {
                let homes = self.inner.homes(call, item);
                let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
                (!homes.is_empty()).then(|| give_back(Arc::clone(&self.inner), address, claim, homes))
            });
            join_all(give_backs).await;
        }
        BatchReply { items, all_may_go }
    }
}

impl Inner {
    /// Where this call may have made a claim that is to be given back. A repeated claim is that of an earlier call, which may rely
    /// on it.
    fn homes(&self, call: &PreCall, item: &Answer<PreReply>) -> Vec<Home> {
        let is_durable = call.durability == Durability::Durable && self.second.is_some();
        match item {
            Ok(PreReply::Go { repeated: false, degraded: true, .. }) => vec![Home::Fallback],
            Ok(PreReply::Go { repeated: false, .. }) | Err(Failure::OutcomeUnknown(_)) if is_durable => {
                vec![Home::Durable]
            }
            Err(Failure::OutcomeUnknown(_)) if call.on_outage == OnOutage::Fallback => {
                vec![Home::Primary, Home::Fallback]
            }
            Ok(PreReply::Go { repeated: false, .. }) | Err(Failure::OutcomeUnknown(_)) => vec![Home::Primary],
            _ => Vec::new(),
        }
    }

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

/// Tries once. If the store does not answer, giving back goes on in the background until it does, or the lease has passed.
async fn give_back(inner: Arc<Inner>, address: OperationAddress, claim: Claim, homes: Vec<Home>) {
    let passes = Instant::now() + Duration::from_millis(claim.lease_ms);
    let Err(error) = inner.try_to_give_back(&address, &claim, &homes).await else { return };
    let Ok(permit) = Arc::clone(&inner.in_background).try_acquire_owned() else {
        tracing::warn!(%error, id = %address.id, "a claim of a refused batch stays until its lease passes");
        return;
    };
    tokio::spawn(inner.closing.clone().run_until_cancelled_owned(async move {
        let _permit = permit;
        while Instant::now() < passes {
            sleep(GIVE_BACK_PAUSE).await;
            if inner.try_to_give_back(&address, &claim, &homes).await.is_ok() {
                return;
            }
        }
    }));
}
