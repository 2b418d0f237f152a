//! Fencing tokens.

use crate::time::Timestamp;

/// Tokens per ms. The tokens of a key that is granted less often than this, on average, come from the clock alone.
const TOKENS_PER_MS: u64 = 1_024;

/// The token after `previous`: strictly higher, not lower than the clock says, and not lower than `min`. So the tokens of a key
/// rise even after its state was collected, restored on another store or lost with its store. They stay below 2^53, exact in any
/// JSON number, until the year 2248.
pub(super) fn next(previous: u64, min: u64, now: Timestamp) -> u64 {
    at(now).max(previous.saturating_add(1)).max(min)
}

/// The lowest token that is granted at this time.
pub const fn at(time: Timestamp) -> u64 {
    time.as_ms().saturating_mul(TOKENS_PER_MS)
}

/// The time whose lowest token is this one, or the next lower one of those.
pub const fn time_of(token: u64) -> Timestamp {
    Timestamp::from_ms(token / TOKENS_PER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_even_when_the_clock_stops_or_goes_back() {
        let noon = Timestamp::from_ms(1_700_000_000_000);
        let first = next(0, 0, noon);
        assert_eq!(first, 1_700_000_000_000 * 1_024);
        assert_eq!(next(first, 0, noon), first + 1);
        assert_eq!(next(first, 0, Timestamp::from_ms(0)), first + 1);
        assert_eq!(next(first, first + 9, noon), first + 9);
    }

    #[test]
    fn tokens_are_exact_in_a_json_number_until_2248() {
        let new_year_2248 = Timestamp::from_ms(8_772_883_200_000);
        assert!(next(0, 0, new_year_2248) < 1 << 53);
    }
}
