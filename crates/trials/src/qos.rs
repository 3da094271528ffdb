//! Sessions of two priorities beside each other in simulated time, as in LITE's figures 15 and 16.

mod apps;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use halite::{Lh, NodeId, Permissions, Placement, Policy, Priority, Qos, Session, WriteOp};
use halite_sim::{HostId, Profile, RunEnd, World};
use serde::Serialize;

use crate::golden::Cluster;

pub use apps::{AppsRow, qos_apps};

/// Lengths of a write in bytes.
const BULK_BYTES: usize = 8 << 10;
const SMALL_BYTES: usize = 64;
/// Number of independent streams of writes of a session.
const STREAMS: usize = 8;
/// Numbers of writes that a stream posts together.
const BULK_BATCH_LEN: usize = 8;
const SMALL_BATCH_LEN: usize = 32;
const REGION_BYTES: u64 = (BULK_BYTES * BULK_BATCH_LEN) as u64;
/// Time before a measurement, in which the policy adapts to the load.
const WARM_UP: Duration = Duration::from_millis(200);
/// Duration of a measurement.
const MEASUREMENT: Duration = Duration::from_millis(60);
/// Time at which all phases have ended.
const DEADLINE_NS: u64 = 10_000_000_000;

/// Load of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    None,
    /// Writes of 8 KiB, up to 64 outstanding.
    Bulk,
    /// Writes of 64 bytes, one outstanding.
    Small,
    /// Writes of 64 bytes, up to 256 outstanding.
    ManySmall,
}

/// Loads of high and low priority in each phase.
const PHASES: [[Load; 2]; 7] = [
    [Load::Bulk, Load::None],
    [Load::Bulk, Load::Bulk],
    [Load::None, Load::Bulk],
    [Load::Small, Load::None],
    [Load::Small, Load::Bulk],
    [Load::ManySmall, Load::None],
    [Load::ManySmall, Load::Bulk],
];

/// Writes of one session in a phase.
#[derive(Default)]
struct Written {
    bytes: Cell<u64>,
    /// Times of the operations, in ns.
    times_ns: RefCell<Vec<u64>>,
}

/// Measurements of one policy. Throughput is in MB/s.
#[derive(Debug, Serialize)]
pub struct QosRow {
    /// The policy of the writing node.
    pub policy: Policy,
    /// Throughput of high priority alone.
    pub high_alone: f64,
    /// Throughput of high priority beside low priority.
    pub high_beside: f64,
    /// Throughput of low priority alone.
    pub low_alone: f64,
    /// Throughput of low priority beside high priority.
    pub low_beside: f64,
    /// 99th percentile of single writes of 64 B alone, in us.
    pub small_p99_us_idle: f64,
    /// 99th percentile of single writes of 64 B beside low priority, in us.
    pub small_p99_us_beside: f64,
    /// Rate of writes of 64 B, up to 256 outstanding, alone, in Mops.
    pub small_mops_idle: f64,
    /// Rate of these writes beside low priority, in Mops.
    pub small_mops_beside: f64,
}

impl QosRow {
    /// Heading of a table of these rows.
    pub const HEADING: &str = "\
| policy | high alone [MB/s] | high beside low | low alone | low beside high | 64 B alone, p99 [usec] | 64 B beside low | 256 of 64 B alone [Mops] | beside low |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
";
}

impl fmt::Display for QosRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.2} | {:.2} |",
            self.policy,
            self.high_alone,
            self.high_beside,
            self.low_alone,
            self.low_beside,
            self.small_p99_us_idle,
            self.small_p99_us_beside,
            self.small_mops_idle,
            self.small_mops_beside
        )
    }
}

/// Measures all policies: throughput of both priorities alone and beside each other, and small writes beside long ones,
/// between two nodes with the hardware of `profile`.
pub fn qos(profile: &Profile) -> Vec<QosRow> {
    let link = profile.bandwidth_bytes_per_us * 1_000_000;
    std::thread::scope(|scope| {
        let rows = [Policy::SwPri, Policy::HwSep, Policy::None].map(|policy| {
            let rate = (policy == Policy::HwSep).then_some(link);
            scope.spawn(move || row(profile, Qos { policy, rate }))
        });
        rows.into_iter().map(|row| row.join().expect("its phases end")).collect()
    })
}

