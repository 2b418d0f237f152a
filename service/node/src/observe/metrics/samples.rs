//! The last quarter of an hour of the few metrics that the console draws.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use latchgate_core::App;
use parking_lot::Mutex;

use super::requests::OTHER;

/// How often a sample is taken.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Most samples that are kept: those of a quarter of an hour.
const SAMPLES_MAX: usize = 180;
/// The metrics that are kept, and the label whose values stay apart. Over all other labels, they are summed.
const METRICS: [(&str, &str); 8] = [
    ("latchgate_requests_total", "code"),
    ("latchgate_request_seconds_bucket", "le"),
    ("latchgate_leases_granted_total", ""),
    ("latchgate_handoff_seconds_bucket", "le"),
    ("latchgate_wait_seconds_bucket", "le"),
    ("latchgate_waiters", ""),
    ("latchgate_leases_live", ""),
    ("latchgate_operations_total", ""),
];

/// Samples, the oldest first. Routes have no series of their own, so those of all apps together stay below 200 KiB, and those of one app
/// below 50 KiB.
#[derive(Debug, Default)]
pub struct Samples(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    taken_at: VecDeque<Instant>,
    /// By app and series, its value in each sample. The app is as the page writes it, and empty for all apps together.
    series: BTreeMap<(String, String), VecDeque<i64>>,
}

impl Samples {
    /// Takes a sample of a page of metrics.
    pub fn take(&self, page: &str) {
        let mut sums = sums(page);
        let mut kept = self.0.lock();
        let Kept { taken_at, series } = &mut *kept;
        taken_at.push_back(Instant::now());
        for (name, values) in series.iter_mut() {
            values.push_back(sums.remove(name).unwrap_or(0));
        }
        for (name, value) in sums {
            // What is counted for the first time was 0 before.
            let mut values: VecDeque<i64> = vec![0; taken_at.len() - 1].into();
            values.push_back(value);
            series.insert(name, values);
        }
        if taken_at.len() > SAMPLES_MAX {
            taken_at.pop_front();
            for values in series.values_mut() {
                values.pop_front();
            }
        }
        // An app that has been deleted.
        series.retain(|(app, _), values| app.is_empty() || values.iter().any(|value| *value != 0));
    }

    /// How long ago each sample was taken, in ms, and the values of each series: of an app, or of all together.
    pub fn of(&self, app: Option<&App>) -> (Vec<u64>, BTreeMap<String, VecDeque<i64>>) {
        let app = app.map_or_else(String::new, |app| app.as_str().replace('\\', r"\\").replace('"', "\\\""));
        let kept = self.0.lock();
        let age_ms = |at: &Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let series = kept.series.iter().filter(|((of, _), _)| *of == app);
        let series = series.map(|((_, name), values)| (name.clone(), values.clone())).collect();
        (kept.taken_at.iter().map(age_ms).collect(), series)
    }
}

