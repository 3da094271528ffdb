//! Repeated reads and writes of the same bytes, compared with bare copies of the same number of bytes.

use halite::{Lh, ReadOp, WriteOp, blocking};

use super::baseline::Direction;
use super::measure::sure;
use super::parcel::{differs, inverse, pattern};
use super::random;
use super::server::{Request, checksum};
use super::workload::{Bench, Measured, PerfArgs, Plan, Planned, SAME_BYTES, Timer, Workload};

/// Value of the parameter `IS_WRITE` for reads.
pub const READS: bool = false;
/// Value of the parameter `IS_WRITE` for writes.
pub const WRITES: bool = true;

pub fn plan<const IS_WRITE: bool>(args: &PerfArgs) -> Planned {
    if args.is_random() {
        return random::plan::<IS_WRITE>(args);
    }
    let what = match together(args) {
        1 => SAME_BYTES,
        _ => "operations started together, on the same bytes",
    };
    Ok(usual::<Access<IS_WRITE>>(args, what))
}

/// Returns the plan of a test that reads or writes. Bandwidth tests move more bytes, in longer pieces.
pub fn usual<W: Workload>(args: &PerfArgs, what: &'static str) -> Plan {
    let plan = Plan::of::<W>(what);
    if args.test.is_bandwidth { Plan { size: 64 << 10, bytes: 16 << 30, ..plan } } else { plan }
}

/// Returns the number of operations that a thread starts together.
fn together(args: &PerfArgs) -> usize {
    args.window.unwrap_or(1) as usize
}

/// State of a thread: its region, and the region's expected contents.
pub struct Access<const IS_WRITE: bool> {
    lh: Lh,
    name: String,
    bytes: Vec<u8>,
    /// Bytes of the last reads, one buffer for each of the reads that start together.
    found: Vec<Vec<u8>>,
}

impl<const IS_WRITE: bool> Workload for Access<IS_WRITE> {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>> {
        let threads = bench.job.threads as u64;
        // The pid distinguishes measurements that run in one cluster at the same time.
        let name = |thread| format!("perf-{}-{thread}", std::process::id());
        // Only a server process looks regions up by name. Without names, they end with this process.
        let has_server = bench.server.is_some();
        bench.make_regions(threads, bench.job.size_max(), |thread| has_server.then(|| name(thread)))?;
        let share = |(thread, lh): (u64, &Lh)| {
            let bytes = pattern(bench.size, thread as usize);
            // Before a write the region holds other bytes, so that a missing write is detected.
            let before = if IS_WRITE { inverse(&bytes) } else { bytes.clone() };
            bench.end.session.write(*lh, 0, &before)?;
            let reads = if IS_WRITE { 0 } else { together(&bench.job.args) };
            let found = vec![vec![0; bytes.len()]; reads];
            Ok(Access { lh: *lh, name: name(thread), bytes, found })
        };
        (0..).zip(&bench.regions).map(share).collect()
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let (session, lh, bytes) = (&bench.end.session, self.lh, self.bytes.as_slice());
        let count = together(&bench.job.args);
        if count > 1 {
            return self.together(session, count, timer);
        }
        let mut copier = bench.copier(if IS_WRITE { Direction::Write } else { Direction::Read })?;
        let bare = copier.as_mut().map(|copier| sure(|| copier.copy()));
        match self.found.first_mut() {
            Some(buffer) => timer.operations(|| Ok(session.read(lh, 0, buffer)?), bare),
            None => timer.operations(|| Ok(session.write(lh, 0, bytes)?), bare),
        }
    }

    /// Compares the bytes of the last reads with the expected ones. Then the server process computes a checksum of its
    /// memory, or without such a process this function reads the region.
    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        let Access { lh, name, bytes, found } = self;
        let errors = found.iter().filter(|found| **found != bytes).count() as u64;
        Ok(errors
            + match &mut bench.server {
                Some(server) => {
                    let found = server.ask(&Request::Checksum { name, len: bench.size })?;
                    u64::from(found != checksum(&bytes))
                }
                None => differs(&bench.end.session, lh, 0, &bytes)?,
            })
    }

    fn figures(bench: &Bench) -> Vec<(&'static str, f64)> {
        match together(&bench.job.args) {
            1 => Vec::new(),
            count => ["window", "batch"].map(|name| (name, count as f64)).to_vec(),
        }
    }
}

impl<const IS_WRITE: bool> Access<IS_WRITE> {
    /// Starts up to `count` operations together.
    fn together(
        &mut self,
        session: &blocking::Session,
        count: usize,
        timer: &Timer,
    ) -> anyhow::Result<Measured> {
        let lh = self.lh;
        let writes = vec![WriteOp { lh, offset: 0, from: &self.bytes }; count];
        let mut reads: Vec<_> = self.found.iter_mut().map(|into| ReadOp { lh, offset: 0, into }).collect();
        let mut most = 0;
        let measured = timer.overlapping(|operations| {
            let mut left = operations as usize;
            while left > 0 {
                let part = left.min(count);
                match IS_WRITE {
                    true => session.write_batch(&writes[..part])?,
                    false => session.read_batch(&mut reads[..part])?,
                }
                most = most.max(part);
                left -= part;
            }
            Ok(())
        })?;
        self.found.truncate(most);
        Ok(measured)
    }
}
