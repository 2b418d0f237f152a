//! The page of `/metrics`, in the text format of OpenMetrics.

use std::fmt;

use clap::ValueEnum;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric as _, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A page on which families of metrics are written, one after the other. It is a text in memory, to which nothing fails to be written.
pub struct Page<'e>(DescriptorEncoder<'e>);

/// The metrics of one name, which differ in their labels.
pub struct Family<'p>(Option<MetricEncoder<'p>>);

pub type Labels<'l> = [(&'static str, &'l str)];

/// The text of a page that `write` writes.
pub fn page(write: impl Fn(&mut Page<'_>) + Send + Sync + 'static) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Written(write)));
    let mut text = String::new();
    let _ = encode(&mut text, &registry);
    text
}

/// The values of an enum as values of a label.
pub fn label_values<E: ValueEnum + 'static>() -> impl Iterator<Item = String> {
    E::value_variants().iter().filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()))
}

struct Written<W>(W);

impl<W> fmt::Debug for Written<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl<W: Fn(&mut Page<'_>) + Send + Sync + 'static> Collector for Written<W> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Page(encoder));
        Ok(())
    }
}

impl Page<'_> {
    /// `name` is without `_total`.
    pub fn counters(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::Counter)
    }

    pub fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.counters(name, help).count(&[], value);
    }

    /// Counters that differ in one label.
    pub fn counters_by<'c, N: AsRef<str>>(
        &mut self,
        (name, help): (&'static str, &str),
        label: &'static str,
        counters: impl IntoIterator<Item = (N, &'c Counter)>,
    ) {
        let mut family = self.counters(name, help);
        counters.into_iter().for_each(|(value, counter)| family.count(&[(label, value.as_ref())], counter.get()));
    }

    pub fn gauges(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::Gauge)
    }

    pub fn gauge(&mut self, name: &'static str, help: &str, value: impl EncodeGaugeValue) {
        self.gauges(name, help).show(&[], value);
    }

    pub fn histograms(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, MetricType::Histogram)
    }

    pub fn histogram(&mut self, name: &'static str, help: &str, histogram: &Histogram) {
        self.histograms(name, help).buckets(&[], histogram);
    }

    fn family(&mut self, name: &'static str, help: &str, kind: MetricType) -> Family<'_> {
        Family(self.0.encode_descriptor(name, help, None, kind).ok())
    }
}

impl Family<'_> {
    pub fn count(&mut self, labels: &Labels<'_>, value: impl EncodeCounterValue) {
        self.write(labels, |mut encoder| encoder.encode_counter::<NoLabelSet, _, f64>(&value, None));
    }

    pub fn show(&mut self, labels: &Labels<'_>, value: impl EncodeGaugeValue) {
        self.write(labels, |mut encoder| encoder.encode_gauge(&value));
    }

    pub fn buckets(&mut self, labels: &Labels<'_>, histogram: &Histogram) {
        self.write(labels, |encoder| histogram.encode(encoder));
    }

    fn write(&mut self, labels: &Labels<'_>, write: impl FnOnce(MetricEncoder<'_>) -> fmt::Result) {
        let Some(encoder) = &mut self.0 else { return };
        let _ = encoder.encode_family(&labels).and_then(write);
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::of_sizes;
    use super::*;

    #[test]
    fn a_page_is_open_metrics_text() {
        let sizes = of_sizes();
        [1.0, 3.0, 1_000.0].into_iter().for_each(|size| sizes.observe(size));
        let text = page(move |page| {
            page.counters("a", "A.").count(&[("app", "q\"u\\o\nte")], 2_u64);
            page.gauge("b_seconds", "B.", 0.5);
            page.histograms("c", "C.").buckets(&[("k", "v")], &sizes);
        });
        for line in [
            "# HELP a A.\n# TYPE a counter\na_total{app=\"q\\\"u\\\\o\\nte\"} 2\n",
            "# TYPE b_seconds gauge\nb_seconds 0.5\n",
            "c_bucket{le=\"4.0\",k=\"v\"} 2\n",
            "c_sum{k=\"v\"} 1004.0\nc_count{k=\"v\"} 3\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
