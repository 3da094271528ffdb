//! Repeated reads and writes of the same bytes, compared with bare copies of the same number of bytes.

use anyhow::Context;
use halite::{Buffer, Lh, Permissions, Placement, ReadOp, WriteOp, blocking};

use super::baseline::Direction;
use super::measure::infallible;
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
    let description = match batch(args) {
        1 => SAME_BYTES,
        _ => "operations started together, on the same bytes",
    };
    Ok(default_plan::<Access<IS_WRITE>>(args, description))
}

/// Returns the plan of a test that reads or writes. Bandwidth tests move more bytes, in longer pieces.
pub fn default_plan<W: Workload>(args: &PerfArgs, description: &'static str) -> Plan {
    let plan = Plan::of::<W>(description);
    if args.test.is_bandwidth { Plan { size: 64 << 10, bytes: 16 << 30, ..plan } } else { plan }
}

/// Returns the number of operations that a thread starts together.
fn batch(args: &PerfArgs) -> usize {
    args.window.unwrap_or(1) as usize
}

/// State of a thread: its session, its region, and the region's expected contents.
pub struct Access<const IS_WRITE: bool> {
    session: blocking::Session,
    lh: Lh,
    name: String,
    bytes: Buffer,
    /// Bytes of the last reads: of each of the reads that start together.
    found: Buffer,
    /// Number of reads that have filled `found`.
    reads: usize,
}

impl<const IS_WRITE: bool> Workload for Access<IS_WRITE> {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>> {
        let threads = bench.job.threads;
        // Sessions of their own, so that the threads use several lanes.
        let sessions = match threads {
            1 => vec![bench.end.session.clone()],
            _ => bench.end.sessions(threads)?,
        };
        // The pid distinguishes measurements that run in one cluster at the same time.
        let name = |thread| format!("perf-{}-{thread}", std::process::id());
        // Only a server process looks regions up by name. Without names, they end with this process.
        let has_server = bench.server.is_some();
        let worker = |(thread, session): (u64, blocking::Session)| {
            let (name, there) = (name(thread), Placement::On(bench.end.peer));
            let lh = session
                .alloc(has_server.then_some(name.as_str()), bench.size, there, Permissions::all())
                .context("cannot create the regions")?;
            let mut bytes = session.buffer(bench.size as usize)?;
            bytes.copy_from_slice(&pattern(bench.size, thread as usize));
            // Before a write the region holds other bytes, so that a missing write is detected.
            let before = if IS_WRITE { inverse(&bytes) } else { bytes.to_vec() };
            session.write(lh, 0, &before)?;
            let reads = if IS_WRITE { 0 } else { batch(&bench.job.args) };
            let found = session.buffer(reads * bytes.len())?;
            Ok(Access { session, lh, name, bytes, found, reads })
        };
        (0..).zip(sessions).map(worker).collect()
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let count = batch(&bench.job.args);
        if count > 1 {
            return self.measure_batches(count, timer);
        }
        let Access { session, lh, bytes, .. } = self;
        let lh = *lh;
        let mut copier = bench.copier(if IS_WRITE { Direction::Write } else { Direction::Read })?;
        let baseline = copier.as_mut().map(|copier| infallible(|| copier.copy()));
        match IS_WRITE {
            false => timer.operations(|| Ok(session.read(lh, 0, &mut self.found)?), baseline),
            true => timer.operations(|| Ok(session.write(lh, 0, bytes)?), baseline),
        }
    }

    /// Compares the bytes of the last reads with the expected ones. Then the server process computes a checksum of its
    /// memory, or without such a process this function reads the region.
    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        let Access { session, lh, name, bytes, found, reads } = self;
        let found = found.chunks(bytes.len()).take(reads);
        let mut errors = found.filter(|found| **found != bytes[..]).count() as u64;
        errors += match &mut bench.server {
            Some(server) => {
                let found = server.ask(&Request::Checksum { name, len: bench.size })?;
                u64::from(found != checksum(&bytes))
            }
            None => differs(&session, lh, 0, &bytes)?,
        };
        session.free(lh)?;
        Ok(errors)
    }

    fn figures(bench: &Bench) -> Vec<(&'static str, f64)> {
        match batch(&bench.job.args) {
            1 => Vec::new(),
            count => ["window", "batch"].map(|name| (name, count as f64)).to_vec(),
        }
    }
}

impl<const IS_WRITE: bool> Access<IS_WRITE> {
    /// Measures batches of up to `count` operations.
    fn measure_batches(&mut self, count: usize, timer: &Timer) -> anyhow::Result<Measured> {
        let (session, lh) = (&self.session, self.lh);
        let writes = vec![WriteOp { lh, offset: 0, from: &self.bytes }; count];
        let mut reads: Vec<_> =
            self.found.chunks_mut(self.bytes.len()).map(|into| ReadOp { lh, offset: 0, into }).collect();
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
        self.reads = most.min(self.reads);
        Ok(measured)
    }
}
