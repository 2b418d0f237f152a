//! A lease.

use std::fmt;
use std::time::Duration;

use reqwest::Method;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::client::Client;
use crate::clock::{Moment, sleep_until};
use crate::error::{Error, Loss};
use crate::grant::{Grant, LeaseState, Revocation, loss_by_the_clock};
use crate::transport::{ANSWER_MAX, ANSWER_MIN};

/// How long a release goes on after the lease has ended by itself.
const RELEASE_AFTER_END: Duration = Duration::from_secs(1);
/// Longest time for a release that goes on behind the caller's back.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(10);

/// A lease of one lock, or of several together. It is renewed until it is released or dropped.
#[must_use = "the lock is released when the lease is dropped"]
pub struct Lease {
    client: Client,
    grant: Grant,
    state: watch::Sender<LeaseState>,
    runtime: Handle,
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the lease id, which is secret.
        formatter
            .debug_struct("Lease")
            .field("target", &self.grant.target)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn keep(client: Client, grant: Grant) -> Self {
        let held = LeaseState::Held { until: grant.until, revocation: grant.revocation.clone() };
        let state = watch::Sender::new(held);
        client.renewals.keep(&client.transport, grant.clone(), state.clone());
        Self { client, grant, state, runtime: Handle::current() }
    }

    /// Higher than the token of every earlier lease of the key. Of several keys, that of the first.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.grant.tokens[0]
    }

    /// One token for each key, in the order of the request.
    #[must_use]
    pub fn tokens(&self) -> &[u64] {
        &self.grant.tokens
    }

    /// The numbers of the permits of each key, in the order of the request: each below the limit, and no other lease has it. Empty for
    /// other modes.
    #[must_use]
    pub fn slots(&self) -> &[Vec<u32>] {
        &self.grant.slots
    }

    /// Proves that the lease is the caller's: keep it secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.grant.lease_id
    }

    #[must_use]
    pub fn owner(&self) -> &str {
        &self.grant.owner
    }

    /// How long the lease certainly lasts; zero if it is lost. Do not begin a step that takes longer.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match &*self.state.borrow() {
            LeaseState::Held { until, .. } => until.left(),
            LeaseState::Lost(_) | LeaseState::Released => Duration::ZERO,
        }
    }

    /// Until when the lease certainly lasts. `None` if it is lost.
    #[must_use]
    pub fn until(&self) -> Option<Moment> {
        match &*self.state.borrow() {
            LeaseState::Held { until, .. } if !until.has_passed() => Some(*until),
            _ => None,
        }
    }

    /// Fails if the lease is lost.
    ///
    /// # Errors
    /// Says how it was lost.
    pub fn check(&self) -> Result<(), Loss> {
        match &*self.state.borrow() {
            LeaseState::Held { until, .. } if !until.has_passed() => Ok(()),
            LeaseState::Lost(loss) => Err(loss.clone()),
            LeaseState::Held { revocation, .. } => Err(loss_by_the_clock(revocation.as_ref())),
            LeaseState::Released => Err(Loss::not_renewed()),
        }
    }

    /// Set if an operator asks to release the lock.
    #[must_use]
    pub fn revocation(&self) -> Option<Revocation> {
        match &*self.state.borrow() {
            LeaseState::Held { revocation, .. } => revocation.clone(),
            _ => None,
        }
    }

    /// Notifies of each renewal, of a revocation, and of the loss.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<LeaseState> {
        self.state.subscribe()
    }

    /// Returns when the lease is lost.
    pub async fn lost(&self) -> Loss {
        let mut state = self.state.subscribe();
        let lost = state.wait_for(|state| matches!(state, LeaseState::Lost(_))).await;
        match lost.as_deref() {
            Ok(LeaseState::Lost(loss)) => loss.clone(),
            _ => Loss::not_renewed(),
        }
    }

    /// Releases the lock. The call is repeated if it has no answer. If the future is dropped, it goes on in the background.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the lease had ended before, so the work may have overlapped with that of another holder.
    /// [`Error::Unreachable`] if no node has answered: the lease expires by itself, and the call ends a second after that at the latest.
    pub async fn release(self) -> Result<(), Error> {
        let state = self.state.send_replace(LeaseState::Released);
        let (lost, until) = match state {
            LeaseState::Lost(loss) => (Some(loss), Moment::now()),
            LeaseState::Held { until, .. } => (None, until),
            LeaseState::Released => (None, Moment::now()),
        };
        let releasing = release(self.client.clone(), self.grant.clone(), until);
        let released = self.client.background.run(&self.runtime, releasing).await;
        match lost {
            Some(loss) => Err(Error::LeaseLost(loss)),
            None => released,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let state = self.state.send_replace(LeaseState::Released);
        if let LeaseState::Held { until, .. } = state {
            let releasing = release(self.client.clone(), self.grant.clone(), until);
            self.client.background.spawn(&self.runtime, async move { timeout(RELEASE_MAX, releasing).await });
        }
    }
}

/// Repeats the call while no node answers. The lease ends by itself at `ends`.
async fn release(client: Client, grant: Grant, ends: Moment) -> Result<(), Error> {
    let (path, body) = (grant.target.path("release"), grant.target.body(&grant.lease_id));
    let answer_max = (grant.ttl / 3).clamp(Duration::from_secs(1), ANSWER_MAX);
    let now = Moment::now();
    let until = now.plus(client.patience).min(ends.max(now).plus(RELEASE_AFTER_END));
    let released = tokio::select! {
        released = client.transport.repeat(&Method::POST, &path, Some(&body), answer_max, until) => released,
        // The last request says which node has not answered, and ends by then.
        () = sleep_until(until.plus(ANSWER_MIN * 5)) => {
            Err(Error::Unreachable(client.transport.says(client.transport.preferred(), "no answer to the release")))
        }
    };
    match released {
        Ok(_) => Ok(()),
        Err(Error::Refused(problem)) if problem.status() == 410 => Err(Error::LeaseLost(Loss::of(&problem))),
        Err(error) => Err(error),
    }
}
