//! Owners that wait for each other in a circle. Nothing is ended for it: leases end deadlocks.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::Serialize;

use super::lease::{Mode, Owner};
use crate::key::Key;

/// Most owners of a circle that is looked for.
pub const CYCLE_MAX: usize = 16;
/// Most circles that are looked for at once.
const CYCLES_MAX: usize = 16;
/// Most owners from whom a circle is looked for.
const STARTS_MAX: usize = 256;

/// The request of `waiter` for `key` is not granted before a lease of `holder` has ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = CycleStep))]
pub struct Blocked {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub waiter: Owner,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub key: Key,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub holder: Owner,
}

impl Mode {
    /// Whether one lease in the mode `held` keeps a request in this mode out, whatever the other holders do. `limit` is the key's
    /// number of permits.
    pub fn is_kept_out_by(self, held: Self, limit: Option<u32>) -> bool {
        match (held, self) {
            (Self::Shared, Self::Shared) => false,
            (Self::Permits(held), Self::Permits(wanted)) => {
                limit.is_some_and(|limit| held.saturating_add(wanted) > limit)
            }
            _ => true,
        }
    }
}

/// A shortest circle in which `owner` waits, beginning with its own request. An owner that waits for itself makes none: several clients may
/// have one name.
pub fn cycle_of(owner: &Owner, blocked: &[Blocked]) -> Option<Vec<Blocked>> {
    Graph::of(blocked).cycle_of(owner).map(|cycle| cycle.into_iter().cloned().collect())
}

/// Circles without a common owner. Each begins with the owner whose name is the first, so that the same circle is the same value.
pub fn cycles(blocked: &[Blocked]) -> Vec<Vec<Blocked>> {
    let graph = Graph::of(blocked);
    let mut seen: HashSet<&Owner> = HashSet::new();
    let mut cycles = Vec::new();
    let mut starts = graph.near_cycles();
    starts.sort_unstable();
    for owner in starts.into_iter().take(STARTS_MAX) {
        if cycles.len() == CYCLES_MAX {
            break;
        }
        if seen.contains(owner) {
            continue;
        }
        let Some(mut cycle) = graph.cycle_of(owner).filter(|cycle| cycle.iter().all(|of| !seen.contains(&of.waiter)))
        else {
            continue;
        };
        seen.extend(cycle.iter().map(|of| &of.waiter));
        let first = cycle.iter().enumerate().min_by_key(|(_, of)| &of.waiter).map_or(0, |(index, _)| index);
        cycle.rotate_left(first);
        cycles.push(cycle.into_iter().cloned().collect());
    }
    cycles
}

struct Graph<'a>(HashMap<&'a Owner, Vec<&'a Blocked>>);

impl<'a> Graph<'a> {
    fn of(blocked: &'a [Blocked]) -> Self {
        let mut by_waiter: HashMap<&Owner, Vec<&Blocked>> = HashMap::new();
        for one in blocked.iter().filter(|one| one.waiter != one.holder) {
            by_waiter.entry(&one.waiter).or_default().push(one);
        }
        Self(by_waiter)
    }

    /// By breadth first.
    fn cycle_of(&self, owner: &Owner) -> Option<Vec<&'a Blocked>> {
        // Each owner with the request by which it was reached, and how far it is from the first.
        let mut reached: HashMap<&Owner, &Blocked> = HashMap::new();
        let mut next: VecDeque<(&Owner, usize)> = VecDeque::from([(owner, 0)]);
        while let Some((waiter, distance)) = next.pop_front() {
            for &one in self.0.get(waiter).into_iter().flatten() {
                if one.holder == *owner {
                    return Some(way(one, owner, &reached));
                }
                if distance + 1 < CYCLE_MAX && !reached.contains_key(&one.holder) {
                    reached.insert(&one.holder, one);
                    next.push_back((&one.holder, distance + 1));
                }
            }
        }
        None
    }

    /// The owners that are in a circle or wait for one that is: those that are left when owners that wait for none of the others are
    /// taken away, again and again. There is mostly none.
    fn near_cycles(&self) -> Vec<&'a Owner> {
        let mut waits: HashMap<&Owner, usize> = self.0.iter().map(|(waiter, of)| (*waiter, of.len())).collect();
        let mut waiters_of: HashMap<&Owner, Vec<&'a Owner>> = HashMap::new();
        for one in self.0.values().flatten() {
            waiters_of.entry(&one.holder).or_default().push(&one.waiter);
        }
        let mut free: Vec<&Owner> = waiters_of.keys().filter(|owner| !waits.contains_key(*owner)).copied().collect();
        while let Some(owner) = free.pop() {
            for waiter in waiters_of.get(owner).into_iter().flatten().copied() {
                let Some(left) = waits.get_mut(waiter) else { continue };
                *left -= 1;
                if *left == 0 {
                    waits.remove(waiter);
                    free.push(waiter);
                }
            }
        }
        self.0.keys().filter(|owner| waits.contains_key(*owner)).copied().collect()
    }
}

