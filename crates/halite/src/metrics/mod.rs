//! Metrics: counters and current values of a node, in Prometheus' format.
//!
//! `timings` has the histograms, which operations update when they end. `sessions` has the attached sessions and the
//! resource use of their principals. [`crate::node`] collects all metrics and answers scrapers. This folder calls
//! nothing else of this crate; its two locks, of the lists of sessions and of principals, never nest.
//! [`halite_tier::access::Count`] counts accesses on the data path. `docs/operations.md` documents the metrics' names.

pub(crate) mod sessions;
pub(crate) mod timings;

use std::fmt;

pub(crate) use sessions::{Account, AttachedSessions};
pub use sessions::{AttachedSession, PrincipalUse};
pub(crate) use timings::{Histogram, Timed, Timings};

/// Kind of a family's samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// A number that never decreases while the node runs.
    Counter,
    /// A current value, which may rise and fall.
    Gauge,
    /// Numbers of durations by upper bound: `_bucket`, `_sum` and `_count`.
    Histogram,
}

/// A metric family: all samples with one name.
#[derive(Clone, PartialEq, Debug)]
pub struct Family {
    /// Name of the metric, stable across versions.
    pub name: &'static str,
    /// Meaning of the metric, in one line.
    pub help: &'static str,
    /// Kind of the family's samples.
    pub kind: MetricKind,
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Debug)]
struct Sample {
    suffix: &'static str,
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// The metrics of a node at one moment. Its `Display` output is Prometheus' text format (version 0.0.4).
///
/// ```
/// # use halite::{Config, Node, NodeId, Permissions, Placement};
/// # let dir = std::env::temp_dir().join(format!("halite-doc-metrics-{}", std::process::id()));
/// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
/// let session = node.blocking_session();
/// let salt = session.alloc(Some("salt"), 4096, Placement::Local, Permissions::READ)?;
/// session.write(salt, 0, b"crystals")?;
/// let text = node.metrics().to_string();
/// assert!(text.contains("halite_access_bytes_total{kind=\"write\",path=\"direct\"} 8\n"));
/// # drop(node);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Metrics {
    families: Vec<Family>,
}

impl Metrics {
    /// Returns all families, including families without samples.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    fn add(&mut self, kind: MetricKind, name: &'static str, help: &'static str) -> &mut Family {
        self.families.push(Family { name, help, kind, samples: Vec::new() });
        self.families.last_mut().expect("a family was just added")
    }

    pub(crate) fn counter(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.add(MetricKind::Counter, name, help)
    }

    pub(crate) fn gauge(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.add(MetricKind::Gauge, name, help)
    }

    pub(crate) fn histogram(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.add(MetricKind::Histogram, name, help)
    }
}

impl Family {
    /// Returns the value of the sample that has exactly these labels; for a histogram, the number of its durations.
    /// Returns `None` if there is no such sample.
    pub fn value(&self, labels: &[(&str, &str)]) -> Option<f64> {
        let suffix = if self.kind == MetricKind::Histogram { "_count" } else { "" };
        let is_same = |sample: &&Sample| {
            let own = sample.labels.iter().map(|(name, value)| (*name, value.as_str()));
            sample.suffix == suffix && own.eq(labels.iter().copied())
        };
        self.samples.iter().find(is_same).map(|sample| sample.value)
    }

    pub(crate) fn set(&mut self, value: impl Number) {
        self.with_labels(&[], value);
    }

    pub(crate) fn with_labels(&mut self, labels: &[(&'static str, &str)], value: impl Number) -> &mut Family {
        self.sample("", labels, value.to_f64());
        self
    }

    pub(crate) fn add_histogram(&mut self, labels: &[(&'static str, &str)], histogram: &Histogram) {
        let snapshot = histogram.snapshot();
        for (bound, count) in &snapshot.at_most {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            let with_bound: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample("_bucket", &with_bound, *count as f64);
        }
        self.sample("_sum", labels, snapshot.sum_s);
        self.sample("_count", labels, snapshot.count as f64);
    }

    fn sample(&mut self, suffix: &'static str, labels: &[(&'static str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        self.samples.push(Sample { suffix, labels, value });
    }
}

/// Lengths of the runner's queues, and bytes of its waiting messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Queues {
    pub(crate) commands: usize,
    pub(crate) jobs: usize,
    pub(crate) messages: usize,
    pub(crate) message_bytes: usize,
}

/// Number of functions or ports, and number of their waiting requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ServiceCounts {
    pub(crate) services: usize,
    pub(crate) waiting: usize,
}

/// A number that a floating-point number, as in Prometheus, represents precisely enough.
pub(crate) trait Number: Copy {
    fn to_f64(self) -> f64;
}

impl Number for u64 {
    fn to_f64(self) -> f64 {
        self as f64
    }
}

impl Number for usize {
    fn to_f64(self) -> f64 {
        self as f64
    }
}

impl Number for bool {
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
}

impl Number for f64 {
    fn to_f64(self) -> f64 {
        self
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.families.iter().try_for_each(|family| write!(f, "{family}"))
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        writeln!(f, "# HELP {} {}", self.name, self.help)?;
        writeln!(f, "# TYPE {} {kind}", self.name)?;
        for sample in &self.samples {
            write!(f, "{}{}", self.name, sample.suffix)?;
            let mut open = '{';
            for (name, value) in &sample.labels {
                write!(f, "{open}{name}=\"{}\"", escaped(value))?;
                open = ',';
            }
            let close = if sample.labels.is_empty() { "" } else { "}" };
            writeln!(f, "{close} {}", sample.value)?;
        }
        Ok(())
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_text_for_prometheus() {
        let mut metrics = Metrics::default();
        metrics
            .counter("halite_words_total", "Words.")
            .with_labels(&[("of", "a\"b\\c\n"), ("to", "d")], 2_u64);
        metrics.gauge("halite_salt_seconds", "Salt.").set(0.25);
        assert_eq!(
            metrics.to_string(),
            "# HELP halite_words_total Words.\n\
             # TYPE halite_words_total counter\n\
             halite_words_total{of=\"a\\\"b\\\\c\\n\",to=\"d\"} 2\n\
             # HELP halite_salt_seconds Salt.\n\
             # TYPE halite_salt_seconds gauge\n\
             halite_salt_seconds 0.25\n"
        );
    }
}
