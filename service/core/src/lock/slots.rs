//! The numbers of permits: each grant of permits has as many numbers, the lowest that no other lease has.
//!
//! The number of a permit says which of several equal things a holder has: a port, a device, a test database. A lease keeps
//! its numbers until it ends.

use std::fmt::Write as _;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A lease of more permits has no numbers: every answer about it would list them.
pub const SLOTS_MAX: u32 = 256;

/// The numbers of one lease, in ascending ranges: the first and the last of each. Each commit of a key writes them, so they are written
/// as a short text: `0-2,5`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(Box<[(u32, u32)]>);

impl Slots {
    /// The lowest `count` numbers below `limit` that are not in `taken`. None for more permits than [`SLOTS_MAX`].
    ///
    /// There are enough: a lease has no more numbers than permits, and no more permits are granted than the limit leaves. After the
    /// limit was lowered, leases may have higher numbers.
    pub(super) fn lowest_free<'a>(taken: impl Iterator<Item = &'a Self>, count: u32, limit: u32) -> Self {
        if count > SLOTS_MAX {
            return Self::default();
        }
        let mut taken: Vec<(u32, u32)> = taken.flat_map(|slots| slots.0.iter().copied()).collect();
        taken.sort_unstable();
        let (mut free, mut next, mut left) = (Vec::new(), 0_u32, count);
        for (first, last) in taken.into_iter().chain([(limit, limit)]) {
            let takes = first.min(limit).saturating_sub(next).min(left);
            if takes > 0 {
                free.push((next, next + takes - 1));
                left -= takes;
            }
            if left == 0 {
                break;
            }
            next = next.max(last.saturating_add(1));
        }
        Self(free.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// About how long the numbers are when they are written.
    pub(super) fn bytes(&self) -> usize {
        let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
        let range = |(first, last): &(u32, u32)| {
            let last = if first == last { 0 } else { 1 + digits(*last) };
            1 + digits(*first) + last
        };
        if self.is_empty() { 0 } else { 12 + self.0.iter().map(range).sum::<usize>() }
    }
}

impl Serialize for Slots {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        for (first, last) in &self.0 {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{comma}{first}");
            if first < last {
                let _ = write!(text, "-{last}");
            }
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Slots {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges: Option<Vec<(u32, u32)>> = text.split(',').map(range).collect();
        let ranges = ranges.ok_or_else(|| D::Error::custom("these are not the numbers of permits"))?;
        let is_ascending =
            ranges.iter().all(|(first, last)| first <= last) && ranges.windows(2).all(|two| two[0].1 < two[1].0);
        if !is_ascending {
            return Err(D::Error::custom("the numbers of permits must ascend"));
        }
        Ok(Self(ranges.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(text: &str) -> Slots {
        serde_json::from_value(text.into()).unwrap()
    }

    fn written(slots: &Slots) -> String {
        serde_json::to_string(slots).unwrap()
    }

    #[test]
    fn the_lowest_free_numbers_are_found_between_and_behind_taken_numbers() {
        let taken = [slots("1-2,7"), slots("4")];
        let free = |count, limit| written(&Slots::lowest_free(taken.iter(), count, limit));
        assert_eq!(free(1, 9), "\"0\"");
        assert_eq!(free(4, 9), "\"0,3,5-6\"");
        assert_eq!(free(5, 9), "\"0,3,5-6,8\"");
        // After the limit was lowered to 4.
        assert_eq!(free(2, 4), "\"0,3\"");
        assert_eq!(written(&Slots::lowest_free([].iter(), 3, u32::MAX)), "\"0-2\"");
        assert!(Slots::lowest_free([].iter(), SLOTS_MAX + 1, u32::MAX).is_empty());
        let top = [slots("0-4294967295")];
        assert!(Slots::lowest_free(top.iter(), 1, u32::MAX).is_empty());
    }

    #[test]
    fn numbers_are_written_as_ranges_and_other_texts_are_not_read() {
        let read = slots("0-2,5,10-4294967295");
        assert_eq!(written(&read), "\"0-2,5,10-4294967295\"");
        assert_eq!(slots("3,5-6").iter().collect::<Vec<_>>(), [3, 5, 6]);
        assert!(written(&read).len() + "\"slots\":,".len() <= read.bytes());
        for text in ["", "1,", "2-1", "3,3", "5,1", "0-3,3-4", "-1", "1-2-3", "4294967296"] {
            assert!(serde_json::from_value::<Slots>(text.into()).is_err(), "{text}");
        }
    }
}
