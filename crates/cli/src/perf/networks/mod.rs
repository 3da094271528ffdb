//! `halite perf networks`: sockets and Halite in one run, by message size, beside published networks.
//!
//! Each side has one thread. The results are throughput, half a round trip, and the processor time of both sides per
//! message of the stream. On loopback the sender's system call also does the receiver's work in the kernel. Halite's
//! threads poll, so their processor time is the time of the run.

mod sockets;

use std::path::Path;

use anyhow::{Context, bail};
use halite::Provider;
use halite_figures::plot::{self, Axis, Plot, Series};
use halite_figures::{Figure, Section};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;

use super::args::PerfArgs;
use super::bench::Bench;
use super::cores::{Cores, pin};
use super::job::{Job, wrong};
use super::measure::warm_up;
use super::table;
use crate::bytes::ByteCount;
use crate::output;
use crate::progress;
use crate::table::{Align, Table};
use crate::target::Target;

/// Sizes of messages in bytes: 32 B to 32 MiB.
const SIZES: [u64; 11] =
    [32, 128, 512, 2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20];
/// Maximum size of writes and reads that are posted in batches, and the length of a batch.
const BATCHED_BYTES_MAX: u64 = 32 << 10;
const BATCH: u32 = 16;

/// Returns the number of messages of a stream: enough bytes for about a second.
fn stream_messages(bytes: u64) -> u64 {
    ((512 << 20) / bytes).clamp(16, 100_000)
}

/// Returns the number of round trips of a ping-pong.
fn ping_pongs(bytes: u64) -> u64 {
    ((128 << 20) / bytes).clamp(8, 10_000)
}

/// A network and an operation on it.
struct Network {
    name: &'static str,
    kind: Kind,
}

enum Kind {
    Tcp,
    Udp,
    /// Tests of `halite perf`: latency and throughput.
    Halite {
        fabric: &'static str,
        latency: &'static str,
        throughput: &'static str,
    },
}

const NETWORKS: [Network; 8] = [
    Network { name: "TCP", kind: Kind::Tcp },
    Network { name: "UDP", kind: Kind::Udp },
    halite("roce write", "roce", "write_lat", "write_bw"),
    halite("roce read", "roce", "read_lat", "read_bw"),
    halite("roce send", "roce", "send_lat", "publish_rate"),
    halite("shm write", "shm", "write_lat", "write_bw"),
    halite("shm read", "shm", "read_lat", "read_bw"),
    halite("shm send", "shm", "send_lat", "publish_rate"),
];

const fn halite(
    name: &'static str,
    fabric: &'static str,
    latency: &'static str,
    throughput: &'static str,
) -> Network {
    Network { name, kind: Kind::Halite { fabric, latency, throughput } }
}

/// The result of one network and size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    network: &'static str,
    size: u64,
    #[serde(rename = "throughput_MBps")]
    throughput_mbps: f64,
    /// Half a round trip; for reads a whole one, because the answer is the message.
    latency_us: f64,
    cpu_us_per_message: f64,
    cycles_per_message: Option<f64>,
    errors: u64,
}

pub fn run(args: &PerfArgs) -> anyhow::Result<()> {
    if args.size.is_some() || args.all || args.threads.is_some() || args.peer.is_some() || args.svg.is_some()
    {
        return Err(wrong("networks has its own sizes and threads: omit -s, -a, -t, --peer and --svg").into());
    }
    let target = Target::new(None, args.out.as_deref(), args.force)?;
    // The description counts the cores, so it precedes the pinning of this thread.
    let machine = machine();
    let clock_ghz = clock_ghz(Path::new("/proc/cpuinfo"));
    let bar = progress::steps("measuring");
    bar.set_length((NETWORKS.len() * SIZES.len()) as u64);
    let cores = sched_getaffinity(None)?;
    let mut rows = Vec::new();
    for network in &NETWORKS {
        let sizes = SIZES.into_iter().filter(|size| match network.kind {
            Kind::Udp => *size <= sockets::DATAGRAM_MAX,
            _ => true,
        });
        let measured =
            measure(network, args, sizes.collect(), &Common { clock_ghz, cores, report_row: &|| bar.inc(1) });
        rows.extend(measured.with_context(|| format!("cannot measure {}", network.name))?);
    }
    bar.finish_and_clear();
    target.write_page(std::iter::empty(), || page(&rows, &machine, clock_ghz))?;
    match args.json {
        true => rows.iter().try_for_each(output::print_json)?,
        false => output::print(&text(&rows))?,
    }
    match rows.iter().map(|row| row.errors).sum() {
        0 => Ok(()),
        errors => bail!("verification failed: {errors} times the data differed from what was sent"),
    }
}

