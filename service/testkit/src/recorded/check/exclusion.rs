//! What may be held at once: modes, permits, their numbers, and groups.

use super::super::Mode;
use super::lease::LeaseHistory;
use super::{Report, Rule};

/// Most permits of a lease that have numbers.
const SLOTS_MAX: u64 = 256;

/// `leases` are in the order in which they were held.
pub(super) fn check(leases: &[LeaseHistory<'_>], report: &mut Report) {
    let mut live: Vec<&LeaseHistory<'_>> = Vec::new();
    for lease in leases.iter().filter(|lease| lease.is_held()) {
        live.retain(|other| other.to_us > lease.from_us);
        for other in &live {
            check_pair(other, lease, report);
        }
        live.push(lease);
        if lease.asked().mode == Mode::Permits {
            check_permits(&live, lease, report);
        }
    }
}

fn check_pair(earlier: &LeaseHistory<'_>, later: &LeaseHistory<'_>, report: &mut Report) {
    let (one, other) = (earlier.asked(), later.asked());
    if later.is_warned() {
        return;
    }
    if earlier.excludes(later) {
        return report.violated(Rule::OneHolder, earlier.shown_with(later));
    }
    if one.mode != Mode::Permits || other.mode != Mode::Permits {
        return;
    }
    if one.limit != other.limit {
        report.violated(Rule::Permits, earlier.shown_with(later));
    }
    let slots = |lease: &LeaseHistory<'_>| lease.grant.map(|grant| grant.slots.clone()).unwrap_or_default();
    if slots(earlier).iter().any(|slot| slots(later).contains(slot)) {
        report.violated(Rule::Slots, earlier.shown_with(later));
    }
}

/// `lease` is the last of the `live` ones.
fn check_permits(live: &[&LeaseHistory<'_>], lease: &LeaseHistory<'_>, report: &mut Report) {
    let asked = lease.asked();
    let grants = || live.iter().filter(|other| other.asked().mode == Mode::Permits).filter_map(|other| other.grant);
    let is_warned = lease.is_warned();
    if !is_warned && grants().map(|grant| grant.asked.permits).sum::<u64>() > asked.limit {
        report.violated(Rule::Permits, grants());
    }
    let in_group = || grants().filter(move |grant| grant.asked.group == asked.group);
    if !is_warned
        && asked.group_limit > 0
        && in_group().map(|grant| grant.asked.permits).sum::<u64>() > asked.group_limit
    {
        report.violated(Rule::GroupLimit, in_group());
    }
    let slots = lease.grant.map(|grant| grant.slots.clone()).unwrap_or_default();
    let is_twice = slots.iter().enumerate().any(|(index, slot)| slots[..index].contains(slot));
    // A lease of very many permits has no numbers.
    let is_short = asked.permits <= SLOTS_MAX && slots.len() as u64 != asked.permits;
    if is_short || slots.iter().any(|slot| *slot >= asked.limit) || is_twice {
        report.violated(Rule::Slots, lease.grant);
    }
}
