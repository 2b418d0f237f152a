//! Durations on the command line: `90d`, `12h`, `30m`, `45s`, `500ms`.

use std::time::Duration;

/// # Errors
/// Says what a duration looks like.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let error = || "must be a number and d, h, m, s or ms, for example 90d".to_owned();
    let unit = text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = text.split_at(unit);
    let unit_ms = match unit {
        "d" => 24 * 3_600_000,
        "h" => 3_600_000,
        "m" => 60_000,
        "s" => 1_000,
        "ms" => 1,
        _ => return Err(error()),
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(error)
}

/// A duration that is not 0.
///
/// # Errors
/// As [`duration`].
pub fn some_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("must not be 0".to_owned()) } else { Ok(time) })
}

/// In ms.
///
/// # Errors
/// As [`some_duration`].
pub fn duration_ms(text: &str) -> Result<u64, String> {
    some_duration(text).map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        assert_eq!(duration_ms("90d"), Ok(90 * 24 * 3_600_000));
        assert_eq!((duration_ms("12h"), duration_ms("30m")), (Ok(43_200_000), Ok(1_800_000)));
        assert_eq!((duration_ms("500ms"), duration("0")), (Ok(500), Ok(Duration::ZERO)));
        for text in ["", "90", "d", "0d", "0", "-1d", "1.5h", "99999999999999999999d", "1é"] {
            assert!(duration_ms(text).is_err(), "{text}");
        }
    }
}
