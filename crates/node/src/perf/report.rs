//! Results as people read them, in perftest's columns, and as scripts do.
//!
//! A megabyte here is 10^6 bytes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::job::{BulkVerb, Job, Kind, Verb};
use super::measure::Series;
use crate::output;

/// What one size of a test gave.
#[derive(Debug)]
pub struct Row {
    /// Bytes of one operation.
    pub size: u64,
    /// Those that count for bandwidth: as many, or of a call the longer of both ways.
    pub payload: u64,
    /// Operations of each thread.
    pub iterations: u64,
    /// Operations between two looks at the clock.
    pub batch: u64,
    /// What was measured, of all threads.
    pub ours: Series,
    /// What bare memory took.
    pub baseline: Option<Baseline>,
    /// How often the data was not what it should be.
    pub errors: u64,
    /// Further figures of this test, by name.
    pub extra: Vec<(&'static str, f64)>,
}

impl Row {
    /// A row to be filled in.
    pub fn new(size: u64, iterations: u64) -> Row {
        Row {
            size,
            payload: size,
            iterations,
            batch: 1,
            ours: Series::default(),
            baseline: None,
            errors: 0,
            extra: Vec::new(),
        }
    }

    /// Adds what one thread measured of bare memory.
    pub fn merge_baseline(&mut self, kind: BaselineKind, series: &Series) {
        let none = || Baseline { kind, series: Series::default() };
        self.baseline.get_or_insert_with(none).series.merge(series);
    }
}

/// Bare memory, measured in the same rounds.
#[derive(Debug)]
pub struct Baseline {
    /// What was done.
    pub kind: BaselineKind,
    /// How long it took.
    pub series: Series,
}

/// What is done to bare memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BaselineKind {
    /// Copies of the same size.
    Memcpy,
    /// Stores of a word at the same random places.
    Store,
    /// Loads of a word at the same random places.
    Load,
    /// The processor's own atomics.
    Atomic,
    /// The C library's memset.
    Memset,
    /// A read and a write, by Halite.
    ReadWrite,
    /// Pages of shared memory that are taken from the system.
    Pages,
}

impl BaselineKind {
    /// Bare operations of `size` bytes at random places: up to a word, that word itself.
    pub fn of_random(verb: Verb, size: u64) -> BaselineKind {
        match verb {
            _ if size > 8 => BaselineKind::Memcpy,
            Verb::Read => BaselineKind::Load,
            Verb::Write => BaselineKind::Store,
        }
    }

    /// As headings name it.
    fn name(self) -> &'static str {
        match self {
            BaselineKind::Memcpy => "memcpy",
            BaselineKind::Store => "store",
            BaselineKind::Load => "load",
            BaselineKind::Atomic => "atomic",
            BaselineKind::Memset => "memset",
            BaselineKind::ReadWrite => "read+write",
            BaselineKind::Pages => "pages",
        }
    }
}

/// Prints the rows of one job.
pub struct Report<'a> {
    job: &'a Job,
    is_json: bool,
}

