//! The page of `/metrics`: OpenMetrics text.

use std::fmt::{self, Write as _};

use super::count::{Buckets, Histogram};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Figures that belong on the page.
pub trait Encode {
    fn encode(&self, page: &mut Page);
}

/// A page on which families of metrics are written, one after the other.
#[derive(Default)]
pub struct Page(String);

/// The metrics of one name, which differ in their labels.
pub struct Family<'p> {
    page: &'p mut String,
    name: &'static str,
}

pub type Labels<'l> = [(&'static str, &'l str)];

impl Page {
    /// The text of the whole page.
    pub fn finish(self) -> String {
        self.0 + "# EOF\n"
    }

    /// `name` is without `_total`.
    pub fn counters(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }

    pub fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.counters(name, help).count(&[], value);
    }

    pub fn gauges(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl fmt::Display) {
        self.gauges(name, help).show(&[], value);
    }

    pub fn histograms(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "histogram", help)
    }

    pub fn histogram(&mut self, name: &'static str, help: &str, histogram: &Histogram) {
        self.histograms(name, help).buckets(&[], histogram);
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { page: &mut self.0, name }
    }
}

impl Family<'_> {
    pub fn count(&mut self, labels: &Labels<'_>, value: impl fmt::Display) {
        self.line("_total", labels, None, value);
    }

    pub fn show(&mut self, labels: &Labels<'_>, value: impl fmt::Display) {
        self.line("", labels, None, value);
    }

    pub fn buckets(&mut self, labels: &Labels<'_>, histogram: &Histogram) {
        let Buckets { sum, count, buckets } = histogram.buckets();
        let mut so_far = 0;
        for (bound, values) in buckets {
            so_far += values;
            let bound = if bound == f64::MAX { "+Inf".to_owned() } else { format!("{bound:?}") };
            self.line("_bucket", labels, Some(&bound), so_far);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn line(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<&str>, value: impl fmt::Display) {
        self.page.push_str(self.name);
        self.page.push_str(suffix);
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            self.page.push(before);
            self.page.push_str(name);
            self.page.push_str("=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.page.push_str("\\\\"),
                    '"' => self.page.push_str("\\\""),
                    '\n' => self.page.push_str("\\n"),
                    other => self.page.push(other),
                }
            }
            self.page.push('"');
            before = ',';
        }
        if before == ',' {
            self.page.push('}');
        }
        let _ = writeln!(self.page, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_open_metrics_text() {
        let mut page = Page::default();
        page.counters("a", "A.").count(&[("app", "q\"u\\o\nte")], 2);
        page.gauge("b_seconds", "B.", 0.5);
        let sizes = Histogram::of_sizes();
        [1, 3, 1_000].into_iter().for_each(|size| sizes.add(size));
        page.histograms("c", "C.").buckets(&[("k", "v")], &sizes);
        let text = page.finish();
        assert!(text.starts_with(
            "# HELP a A.\n# TYPE a counter\na_total{app=\"q\\\"u\\\\o\\nte\"} 2\n# HELP b_seconds B.\n\
             # TYPE b_seconds gauge\nb_seconds 0.5\n# HELP c C.\n# TYPE c histogram\n\
             c_bucket{k=\"v\",le=\"1.0\"} 1\nc_bucket{k=\"v\",le=\"2.0\"} 1\nc_bucket{k=\"v\",le=\"4.0\"} 2\n"
        ));
        assert!(text.ends_with("c_bucket{k=\"v\",le=\"+Inf\"} 3\nc_sum{k=\"v\"} 1004\nc_count{k=\"v\"} 3\n# EOF\n"));
    }
}
