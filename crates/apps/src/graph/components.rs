//! Finds connected components.

use halite::blocking;

use super::Found;
use super::engine::{self, Crowd, Program, SUMS};
use super::error::GraphError;
use super::load::{Shard, count_ids, exchange};
use super::shared;

/// The label of a vertex is the lowest id that has reached it over edges so far.
struct Labels<'a> {
    shard: &'a Shard,
    labels: Vec<u64>,
    changed: f64,
}

impl<'a> Labels<'a> {
    fn new(shard: &'a Shard) -> Labels<'a> {
        Labels { shard, labels: vec![0; shard.ids.len()], changed: 0.0 }
    }

    /// Checks and returns the labels. `values` are the labels of all vertices.
    fn into_found(self, steps: u64, values: &[u64]) -> Found<u64> {
        let shard = self.shard;
        let is_consistent = |(place, label): (usize, &u64)| {
            let neighbours = shard.sources.row(place).iter();
            *label <= shard.ids[place]
                && neighbours.map(|number| &values[*number as usize]).all(|other| other == label)
        };
        let verified = self.labels.iter().enumerate().all(is_consistent);
        Found { steps, values: self.labels, verified }
    }
}

impl Program for Labels<'_> {
    const NEUTRAL: u64 = u64::MAX;

    #[inline]
    fn fold(accumulator: u64, _old: u64, new: u64) -> u64 {
        accumulator.min(new)
    }

    fn start(&mut self, place: usize) -> u64 {
        self.labels[place] = self.shard.ids[place];
        self.changed += 1.0;
        self.labels[place]
    }

    fn apply(&mut self, place: usize, accumulator: u64, published: u64) -> u64 {
        let label = accumulator.min(published);
        if label != published {
            self.labels[place] = label;
            self.changed += 1.0;
        }
        label
    }

    fn take_sums(&mut self) -> [f64; SUMS] {
        [std::mem::take(&mut self.changed), 0.0]
    }

    fn is_done(&mut self, _step: u64, [changed, _]: [f64; SUMS]) -> bool {
        changed == 0.0
    }
}

/// Labels each vertex of this worker with the lowest vertex id in its component. The shard must have been loaded with
/// `both_ways`. All workers must call this.
pub async fn components(crowd: &Crowd, shard: &Shard) -> Result<Found<u64>, GraphError> {
    let mut program = Labels::new(shard);
    let (steps, values) = engine::run(crowd, shard, &mut program).await?;
    Ok(program.into_found(steps, &values))
}

/// Finds the same labels as [`components`], with the values in [distributed shared memory](crate::dsm). Blocks.
/// `session` must belong to the same node as the crowd's session.
pub fn components_on_dsm(
    session: &blocking::Session,
    crowd: &Crowd,
    shard: &Shard,
) -> Result<Found<u64>, GraphError> {
    let mut program = Labels::new(shard);
    let (steps, values) = shared::run(session, crowd, shard, &mut program)?;
    Ok(program.into_found(steps, &values))
}

/// Returns a pair of size and label for each component that is labelled with a vertex of this worker. All workers must
/// call this.
pub async fn sizes(crowd: &Crowd, labels: &[u64]) -> Result<Vec<(u64, u64)>, GraphError> {
    let mut received = exchange(crowd, count_ids(labels.to_vec())).await?;
    received.sort_unstable_by_key(|(_, label)| *label);
    let sum_sizes = |pairs: &[(u64, u64)]| (pairs.iter().map(|(count, _)| count).sum(), pairs[0].1);
    Ok(received.chunk_by(|one, next| one.1 == next.1).map(sum_sizes).collect())
}
