//! Times in answers.

use std::time::Duration;

use latchgate_core::Timestamp;
use time::OffsetDateTime;
use time::macros::format_description;

/// RFC 3339 in UTC, to the ms.
pub fn rfc3339(at: Timestamp) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    let nanoseconds = i128::from(at.as_ms()) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(format).unwrap_or_default()
}

/// Whole ms.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_to_the_ms() {
        assert_eq!(rfc3339(Timestamp::from_ms(1_700_000_000_005)), "2023-11-14T22:13:20.005Z");
    }
}
