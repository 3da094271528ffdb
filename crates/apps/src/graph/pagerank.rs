//! Computes PageRank.

use halite::blocking;

use super::Found;
use super::engine::{self, Crowd, Program, SUMS};
use super::error::GraphError;
use super::load::Shard;
use super::shared;

/// Parameters of PageRank. Each vertex passes on the fraction `damping` of its rank, in equal shares to the targets of
/// its edges, or to all vertices if it has no outgoing edges. The remaining fraction is divided equally among all
/// vertices.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PageRank {
    /// Fraction of a rank that is passed on along edges, from 0 to 1.
    pub damping: f64,
    /// Maximum number of iterations.
    pub iterations: u64,
    /// Iteration stops when the ranks change by at most this much in total.
    pub tolerance: f64,
}

impl Default for PageRank {
    fn default() -> PageRank {
        PageRank { damping: 0.85, iterations: 100, tolerance: 1e-10 }
    }
}

struct Ranks<'a> {
    options: PageRank,
    shard: &'a Shard,
    vertices: f64,
    ranks: Vec<f64>,
    /// The part of its rank that a vertex receives independently of its edges, from the latest totals.
    base: f64,
    /// Total rank of this worker's vertices without outgoing edges, and total change of its ranks.
    sums: [f64; SUMS],
    /// The total change of all ranks in the last step.
    change: f64,
    /// The total change of all ranks in the step before the last.
    former_change: f64,
}

impl<'a> Ranks<'a> {
    fn new(shard: &'a Shard, options: PageRank) -> Ranks<'a> {
        Ranks {
            options,
            shard,
            vertices: shard.vertices() as f64,
            ranks: vec![0.0; shard.ids.len()],
            base: 0.0,
            sums: [0.0; SUMS],
            change: 0.0,
            former_change: f64::INFINITY,
        }
    }

    fn into_found(self, steps: u64) -> Found<f64> {
        // In any graph, a step reduces the total change at least by the factor `damping`.
        let verified =
            steps < 2 || self.change <= self.options.damping * self.former_change * (1.0 + 1e-9) + 1e-12;
        Found { steps, values: self.ranks, verified }
    }

    /// Sets a rank. Returns the share of the rank that the vertex passes on along each edge.
    fn set(&mut self, place: usize, rank: f64) -> u64 {
        let [dangling, change] = &mut self.sums;
        *change += (rank - self.ranks[place]).abs();
        self.ranks[place] = rank;
        match self.shard.out_degrees[place] {
            0 => {
                *dangling += rank;
                0
            }
            degree => (rank / f64::from(degree)).to_bits(),
        }
    }
}

impl Program for Ranks<'_> {
    /// The bits of 0.0.
    const NEUTRAL: u64 = 0;

    #[inline]
    fn fold(accumulator: u64, old: u64, new: u64) -> u64 {
        (f64::from_bits(accumulator) + (f64::from_bits(new) - f64::from_bits(old))).to_bits()
    }

    fn start(&mut self, place: usize) -> u64 {
        self.set(place, 1.0 / self.vertices)
    }

    fn apply(&mut self, place: usize, accumulator: u64, _published: u64) -> u64 {
        self.set(place, self.base + self.options.damping * f64::from_bits(accumulator))
    }

    fn take_sums(&mut self) -> [f64; SUMS] {
        std::mem::take(&mut self.sums)
    }

    fn is_done(&mut self, step: u64, [dangling, change]: [f64; SUMS]) -> bool {
        let damping = self.options.damping;
        self.base = (1.0 - damping) / self.vertices + damping * dangling / self.vertices;
        (self.former_change, self.change) = (self.change, change);
        step >= self.options.iterations || step > 0 && change <= self.options.tolerance
    }
}

/// Computes the ranks of this worker's vertices. The ranks of all vertices have the sum 1. All workers must call this.
pub async fn pagerank(crowd: &Crowd, shard: &Shard, options: PageRank) -> Result<Found<f64>, GraphError> {
    let mut program = Ranks::new(shard, options);
    let (steps, _) = engine::run(crowd, shard, &mut program).await?;
    Ok(program.into_found(steps))
}

/// Computes the same ranks as [`pagerank`], with the values in [distributed shared memory](crate::dsm). Blocks.
/// `session` must belong to the same node as the crowd's session.
pub fn pagerank_on_dsm(
    session: &blocking::Session,
    crowd: &Crowd,
    shard: &Shard,
    options: PageRank,
) -> Result<Found<f64>, GraphError> {
    let mut program = Ranks::new(shard, options);
    let (steps, _) = shared::run(session, crowd, shard, &mut program)?;
    Ok(program.into_found(steps))
}
