//! Requests by route, code and app.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchgate_core::App;
use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;

use super::count::Durations;
use super::page::Page;

/// Apps with figures of their own. The others are counted together, under `other`.
const APPS_MAX: usize = 100;
/// The label of the other apps.
pub(super) const OTHER: &str = "other";
/// The status codes of answers. The last stands for every other one.
const STATUSES: [u16; 21] =
    [200, 201, 204, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 422, 423, 429, 431, 500, 501, 503, 0];

/// The requests to this process.
#[derive(Debug)]
pub struct Requests {
    routes: &'static [&'static str],
    apps: RwLock<HashMap<App, Arc<OfApp>>>,
    /// Requests that ended before it was known of which app they are, or that need none.
    without_app: OfApp,
    other: Arc<OfApp>,
}

/// The requests of one app.
#[derive(Debug)]
pub struct OfApp {
    name: String,
    /// By route and status.
    answers: Vec<[Counter; STATUSES.len()]>,
    /// By route.
    seconds: Vec<OnceLock<Durations>>,
}

impl Requests {
    pub fn new(routes: &'static [&'static str]) -> Self {
        let of = |name: &str| OfApp::new(name, routes.len());
        Self { routes, apps: RwLock::default(), without_app: of(""), other: Arc::new(of(OTHER)) }
    }

    /// For callers to keep: looking it up for each request would cost more than counting.
    pub fn of(&self, app: &App) -> Arc<OfApp> {
        let mut apps = self.apps.write();
        if let Some(known) = apps.get(app) {
            return Arc::clone(known);
        }
        // An app of this name would have a series with the labels of the others together.
        if apps.len() >= APPS_MAX || app.as_str() == OTHER {
            return Arc::clone(&self.other);
        }
        let new = Arc::new(OfApp::new(app.as_str(), self.routes.len()));
        apps.insert(app.clone(), Arc::clone(&new));
        new
    }

    /// Leaves out apps that are no more.
    pub fn retain(&self, is_known: impl Fn(&App) -> bool) {
        self.apps.write().retain(|app, _| is_known(app));
    }

    /// Requests without a known app.
    pub fn without_app(&self) -> &OfApp {
        &self.without_app
    }

    pub fn encode(&self, page: &mut Page<'_>) {
        let apps: Vec<Arc<OfApp>> = self.apps.read().values().map(Arc::clone).collect();
        let all = || apps.iter().map(Arc::as_ref).chain([&self.without_app, &*self.other]);
        let mut requests = page.counters("latchgate_requests", "Answered requests.");
        for app in all() {
            for (route, answers) in self.routes.iter().zip(&app.answers) {
                for (status, count) in STATUSES.iter().zip(answers).filter(|(_, count)| count.get() > 0) {
                    let code = if *status == 0 { "other".to_owned() } else { status.to_string() };
                    requests.count(&[("route", route), ("code", &code), ("app", &app.name)], count.get());
                }
            }
        }
        let help = "Time from the head of a request to its answer, without requests that may wait.";
        let mut seconds = page.histograms("latchgate_request_seconds", help);
        for app in all() {
            for (route, histogram) in self.routes.iter().zip(&app.seconds) {
                if let Some(histogram) = histogram.get() {
                    seconds.buckets(&[("route", route), ("app", &app.name)], histogram);
                }
            }
        }
    }
}

impl OfApp {
    fn new(name: &str, routes: usize) -> Self {
        Self {
            name: name.to_owned(),
            answers: (0..routes).map(|_| std::array::from_fn(|_| Counter::default())).collect(),
            seconds: (0..routes).map(|_| OnceLock::new()).collect(),
        }
    }

    /// `route` is an index into the routes of [`Requests::new`]. `took` is the time of a request that did not wait for other clients.
    pub fn count(&self, route: usize, status: u16, took: Option<Duration>) {
        let status = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len() - 1);
        self.answers[route][status].inc();
        if let Some(took) = took {
            self.seconds[route].get_or_init(Durations::default).observe(took.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hundred_and_first_app_is_counted_with_the_others() {
        let requests = Requests::new(&["acquire", "other"]);
        let name = |number: usize| App::parse(&format!("app-{number}")).unwrap();
        for number in 0..=APPS_MAX {
            requests.of(&name(number)).count(0, 200, Some(Duration::from_millis(3)));
            requests.of(&name(number)).count(1, 299, Some(Duration::from_millis(3)));
        }
        requests.without_app().count(1, 401, Some(Duration::ZERO));
        let page = super::super::page(move |page| requests.encode(page));
        for line in [
            r#"latchgate_requests_total{route="acquire",code="200",app="app-99"} 1"#,
            r#"latchgate_requests_total{route="acquire",code="200",app="other"} 1"#,
            r#"latchgate_requests_total{route="other",code="other",app="other"} 1"#,
            r#"latchgate_requests_total{route="other",code="401",app=""} 1"#,
            r#"latchgate_request_seconds_bucket{le="0.0025",route="acquire",app="other"} 0"#,
            r#"latchgate_request_seconds_bucket{le="0.005",route="acquire",app="other"} 1"#,
            r#"latchgate_request_seconds_count{route="acquire",app="other"} 1"#,
        ] {
            assert!(page.contains(line), "no {line} in\n{page}");
        }
        assert!(!page.contains("app-100") && page.ends_with("# EOF\n"));
    }
}