/// State that all measurements share.
struct Common<'a> {
    clock_ghz: Option<f64>,
    /// The cores that this process may use. Each measurement pins this thread to one of them.
    cores: CpuSet,
    /// Advances the progress bar by one row.
    report_row: &'a dyn Fn(),
}

fn measure(
    network: &Network,
    args: &PerfArgs,
    sizes: Vec<u64>,
    common: &Common<'_>,
) -> anyhow::Result<Vec<Row>> {
    let Common { clock_ghz, cores, report_row } = *common;
    let Kind::Halite { fabric, latency, throughput } = network.kind else {
        pin(cores).context("cannot use all cores")?;
        let cores = Cores::available(args.cores)?;
        let row = |size| {
            let figures = match network.kind {
                Kind::Udp => sockets::udp(&cores, size)?,
                _ => sockets::tcp(&cores, size)?,
            };
            report_row();
            let throughput_mbps = figures.messages_per_s * size as f64 / 1e6;
            let cycles_per_message = clock_ghz.map(|ghz| figures.cpu_us * 1e3 * ghz);
            Ok(Row {
                network: network.name,
                size,
                throughput_mbps,
                latency_us: figures.half_round_trip_us,
                cpu_us_per_message: figures.cpu_us,
                cycles_per_message,
                errors: figures.errors,
            })
        };
        return sizes.into_iter().map(row).collect();
    };
    let open = |test: &str, sizes: &[u64], window| {
        let size = sizes.iter().max().copied().map(ByteCount);
        let test = table::named(test).expect("the table contains the test");
        let fabric = if fabric == "shm" { Provider::Shm } else { Provider::Roce };
        let args = PerfArgs { test, size, fabric, window, check_memcpy: false, out: None, ..args.clone() };
        pin(cores).context("cannot use all cores")?;
        Bench::open(None, Job::new(&args)?)
    };
    let mut bench = open(latency, &sizes, None)?;
    let mut latencies = Vec::new();
    for size in &sizes {
        bench.job.args.iterations = Some(ping_pongs(*size));
        let row = bench.row(*size, 1)?;
        latencies.push((row.ours.quantile_us(0.5), row.errors));
    }
    bench.close()?;
    let (short, long): (Vec<u64>, Vec<u64>) = sizes.iter().partition(|size| **size <= BATCHED_BYTES_MAX);
    let mut rows = Vec::new();
    for (sizes, batch) in [(short, Some(BATCH)), (long, None)] {
        let mut bench = open(throughput, &sizes, batch.filter(|_| throughput != "publish_rate"))?;
        for size in sizes {
            bench.job.args.iterations = Some(stream_messages(size));
            let before = bench.server()?.cpu_of_both()?;
            let row = bench.row(size, 1)?;
            let cpu = bench.server()?.cpu_of_both()?.saturating_sub(before);
            let cpu_us = cpu.as_secs_f64() * 1e6 / (row.ours.operations + warm_up(row.iterations)) as f64;
            let (latency_us, errors) = latencies[rows.len()];
            rows.push(Row {
                network: network.name,
                size,
                throughput_mbps: row.ours.rate_median() * size as f64 / 1e6,
                latency_us,
                cpu_us_per_message: cpu_us,
                cycles_per_message: clock_ghz.map(|ghz| cpu_us * 1e3 * ghz),
                errors: errors + row.errors,
            });
            report_row();
        }
        bench.close()?;
    }
    Ok(rows)
}

/// Returns the clock rate of the first processor, as the kernel reports it; `None` if it does not.
fn clock_ghz(path: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split_once(':')?.1.trim().parse().ok().map(|mhz: f64| mhz / 1e3)
}

fn text(rows: &[Row]) -> String {
    let right = |heading| (heading, Align::Right);
    let mut table = Table::new(&[
        ("network", Align::Left),
        right("bytes"),
        right("MB/s"),
        right("latency[usec]"),
        right("cpu[usec]"),
        right("cycles"),
    ]);
    rows.iter().for_each(|row| table.row(cells(row)));
    table.to_string()
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.network.to_owned(),
        row.size.to_string(),
        format!("{:.1}", row.throughput_mbps),
        format!("{:.2}", row.latency_us),
        format!("{:.3}", row.cpu_us_per_message),
        row.cycles_per_message.map_or("-".to_owned(), |cycles| format!("{cycles:.0}")),
    ]
}

