//! Results as people read them, in perftest's columns, and as scripts do.
//!
//! A megabyte here is 10^6 bytes.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::args::name_of;
use super::job::{Job, Verb};
use super::measure::{Measured, Series};
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

    /// Adds what one thread measured.
    pub fn add(&mut self, kind: BaselineKind, measured: &Measured) {
        self.batch = measured.batch;
        self.ours.merge(&measured.ours);
        self.errors += measured.errors;
        if let Some(bare) = &measured.bare {
            let none = || Baseline { kind, series: Series::default() };
            self.baseline.get_or_insert_with(none).series.merge(bare);
        }
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
        match self.is_json {
            true => output::print_json(&Line::new(self.job, row))?,
            false => output::print(&self.text(row))?,
        }
        Ok(())
    }

    fn heading(&self) -> String {
        let job = self.job;
        let threads =
            if job.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", job.threads) };
        let (titles, _): (Vec<_>, Vec<_>) = self.columns(&Row::new(0, 0)).into_iter().unzip();
        format!(
            "{} over {}: {}; {threads}, cores: {}\n\
             Where ops/clock is not 1, times are means of as many operations, and percentiles those of such means.\n \
             {:<10} {:<12} {}\n",
            name_of(&job.test),
            job.fabric,
            job.what(),
            name_of(&job.pinning),
            "#bytes",
            "#iterations",
            titles.join(" ")
        )
    }

    fn text(&self, row: &Row) -> String {
        let (_, cells): (Vec<_>, Vec<_>) = self.columns(row).into_iter().unzip();
        format!(" {:<10} {:<12} {}{}\n", row.size, row.iterations, cells.join(" "), extra(row))
    }

    /// Each column's title, and what stands under it.
    fn columns(&self, row: &Row) -> Vec<(String, String)> {
        let column =
            |width: usize, title: &str, cell: String| (format!("{title:>width$}"), format!("{cell:>width$}"));
        let bare = self.job.baseline(self.job.size_max()).name();
        let beside =
            |figure: &dyn Fn(&Baseline) -> String| row.baseline.as_ref().map_or("-".to_owned(), figure);
        let clock = column(10, "ops/clock", row.batch.to_string());
        if self.job.test.is_bandwidth() {
            let mbps = |rate: f64| format!("{:.2}", rate * row.payload as f64 / 1e6);
            let ratio =
                |bare: &Baseline| format!("{:.3}", row.ours.rate_median() / bare.series.rate_median());
            return vec![
                column(14, "BW peak[MB/s]", mbps(row.ours.rate_max())),
                column(17, "BW average[MB/s]", mbps(row.ours.rate)),
                column(14, "MsgRate[Mpps]", format!("{:.6}", row.ours.rate / 1e6)),
                column(10, &format!("vs {bare}"), beside(&ratio)),
                clock,
            ];
        }
        let us = |time: f64| format!("{time:.4}");
        let quantile = |quantile| us(row.ours.quantile_us(quantile));
        vec![
            column(11, "t_min[usec]", quantile(0.0)),
            column(11, "t_max[usec]", quantile(1.0)),
            column(15, "t_typical[usec]", quantile(0.5)),
            column(11, "t_avg[usec]", us(row.ours.histogram.mean() / 1e6)),
            column(13, "t_stdev[usec]", us(row.ours.histogram.stdev() / 1e6)),
            column(9, "99%[usec]", quantile(0.99)),
            column(11, "99.9%[usec]", quantile(0.999)),
            clock,
            column(12, &format!("{bare}[usec]"), beside(&|bare| us(bare.series.quantile_us(0.5)))),
            column(13, "overhead[ns]", beside(&|bare| format!("{:.1}", overhead_ns(row, bare)))),
        ]
    }
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
    test: String,
    fabric: &'static str,
    mode: &'static str,
    cores: String,
    size: u64,
    iters: u64,
    threads: usize,
    #[serde(serialize_with = "as_map")]
    lat_us: Figures,
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

/// Figures by name, in their order.
type Figures = Vec<(&'static str, f64)>;

fn as_map<S: Serializer>(figures: &Figures, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(figures.iter().copied())
}

/// What stands beside bare memory.
#[derive(Serialize)]
struct BaselineLine(#[serde(serialize_with = "as_map")] Figures);

impl Line {
    fn new(job: &Job, row: &Row) -> Line {
        let us = |quantile| row.ours.quantile_us(quantile);
        // The median round: the same figure that the ratio is made of.
        let rate = row.ours.rate_median();
        Line {
            test: name_of(&job.test),
            fabric: job.fabric,
            mode: "embedded",
            cores: name_of(&job.pinning),
            size: row.size,
            iters: row.iterations,
            threads: job.threads,
            lat_us: [("min", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)]
                .map(|(name, quantile)| (name, us(quantile)))
                .to_vec(),
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
        let mbps = bare_rate * row.size as f64 / 1e6;
        let mut figures = match baseline.kind {
            BaselineKind::Memcpy => vec![("memcpy_lat_us", bare_us), ("memcpy_MBps", mbps)],
            BaselineKind::Store => vec![("store_ns", bare_us * 1e3)],
            BaselineKind::Load => vec![("load_ns", bare_us * 1e3)],
            BaselineKind::Atomic => vec![("atomic_ns", bare_us * 1e3)],
            BaselineKind::Memset => vec![("memset_lat_us", bare_us), ("memset_MBps", mbps)],
            BaselineKind::ReadWrite => vec![("read_write_lat_us", bare_us)],
            BaselineKind::Pages => vec![("pages_lat_us", bare_us)],
        };
        figures.extend([("overhead_ns", overhead_ns(row, baseline)), ("ratio", ratio)]);
        BaselineLine(figures)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::args::Test;
    use super::super::cores::Pinning;
    use super::super::job::Kind;
    use super::*;

    fn series(micros: u64) -> Series {
        let mut series = Series::default();
        series.round(10, 5, &mut |size| Ok(Duration::from_micros(micros * size))).unwrap();
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
        let job = job(Test::RpcMemory);
        assert!(Report::new(&job, false).text(&row).ends_with("  ring_share=0.5000\n"));
    }

    #[test]
    fn rows_stand_under_their_headings() {
        for test in [Test::WriteLat, Test::WriteBw] {
            let job = job(test);
            let report = Report::new(&job, false);
            let heading = report.heading();
            let columns = heading.lines().last().unwrap();
            let row = report.text(&row(BaselineKind::Memcpy));
            assert_eq!(columns.len(), row.trim_end_matches('\n').len());
            assert_eq!(
                columns.replace("vs memcpy", "vs-memcpy").replace("BW ", "BW-").split_whitespace().count(),
                row.split_whitespace().count()
            );
        }
    }
}
