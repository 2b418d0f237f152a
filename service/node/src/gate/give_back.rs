//! Claims whose callers may not go, or have gone: they are given back.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, Durability, OperationAddress, Outcome};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::machine::Machine;
use super::{Inner, PreCall, Reply};
use crate::failure::{CallResult, Failure};

/// Before giving back is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// A claim whose caller has no answer yet. Dropped before the answer, because the client has gone, it is given back.
pub(super) struct GiveBackOnDrop {
    inner: Arc<Inner>,
    address: OperationAddress,
    pub claim: Claim,
    durability: Durability,
    /// It may have been made.
    is_open: bool,
}

impl GiveBackOnDrop {
    pub(super) fn new(inner: &Arc<Inner>, app: &App, call: &PreCall) -> Self {
        let is_open = inner.home_of_new(call).is_ok();
        let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
        Self { inner: Arc::clone(inner), address, claim: call.claim(), durability: call.durability, is_open }
    }

    /// The caller has the answer: it decides.
    pub(super) fn answered(mut self) {
        self.is_open = false;
    }

    /// Tries once. If the store does not answer, giving back goes on in the background until it does, or the lease has passed. Returns
    /// what the caller is answered.
    pub(super) async fn give_back(mut self, item: CallResult<Reply>) -> CallResult<Reply> {
        self.is_open &= match &item {
            // It is that of an earlier call, which may rely on it.
            Ok(Reply { outcome: Outcome::Go(go), .. }) => !go.repeated,
            Err(Failure::OutcomeUnknown(_)) => true,
            _ => false,
        };
        if self.is_open && self.inner.try_to_give_back(self.durability, &self.address, &self.claim).await.is_ok() {
            self.is_open = false;
        }
        item
    }
}

impl Drop for GiveBackOnDrop {
    fn drop(&mut self) {
        let (true, Ok(runtime)) = (self.is_open, Handle::try_current()) else { return };
        let Ok(permit) = Arc::clone(&self.inner.in_background).try_acquire_owned() else {
            tracing::warn!(id = %self.address.id, "a claim that no caller has stays until its lease passes");
            return;
        };
        let (inner, address, claim) = (Arc::clone(&self.inner), self.address.clone(), self.claim.clone());
        let durability = self.durability;
        runtime.spawn(async move {
            let _permit = permit;
            let passes = Instant::now() + Duration::from_millis(claim.lease_ms);
            while inner.try_to_give_back(durability, &address, &claim).await.is_err() && Instant::now() < passes {
                if inner.closing.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                    return;
                }
            }
        });
    }
}

impl Inner {
    async fn try_to_give_back(
        &self,
        durability: Durability,
        address: &OperationAddress,
        claim: &Claim,
    ) -> CallResult<()> {
        let home: &Machine = if durability == Durability::Durable { &self.main } else { self.fast() };
        home.apply(address, &Command::GiveBack(Box::new(claim.clone()))).await.map(drop)
    }
}
