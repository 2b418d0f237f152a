//! The figures of a node's locks.

use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use latchgate_core::Timestamp;
use latchgate_core::lock::{Event, EventKind, LockState};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::count::{Durations, of_sizes};
use super::live::LiveLeases;
use super::page::{Page, label_values};

/// How leases end.
const ENDS: [EventKind; 5] =
    [EventKind::Released, EventKind::Expired, EventKind::Revoked, EventKind::Forced, EventKind::GivenBack];
/// The kinds of stores.
const STORES: [&str; 3] = ["sqlite", "postgres", "redis"];

/// Why a key of a batch was evaluated once more, besides a lost race.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Retry {
    /// This node's estimate of the store's clock was off, or its commit arrived too late.
    Clock,
    /// The epoch was over.
    Epoch,
    /// Other sessions of the store were in the way.
    Contended,
}

#[derive(Debug, Default)]
pub struct LockMetrics {
    pub wait_seconds: Durations,
    pub handoff_seconds: Durations,
    pub committer_queue_seconds: Durations,
    batch_calls: OnceLock<Histogram>,
    commit_seconds: [OnceLock<Durations>; STORES.len()],
    granted: Counter,
    ended: [Counter; ENDS.len()],
    live: LiveLeases,
    pub lost_races: Counter,
    pub clock_jumps: Counter,
    retries: [Counter; Retry::Contended as usize + 1],
    pub cache_hits: Counter,
    pub cache_misses: Counter,
    pub events_dropped: Counter,
    pub events_unreadable: Counter,
    pub wake_ups_sent: Counter,
    pub wake_ups_lost: Counter,
    pub found_by_timer: Counter,
}

/// Grants and ends of leases in a change that is not committed yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uncounted {
    granted: u32,
    ended: [u32; ENDS.len()],
}

impl Uncounted {
    pub fn of(events: &[Event]) -> Self {
        let mut uncounted = Self::default();
        for event in events {
            if event.kind == EventKind::Granted {
                uncounted.granted += 1;
            } else if let Some(end) = ENDS.iter().position(|end| *end == event.kind) {
                uncounted.ended[end] += 1;
            }
        }
        uncounted
    }
}

impl LockMetrics {
    /// A change of a key was committed.
    pub fn committed(&self, uncounted: Uncounted, before: &LockState, after: &LockState, now: Timestamp) {
        if uncounted.granted > 0 {
            self.granted.inc_by(uncounted.granted.into());
        }
        for (index, count) in uncounted.ended.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            self.ended[index].inc_by(count.into());
        }
        self.live.changed(before, after, now);
    }

    /// A commit to this kind of store took so long.
    pub fn commit_took(&self, store: &str, time: Duration) {
        if let Some(index) = STORES.iter().position(|kind| *kind == store) {
            self.commit_seconds[index].get_or_init(Durations::default).observe(time.as_secs_f64());
        }
    }

    /// How many calls a batch has.
    pub fn batch_calls(&self) -> &Histogram {
        self.batch_calls.get_or_init(of_sizes)
    }

    pub fn retried(&self, why: Retry, keys: usize) {
        self.retries[why as usize].inc_by(keys as u64);
    }

    /// `now` by the store's clock.
    pub fn encode(&self, now: Timestamp, page: &mut Page<'_>) {
        let help = "Time that requests with wait_ms were in a queue, whether they got the lock or not.";
        page.histogram("latchgate_wait_seconds", help, &self.wait_seconds);
        let help = "Time from the end of a lease to the grant to a waiter of the lock.";
        page.histogram("latchgate_handoff_seconds", help, &self.handoff_seconds);
        page.counter("latchgate_leases_granted", "Leases granted by commits of this node.", self.granted.get());
        let ended = ("latchgate_leases_ended", "Leases ended by commits of this node.");
        page.counters_by(ended, "why", ENDS.map(EventKind::as_str).into_iter().zip(&self.ended));
        let help = "Leases that are live: the sum over all nodes. One node alone may be below 0, because a lease may end at another \
                    node than the one that granted it.";
        page.gauge("latchgate_leases_live", help, self.live.get(now));
        let help = "Time that calls wait for the committer.";
        page.histogram("latchgate_committer_queue_seconds", help, &self.committer_queue_seconds);
        page.histogram("latchgate_batch_calls", "Calls in a batch.", self.batch_calls());
        let mut commits = page.histograms("latchgate_commit_seconds", "Time of a commit of lock states.");
        for (store, seconds) in STORES.iter().zip(&self.commit_seconds) {
            if let Some(seconds) = seconds.get() {
                commits.buckets(&[("store", store)], seconds);
            }
        }
        let help = "Keys of a batch whose state in the store was another than the expected one.";
        page.counter("latchgate_lost_races", help, self.lost_races.get());
        let help = "Jumps ahead of the store's clock that this node has dealt with.";
        page.counter("latchgate_clock_jumps", help, self.clock_jumps.get());
        let retries = ("latchgate_retries", "Keys of a batch that were evaluated again for another reason.");
        page.counters_by(retries, "why", label_values::<Retry>().zip(&self.retries));
        let help = "Batches of a key that began with a cached state.";
        page.counter("latchgate_cache_hits", help, self.cache_hits.get());
        let help = "Batches of a key that began without a cached state.";
        page.counter("latchgate_cache_misses", help, self.cache_misses.get());
        let help = "Events that were not written, and events `dropped` on streams, after which events are missing.";
        page.counter("latchgate_events_dropped", help, self.events_dropped.get());
        let help = "Events of the store that this node could not decode.";
        page.counter("latchgate_events_unreadable", help, self.events_unreadable.get());
        page.counter("latchgate_wake_ups_sent", "Notifications to other nodes.", self.wake_ups_sent.get());
        let help = "Notifications to other nodes that could not be sent.";
        page.counter("latchgate_wake_ups_lost", help, self.wake_ups_lost.get());
        let help = "Grants after a release of which no notification came: a timer found it.";
        page.counter("latchgate_wake_ups_found_by_timer", help, self.found_by_timer.get());
    }
}
