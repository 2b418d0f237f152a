//! Owners that wait for each other in a circle. Nothing is ended for it: leases end deadlocks.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;

use super::lease::{Mode, Owner};
use crate::key::Key;

/// Most owners of a circle that is looked for.
pub const CYCLE_MAX: usize = 16;

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
    let mut by_waiter: HashMap<&Owner, Vec<&Blocked>> = HashMap::new();
    for one in blocked.iter().filter(|one| one.waiter != one.holder) {
        by_waiter.entry(&one.waiter).or_default().push(one);
    }
    // By breadth first: each owner with the request by which it was reached, and how far it is from the first.
    let mut reached: HashMap<&Owner, &Blocked> = HashMap::new();
    let mut next: VecDeque<(&Owner, usize)> = VecDeque::from([(owner, 0)]);
    while let Some((waiter, distance)) = next.pop_front() {
        for &one in by_waiter.get(waiter).into_iter().flatten() {
            if one.holder == *owner {
                return Some(way(one, owner, &reached).into_iter().cloned().collect());
            }
            if distance + 1 < CYCLE_MAX && !reached.contains_key(&one.holder) {
                reached.insert(&one.holder, one);
                next.push_back((&one.holder, distance + 1));
            }
        }
    }
    None
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
    }

    #[test]
    fn an_owner_that_waits_for_a_circle_is_not_in_it() {
        let all = blocked(&["c k3 a", "a k1 b", "b k2 a", "d k4 c"]);
        assert_eq!((cycle_of(&owner("c"), &all), cycle_of(&owner("d"), &all)), (None, None));
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
        assert!(cycle_of(&owner("a"), &all).is_none());
        assert!(cycle_of(&owner("unknown"), &all).is_none());
    }

    #[test]
    fn several_clients_of_one_name_are_no_circle() {
        let all = blocked(&["a k1 a"]);
        assert!(cycle_of(&owner("a"), &all).is_none());
    }

    #[test]
    fn a_circle_of_too_many_owners_is_not_looked_for() {
        let of = |length: usize| {
            let texts: Vec<String> = (0..length).map(|i| format!("o{i} k{i} o{}", (i + 1) % length)).collect();
            blocked(&texts.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(cycle_of(&owner("o3"), &of(CYCLE_MAX)).map(|cycle| cycle.len()), Some(CYCLE_MAX));
        assert!(cycle_of(&owner("o3"), &of(CYCLE_MAX + 1)).is_none());
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