impl<'a> Report<'a> {
    /// For people, or for scripts.
    pub fn new(job: &'a Job, is_json: bool) -> Report<'a> {
        Report { job, is_json }
    }

    /// Prints what stands above the rows.
    pub fn begin(&self) -> anyhow::Result<()> {
        if !self.is_json {
            output::print(&self.heading())?;
        }
        Ok(())
    }

    /// Prints one row.
    pub fn row(&self, row: &Row) -> anyhow::Result<()> {
        if self.is_json {
            output::print_json(&Line::new(self.job, row))?;
        } else if self.job.test.is_bandwidth() {
            output::print(&bandwidth_row(row))?;
        } else {
            output::print(&latency_row(row))?;
        }
        Ok(())
    }

    fn heading(&self) -> String {
        let job = self.job;
        let what = match job.kind {
            Kind::PingPong => "half a ping-pong of writes",
            Kind::Access(_) if job.together > 1 => "operations that are begun together, on the same bytes",
            Kind::Access(_) => "one operation after the other on the same bytes",
            Kind::Random { .. } => "one operation after the other at random places",
            Kind::Calls { window: Some(_), .. } => "many calls under way in each thread",
            Kind::Load { .. } => {
                "calls that come by themselves; times are of the calls, processor time is of both processes"
            }
            Kind::Lock if job.threads > 1 => "from one session to the next; all others wait",
            Kind::Messages => "half a ping-pong of messages",
            Kind::Words(_) | Kind::Bulk(_) => "one operation after the other on the same bytes",
            Kind::Alloc { .. }
            | Kind::Map
            | Kind::Calls { window: None, .. }
            | Kind::Memory
            | Kind::Lock
            | Kind::Barrier => "one operation after the other",
        };
        let baseline = match job.kind {
            Kind::Random { verb, .. } => BaselineKind::of_random(verb, job.size_max()),
            Kind::Alloc { .. } => BaselineKind::Pages,
            Kind::Words(_) => BaselineKind::Atomic,
            Kind::Bulk(BulkVerb::Fill) => BaselineKind::Memset,
            Kind::Bulk(BulkVerb::Copy) => BaselineKind::ReadWrite,
            _ => BaselineKind::Memcpy,
        };
        let threads =
            if job.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", job.threads) };
        let mut heading = format!(
            "{} over {}: {what}; {threads}, cores: {}\n\
             Where ops/clock is not 1, times are means of as many operations, and percentiles those of such means.\n",
            job.test.name(),
            job.fabric,
            job.pinning.name()
        );
        heading += &if job.test.is_bandwidth() {
            format!(
                " {:<10} {:<12} {:>14} {:>17} {:>14} {:>10} {:>10}\n",
                "#bytes",
                "#iterations",
                "BW peak[MB/s]",
                "BW average[MB/s]",
                "MsgRate[Mpps]",
                format!("vs {}", baseline.name()),
                "ops/clock"
            )
        } else {
            format!(
                " {:<10} {:<12} {:>11} {:>11} {:>15} {:>11} {:>13} {:>9} {:>11} {:>10} {:>12} {:>13}\n",
                "#bytes",
                "#iterations",
                "t_min[usec]",
                "t_max[usec]",
                "t_typical[usec]",
                "t_avg[usec]",
                "t_stdev[usec]",
                "99%[usec]",
                "99.9%[usec]",
                "ops/clock",
                format!("{}[usec]", baseline.name()),
                "overhead[ns]"
            )
        };
        heading
    }
}

fn latency_row(row: &Row) -> String {
    let us = |quantile| row.ours.quantile_us(quantile);
    let histogram = &row.ours.histogram;
    let (bare, overhead) = match &row.baseline {
        Some(baseline) => {
            let bare = baseline.series.quantile_us(0.5);
            (format!("{bare:.4}"), format!("{:.1}", overhead_ns(row, baseline)))
        }
        None => ("-".to_owned(), "-".to_owned()),
    };
    format!(
        " {:<10} {:<12} {:>11.4} {:>11.4} {:>15.4} {:>11.4} {:>13.4} {:>9.4} {:>11.4} {:>10} {bare:>12} {overhead:>13}{}\n",
        row.size,
        row.iterations,
        us(0.0),
        us(1.0),
        us(0.5),
        histogram.mean() / 1e6,
        histogram.stdev() / 1e6,
        us(0.99),
        us(0.999),
        row.batch,
        extra(row),
    )
}

fn bandwidth_row(row: &Row) -> String {
    let mbps = |rate: f64| rate * row.payload as f64 / 1e6;
    let ratio = match &row.baseline {
        Some(baseline) => format!("{:.3}", row.ours.rate_median() / baseline.series.rate_median()),
        None => "-".to_owned(),
    };
    format!(
        " {:<10} {:<12} {:>14.2} {:>17.2} {:>14.6} {ratio:>10} {:>10}{}\n",
        row.size,
        row.iterations,
        mbps(row.ours.rate_max()),
        mbps(row.ours.rate),
        row.ours.rate / 1e6,
        row.batch,
        extra(row),
    )
}

/// Further figures, which bring their names along.
fn extra(row: &Row) -> String {
    let digits = |value: &f64| if value.fract() == 0.0 { 0 } else { 4 };
    row.extra.iter().map(|(name, value)| format!("  {name}={value:.*}", digits(value))).collect()
}

/// What a typical operation takes longer than its baseline.
fn overhead_ns(row: &Row, baseline: &Baseline) -> f64 {
    (row.ours.quantile_us(0.5) - baseline.series.quantile_us(0.5)) * 1e3
}

/// A row as one JSON object.
#[derive(Serialize)]
struct Line {
    test: &'static str,
    fabric: &'static str,
    mode: &'static str,
    cores: &'static str,
    size: u64,
    iters: u64,
    threads: usize,
    lat_us: Latency,
    #[serde(rename = "bw_MBps")]
    bw_mbps: f64,
    #[serde(rename = "rate_Mops")]
    rate_mops: f64,
    cpu_us_per_op: f64,
    ops_per_clock: u64,
    errors: u64,
    baseline: Option<BaselineLine>,
    #[serde(flatten)]
    extra: BTreeMap<&'static str, f64>,
}

#[derive(Serialize)]
struct Latency {
    min: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Serialize, Default)]
