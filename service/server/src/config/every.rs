//! The calendar periods of `latchgate once --every`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::civil::{Date, date};
use jiff::{ToSpan as _, Unit, ZonedDateTime};

use super::duration::duration;

const DAY: i64 = 24 * 3_600;
/// How far ahead of a period's begin a run may count for it.
const EARLY_MAX: i64 = 60;
/// How far behind the clock of another machine may be, whose run counts for a period that is over here.
const BEHIND_MAX: Duration = Duration::from_secs(3_600);
const MONDAY: Date = date(1970, 1, 5);

/// A period of the calendar, as the clock on the wall of a time zone shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// Of each day, from midnight on; they divide a day.
    Seconds(i64),
    Day,
    /// From Monday on.
    Weeks(i64),
    Months(i64),
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let count = |unit: &str| {
            let number = text.strip_suffix(unit)?.trim_end();
            number.parse().ok().filter(|number| (1..=1_000).contains(number))
        };
        if let Some(months) = count("month").or_else(|| count("months")) {
            return Ok(Self::Months(months));
        }
        if let Some(weeks) = count("w") {
            return Ok(Self::Weeks(weeks));
        }
        let time = duration(text)?;
        let seconds = i64::try_from(time.as_secs()).ok().filter(|seconds| *seconds > 0 && time.subsec_nanos() == 0);
        match seconds {
            Some(DAY) => Ok(Self::Day),
            Some(seconds) if DAY % seconds == 0 => Ok(Self::Seconds(seconds)),
            _ => Err(
                "must be a period of the calendar: one that divides a day, such as 15m, 1h or 6h, or 1d, 1w or 1month"
                    .to_owned(),
            ),
        }
    }
}

