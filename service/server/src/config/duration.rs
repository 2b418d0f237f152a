//! Durations on the command line: `90d`, `12h`, `1m 30s`, `500ms`.

use std::time::Duration;

use latchgate_node::format::ms;

/// # Errors
/// Says what a duration looks like.
pub fn duration(text: &str) -> Result<Duration, String> {
    let error = |error| match text.trim() {
        number if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("a duration has a unit: {number}s is {number} seconds, {number}m minutes, {number}ms milliseconds")
        }
        _ => format!("{error}; a duration is a number with a unit, for example 30s, 5m or 90d"),
    };
    humantime::parse_duration(text).map_err(error)
}

/// A duration of at least 1 ms.
///
/// # Errors
/// As [`duration`].
pub fn some_duration(text: &str) -> Result<Duration, String> {
    duration(text)
        .and_then(|time| if time.as_millis() == 0 { Err("must be at least 1ms".to_owned()) } else { Ok(time) })
}

/// In ms, at least 1.
///
/// # Errors
/// As [`duration`].
pub fn duration_ms(text: &str) -> Result<u64, String> {
    some_duration(text).map(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(duration_ms("90d"), Ok(90 * 24 * 3_600_000));
        assert_eq!((duration_ms("12h"), duration_ms("1m 30s")), (Ok(43_200_000), Ok(90_000)));
        assert_eq!((duration_ms("500ms"), duration("0")), (Ok(500), Ok(Duration::ZERO)));
        for text in ["", "90", "d", "0d", "0", "-1d", "1us", "99999999999999999999d", "1é"] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
        assert!(duration("30").unwrap_err().starts_with("a duration has a unit: 30s is"));
    }
}
