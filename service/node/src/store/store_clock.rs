//! A node's estimate of its store's clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use latchgate_core::{CLOCK_BOUND_MS, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How fast two clocks may drift apart, in parts per million. Crystals drift much less.
const DRIFT_PPM: f64 = 200.0;

/// The store's clock, as the monotonic clock plus an offset in a known interval.
///
/// The store's clock showed the answer's time at some moment between request and answer, which bounds the offset from both
/// sides. The intersection of these bounds is the estimate (K. Marzullo and S. Owicki, 1983). As bounds age, they widen by the
/// drift.
#[derive(Debug)]
pub struct StoreClock {
    origin: Instant,
    bounds: Mutex<Option<Bounds>>,
    /// Nothing has been done about it yet.
    jump: Mutex<Option<Jump>>,
    /// In ms.
    latest_arrival: AtomicU64,
}

/// Bounds of the offset, in ms.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Which engine of a pair: their clocks differ.
    of: usize,
    /// The jumps that these bounds contain, in ms: `jumped_ms` of the engine record, and what this node has seen beyond that.
    jumped_ms: u64,
    low: f64,
    high: f64,
    at: Instant,
    /// [`suspended_ms`] then.
    suspended_ms: f64,
}

/// A store's clock that is ahead of the estimate by more than this has jumped, in ms.
pub const JUMP_MS_MIN: u64 = 1_000;

/// The store's clock has jumped ahead: leases may seem to have ended that have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// By how much, in ms.
    pub ms: u64,
    /// `jumped_ms` of the engine record before.
    pub before_ms: u64,
}

impl Default for StoreClock {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            bounds: Mutex::new(None),
            jump: Mutex::default(),
            latest_arrival: AtomicU64::new(0),
        }
    }
}

impl StoreClock {
    /// Takes note that the clock of an engine showed `shown` between the two instants. `jumped_ms` is that of its record.
    pub fn learn(&self, (engine, jumped_ms): (usize, u64), shown: Timestamp, sent: Instant, answered: Instant) {
        #[allow(clippy::cast_precision_loss, reason = "ms since 1970 are exact in an f64 for 285 000 years")]
        let shown_ms = shown.as_ms() as f64;
        // The store cut off a fraction of a ms.
        let fresh = Bounds {
            of: engine,
            jumped_ms,
            suspended_ms: suspended_ms(),
            low: shown_ms - self.since_origin_ms(answered),
            high: shown_ms + 1.0 - self.since_origin_ms(sent),
            at: answered,
        };
        let mut bounds = self.bounds.lock();
        *bounds = Some(match *bounds {
            Some(known) if known.of == engine => {
                let jumped_ms = self.note_jump(known, fresh);
                Bounds { jumped_ms, ..known.narrowed(fresh) }
            }
            _ => fresh,
        });
    }

    /// The jump that is to be dealt with.
    pub fn jump(&self) -> Option<Jump> {
        *self.jump.lock()
    }

    pub fn jump_was_dealt_with(&self, jump: Jump) {
        // The clock may have jumped again.
        let _ = self.jump.lock().take_if(|known| *known == jump);
    }

    /// Returns `jumped_ms` of the fresh bounds.
    fn note_jump(&self, known: Bounds, fresh: Bounds) -> u64 {
        let jumped_ms = known.jumped_ms.max(fresh.jumped_ms);
        // The monotonic clock stands still while the machine is suspended.
        let ahead_ms = fresh.low - known.high - (fresh.suspended_ms - known.suspended_ms);
        let dealt_with_ms = (jumped_ms - known.jumped_ms) as f64;
        if known.low - fresh.high > JUMP_MS_MIN as f64 {
            let back_ms = known.low - fresh.high;
            tracing::warn!(back_ms, "the store's clock was set back: leases last longer by as much");
        }
        // If other nodes have dealt with more than this node sees, that was another jump.
        if ahead_ms <= JUMP_MS_MIN as f64 || (ahead_ms - dealt_with_ms).abs() <= JUMP_MS_MIN as f64 {
            return jumped_ms;
        }
        tracing::warn!(ahead_ms, "the store's clock has jumped ahead: leases seem to end too early");
        let new_ms = if ahead_ms > dealt_with_ms { ahead_ms - dealt_with_ms } else { ahead_ms };
        let ms = to_timestamp(new_ms.ceil()).as_ms();
        let mut jump = self.jump.lock();
        // The one before is still to be dealt with.
        let all = jump.map_or(Jump { ms, before_ms: jumped_ms }, |first| Jump { ms: first.ms + ms, ..first });
        *jump = Some(all);
        jumped_ms + ms
    }