struct BaselineLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    memcpy_lat_us: Option<f64>,
    #[serde(rename = "memcpy_MBps", skip_serializing_if = "Option::is_none")]
    memcpy_mbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memset_lat_us: Option<f64>,
    #[serde(rename = "memset_MBps", skip_serializing_if = "Option::is_none")]
    memset_mbps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_write_lat_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pages_lat_us: Option<f64>,
    overhead_ns: f64,
    ratio: f64,
}

impl Line {
    fn new(job: &Job, row: &Row) -> Line {
        let us = |quantile| row.ours.quantile_us(quantile);
        // The median round: the same figure that the ratio is made of.
        let rate = row.ours.rate_median();
        Line {
            test: job.test.name(),
            fabric: job.fabric,
            mode: "embedded",
            cores: job.pinning.name(),
            size: row.size,
            iters: row.iterations,
            threads: job.threads,
            lat_us: Latency {
                min: us(0.0),
                p50: us(0.5),
                p90: us(0.9),
                p99: us(0.99),
                p999: us(0.999),
                max: us(1.0),
            },
            bw_mbps: rate * row.payload as f64 / 1e6,
            rate_mops: rate / 1e6,
            cpu_us_per_op: row.ours.cpu_us(),
            ops_per_clock: row.batch,
            errors: row.errors,
            baseline: row.baseline.as_ref().map(|baseline| BaselineLine::new(job, row, baseline)),
            extra: row.extra.iter().copied().collect(),
        }
    }
}

