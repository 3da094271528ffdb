//! Results as a table with perftest's columns, or as JSON.
//!
//! A megabyte here is 10^6 bytes.

use halite_figures::plot::{self, Axis, Plot, Series as Drawn};
use serde::{Serialize, Serializer};

use super::args::name_of;
use super::job::Job;
use super::measure::{Measured, Series};
use crate::output;

/// The result of one size, as a row of the table.
#[derive(Default, Debug)]
pub struct Row {
    /// Length of one operation, in bytes.
    pub size: u64,
    /// Bytes that count for bandwidth; for calls, the bytes of the longer direction.
    pub payload: u64,
    /// Number of operations of each thread.
    pub iterations: u64,
    /// Operations between two readings of the clock.
    pub batch: u64,
    /// Measurements of all threads.
    pub ours: Series,
    /// The baseline, in the same rounds.
    pub baseline: Option<Series>,
    /// Number of errors in the data.
    pub errors: u64,
    /// Further figures of this test, by name.
    pub extra: Vec<(&'static str, f64)>,
}

impl Row {
    /// Adds one thread's measurements.
    pub fn add(&mut self, measured: &Measured) {
        self.batch = measured.batch;
        self.ours.merge(&measured.ours);
        if let Some(baseline) = &measured.baseline {
            self.baseline.get_or_insert_default().merge(baseline);
        }
    }
}

/// A baseline: its name in headings, and the names of its figures in results, which contain the units.
#[derive(Clone, Copy, Debug)]
pub struct Baseline(&'static str, &'static [&'static str]);

/// Baseline: copies of the same size, by the C library or to a plain mapping.
pub const MEMCPY: Baseline = Baseline("memcpy", &["memcpy_lat_us", "memcpy_MBps"]);
/// Baseline: stores of a word at the same random places.
pub const STORE: Baseline = Baseline("store", &["store_ns"]);
/// Baseline: loads of a word at the same random places.
pub const LOAD: Baseline = Baseline("load", &["load_ns"]);
/// Baseline: the processor's own atomics.
pub const ATOMIC: Baseline = Baseline("atomic", &["atomic_ns"]);
/// Baseline: the C library's memset.
pub const MEMSET: Baseline = Baseline("memset", &["memset_lat_us", "memset_MBps"]);
/// Baseline: a read and a write through Halite.
pub const READ_WRITE: Baseline = Baseline("read+write", &["read_write_lat_us"]);
/// Baseline: page faults in shared memory.
pub const PAGES: Baseline = Baseline("pages", &["pages_lat_us"]);

/// Prints the heading of the result table.
pub fn begin(job: &Job) -> anyhow::Result<()> {
    if !job.args.json {
        output::print(&heading(job))?;
    }
    Ok(())
}

/// Prints one row of the result table.
pub fn row(job: &Job, row: &Row) -> anyhow::Result<()> {
    match job.args.json {
        true => output::print_json(&Line::new(job, row))?,
        false => output::print(&text(job, row))?,
    }
    Ok(())
}

/// Draws the rows: latency or throughput by size, ours and the baseline's.
pub fn svg(job: &Job, rows: &[Row]) -> String {
    let is_bandwidth = job.args.test.is_bandwidth;
    let figure = |row: &Row, series: &Series| match is_bandwidth {
        true => [row.size as f64, series.rate_median() * row.payload as f64 / 1e6],
        false => [row.size as f64, series.quantile_us(0.5)],
    };
    let line = |name: &str, colour, points| Drawn { name: name.to_owned(), colour, is_dashed: false, points };
    let ours = rows.iter().map(|row| figure(row, &row.ours)).collect();
    let baseline: Vec<[f64; 2]> =
        rows.iter().filter_map(|row| Some(figure(row, row.baseline.as_ref()?))).collect();
    let Baseline(name, _) = job.plan.baseline;
    let mut series = vec![line(&format!("{} over {}", job.args.test.name, job.fabric), 0, ours)];
    series.extend((!baseline.is_empty()).then(|| line(name, 1, baseline)));
    let y = if is_bandwidth { "throughput [MB/s]" } else { "latency, median [us]" };
    let axis = |label: &str| Axis { label: label.to_owned(), is_log: true };
    plot::svg(&[Plot {
        title: job.plan.description.to_owned(),
        x: axis("bytes"),
        y: axis(y),
        series,
        marks: Vec::new(),
    }])
}

fn heading(job: &Job) -> String {
    let threads = if job.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", job.threads) };
    let responder = job.responder.as_ref().map(|mode| format!(" ({mode})")).unwrap_or_default();
    let (titles, _): (Vec<_>, Vec<_>) = columns(job, &Row::default()).into_iter().unzip();
    format!(
        "{} over {}{responder}: {}; {threads}, cores: {}\n\
         If ops/clock is not 1, times are means of that many operations, and percentiles are those of the means.\n \
         {:<10} {:<12} {}\n",
        job.args.test.name,
        job.fabric,
        job.plan.description,
        name_of(&job.args.cores),
        "#bytes",
        "#iterations",
        titles.join(" ")
    )
}

fn text(job: &Job, row: &Row) -> String {
    let (_, cells): (Vec<_>, Vec<_>) = columns(job, row).into_iter().unzip();
    format!(" {:<10} {:<12} {}{}\n", row.size, row.iterations, cells.join(" "), extra(row))
}

/// Returns the title and the cell of each column.
fn columns(job: &Job, row: &Row) -> Vec<(String, String)> {
    let column =
        |width: usize, title: &str, cell: String| (format!("{title:>width$}"), format!("{cell:>width$}"));
    let Baseline(baseline, _) = job.plan.baseline;
    let beside = |figure: &dyn Fn(&Series) -> String| row.baseline.as_ref().map_or("-".to_owned(), figure);
    let clock = column(10, "ops/clock", row.batch.to_string());
    if job.args.test.is_bandwidth {
        let mbps = |rate: f64| format!("{:.2}", rate * row.payload as f64 / 1e6);
        let ratio = |baseline: &Series| format!("{:.3}", row.ours.rate_median() / baseline.rate_median());
        return vec![
            column(14, "BW peak[MB/s]", mbps(row.ours.rate_max())),
            column(17, "BW average[MB/s]", mbps(row.ours.rate)),
            column(14, "MsgRate[Mpps]", format!("{:.6}", row.ours.rate / 1e6)),
            column(10, &format!("vs {baseline}"), beside(&ratio)),
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
        column(12, &format!("{baseline}[usec]"), beside(&|baseline| us(baseline.quantile_us(0.5)))),
        column(13, "overhead[ns]", beside(&|baseline| format!("{:.1}", overhead_ns(row, baseline)))),
    ]
}

/// Formats the further figures of a row with their names.
fn extra(row: &Row) -> String {
    let digits = |value: &f64| if value.fract() == 0.0 { 0 } else { 4 };
    row.extra.iter().map(|(name, value)| format!("  {name}={value:.*}", digits(value))).collect()
}

/// Returns by how much the median operation is slower than the baseline.
fn overhead_ns(row: &Row, baseline: &Series) -> f64 {
    (row.ours.quantile_us(0.5) - baseline.quantile_us(0.5)) * 1e3
}

#[derive(Serialize)]
struct Line {
    test: &'static str,
    fabric: &'static str,
    mode: &'static str,
    cores: String,
    size: u64,
    iters: u64,
    threads: usize,
    lat_us: Figures,
    #[serde(rename = "bw_MBps")]
    bw_mbps: f64,
    #[serde(rename = "rate_Mops")]
    rate_mops: f64,
    cpu_us_per_op: f64,
    ops_per_clock: u64,
    errors: u64,
    baseline: Option<Figures>,
    #[serde(flatten)]
    extra: Figures,
}

/// Figures with their names, in order.
struct Figures(Vec<(&'static str, f64)>);

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().copied())
    }
}

impl Line {
    fn new(job: &Job, row: &Row) -> Line {
        // The rate of the median round, as in the ratio.
        let rate = row.ours.rate_median();
        let quantiles =
            [("min", 0.0), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];
        let mut extra = row.extra.clone();
        extra.sort_by_key(|(name, _)| *name);
        Line {
            test: job.args.test.name,
            fabric: job.fabric,
            mode: if job.args.attached { "attached" } else { "embedded" },
            cores: name_of(&job.args.cores),
            size: row.size,
            iters: row.iterations,
            threads: job.threads,
            lat_us: Figures(
                quantiles.map(|(name, quantile)| (name, row.ours.quantile_us(quantile))).to_vec(),
            ),
            bw_mbps: rate * row.payload as f64 / 1e6,
            rate_mops: rate / 1e6,
            cpu_us_per_op: row.ours.cpu_us(),
            ops_per_clock: row.batch,
            errors: row.errors,
            baseline: row.baseline.as_ref().map(|baseline| beside(job, row, baseline)),
            extra: Figures(extra),
        }
    }
}

/// Returns the baseline's figures, and the ratio to them.
fn beside(job: &Job, row: &Row, baseline: &Series) -> Figures {
    let (baseline_us, baseline_rate) = (baseline.quantile_us(0.5), baseline.rate_median());
    let ratio = match job.args.test.is_bandwidth {
        true => row.ours.rate_median() / baseline_rate,
        false => row.ours.quantile_us(0.5) / baseline_us,
    };
    let Baseline(_, names) = job.plan.baseline;
    let figure = |name: &&'static str| match name.rsplit('_').next() {
        Some("MBps") => (*name, baseline_rate * row.size as f64 / 1e6),
        Some("ns") => (*name, baseline_us * 1e3),
        _ => (*name, baseline_us),
    };
    let others = [("overhead_ns", overhead_ns(row, baseline)), ("ratio", ratio)];
    Figures(names.iter().map(figure).chain(others).collect())
}