    /// The estimate of the store's clock; `None` before the first answer.
    pub fn now(&self) -> Option<Timestamp> {
        self.at(Instant::now())
    }

    /// The latest time that the store's clock can show now. The remaining time of a lease is computed from it, so that it is
    /// never too long.
    pub fn latest(&self) -> Option<Timestamp> {
        let bounds = (*self.bounds.lock())?;
        Some(to_timestamp(self.since_origin_ms(Instant::now()) + bounds.high))
    }

    /// The estimate of the store's clock at `instant`.
    pub fn at(&self, instant: Instant) -> Option<Timestamp> {
        let bounds = (*self.bounds.lock())?;
        Some(to_timestamp(self.since_origin_ms(instant) + f64::midpoint(bounds.low, bounds.high)))
    }

    /// The time of a request that arrives at `instant`. It is never before an earlier arrival, even if the estimate has been
    /// corrected downwards. Only a store's clock that was set back restarts the order.
    pub fn arrival(&self, instant: Instant) -> Option<Timestamp> {
        let estimate = self.at(instant)?;
        let latest = Timestamp::from_ms(self.latest_arrival.fetch_max(estimate.as_ms(), Ordering::Relaxed));
        if latest.ms_since(estimate) <= CLOCK_BOUND_MS {
            return Some(latest.max(estimate));
        }
        self.latest_arrival.store(estimate.as_ms(), Ordering::Relaxed);
        Some(estimate)
    }

    /// How long from `instant` until the store's clock shows `time`; zero if that has passed.
    pub fn until(&self, time: Timestamp, instant: Instant) -> Duration {
        let now = self.at(instant).unwrap_or(time);
        Duration::from_millis(time.ms_since(now))
    }

    fn since_origin_ms(&self, instant: Instant) -> f64 {
        // The first request may have been sent before this clock was created.
        match instant.checked_duration_since(self.origin) {
            Some(since) => since.as_secs_f64() * 1_000.0,
            None => self.origin.duration_since(instant).as_secs_f64() * -1_000.0,
        }
    }
}

