//! Claims whose callers may not go, or have gone: they are given back.

use std::sync::Arc;
use std::time::Duration;

use latchgate_core::App;
use latchgate_core::gate::{Claim, Command, OperationAddress, Outcome};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::active::Home;
use super::{Inner, PreCall, Reply};
use crate::failure::{Answer, Failure};

/// Before giving back is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// A claim whose caller has no answer yet. Dropped before the answer, because the client has gone, it is given back.
pub(super) struct Unanswered {
    inner: Arc<Inner>,
    address: OperationAddress,
    pub claim: Claim,
    /// Where it may have been made.
    home: Option<Home>,
}

impl Unanswered {
    pub(super) fn new(inner: &Arc<Inner>, app: &App, call: &PreCall) -> Self {
        let home = inner.home_of_new(call).ok();
        let address = OperationAddress { app: app.clone(), id: call.fingerprint.id };
        Self { inner: Arc::clone(inner), address, claim: call.claim(), home }
    }

    /// The caller has the answer: it decides.
    pub(super) fn answered(mut self) {
        self.home = None;
    }

    /// Tries once. If the store does not answer, giving back goes on in the background until it does, or the lease has passed. Returns
    /// what the caller is answered.
    pub(super) async fn give_back(mut self, item: Answer<Reply>) -> Answer<Reply> {
        self.home = match &item {
            // It is that of an earlier call, which may rely on it.
            Ok(Reply { outcome: Outcome::Go(go), .. }) if go.repeated => None,
            Ok(Reply { outcome: Outcome::Go(_), .. }) | Err(Failure::OutcomeUnknown(_)) => self.home,
            _ => None,
        };
        if let Some(home) = self.home
            && self.inner.try_to_give_back(home, &self.address, &self.claim).await.is_ok()
        {
            self.home = None;
        }
        item
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let (Some(home), Ok(runtime)) = (self.home, Handle::try_current()) else { return };
        let Ok(permit) = Arc::clone(&self.inner.in_background).try_acquire_owned() else {
            tracing::warn!(id = %self.address.id, "a claim that no caller has stays until its lease passes");
            return;
        };
        let (inner, address, claim) = (Arc::clone(&self.inner), self.address.clone(), self.claim.clone());
        runtime.spawn(async move {
            let _permit = permit;
            let passes = Instant::now() + Duration::from_millis(claim.lease_ms);
            while inner.try_to_give_back(home, &address, &claim).await.is_err() && Instant::now() < passes {
                if inner.closing.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                    return;
                }
            }
        });
    }
}

impl Inner {
    async fn try_to_give_back(&self, home: Home, address: &OperationAddress, claim: &Claim) -> Answer<()> {
        Ok(self.apply(home, address, &Command::GiveBack(Box::new(claim.clone()))).await.map(drop)?)
    }
}
