//! What an app uses of this node, and its quotas. An app without quotas is not counted: it pays for one look at a flag.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::{DefaultDirectRateLimiter, RateLimiter};
use latchgate_core::App;
use latchgate_core::access::{Quota, Quotas};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

/// Calls of clients that finish what they have begun are refused only beyond this many times the rate.
const RATE_OF_HOLDERS: u32 = 10;
/// Before a client should ask again for what is counted.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often one app's reached quota is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// A request that is more than its app may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    pub quota: Quota,
    pub limit: u32,
    /// How much the app may use yet: less than the request needs.
    pub remaining: u32,
    pub retry_after: Duration,
}

/// What one app uses of this node. All callers of the app share it.
#[derive(Debug)]
pub struct AppUse {
    app: App,
    /// Whether it has any quota.
    has_quotas: AtomicBool,
    limits: RwLock<Limits>,
    waiters: AtomicU32,
    event_streams: AtomicU32,
    /// When it was last logged that each quota is reached.
    logged: Mutex<[Option<Instant>; Quota::ALL.len()]>,
}

#[derive(Clone, Debug, Default)]
struct Limits {
    quotas: Quotas,
    rates: Option<Arc<Rates>>,
}

#[derive(Debug)]
struct Rates {
    all: DefaultDirectRateLimiter,
    of_holders: DefaultDirectRateLimiter,
}

impl Rates {
    fn of(per_second: u32) -> Option<Self> {
        let limiter = |per_second| RateLimiter::direct(governor::Quota::per_second(per_second));
        let all = NonZeroU32::new(per_second)?;
        let of_holders = all.saturating_mul(NonZeroU32::new(RATE_OF_HOLDERS)?);
        Some(Self { all: limiter(all), of_holders: limiter(of_holders) })
    }
}

impl AppUse {
    pub(super) fn new(app: App) -> Self {
        Self {
            app,
            has_quotas: AtomicBool::new(false),
            limits: RwLock::default(),
            waiters: AtomicU32::new(0),
            event_streams: AtomicU32::new(0),
            logged: Mutex::default(),
        }
    }

    /// Replaces the quotas. What was not counted before is not counted afterwards, either.
    pub(super) fn set(&self, quotas: Quotas) {
        let mut limits = self.limits.write();
        if limits.quotas == quotas {
            return;
        }
        if limits.quotas.requests_per_second != quotas.requests_per_second {
            limits.rates = quotas.requests_per_second.and_then(Rates::of).map(Arc::new);
        }
        limits.quotas = quotas;
        self.has_quotas.store(!quotas.are_none(), Ordering::Relaxed);
    }

    fn limits(&self) -> Option<Limits> {
        // The quotas are read once per request at most: a change counts from the next one on.
        let has_quotas = self.has_quotas.load(Ordering::Relaxed);
        has_quotas.then(|| self.limits.read().clone())
    }

    fn limit(&self, quota: Quota) -> Option<u32> {
        self.limits()?.quotas.limit(quota)
    }

    /// Counts a request as so many more; it was counted as `before` until now. `is_of_holder`: it finishes or keeps what its client has
    /// begun, and is refused only beyond ten times the rate. In all it counts for no more than may come at once after a pause.
    ///
    /// # Errors
    /// When the app sends more requests than it may.
    pub fn request(&self, is_of_holder: bool, before: u32, more: u32) -> Result<(), Excess> {
        let Some(Limits { quotas, rates: Some(rates) }) = self.limits() else { return Ok(()) };
        let rate = if is_of_holder { &rates.of_holders } else { &rates.all };
        let limit = quotas.requests_per_second.unwrap_or_default();
        let at_once = if is_of_holder { limit.saturating_mul(RATE_OF_HOLDERS) } else { limit };
        let more = before.saturating_add(more).min(at_once) - before.min(at_once);
        let Some(more) = NonZeroU32::new(more) else { return Ok(()) };
        let retry_after = match rate.check_n(more) {
            Ok(Ok(())) => return Ok(()),
            // When it is repeated, it is counted from the beginning.
            Ok(Err(until)) => until.wait_time_from(rate.clock().now()) + Duration::from_secs(1) * before / at_once,
            Err(_) => RETRY_AFTER,
        };
        Err(self.reached(Excess { quota: Quota::RequestsPerSecond, limit, remaining: 0, retry_after }))
    }

