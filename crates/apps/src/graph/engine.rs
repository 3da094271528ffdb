//! Runs the steps of a computation. A step consists of apply, publish, barrier, read and gather.

use std::time::Duration;

use halite::{Lh, Permissions, Placement, RegionCause, Session};

use super::csr::Csr;
use super::error::GraphError;
use super::load::Shard;
use super::words;

/// One worker's view of all workers of a run.
#[derive(Clone, Debug)]
pub struct Crowd {
    /// Session of this worker.
    pub session: Session,
    /// Number of this worker, from 0.
    pub me: usize,
    /// Number of workers.
    pub workers: usize,
    /// Name of the run. The names of its regions and of its barrier begin with `NAME/`.
    pub name: String,
    /// Maximum time that a worker waits at a barrier for the other workers.
    pub patience: Duration,
}

impl Crowd {
    /// Creates a region of this worker that the other workers can read.
    pub(super) async fn publish(
        &self,
        what: &'static str,
        bytes: u64,
        contents: &'static str,
    ) -> Result<Lh, GraphError> {
        let name = self.region(what, self.me);
        let allocated =
            self.session.alloc(Some(&name), bytes, Placement::Anywhere, Permissions::empty()).await;
        allocated.map_err(|source| match source.cause() {
            RegionCause::NoSpace { .. } => {
                GraphError::Memory { worker: self.me, bytes, what: contents, source }
            }
            _ => source.into(),
        })
    }

    /// Maps a region that another worker has published.
    pub(super) async fn open(&self, worker: usize, what: &str) -> Result<Lh, GraphError> {
        Ok(self.session.map(&self.region(what, worker), Permissions::READ).await?)
    }

    fn region(&self, what: &str, worker: usize) -> String {
        format!("{}/{what}.{worker}", self.name)
    }

    /// Ends the run: waits for all workers, then frees their barrier. All workers must call this.
    pub async fn end(&self) -> Result<(), GraphError> {
        self.meet().await?;
        if self.me == 0 {
            self.session.free_barrier(&Crowd::barrier(&self.name)).await?;
        }
        Ok(())
    }

    /// Returns the name of a run's barrier.
    pub fn barrier(run: &str) -> String {
        format!("{run}/step")
    }

    /// Returns the name of the shared pages of a run that computes on distributed shared memory.
    pub fn shared(run: &str) -> String {
        format!("{run}/shared")
    }

    /// Waits at the barrier for all workers. Their earlier writes are then visible.
    pub(super) async fn meet(&self) -> Result<(), GraphError> {
        self.session.barrier(&Crowd::barrier(&self.name), self.workers as u32, self.patience).await?;
        Ok(())
    }
}

/// A computation on each vertex, with values of 8 bytes.
pub(super) trait Program {
    /// The accumulator of a vertex without in-neighbours, and the value that every vertex has before the first step.
    const NEUTRAL: u64;

    /// Folds an in-neighbour's new value into an accumulator, in place of its old one.
    fn fold(accumulator: u64, old: u64, new: u64) -> u64;

    /// Returns the value that own vertex `place` publishes for the first step.
    fn start(&mut self, place: usize) -> u64;

    /// Returns the new value of own vertex `place`, given its accumulator and its published value.
    fn apply(&mut self, place: usize, accumulator: u64, published: u64) -> u64;

    /// Returns this worker's sums for the step that it has just applied, and resets them to 0.
    fn take_sums(&mut self) -> [f64; SUMS];

    /// Receives the sums over all workers for a step; the first step is 0. Returns true if it was the last step.
    fn is_done(&mut self, step: u64, totals: [f64; SUMS]) -> bool;
}

/// Number of sums over all vertices that a program may keep.
pub(super) const SUMS: usize = 2;

/// Words before the values of a step: the number of values, 1 if only changed values follow, and the sums.
const HEADER_WORDS: usize = 2 + SUMS;

/// A step is sparse if at most one in `SPARSE` vertices has changed: it publishes only these, as pairs of index and
/// value.
const SPARSE: usize = 8;

/// The state of one worker.
struct Engine<'a> {
    crowd: &'a Crowd,
    shard: &'a Shard,
    /// Published values of all vertices, as this worker knows them.
    values: Vec<u64>,
    accumulators: Vec<u64>,
    /// For each vertex, the indices of this worker's vertices to which it has edges. Created at the first sparse step.
    targets: Option<Csr>,
}

/// The values that changed in a step.
enum Changed {
    /// Any value may have changed.
    All,
    /// Only these values changed: the vertex number, the old and the new value.
    Some(Vec<(u32, u64, u64)>),
}

