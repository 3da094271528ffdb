//! Applications of high priority beside constant writes of low priority, as in LITE's figure 15.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use halite::{NodeId, Permissions, Placement, Policy, Priority, Qos};
use halite_apps::graph::input::{Input, Kronecker};
use halite_apps::graph::{Crowd, PageRank, Shard, pagerank};
use halite_apps::log::{Log, Options, Writer};
use halite_sim::{Profile, RunEnd, World};
use serde::Serialize;

use super::{DEADLINE_NS, Load, REGION_BYTES, STREAMS, Stream, WARM_UP};
use crate::golden::Cluster;

/// Records that are appended in a measurement, and their length in bytes.
const RECORDS: u64 = 1000;
const RECORD_BYTES: usize = 48;
/// Edges per worker of the graph, and iterations of PageRank in a measurement.
const SCALE: u32 = 12;
const EDGES: u64 = (16 << SCALE) / 2;
const ITERATIONS: u64 = 100;
/// Number of runs of PageRank before low priority begins, and again before the measurement.
const RUNS: usize = 60;
/// Processor time per edge and iteration, in ns, as the plain program of docs/benchmarks.md takes it. Computation costs no
/// simulated time, so the table adds it.
const EDGE_NS: f64 = 2.4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum App {
    Log,
    PageRank,
}

/// Measurements of one policy: times of a step, in us.
#[derive(Debug, Serialize)]
pub struct AppsRow {
    /// The policy of both nodes.
    pub policy: Policy,
    /// An append to a log, alone.
    pub append_us_alone: f64,
    /// An append to a log, beside writes of low priority.
    pub append_us_beside: f64,
    /// An iteration of PageRank, alone.
    pub iteration_us_alone: f64,
    /// An iteration of PageRank, beside writes of low priority.
    pub iteration_us_beside: f64,
}

impl AppsRow {
    /// Heading of a table of these rows.
    pub const HEADING: &str = "\
| policy | append to a log, alone [usec] | beside low | times | iteration of PageRank, alone [usec] | beside low | times |
|---|---:|---:|---:|---:|---:|---:|
";
}

impl fmt::Display for AppsRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| {} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.2} |",
            self.policy,
            self.append_us_alone,
            self.append_us_beside,
            self.append_us_beside / self.append_us_alone,
            self.iteration_us_alone,
            self.iteration_us_beside,
            self.iteration_us_beside / self.iteration_us_alone
        )
    }
}

/// Measures all policies: times of an append to a log and of an iteration of PageRank, alone and beside writes
/// of low priority, between two nodes with the hardware of `profile`.
pub fn qos_apps(profile: &Profile) -> Vec<AppsRow> {
    let row = |policy| {
        let rate = (policy == Policy::HwSep).then_some(profile.bandwidth_bytes_per_us * 1_000_000);
        let step_us = |app, has_low| time_us(profile, Qos { policy, rate }, app, has_low);
        AppsRow {
            policy,
            append_us_alone: step_us(App::Log, false),
            append_us_beside: step_us(App::Log, true),
            iteration_us_alone: step_us(App::PageRank, false),
            iteration_us_beside: step_us(App::PageRank, true),
        }
    };
    [Policy::None, Policy::HwSep, Policy::SwPri].map(row).into()
}

/// Returns the time of one step of an application in us.
fn time_us(profile: &Profile, qos: Qos, app: App, has_low: bool) -> f64 {
    let world = World::new(0, profile.clone());
    let measured = Rc::new(Cell::new(0.0));
    let (here, result) = (world.clone(), measured.clone());
    world.spawn(None, "qos", async move {
        let cluster = Cluster::start(&here).await;
        let low = Rc::new(LowPriority::default());
        for node in 0..2 {
            let high = cluster.session(node);
            high.set_qos(qos).await.expect("the settings are valid");
        }
        let low = has_low.then_some(&low);
        let step_us = match app {
            App::Log => append(&here, &cluster, low).await,
            App::PageRank => iterate_pagerank(&here, &cluster, low).await,
        };
        result.set(step_us);
        if let Some(low) = low {
            low.end(&here).await;
        }
    });
    let end = world.run_until(DEADLINE_NS);
    assert_eq!(end, RunEnd::Finished, "an application beside low priority, policy {}", qos.policy);
    world.end();
    measured.get()
}