/// How long the machine has been suspended since it was started, in ms, to a tenth of a second: the two clocks are read one after the other.
/// Elsewhere than on Linux: 0.
pub fn suspended_ms() -> f64 {
    #[cfg(target_os = "linux")]
    {
        use nix::time::{ClockId, clock_gettime};
        if let (Ok(awake), Ok(passed)) =
            (clock_gettime(ClockId::CLOCK_MONOTONIC), clock_gettime(ClockId::CLOCK_BOOTTIME))
        {
            return (Duration::from(passed).saturating_sub(awake.into()).as_secs_f64() * 10.0).floor() * 100.0;
        }
    }
    0.0
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
fn to_timestamp(ms: f64) -> Timestamp {
    Timestamp::from_ms(ms as u64)
}

impl Bounds {
    /// The intersection of both. If they contradict each other, a clock was set, and the newer one counts.
    fn narrowed(self, fresh: Self) -> Self {
        let drift_ms = fresh.at.saturating_duration_since(self.at).as_secs_f64() * DRIFT_PPM / 1_000.0;
        let low = fresh.low.max(self.low - drift_ms);
        let high = fresh.high.min(self.high + drift_ms);
        if low <= high { Self { low, high, ..fresh } } else { fresh }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_slow_answer_does_not_spoil_a_good_estimate() {
        let clock = StoreClock::default();
        let start = Instant::now();
        clock.learn((0, 0), Timestamp::from_ms(10_000), start, start + MS);
        clock.learn((0, 0), Timestamp::from_ms(10_010), start + 9 * MS, start + 900 * MS);
        let estimate = clock.at(start + 100 * MS).unwrap();
        assert!(estimate.ms_apart(Timestamp::from_ms(10_100)) <= 1, "{estimate:?}");
    }

    #[test]
    fn the_estimate_follows_a_clock_that_was_set_at_once() {
        let clock = StoreClock::default();
        let start = Instant::now();
        clock.learn((0, 0), Timestamp::from_ms(10_000), start, start + MS);
        clock.learn((0, 0), Timestamp::from_ms(3_610_001), start + MS, start + 2 * MS);
        let estimate = clock.at(start + 2 * MS).unwrap();
        assert!(estimate.ms_apart(Timestamp::from_ms(3_610_002)) <= 1, "{estimate:?}");
    }

    #[test]
    fn arrivals_stay_in_order_when_the_estimate_goes_back() {
        let clock = StoreClock::default();
        let start = Instant::now();
        clock.learn((0, 0), Timestamp::from_ms(10_000), start, start + 80 * MS);
        let earlier = clock.arrival(start + 80 * MS).unwrap();
        clock.learn((0, 0), Timestamp::from_ms(10_001), start + 80 * MS, start + 81 * MS);
        assert!(clock.at(start + 82 * MS).unwrap() < earlier);
        assert!(clock.arrival(start + 82 * MS).unwrap() >= earlier);
    }

    #[test]
    fn a_clock_that_was_set_back_restarts_the_order_of_arrivals() {
        let clock = StoreClock::default();
        let start = Instant::now();
        clock.learn((0, 0), Timestamp::from_ms(3_600_000), start, start + MS);
        clock.arrival(start + MS).unwrap();
        clock.learn((0, 0), Timestamp::from_ms(10_000), start + MS, start + 2 * MS);
        for after in 2..5 {
            assert!(clock.arrival(start + after * MS).unwrap() < Timestamp::from_ms(20_000));
        }
    }

    #[test]
    fn a_clock_that_jumps_ahead_is_noticed_until_it_is_dealt_with() {
        let (clock, start) = (StoreClock::default(), Instant::now());
        clock.learn((0, 0), Timestamp::from_ms(10_000), start, start + MS);
        clock.learn((0, 0), Timestamp::from_ms(10_900), start + MS, start + 2 * MS);
        assert_eq!(clock.jump(), None);
        clock.learn((0, 0), Timestamp::from_ms(12_000), start + 2 * MS, start + 3 * MS);
        // A later answer does not hide it.
        clock.learn((0, 0), Timestamp::from_ms(12_001), start + 3 * MS, start + 4 * MS);
        let jump = clock.jump().unwrap();
        assert!((1_090..1_110).contains(&jump.ms) && jump.before_ms == 0, "{jump:?}");
        clock.jump_was_dealt_with(jump);
        // Of the other ones, another node has dealt with the first, and only with a part of the second.
        clock.learn((0, 61_100), Timestamp::from_ms(72_002), start + 4 * MS, start + 5 * MS);
        assert_eq!(clock.jump(), None);
        clock.learn((0, 61_100), Timestamp::from_ms(12_002), start + 5 * MS, start + 6 * MS);
        clock.learn((0, 63_100), Timestamp::from_ms(20_002), start + 6 * MS, start + 7 * MS);
        let jump = clock.jump().unwrap();
        assert!((5_990..6_010).contains(&jump.ms) && jump.before_ms == 63_100, "{jump:?}");
        clock.jump_was_dealt_with(jump);
        // The other engine of a pair has another clock, and a clock that is set back prolongs leases.
        clock.learn((1, 0), Timestamp::from_ms(90_000), start + 7 * MS, start + 8 * MS);
        clock.learn((1, 0), Timestamp::from_ms(80_000), start + 8 * MS, start + 9 * MS);
        assert_eq!(clock.jump(), None);
    }

    #[test]
    fn before_the_first_answer_there_is_no_estimate() {
        assert_eq!(StoreClock::default().now(), None);
    }
}
