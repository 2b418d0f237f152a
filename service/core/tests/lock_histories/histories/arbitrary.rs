//! Random histories.

use latchgate_core::CLOCK_BOUND_MS;
use latchgate_core::lock::Mode;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::history::{Batch, Call, Caller, Event, Fate, History, Presented, Request, Share};

/// Lease ids are few, so that they are repeated, at other nodes and after their end.
const LEASES: usize = 16;
const NODES_MAX: usize = 4;
const LIMIT_MAX: u32 = 4;
const GROUPS: usize = 3;

/// Which modes meet in a history. With all of them, few requests are compatible.
#[derive(Clone, Copy, Debug)]
struct Flavour {
    exclusive: u32,
    shared: u32,
    permits: u32,
    /// The limit that most requests for permits name.
    limit: u32,
    /// In how many of ten requests for permits a group is named.
    grouped: u32,
}

pub fn histories() -> impl Strategy<Value = History> {
    let flavour = |exclusive, shared, permits| {
        let grouped = prop_oneof![2 => Just(0_u32), 1 => Just(5), 2 => Just(9)];
        (1..=LIMIT_MAX, grouped).prop_map(move |(limit, grouped)| Flavour {
            exclusive,
            shared,
            permits,
            limit,
            grouped,
        })
    };
    let flavours =
        prop_oneof![2 => flavour(1, 0, 0), 3 => flavour(2, 3, 0), 3 => flavour(0, 0, 1), 1 => flavour(1, 1, 2)];
    flavours.prop_flat_map(|flavour| {
        let nodes = vec(offset_ms(), 2..=NODES_MAX);
        (nodes, vec(event(flavour), 1..70)).prop_map(|(offsets_ms, events)| History { offsets_ms, events })
    })
}

fn event(flavour: Flavour) -> impl Strategy<Value = Event> {
    let node = 0..NODES_MAX;
    prop_oneof![
        60 => batch(flavour).prop_map(Event::Batch),
        16 => prop_oneof![3 => 1..150_u64, 2 => 150..1_500_u64, 1 => 1_500..7_000_u64].prop_map(|ms| Event::Pass { ms }),
        4 => (node.clone(), offset_ms()).prop_map(|(node, offset_ms)| Event::Drift { node, offset_ms }),
        3 => (0..LEASES, node.clone(), node.clone()).prop_map(|(lease, from, to)| Event::Resume { lease, from, to }),
        1 => node.prop_map(|node| Event::Crash { node }),
    ]
}

fn batch(flavour: Flavour) -> impl Strategy<Value = Batch> {
    let takes_ms = prop_oneof![4 => Just(0), 2 => 1..60_u64, 1 => 60..400_u64];
    let fate = prop_oneof![
        8 => Just(Fate::Fine),
        1 => Just(Fate::LostBefore),
        1 => Just(Fate::LostAfter),
        2 => Just(Fate::Undelivered),
    ];
    (0..NODES_MAX, vec(call(flavour), 1..4), any::<bool>(), takes_ms, fate)
        .prop_map(|(node, calls, from_cache, takes_ms, fate)| Batch { node, calls, from_cache, takes_ms, fate })
}

fn call(flavour: Flavour) -> impl Strategy<Value = Call> {
    let lease = 0..LEASES;
    let limit = option::weighted(0.7, prop_oneof![2 => Just(flavour.limit), 3 => 1..=LIMIT_MAX]);
    let revoke = (prop_oneof![1 => Just(0_u64), 3 => 1..2_000_u64], option::weighted(0.4, presented()))
        .prop_map(|(grace_ms, token)| Call::Revoke { grace_ms, token });
    prop_oneof![
        60 => request(flavour).prop_map(Call::Acquire),
        22 => (lease.clone(), option::of(ttl_ms())).prop_map(|(lease, ttl_ms)| Call::Renew { lease, ttl_ms }),
        24 => lease.clone().prop_map(|lease| Call::Release { lease }),
        5 => lease.clone().prop_map(|lease| Call::Leave { lease }),
        4 => lease.prop_map(|lease| Call::WaitEnds { lease }),
        15 => (0..3_usize, any::<bool>()).prop_map(|(nth, again)| Call::GiveBackArrives { nth, again }),
        4 * flavour.permits.min(1) + 1 => limit.prop_map(Call::SetLimit),
        5 => revoke,
        2 => option::weighted(0.5, presented()).prop_map(|token| Call::Force { token }),
        3 => option::weighted(0.8, 1..900_u64).prop_map(|until_ms| Call::Close { until_ms }),
        6 => Just(Call::Open),
        7 => presented().prop_map(Call::Fence),
        14 => Just(Call::Look),
    ]
}

