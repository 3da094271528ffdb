//! `fill_lat` and `copy_lat`: bytes of the peer that do not pass through the caller.
//!
//! A fill is compared with memset, and a copy with what it saves: reading the bytes, and writing them back.

use anyhow::Context;
use halite::{AccessError, Lh, Permissions, Placement, blocking};

use super::baseline::{Copier, Direction};
use super::crew;
use super::ends::Ends;
use super::gate::Seat;
use super::job::{BulkVerb, Job};
use super::measure::{Schedule, Series, alternate, estimate_ns};
use super::parcel::Parcel;
use super::report::{BaselineKind, Row};

/// What fills write; what was there before is another byte.
const BYTE: u8 = 0xA7;

/// All sizes.
pub fn run(
    job: &Job,
    ends: &mut Ends,
    verb: BulkVerb,
    report: &mut dyn FnMut(Row) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let alloc = || ends.session.alloc(None, job.size_max(), Placement::On(ends.peer), Permissions::all());
    let pairs = (0..job.threads).map(|_| Ok((alloc()?, alloc()?)));
    let pairs: Vec<(Lh, Lh)> = pairs.collect::<anyhow::Result<_>>().context("cannot make the regions")?;
    for size in &job.sizes {
        report(measure(job, ends, verb, &pairs, *size)?)?;
    }
    for (to, from) in pairs {
        ends.session.free(to)?;
        ends.session.free(from)?;
    }
    Ok(())
}

fn measure(job: &Job, ends: &Ends, verb: BulkVerb, pairs: &[(Lh, Lh)], size: u64) -> anyhow::Result<Row> {
    let iterations = job.iterations(size);
    let work = |thread: usize, seat: Seat| {
        let (to, from) = pairs[thread];
        let parcel = Parcel::new(size, thread);
        let task =
            Task { session: &ends.session, to, from, size, iterations, has_baseline: job.has_baseline };
        match verb {
            BulkVerb::Fill => task.fill(&seat),
            BulkVerb::Copy => task.copy(parcel.bytes(), &seat),
        }
    };
    let mut row = Row::new(size, iterations);
    for measured in crew::run(job.threads, |thread| ends.cores.of_client(thread), work)? {
        row.batch = measured.schedule.batch;
        row.ours.merge(&measured.ours);
        if let Some(bare) = measured.bare {
            let kind = match verb {
                BulkVerb::Fill => BaselineKind::Memset,
                BulkVerb::Copy => BaselineKind::ReadWrite,
            };
            row.merge_baseline(kind, &bare);
        }
        row.errors += measured.errors;
    }
    Ok(row)
}

/// What one thread does.
struct Task<'a> {
    session: &'a blocking::Session,
    to: Lh,
    from: Lh,
    size: u64,
    iterations: u64,
    has_baseline: bool,
}

/// What it found.
struct Measured {
    schedule: Schedule,
    ours: Series,
    bare: Option<Series>,
    errors: u64,
}

impl Task<'_> {
    fn fill(self, seat: &Seat) -> anyhow::Result<Measured> {
        let filled = vec![BYTE; self.size as usize];
        self.session.write(self.to, 0, &vec![!BYTE; self.size as usize])?;
        let mut filler = match self.has_baseline {
            true => Some(Copier::new(Direction::Fill, self.size).context("no memory for the baseline")?),
            false => None,
        };
        let bare = filler.as_mut().map(|filler| || filler.copy());
        let (schedule, (ours, bare)) =
            self.alternate(seat, || self.session.fill(self.to, 0, self.size, BYTE), bare)?;
        let errors = u64::from(!self.holds(&filled)?);
        Ok(Measured { schedule, ours, bare, errors })
    }

    fn copy(self, bytes: &[u8], seat: &Seat) -> anyhow::Result<Measured> {
        self.session.write(self.from, 0, bytes)?;
        self.session.fill(self.to, 0, self.size, 0)?;
        let copy = || self.session.copy(self.to, 0, self.from, 0, self.size);
        // Before the baseline, which would hide a copy that was left out.
        copy()?;
        let mut errors = u64::from(!self.holds(bytes)?);
        let (mut buffer, mut failure) = (vec![0; bytes.len()], None);
        let bare = self.has_baseline.then_some(|| {
            if let Err(error) = self.read_and_write(&mut buffer) {
                failure = Some(error);
            }
        });
        let (schedule, (ours, bare)) = self.alternate(seat, copy, bare)?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        errors += u64::from(!self.holds(bytes)?);
        Ok(Measured { schedule, ours, bare, errors })
    }

    fn alternate<E: Into<anyhow::Error>>(
        &self,
        seat: &Seat,
        mut ours: impl FnMut() -> Result<(), E>,
        bare: Option<impl FnMut()>,
    ) -> anyhow::Result<(Schedule, (Series, Option<Series>))> {
        let estimate = estimate_ns(self.iterations, &mut ours).map_err(Into::into)?;
        let schedule = Schedule::new(self.iterations, estimate);
        Ok((schedule, alternate(schedule, seat, ours, bare).map_err(Into::into)?))
    }

    /// What the caller would do without copies.
    fn read_and_write(&self, buffer: &mut [u8]) -> Result<(), AccessError> {
        self.session.read(self.from, 0, buffer)?;
        self.session.write(self.to, 0, buffer)
    }

    fn holds(&self, expected: &[u8]) -> anyhow::Result<bool> {
        let mut found = vec![0; expected.len()];
        self.session.read(self.to, 0, &mut found)?;
        Ok(found == expected)
    }
}