/// The values of the series that are kept, by app, name and label.
fn sums(page: &str) -> BTreeMap<(String, String), i64> {
    let mut sums = BTreeMap::new();
    for line in page.lines() {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let Some((name, label)) = METRICS.iter().find(|(kept, _)| *kept == name) else { continue };
        let Some(value) = line.rsplit(' ').next().and_then(|value| value.parse::<i64>().ok()) else { continue };
        let value_of = |label| line.split_once(&format!("{label}=\"")).and_then(|(_, rest)| rest.split('"').next());
        let series = match value_of(*label) {
            Some(value) if !label.is_empty() => format!("{name}{{{label}=\"{value}\"}}"),
            _ => (*name).to_owned(),
        };
        // The apps that have no figures of their own share theirs.
        let app = line.split_once("app=\"").and_then(|(_, rest)| Some(rest.rsplit_once("\"}")?.0));
        let app = app.filter(|app| !["", OTHER].contains(app));
        for app in [""].into_iter().chain(app) {
            *sums.entry((app.to_owned(), series.clone())).or_default() += value;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_summed_and_each_app_has_series_of_its_own_too() {
        let samples = Samples::default();
        samples.take("latchgate_waiters 2\nlatchgate_committer_queue_seconds_count 9\n");
        samples.take(
            "# TYPE latchgate_requests counter\n\
             latchgate_requests_total{route=\"acquire\",code=\"200\",app=\"a\"} 2\n\
             latchgate_requests_total{route=\"release\",code=\"200\",app=\"b\"} 3\n\
             latchgate_requests_total{route=\"release\",code=\"410\",app=\"b\"} 1\n\
             latchgate_request_seconds_bucket{le=\"0.005\",route=\"acquire\",app=\"a\"} 9\n\
             latchgate_request_seconds_bucket{le=\"0.005\",route=\"release\",app=\"a\"} 2\n\
             latchgate_request_seconds_bucket{le=\"0.005\",route=\"release\",app=\"other\"} 1\n\
             latchgate_requests_total{route=\"other\",code=\"401\",app=\"\"} 1\n\
             latchgate_requests_total{route=\"acquire\",code=\"423\",app=\"a\\\"}\"} 7\n\
             latchgate_wait_seconds_bucket{le=\"0.005\"} 4\n\
             latchgate_operations_total{outcome=\"go\"} 1\nlatchgate_operations_total{outcome=\"success\"} 1\n\
             latchgate_waiters 0\n",
        );
        let shown = |app: Option<&str>| -> Vec<(String, i64, i64)> {
            let (ages_ms, series) = samples.of(app.map(|app| App::parse(app).unwrap()).as_ref());
            assert_eq!(ages_ms.len(), 2);
            series.into_iter().map(|(name, values)| (name, values[0], values[1])).collect()
        };
        let expected = |series: &[(&str, i64, i64)]| -> Vec<_> {
            series.iter().map(|(name, first, second)| ((*name).to_owned(), *first, *second)).collect()
        };
        let all = [
            ("latchgate_operations_total", 0, 2),
            ("latchgate_request_seconds_bucket{le=\"0.005\"}", 0, 12),
            ("latchgate_requests_total{code=\"200\"}", 0, 5),
            ("latchgate_requests_total{code=\"401\"}", 0, 1),
            ("latchgate_requests_total{code=\"410\"}", 0, 1),
            ("latchgate_requests_total{code=\"423\"}", 0, 7),
            ("latchgate_wait_seconds_bucket{le=\"0.005\"}", 0, 4),
            ("latchgate_waiters", 2, 0),
        ];
        assert_eq!(shown(None), expected(&all));
        let of_a = [
            ("latchgate_request_seconds_bucket{le=\"0.005\"}", 0, 11),
            ("latchgate_requests_total{code=\"200\"}", 0, 2),
        ];
        assert_eq!(shown(Some("a")), expected(&of_a));
        assert_eq!(shown(Some("a\"}")), expected(&[("latchgate_requests_total{code=\"423\"}", 0, 7)]));
        // An app of this name would see the figures of all apps that have none of their own.
        assert_eq!(shown(Some("other")), []);
        // Deleted.
        (0..SAMPLES_MAX).for_each(|_| samples.take("latchgate_waiters 0\n"));
        assert_eq!(samples.0.lock().series.keys().filter(|(app, _)| !app.is_empty()).count(), 0);
    }

    #[test]
    fn only_the_last_quarter_of_an_hour_is_kept() {
        let samples = Samples::default();
        (0..SAMPLES_MAX + 20).for_each(|number| samples.take(&format!("latchgate_waiters {number}\n")));
        let (ages_ms, series) = samples.of(None);
        let waiters = &series["latchgate_waiters"];
        assert_eq!((ages_ms.len(), waiters.len(), waiters[0]), (SAMPLES_MAX, SAMPLES_MAX, 20));
    }
}