fn request(flavour: Flavour) -> impl Strategy<Value = Request> {
    let caller = prop_oneof![8 => Just(Caller::Itself), 1 => Just(Caller::Anonymous), 1 => Just(Caller::Other)];
    let priority = prop_oneof![3 => Just(1_u8), 1 => 2..=3_u8];
    let flags = (prop::bool::weighted(0.75), prop::bool::weighted(0.6), prop::bool::weighted(0.1));
    let delay_ms = prop_oneof![5 => Just(0_u64), 1 => 1..1_500_u64];
    let rate = 4 * flavour.permits.min(1) + 1;
    let min_hold_ms = prop_oneof![7 => Just(0_u64), rate => 1..1_500_u64];
    let max_hold_ms = option::weighted(0.2, 100..3_000_u64);
    let holds = (delay_ms, min_hold_ms, max_hold_ms);
    (0..LEASES, caller, mode_and_limit(flavour), ttl_ms(), priority, flags, holds).prop_map(
        |(
            lease,
            caller,
            (mode, limit, share),
            ttl_ms,
            priority,
            (waits, reentrant, barge),
            (delay_ms, min_hold_ms, max_hold_ms),
        )| Request {
            lease,
            caller,
            mode,
            limit,
            share,
            ttl_ms,
            priority,
            waits,
            reentrant,
            barge,
            delay_ms,
            min_hold_ms,
            max_hold_ms,
        },
    )
}

fn mode_and_limit(flavour: Flavour) -> impl Strategy<Value = (Mode, Option<u32>, Option<Share>)> {
    let usual = Just(Some(flavour.limit));
    let limit = prop_oneof![14 => usual, 3 => Just(None), 1 => (1..=LIMIT_MAX).prop_map(Some)];
    let permits = prop_oneof![4 => 1..=flavour.limit, 1 => 1..=LIMIT_MAX];
    let grouped = (0..GROUPS, option::weighted(0.6, 1..=LIMIT_MAX)).prop_map(Some);
    let share = prop_oneof![10 - flavour.grouped.min(9) => Just(None), flavour.grouped.max(1) => grouped];
    // A request for more than its group may have would wait for ever.
    let permits = (permits, limit, share).prop_map(move |(permits, limit, share)| {
        let share = share.filter(|_| flavour.grouped > 0);
        let share = share.map(|(group, limit)| (group, limit.map(|limit: u32| limit.max(permits))));
        (Mode::Permits(permits), limit, share)
    });
    prop_oneof![
        flavour.exclusive => Just((Mode::Exclusive, None, None)),
        flavour.shared => Just((Mode::Shared, None, None)),
        flavour.permits => permits,
    ]
}

fn presented() -> impl Strategy<Value = Presented> {
    prop_oneof![
        3 => (0..3_usize).prop_map(Presented::Live),
        2 => Just(Presented::Last),
        2 => (0..8_usize).prop_map(Presented::Old),
        1 => Just(Presented::Never),
    ]
}

fn ttl_ms() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(100_u64), 3 => 100..1_000_u64, 2 => 1_000..6_000_u64]
}

fn offset_ms() -> impl Strategy<Value = i64> {
    let bound = CLOCK_BOUND_MS.cast_signed();
    prop_oneof![1 => Just(-bound), 1 => Just(bound), 1 => Just(0), 3 => -bound..=bound]
}