fn row(profile: &Profile, qos: Qos) -> QosRow {
    let world = World::new(0, profile.clone());
    let measured = Rc::new(RefCell::new(Vec::new()));
    let (here, phases) = (world.clone(), measured.clone());
    world.spawn(None, "qos", async move {
        let cluster = Cluster::start(&here).await;
        let high = cluster.session(0);
        high.set_qos(qos).await.expect("the settings are valid");
        let low = high.with_priority(Priority::Low).expect("no principal is limited");
        let mut lhs = Vec::new();
        for stream in 0..2 * STREAMS {
            let name = format!("stream {stream}");
            let allocated =
                high.alloc(Some(&name), REGION_BYTES, Placement::On(NodeId(1)), Permissions::all()).await;
            lhs.push(allocated.expect("there is room"));
        }
        for loads in PHASES {
            let written = run(&here, cluster.host(0), [&high, &low], &lhs, loads).await;
            phases.borrow_mut().push(written);
        }
    });
    let end = world.run_until(DEADLINE_NS);
    assert_eq!(end, RunEnd::Finished, "the phases of {}", qos.policy);
    world.end();
    let phases = measured.borrow();
    let rate = |phase: usize, session: usize| {
        phases[phase][session].bytes.get() as f64 / MEASUREMENT.as_micros() as f64
    };
    let tail_us = |phase: usize| {
        let mut times_ns = phases[phase][0].times_ns.borrow_mut();
        times_ns.sort_unstable();
        times_ns[times_ns.len() * 99 / 100] as f64 / 1e3
    };
    QosRow {
        policy: qos.policy,
        high_alone: rate(0, 0),
        high_beside: rate(1, 0),
        low_alone: rate(2, 1),
        low_beside: rate(1, 1),
        small_p99_us_idle: tail_us(3),
        small_p99_us_beside: tail_us(4),
        small_mops_idle: rate(5, 0) / SMALL_BYTES as f64,
        small_mops_beside: rate(6, 0) / SMALL_BYTES as f64,
    }
}

/// Runs one phase. Returns the writes of high and of low priority in its measurement.
async fn run(
    world: &World,
    host: HostId,
    sessions: [&Session; 2],
    lhs: &[Lh],
    loads: [Load; 2],
) -> [Rc<Written>; 2] {
    let begin_ns = world.now_ns() + WARM_UP.as_nanos() as u64;
    let end_ns = begin_ns + MEASUREMENT.as_nanos() as u64;
    let writing = Rc::new(Cell::new(0));
    let written = [0, 1].map(|index: usize| {
        let written = Rc::new(Written::default());
        let streams = match loads[index] {
            Load::None => 0,
            Load::Bulk | Load::ManySmall => STREAMS,
            Load::Small => 1,
        };
        for stream in 0..streams {
            let stream = Stream {
                world: world.clone(),
                session: sessions[index].clone(),
                lh: lhs[index * STREAMS + stream],
                load: loads[index],
                written: written.clone(),
            };
            let writing = writing.clone();
            writing.set(writing.get() + 1);
            world.spawn(Some(host), "stream", async move {
                stream.write(begin_ns..end_ns).await;
                writing.set(writing.get() - 1);
            });
        }
        written
    });
    while writing.get() > 0 {
        world.sleep(None, Duration::from_micros(100)).await;
    }
    written
}

/// Writes of one task, one after the other.
struct Stream {
    world: World,
    session: Session,
    lh: Lh,
    load: Load,
    written: Rc<Written>,
}

impl Stream {
    /// Writes until the end of `measured`, and counts the writes in this time. Of a batch that is only in part in this
    /// time, this part counts.
    async fn write(&self, measured: Range<u64>) {
        let bytes = vec![7; BULK_BYTES];
        let (len, batch_len) = match self.load {
            Load::ManySmall => (SMALL_BYTES, SMALL_BATCH_LEN),
            _ => (BULK_BYTES, BULK_BATCH_LEN),
        };
        let op = |index: usize| WriteOp { lh: self.lh, offset: (index * len) as u64, from: &bytes[..len] };
        let ops: Vec<_> = (0..batch_len).map(op).collect();
        while self.world.now_ns() < measured.end {
            let before_ns = self.world.now_ns();
            let len = if self.load == Load::Small {
                self.session.write(self.lh, 0, &bytes[..SMALL_BYTES]).await.expect("the peer lives");
                SMALL_BYTES
            } else {
                self.session.write_batch(&ops).await.expect("the peer lives");
                len * batch_len
            };
            let now_ns = self.world.now_ns();
            let in_time_ns = now_ns.min(measured.end).saturating_sub(before_ns.max(measured.start));
            let in_time = len as u64 * in_time_ns / (now_ns - before_ns).max(1);
            self.written.bytes.set(self.written.bytes.get() + in_time);
            if measured.contains(&now_ns) {
                self.written.times_ns.borrow_mut().push(now_ns - before_ns);
            }
        }
    }
}