/// Runs steps until the program is done. Returns the number of steps, and the last values of all vertices.
pub(super) async fn run<P: Program>(
    crowd: &Crowd,
    shard: &Shard,
    program: &mut P,
) -> Result<(u64, Vec<u64>), GraphError> {
    let own = shard.ids.len();
    let half_bytes = (HEADER_WORDS + own) as u64 * 8;
    let lh = crowd.publish("values", 2 * half_bytes, "the values of its vertices").await?;
    crowd.meet().await?;
    let mut regions = Vec::with_capacity(crowd.workers);
    for worker in 0..crowd.workers {
        regions.push(crowd.open(worker, "values").await?);
    }
    let mut engine = Engine {
        crowd,
        shard,
        values: vec![P::NEUTRAL; shard.vertices()],
        accumulators: vec![P::NEUTRAL; own],
        targets: None,
    };
    let mut published: Vec<u64> = (0..own).map(|place| program.start(place)).collect();
    let mut changed: Vec<u32> = (0..own as u32).collect();
    let mut step = 0;
    loop {
        let offset = step % 2 * half_bytes;
        engine.publish(lh, offset, &published, &changed, program.take_sums()).await?;
        crowd.meet().await?;
        let (totals, changes) = engine.read::<P>(&regions, step % 2).await?;
        if program.is_done(step, totals) {
            break;
        }
        engine.gather::<P>(changes);
        changed.clear();
        for (place, value) in published.iter_mut().enumerate() {
            let new = program.apply(place, engine.accumulators[place], *value);
            if new != *value {
                *value = new;
                changed.push(place as u32);
            }
        }
        step += 1;
    }
    for handle in regions {
        crowd.session.unmap(handle).await?;
    }
    // After this barrier, all workers have read the last step.
    crowd.meet().await?;
    crowd.session.free(lh).await?;
    Ok((step, engine.values))
}

impl Engine<'_> {
    /// Writes the changed values into one half of this worker's region.
    async fn publish(
        &self,
        lh: Lh,
        offset: u64,
        values: &[u64],
        changed: &[u32],
        sums: [f64; SUMS],
    ) -> Result<(), GraphError> {
        let is_sparse = changed.len() * SPARSE <= values.len();
        let count = if is_sparse { changed.len() } else { values.len() };
        let header = [count as u64, u64::from(is_sparse)].into_iter().chain(sums.map(f64::to_bits));
        let session = &self.crowd.session;
        if is_sparse {
            let pairs = changed.iter().flat_map(|place| [u64::from(*place), values[*place as usize]]);
            words::write(session, lh, offset, header.chain(pairs)).await?;
        } else {
            words::write(session, lh, offset, header.chain(values.iter().copied())).await?;
        }
        Ok(())
    }

    /// Reads the values that all workers published in a step. Returns the totals and the changes.
    async fn read<P: Program>(
        &mut self,
        regions: &[Lh],
        parity: u64,
    ) -> Result<([f64; SUMS], Changed), GraphError> {
        let session = &self.crowd.session;
        let mut totals = [0.0; SUMS];
        let mut changes = Changed::Some(Vec::new());
        for (lh, owned) in regions.iter().zip(&self.shard.owners) {
            let offset = parity * (HEADER_WORDS + owned.len()) as u64 * 8;
            let mut header = Vec::with_capacity(HEADER_WORDS);
            words::read(session, *lh, offset, HEADER_WORDS, |word| header.push(word)).await?;
            let (count, is_sparse) = (header[0] as usize, header[1] == 1);
            totals.iter_mut().zip(&header[2..]).for_each(|(total, sum)| *total += f64::from_bits(*sum));
            let body = offset + HEADER_WORDS as u64 * 8;
            let values = &mut self.values[owned.clone()];
            if !is_sparse {
                changes = Changed::All;
                let mut places = values.iter_mut();
                words::read(session, *lh, body, count, |word| {
                    places.next().into_iter().for_each(|value| *value = word);
                })
                .await?;
                continue;
            }
            let mut place = None;
            words::read(session, *lh, body, 2 * count, |word| match place.take() {
                None => place = Some(word as usize),
                Some(place) => {
                    if let Changed::Some(changed) = &mut changes {
                        changed.push(((owned.start + place) as u32, values[place], word));
                    }
                    values[place] = word;
                }
            })
            .await?;
        }
        Ok((totals, changes))
    }

    /// Updates the accumulators with the changed values.
    fn gather<P: Program>(&mut self, changes: Changed) {
        match changes {
            Changed::All => {
                for (place, accumulator) in self.accumulators.iter_mut().enumerate() {
                    *accumulator = fold_row::<P>(&self.values, self.shard.sources.row(place));
                }
            }
            Changed::Some(changed) => {
                let vertices = self.shard.vertices();
                let targets = self.targets.get_or_insert_with(|| self.shard.sources.transposed(vertices));
                for (number, old, new) in changed {
                    for place in targets.row(number as usize) {
                        let accumulator = &mut self.accumulators[*place as usize];
                        *accumulator = P::fold(*accumulator, old, new);
                    }
                }
            }
        }
    }
}

/// Folds the values of one vertex's in-neighbours. Four independent accumulators let the processor overlap the folds.
#[inline]
fn fold_row<P: Program>(values: &[u64], sources: &[u32]) -> u64 {
    let add = |accumulator, source: u32| P::fold(accumulator, P::NEUTRAL, values[source as usize]);
    let [mut one, mut two, mut three, mut four] = [P::NEUTRAL; 4];
    let (fours, rest) = sources.as_chunks::<4>();
    for [first, second, third, fourth] in fours {
        one = add(one, *first);
        two = add(two, *second);
        three = add(three, *third);
        four = add(four, *fourth);
    }
    one = rest.iter().fold(one, |sum, source| add(sum, *source));
    let join = |one, other| P::fold(one, P::NEUTRAL, other);
    join(join(one, two), join(three, four))
}