impl Every {
    /// No period is longer.
    pub fn longest(self) -> Duration {
        let seconds = match self {
            Self::Seconds(seconds) => seconds,
            Self::Day => DAY,
            Self::Weeks(weeks) => weeks * 7 * DAY,
            Self::Months(months) => months * 31 * DAY,
        };
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// How long it is to the end of the period of `now`, also for a machine whose clock is an hour behind, or a whole short period.
    pub fn ends_in(self, now: &ZonedDateTime) -> Duration {
        let longest = i64::try_from(self.longest().as_secs()).unwrap_or(0);
        let (period, mut before, mut after) = (self.period(now), 0, longest.saturating_mul(2));
        while after - before > 1 {
            let middle = before.midpoint(after);
            let is_over = self.period(&now.saturating_add(middle.seconds())) != period;
            (before, after) = if is_over { (before, middle) } else { (middle, after) };
        }
        Duration::from_secs(after.unsigned_abs()) + self.longest().min(BEHIND_MAX)
    }

    /// The period of `now`; shortly before its end, the next one. The name of a period is its begin on the wall. Where summer time makes an hour
    /// come twice, periods of up to an hour are two, which the offset tells apart.
    pub fn period(self, now: &ZonedDateTime) -> String {
        let early = EARLY_MAX.min(i64::try_from(self.longest().as_secs()).unwrap_or(i64::MAX) / 10);
        let now = now.saturating_add(early.seconds());
        let today = now.date();
        match self {
            Self::Seconds(seconds) => {
                let time = now.time();
                let of_day = i64::from(time.hour()) * 3_600 + i64::from(time.minute()) * 60 + i64::from(time.second());
                let begin = today.at(0, 0, 0, 0).saturating_add((of_day / seconds * seconds).seconds());
                let offset = if seconds <= 3_600 { now.offset().to_string() } else { String::new() };
                format!("{begin}{offset}")
            }
            Self::Day => today.to_string(),
            Self::Weeks(count) => {
                let passed = today.since((Unit::Day, MONDAY)).map_or(0, |passed| i64::from(passed.get_days()));
                today.saturating_sub(passed.rem_euclid(count * 7).days()).to_string()
            }
            Self::Months(count) => {
                let months = i64::from(today.year()) * 12 + i64::from(today.month()) - 1;
                let begin = months / count * count;
                format!("{}-{:02}", begin / 12, begin % 12 + 1)
            }
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self {
            Self::Seconds(count) => (count, "s"),
            Self::Day => (&1, "d"),
            Self::Weeks(count) => (count, "w"),
            Self::Months(count) => (count, "month"),
        };
        write!(formatter, "{count}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::tz::TimeZone;
    use jiff::{Timestamp, civil};

    use super::*;

    fn at(text: &str, zone: &str, every: &str) -> String {
        let now = text.parse::<Timestamp>().unwrap().to_zoned_datetime(TimeZone::get(zone).unwrap());
        every.parse::<Every>().unwrap().period(&now)
    }

    #[test]
    fn a_run_shortly_before_a_period_counts_for_it() {
        let hour = |time: &str| at(&format!("2026-11-28T{time}Z"), "UTC", "1h");
        assert_eq!(hour("01:00:00"), "2026-11-28T01:00:00+00");
        assert!(["00:59:05", "01:01:40", "01:58:20"].iter().all(|time| hour(time) == hour("01:00:00")));
        assert_ne!(hour("00:58:20"), hour("01:00:00"));
        assert_eq!(at("2026-11-28T23:59:30Z", "UTC", "1d"), "2026-11-29");
        assert_eq!(at("2026-11-30T23:59:30Z", "UTC", "1month"), "2026-12");
    }

    #[test]
    fn a_period_ends_when_the_next_one_begins_and_no_clock_is_behind_any_more() {
        for (now, every, seconds) in [
            ("2026-11-28T01:10:00Z", "1h", 50 * 60 - 60 + 3_600),
            ("2026-11-28T01:10:00Z", "10m", 600 - 60 + 600),
            ("2026-11-28T01:10:00Z", "1d", 22 * 3_600 - 600 - 60 + 3_600),
            ("2026-10-24T22:30:00Z", "1d", 24 * 3_600 + 1_800 - 60 + 3_600),
            ("2026-02-01T12:00:00Z", "1month", 27 * 86_400 + 11 * 3_600 - 60 + 3_600),
        ] {
            let zone = TimeZone::get("Europe/Berlin").unwrap();
            let now = now.parse::<Timestamp>().unwrap().to_zoned_datetime(zone);
            let ends_in = every.parse::<Every>().unwrap().ends_in(&now);
            assert_eq!(ends_in, Duration::from_secs(seconds), "{now} {every}");
        }
    }

    /// Runs at this time on the wall of each day of a year.
    fn of_a_year(zone: &str, every: &str, hour: i8, minute: i8) -> (usize, usize) {
        let zone = TimeZone::get(zone).unwrap();
        let every: Every = every.parse().unwrap();
        let days = (0..365).map(|day| civil::date(2026, 1, 1).saturating_add(i64::from(day).days()));
        // A time that summer time leaves out is the one an hour later, as cron has it.
        let runs: Vec<String> = days
            .map(|day| every.period(&day.at(hour, minute, 0, 0).to_zoned_datetime(zone.clone()).unwrap()))
            .collect();
        (runs.len(), runs.into_iter().collect::<BTreeSet<_>>().len())
    }

    #[test]
    fn a_daily_job_is_neither_skipped_nor_doubled_when_the_clocks_change() {
        for zone in ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago"] {
            for (hour, minute) in [(0, 0), (0, 30), (1, 30), (2, 0), (2, 30), (3, 0), (23, 30), (23, 58)] {
                assert_eq!(of_a_year(zone, "1d", hour, minute), (365, 365), "{zone} {hour}:{minute}");
            }
        }
        assert_eq!(of_a_year("Europe/Berlin", "1month", 1, 30), (365, 12));
        assert_eq!(of_a_year("Europe/Berlin", "1w", 1, 30), (365, 53));
    }

    #[test]
    fn an_hourly_job_runs_in_both_hours_that_have_one_name() {
        let night: BTreeSet<String> = (0..4)
            .map(|hour| {
                at(
                    &format!("2026-10-{:02}T{:02}:00:00Z", if hour == 0 { 24 } else { 25 }, (23 + hour) % 24),
                    "Europe/Berlin",
                    "1h",
                )
            })
            .collect();
        assert_eq!(night.len(), 4, "{night:?}");
        // On the wall: 00:00, 06:00 and so on, also on the days of 23 and 25 hours.
        for (day, hours) in [("2026-03-29", ["04:00", "10:00"]), ("2026-10-25", ["05:00", "11:00"])] {
            let begins = hours.map(|hour| at(&format!("{day}T{hour}:00Z"), "Europe/Berlin", "6h"));
            assert_eq!(begins, [format!("{day}T06:00:00"), format!("{day}T12:00:00")]);
        }
    }

    #[test]
    fn a_period_divides_a_day_or_is_a_day_weeks_or_months() {
        for (text, every) in [
            ("30s", Every::Seconds(30)),
            ("1h", Every::Seconds(3_600)),
            ("24h", Every::Day),
            ("1w", Every::Weeks(1)),
            ("1month", Every::Months(1)),
            ("3 months", Every::Months(3)),
        ] {
            assert_eq!(text.parse(), Ok(every), "{text}");
        }
        for text in ["", "0", "0d", "7h", "36h", "90m 1s", "1y", "500ms", "0month", "-1w", "month", "5", "2d", "30d"] {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
    }
}