/// The requests from `owner` to `last`.
fn way<'a>(last: &'a Blocked, owner: &Owner, reached: &HashMap<&Owner, &'a Blocked>) -> Vec<&'a Blocked> {
    let mut way = vec![last];
    while let Some(one) = way.last().filter(|one| one.waiter != *owner).and_then(|one| reached.get(&one.waiter)) {
        way.push(one);
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> Owner {
        Owner::parse(name).unwrap()
    }

    /// `a k b`: a waits for k, which b holds.
    fn blocked(texts: &[&str]) -> Vec<Blocked> {
        let parse = |text: &&str| {
            let parts: Vec<&str> = text.split(' ').collect();
            let [waiter, key, holder] = parts[..] else { panic!("{text}") };
            Blocked { waiter: owner(waiter), key: Key::parse(key).unwrap(), holder: owner(holder) }
        };
        texts.iter().map(parse).collect()
    }

    #[test]
    fn two_owners_that_wait_for_each_other_are_a_circle_from_either() {
        let both = blocked(&["a k1 b", "b k2 a"]);
        assert_eq!(cycle_of(&owner("a"), &both), Some(both.clone()));
        assert_eq!(cycle_of(&owner("b"), &both), Some(blocked(&["b k2 a", "a k1 b"])));
        assert_eq!(cycles(&both), [both]);
    }

    #[test]
    fn an_owner_that_waits_for_a_circle_is_not_in_it() {
        let all = blocked(&["c k3 a", "a k1 b", "b k2 a", "d k4 c"]);
        assert_eq!((cycle_of(&owner("c"), &all), cycle_of(&owner("d"), &all)), (None, None));
        assert_eq!(cycles(&all), [blocked(&["a k1 b", "b k2 a"])]);
    }

    #[test]
    fn the_shortest_circle_is_found() {
        let all = blocked(&["a k1 b", "b k2 c", "c k3 d", "d k4 a", "b k5 a"]);
        assert_eq!(cycle_of(&owner("a"), &all), Some(blocked(&["a k1 b", "b k5 a"])));
        assert_eq!(cycle_of(&owner("c"), &all).map(|cycle| cycle.len()), Some(4));
    }

    #[test]
    fn a_chain_that_ends_is_no_circle() {
        let all = blocked(&["a k1 b", "b k2 c", "c k3 d", "a k3 d"]);
        assert!(cycles(&all).is_empty() && cycle_of(&owner("a"), &all).is_none());
        assert!(cycle_of(&owner("unknown"), &all).is_none());
    }

    #[test]
    fn several_clients_of_one_name_are_no_circle() {
        let all = blocked(&["a k1 a"]);
        assert!(cycles(&all).is_empty() && cycle_of(&owner("a"), &all).is_none());
    }

    #[test]
    fn circles_apart_are_all_found_and_each_once() {
        let all = blocked(&["b k1 a", "a k2 b", "x k3 y", "y k4 z", "z k5 x", "b k1 a"]);
        let found = cycles(&all);
        assert_eq!(found, [blocked(&["a k2 b", "b k1 a"]), blocked(&["x k3 y", "y k4 z", "z k5 x"])]);
        let reversed: Vec<Blocked> = all.into_iter().rev().collect();
        assert_eq!(cycles(&reversed), found);
    }

    #[test]
    fn a_circle_of_too_many_owners_is_not_looked_for() {
        let of = |length: usize| {
            let texts: Vec<String> = (0..length).map(|i| format!("o{i} k{i} o{}", (i + 1) % length)).collect();
            blocked(&texts.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(cycle_of(&owner("o3"), &of(CYCLE_MAX)).map(|cycle| cycle.len()), Some(CYCLE_MAX));
        assert!(cycles(&of(CYCLE_MAX + 1)).is_empty());
    }

    #[test]
    fn a_lease_keeps_a_request_out_only_if_it_does_so_by_itself() {
        use Mode::{Exclusive, Permits, Shared};
        for (wanted, held, limit, is_kept_out) in [
            (Exclusive, Shared, None, true),
            (Shared, Exclusive, None, true),
            (Shared, Shared, None, false),
            (Permits(1), Permits(1), Some(2), false),
            (Permits(2), Permits(1), Some(2), true),
            (Permits(1), Exclusive, Some(2), true),
            (Permits(1), Permits(1), None, false),
        ] {
            assert_eq!(wanted.is_kept_out_by(held, limit), is_kept_out, "{wanted:?} behind {held:?} of {limit:?}");
        }
    }
}