/// Constant writes of low priority.
#[derive(Default)]
struct LowPriority {
    must_end: Cell<bool>,
    running: Cell<usize>,
}

impl LowPriority {
    /// Starts to write from node 0 to node 1.
    async fn start(self: &Rc<LowPriority>, world: &World, cluster: &Cluster) {
        let session = cluster.session(0).with_priority(Priority::Low).expect("no principal is limited");
        for _ in 0..STREAMS {
            let allocated =
                session.alloc(None, REGION_BYTES, Placement::On(NodeId(1)), Permissions::empty()).await;
            let stream = Stream {
                world: world.clone(),
                session: session.clone(),
                lh: allocated.expect("there is room"),
                load: Load::Bulk,
                written: Rc::default(),
            };
            self.running.set(self.running.get() + 1);
            let this = self.clone();
            world.spawn(Some(cluster.host(0)), "low priority", async move {
                while !this.must_end.get() {
                    let now_ns = stream.world.now_ns();
                    stream.write(now_ns..now_ns + 1).await;
                }
                this.running.set(this.running.get() - 1);
            });
        }
    }

    /// Ends all writers.
    async fn end(&self, world: &World) {
        self.must_end.set(true);
        while self.running.get() > 0 {
            world.sleep(None, Duration::from_micros(100)).await;
        }
    }
}

/// Appends to a log on node 1, beside writes of low priority that begin later. Returns the time of one append in us.
async fn append(world: &World, cluster: &Cluster, low: Option<&Rc<LowPriority>>) -> f64 {
    let options = Options { nodes: vec![NodeId(1)], ..Options::default() };
    let log = Log::create(&cluster.session(0), "log", &options).await.expect("there is room");
    let mut writer = Writer::new(log, 1);
    let record = [7; RECORD_BYTES];
    let mut begin_ns = 0;
    for (step, time) in [WARM_UP, WARM_UP, Duration::ZERO].into_iter().enumerate() {
        if let (1, Some(low)) = (step, low) {
            low.start(world, cluster).await;
        }
        begin_ns = world.now_ns();
        let mut appended = 0;
        while world.now_ns() < begin_ns + time.as_nanos() as u64 || appended < RECORDS {
            writer.append(&record).await.expect("no fault is injected");
            appended += 1;
        }
    }
    (world.now_ns() - begin_ns) as f64 / RECORDS as f64 / 1e3
}

/// Computes PageRank with one worker per node, beside writes of low priority that begin later. Returns the time of one
/// iteration in us.
async fn iterate_pagerank(world: &World, cluster: &Cluster, low: Option<&Rc<LowPriority>>) -> f64 {
    let times_ns = Rc::new(Cell::new(0));
    for runs in [RUNS, RUNS, 1] {
        let running = Rc::new(Cell::new(2));
        times_ns.set(0);
        for me in 0..2 {
            let crowd = Crowd {
                session: cluster.session(me),
                me,
                workers: 2,
                name: "rank".to_owned(),
                patience: Duration::from_secs(5),
            };
            let (here, times_ns, running) = (world.clone(), times_ns.clone(), running.clone());
            world.spawn(Some(cluster.host(me)), "worker", async move {
                let input = Input::Kronecker(Kronecker { scale: SCALE, seed: 1 });
                let shard = Shard::load(&crowd, &input, false).await.expect("no fault is injected");
                let options = PageRank { iterations: ITERATIONS, tolerance: 0.0, ..PageRank::default() };
                let begin_ns = here.now_ns();
                for _ in 0..runs {
                    pagerank(&crowd, &shard, options).await.expect("no fault is injected");
                }
                times_ns.set(times_ns.get() + here.now_ns() - begin_ns);
                crowd.end().await.expect("no fault is injected");
                running.set(running.get() - 1);
            });
        }
        while running.get() > 0 {
            world.sleep(None, Duration::from_micros(100)).await;
        }
        if let (Some(low), 0) = (low, low.map_or(1, |low| low.running.get())) {
            low.start(world, cluster).await;
        }
    }
    times_ns.get() as f64 / 2.0 / ITERATIONS as f64 / 1e3 + EDGES as f64 * EDGE_NS / 1e3
}
