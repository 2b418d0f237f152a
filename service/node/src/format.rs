//! Answers in JSON: their types, and times in them.

use std::time::Duration;

use latchgate_core::Timestamp;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Types of answers in JSON. A field with a question mark is absent from an answer in which it says nothing; it is never null.
macro_rules! answers {
    ($($(#[$about:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$of:meta])* $public:vis $field:ident $(? $($absent:lifetime)?)?: $type:ty,)+
    })+) => {$(
        #[derive(serde::Serialize, utoipa::ToSchema)]
        $(#[$about])*
        pub struct $name $(<$life>)? {
            $(
                $(#[$of])*
                $(
                    $($absent)?
                    #[serde(skip_serializing_if = "crate::format::Absent::is_absent")]
                    #[schema(nullable = false)]
                )?
                $public $field: $type,
            )+
        }
    )+};
}
pub(crate) use answers;

/// Bodies of requests. A field that is not one of theirs is refused: a typo must not silently mean the default.
macro_rules! requests {
    ($($(#[$about:meta])* pub struct $name:ident { $($fields:tt)* })+) => {$(
        #[derive(Debug, serde::Deserialize, utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub struct $name { $($fields)* }
    )+};
}
pub(crate) use requests;

/// As [`requests`], for queries. Each parameter may be absent.
macro_rules! queries {
    ($($(#[$about:meta])* pub struct $name:ident { $($fields:tt)* })+) => {$(
        #[derive(Debug, Default, serde::Deserialize, utoipa::IntoParams)]
        #[serde(deny_unknown_fields, default)]
        #[into_params(parameter_in = Query)]
        $(#[$about])*
        pub struct $name { $($fields)* }
    )+};
}
pub(crate) use queries;

/// What a field with a question mark can be.
pub trait Absent {
    fn is_absent(&self) -> bool;
}

impl<T> Absent for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl<T> Absent for Vec<T> {
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

impl Absent for bool {
    fn is_absent(&self) -> bool {
        !self
    }
}

/// A time. The OpenAPI description knows it by the name of this type.
pub type DateTime = String;

/// RFC 3339 in UTC, to the ms.
pub fn rfc3339(at: Timestamp) -> DateTime {
    let nanoseconds = i128::from(at.as_ms()) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    write_digits(&mut text[..4], at.year().unsigned_abs());
    write_digits(&mut text[5..7], u8::from(at.month()).into());
    write_digits(&mut text[8..10], at.day().into());
    write_digits(&mut text[11..13], at.hour().into());
    write_digits(&mut text[14..16], at.minute().into());
    write_digits(&mut text[17..19], at.second().into());
    write_digits(&mut text[20..23], at.millisecond().into());
    str::from_utf8(&text).unwrap_or_default().to_owned()
}

/// Reads RFC 3339, to the ms; `None` also for a time before 1970.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().map(Timestamp::from_ms)
}

fn write_digits(digits: &mut [u8], mut number: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A time in the largest unit of which it is a whole number: `10 min`, `90 s`.
pub fn lasting(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(YEAR_MS, "year"), (24 * 3_600_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit)).unwrap_or((1, "ms"));
    let count = ms / unit;
    format!("{count} {name}{}", if name == "year" && count > 1 { "s" } else { "" })
}

/// Whole ms.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_in_its_largest_unit() {
        for (ms, text) in [
            (0, "0 ms"),
            (1_500, "1500 ms"),
            (90_000, "90 s"),
            (600_000, "10 min"),
            (7 * 24 * 3_600_000, "7 d"),
            (YEAR_MS, "1 year"),
            (10 * YEAR_MS, "10 years"),
        ] {
            assert_eq!(lasting(ms), text);
        }
    }

    #[test]
    fn times_are_utc_to_the_ms() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_700_000_000_005, "2023-11-14T22:13:20.005Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (u64::MAX, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(Timestamp::from_ms(ms)), text);
        }
    }
}
