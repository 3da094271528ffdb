//! `fill_lat` and `copy_lat`: operations on the peer's bytes, which do not pass through the caller.
//!
//! A fill is compared with memset, a copy with the alternative: reading the bytes and writing them back.

use halite::Lh;

use super::baseline::Direction;
use super::measure::infallible;
use super::parcel::{differs, inverse, pattern};
use super::report::{MEMSET, READ_WRITE};
use super::workload::{Bench, Measured, PerfArgs, Plan, Planned, SAME_BYTES, Timer, Workload};

/// Byte that fills write.
const BYTE: u8 = 0xA7;

/// Value of the parameter `IS_COPY` for fills.
pub const FILLS: bool = false;
/// Value of the parameter `IS_COPY` for copies.
pub const COPIES: bool = true;

pub fn plan<const IS_COPY: bool>(_: &PerfArgs) -> Planned {
    let baseline = if IS_COPY { READ_WRITE } else { MEMSET };
    Ok(Plan { baseline, size: 4 << 10, arena_sizes: 8, ..Plan::of::<Bulk<IS_COPY>>(SAME_BYTES) })
}

/// State of a thread: two regions.
pub struct Bulk<const IS_COPY: bool> {
    to: Lh,
    from: Lh,
    /// Expected contents of `to`.
    expected: Vec<u8>,
    errors: u64,
}

impl<const IS_COPY: bool> Workload for Bulk<IS_COPY> {
    fn setup(bench: &mut Bench) -> anyhow::Result<Vec<Self>> {
        bench.make_regions(2 * bench.job.threads as u64, bench.job.size_max())?;
        let (session, size) = (&bench.end.session, bench.size);
        let worker = |(thread, pair): (usize, &[Lh])| {
            let (to, from, mut errors) = (pair[0], pair[1], 0);
            let expected = if IS_COPY { pattern(size, thread) } else { vec![BYTE; size as usize] };
            session.write(to, 0, &inverse(&expected))?;
            if IS_COPY {
                session.write(from, 0, &expected)?;
                // The copy precedes the baseline, which would hide a missing copy.
                session.copy(to, 0, from, 0, size)?;
                errors = differs(session, to, 0, &expected)?;
            }
            Ok(Bulk { to, from, expected, errors })
        };
        bench.regions.chunks(2).enumerate().map(worker).collect()
    }

    fn operation(&mut self, bench: &Bench, timer: &Timer) -> anyhow::Result<Measured> {
        let (session, size, to, from) = (&bench.end.session, bench.size, self.to, self.from);
        if !IS_COPY {
            let mut filler = bench.copier(Direction::Fill)?;
            let baseline = filler.as_mut().map(|filler| infallible(|| filler.copy()));
            return timer.operations(|| Ok(session.fill(to, 0, size, BYTE)?), baseline);
        }
        let mut buffer = vec![0; size as usize];
        // The alternative to a copy.
        let read_and_write = || {
            session.read(from, 0, &mut buffer)?;
            Ok(session.write(to, 0, &buffer)?)
        };
        let baseline = bench.job.args.check_memcpy.then_some(read_and_write);
        timer.operations(|| Ok(session.copy(to, 0, from, 0, size)?), baseline)
    }

    fn verify(self, bench: &mut Bench) -> anyhow::Result<u64> {
        Ok(self.errors + differs(&bench.end.session, self.to, 0, &self.expected)?)
    }
}