impl BaselineLine {
    fn new(job: &Job, row: &Row, baseline: &Baseline) -> BaselineLine {
        let bare_us = baseline.series.quantile_us(0.5);
        let bare_rate = baseline.series.rate_median();
        let ratio = match job.test.is_bandwidth() {
            true => row.ours.rate_median() / bare_rate,
            false => row.ours.quantile_us(0.5) / bare_us,
        };
        let mut line =
            BaselineLine { overhead_ns: overhead_ns(row, baseline), ratio, ..BaselineLine::default() };
        match baseline.kind {
            BaselineKind::Memcpy => {
                line.memcpy_lat_us = Some(bare_us);
                line.memcpy_mbps = Some(bare_rate * row.size as f64 / 1e6);
            }
            BaselineKind::Store => line.store_ns = Some(bare_us * 1e3),
            BaselineKind::Load => line.load_ns = Some(bare_us * 1e3),
            BaselineKind::Atomic => line.atomic_ns = Some(bare_us * 1e3),
            BaselineKind::Memset => {
                line.memset_lat_us = Some(bare_us);
                line.memset_mbps = Some(bare_rate * row.size as f64 / 1e6);
            }
            BaselineKind::ReadWrite => line.read_write_lat_us = Some(bare_us),
            BaselineKind::Pages => line.pages_lat_us = Some(bare_us),
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::super::args::Test;
    use super::super::cores::Pinning;
    use super::super::job::Verb;
    use super::*;

    fn series(micros: u64) -> Series {
        let mut series = Series::default();
        let Ok(()) = series
            .round_of_batches(10, 5, |size| Ok::<Duration, Infallible>(Duration::from_micros(micros * size)));
        series.cpu = Duration::from_micros(10 * micros);
        series
    }

    fn job(test: Test) -> Job {
        let kind = Kind::Access(Verb::Write);
        Job {
            test,
            kind,
            sizes: vec![1000],
            iterations: None,
            threads: 1,
            pinning: Pinning::Apart,
            fabric: "shm",
            has_baseline: true,
            together: 1,
            peer: None,
        }
    }

    fn row(kind: BaselineKind) -> Row {
        let baseline = Some(Baseline { kind, series: series(1) });
        Row { batch: 5, ours: series(2), baseline, ..Row::new(1000, 10) }
    }

    fn line(test: Test, kind: BaselineKind) -> serde_json::Value {
        serde_json::to_value(Line::new(&job(test), &row(kind))).unwrap()
    }

    #[track_caller]
    fn check(found: &serde_json::Value, expected: f64) {
        let found = found.as_f64().expect("a number");
        assert!((found - expected).abs() <= expected * 0.01, "{found} instead of {expected}");
    }

    #[test]
    fn a_line_of_json_has_the_documented_fields() {
        let line = line(Test::WriteLat, BaselineKind::Memcpy);
        let texts = ["test", "fabric", "mode", "cores"].map(|field| line[field].as_str().unwrap_or_default());
        assert_eq!(texts, ["write_lat", "shm", "embedded", "apart"]);
        for field in ["min", "p50", "p90", "p99", "p999", "max"] {
            check(&line["lat_us"][field], 2.0);
        }
        for (field, expected) in [("size", 1000.0), ("iters", 10.0), ("threads", 1.0), ("bw_MBps", 500.0)] {
            check(&line[field], expected);
        }
        for (field, expected) in [("rate_Mops", 0.5), ("cpu_us_per_op", 2.0), ("errors", 0.0)] {
            check(&line[field], expected);
        }
        let baseline = &line["baseline"];
        for (field, expected) in
            [("memcpy_lat_us", 1.0), ("memcpy_MBps", 1000.0), ("overhead_ns", 1000.0), ("ratio", 2.0)]
        {
            check(&baseline[field], expected);
        }
        assert!(baseline.get("store_ns").is_none());
    }

    #[test]
    fn ratios_are_of_times_for_latency_and_of_rates_for_bandwidth() {
        check(&line(Test::WriteLat, BaselineKind::Memcpy)["baseline"]["ratio"], 2.0);
        check(&line(Test::WriteBw, BaselineKind::Memcpy)["baseline"]["ratio"], 0.5);
    }

    #[test]
    fn bare_words_are_told_in_nanoseconds() {
        check(&line(Test::WriteLat, BaselineKind::Store)["baseline"]["store_ns"], 1000.0);
        check(&line(Test::ReadLat, BaselineKind::Load)["baseline"]["load_ns"], 1000.0);
    }

    #[test]
    fn further_figures_stand_beside_the_others_under_their_names() {
        let row = Row { extra: vec![("ring_share", 0.5)], ..row(BaselineKind::Memcpy) };
        let line = serde_json::to_value(Line::new(&job(Test::RpcMemory), &row)).unwrap();
        check(&line["ring_share"], 0.5);
        assert!(latency_row(&row).ends_with("  ring_share=0.5000\n"));
    }

    #[test]
    fn rows_stand_under_their_headings() {
        for (test, format) in
            [(Test::WriteLat, latency_row as fn(&Row) -> String), (Test::WriteBw, bandwidth_row)]
        {
            let job = job(test);
            let heading = Report::new(&job, false).heading();
            let columns = heading.lines().last().unwrap();
            let row = format(&row(BaselineKind::Memcpy));
            assert_eq!(columns.len(), row.trim_end_matches('\n').len());
            assert_eq!(
                columns.replace("vs memcpy", "vs-memcpy").replace("BW ", "BW-").split_whitespace().count(),
                row.split_whitespace().count()
            );
        }
    }
}