    /// Counts a request that waits, until the answer is dropped; `None` if the app has no such quota.
    ///
    /// # Errors
    /// When as many requests of the app wait as may.
    pub fn wait(self: &Arc<Self>) -> Result<Option<Counted>, Excess> {
        self.enter(Quota::Waiters)
    }

    /// As [`AppUse::wait`], for an event stream.
    ///
    /// # Errors
    /// When the app has as many event streams as it may.
    pub fn stream(self: &Arc<Self>) -> Result<Option<Counted>, Excess> {
        self.enter(Quota::EventStreams)
    }

    fn enter(self: &Arc<Self>, quota: Quota) -> Result<Option<Counted>, Excess> {
        let Some(limit) = self.limit(quota) else { return Ok(None) };
        let one_more = |count| if count < limit { Some(count + 1) } else { None };
        match self.counter(quota).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Some(Counted { app_use: Arc::clone(self), quota })),
            Err(_) => Err(self.reached(Excess { quota, limit, remaining: 0, retry_after: RETRY_AFTER })),
        }
    }

    fn counter(&self, quota: Quota) -> &AtomicU32 {
        if quota == Quota::EventStreams { &self.event_streams } else { &self.waiters }
    }

    /// Logs that a quota is reached, at most once a minute.
    pub fn reached(&self, excess: Excess) -> Excess {
        let mut logged = self.logged.lock();
        let last = &mut logged[excess.quota as usize];
        if last.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *last = Some(Instant::now());
            let (quota, limit) = (excess.quota, excess.limit);
            tracing::info!(app = ?self.app, quota = quota.as_str(), limit, "an app has reached a quota");
        }
        excess
    }
}

/// A request that waits, or an event stream.
#[derive(Debug)]
pub struct Counted {
    app_use: Arc<AppUse>,
    quota: Quota,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.app_use.counter(self.quota).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app_use(quotas: Quotas) -> Arc<AppUse> {
        let app_use = Arc::new(AppUse::new(App::default()));
        app_use.set(quotas);
        app_use
    }

    #[test]
    fn a_wait_beyond_the_quota_is_refused_until_another_ends() {
        let app_use = app_use(Quotas { waiters: Some(1), ..Quotas::default() });
        let waiting = app_use.wait().unwrap();
        assert_eq!(app_use.wait().unwrap_err().remaining, 0);
        drop(waiting);
        assert!(app_use.wait().unwrap().is_some());
    }

    #[test]
    fn calls_of_holders_pass_up_to_ten_times_the_rate_of_other_calls() {
        let app_use = app_use(Quotas { requests_per_second: Some(5), ..Quotas::default() });
        // The clock goes on meanwhile, so a few more may pass.
        let passed = |is_of_holder| (0..1_000).filter(|_| app_use.request(is_of_holder, 0, 1).is_ok()).count();
        assert!((5..50).contains(&passed(false)));
        assert!((50..500).contains(&passed(true)));
        let excess = app_use.request(true, 0, 1).unwrap_err();
        assert_eq!((excess.limit, excess.quota), (5, Quota::RequestsPerSecond));
        assert!(excess.retry_after <= Duration::from_secs(1));
    }

    #[test]
    fn a_request_that_carries_much_counts_as_many_and_is_not_refused_for_ever() {
        let app_use = app_use(Quotas { requests_per_second: Some(100), ..Quotas::default() });
        assert!(app_use.request(false, 0, 60).is_ok());
        assert!(app_use.request(false, 0, 60).is_err());
        // As one, for its body, and for its leases.
        for (before, more) in [(0, 1), (1, 17), (18, 1_000_000)] {
            assert!(app_use.request(true, before, more).is_ok(), "{before}");
        }
        let excess = app_use.request(true, 18, 500).unwrap_err();
        assert!((Duration::from_millis(450)..Duration::from_secs(2)).contains(&excess.retry_after), "{excess:?}");
    }

    #[test]
    fn an_app_whose_quotas_are_lifted_is_counted_no_more() {
        let app_use = app_use(Quotas { waiters: Some(0), event_streams: Some(0), ..Quotas::default() });
        assert!(app_use.stream().is_err() && app_use.wait().is_err());
        app_use.set(Quotas::default());
        assert!(app_use.stream().unwrap().is_none() && app_use.wait().unwrap().is_none());
    }
}