const ABOUT: &str = "Filled marks and solid lines are measured on this machine over loopback and shared memory, one thread per side, \
data verified. Hollow marks and dashed lines are published: Connect-IB FDR, IPoIB and Ethernet of 1 Gb/s (The End of Slow \
Networks, VLDB 2016, figures 2 and 3). UDP ends where a message no longer fits into one datagram.";

fn page(rows: &[Row], machine: &str, clock_ghz: Option<f64>) -> String {
    let clock = clock_ghz
        .map_or("The kernel reports no clock rate, so cycles are missing.".to_owned(), |ghz| {
            format!("Cycles are thread processor time at {ghz:.2} GHz, the rate that the kernel reports.")
        });
    let cpu = format!(
        "Processor time of both sides for a message of the stream. {clock} On loopback the sender's system call also does the \
         receiver's work in the kernel. Halite's threads poll, so they are busy for the whole run."
    );
    let sections = [
        section(
            rows,
            "throughput",
            "Throughput",
            "A stream of messages in one direction.",
            "throughput [MB/s]",
            2,
            |row| Some(row.throughput_mbps),
        ),
        section(
            rows,
            "latency",
            "Latency",
            "Half a round trip; for reads a whole one.",
            "latency [us]",
            3,
            |row| Some(row.latency_us),
        ),
        section(rows, "cycles", "Processor cycles of a message", &cpu, "cycles", 5, |row| {
            row.cycles_per_message
        }),
    ];
    halite_figures::html("Networks of this machine", &[machine, ABOUT], &sections)
}

/// Names the processor, the number of its cores that this process may use, and the kernel.
fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("an unnamed processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
    format!("Measured on {model}, {cores}, {}.", rustix::system::uname().release().to_string_lossy())
}

/// Creates the section of one quantity, which `value` returns; its cell is in `column`.
fn section(
    rows: &[Row],
    id: &str,
    title: &str,
    text: &str,
    label: &str,
    column: usize,
    value: impl Fn(&Row) -> Option<f64>,
) -> Section {
    let measured = NETWORKS.iter().enumerate().map(|(colour, network)| {
        let own = rows.iter().filter(|row| row.network == network.name);
        let points = own.filter_map(|row| Some([row.size as f64, value(row)?])).collect();
        Series { name: network.name.to_owned(), colour, is_dashed: false, points }
    });
    let series = measured.chain(published(id)).collect();
    let axis = |label: &str| Axis { label: label.to_owned(), is_log: true };
    let plot = Plot { title: title.to_owned(), x: axis("bytes"), y: axis(label), series, marks: Vec::new() };
    let table_row = |size: u64| {
        let cell = |network: &Network| {
            let row = rows.iter().find(|row| row.network == network.name && row.size == size);
            row.map_or("-".to_owned(), |row| cells(row).swap_remove(column))
        };
        [size.to_string()].into_iter().chain(NETWORKS.iter().map(cell)).collect()
    };
    Section {
        id: id.to_owned(),
        title: title.to_owned(),
        text: text.to_owned(),
        svg: plot::svg(&[plot]),
        head: ["bytes"].into_iter().chain(NETWORKS.iter().map(|network| network.name)).collect(),
        rows: SIZES.iter().map(|size| table_row(*size)).collect(),
        notes: Vec::new(),
    }
}

/// Returns the published lines of a quantity.
fn published(quantity: &str) -> Vec<Series> {
    let (figure, lines, factor): (&str, [&str; 3], f64) = match quantity {
        "throughput" => ("slow-2", ["RDMA, throughput", "IPoIB, throughput", "Ethernet, throughput"], 1e3),
        "latency" => ("slow-2", ["RDMA write", "IPoIB, latency", "Ethernet, latency"], 1.0),
        _ => ("slow-3", ["RDMA write, client", "IPoIB", "Ethernet"], 1.0),
    };
    let figure = Figure::named(figure).expect("the figure is built in");
    let names = ["RDMA, published", "IPoIB, published", "Ethernet, published"];
    let line = |(index, name): (usize, &str)| {
        let line =
            figure.lines().find(|line| line.name == lines[index]).expect("the figure contains the line");
        let points = line.points.iter().map(|[x, y]| [*x, y * factor]).collect();
        Series { name: name.to_owned(), colour: NETWORKS.len() + index, is_dashed: true, points }
    };
    names.into_iter().enumerate().map(line).collect()
}
