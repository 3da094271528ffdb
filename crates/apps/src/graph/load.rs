//! Loads a graph: each worker sends the edges that it reads to the owners of their targets. Vertices are numbered
//! consecutively, in the order of their owners.

use std::collections::HashMap;
use std::ops::Range;

use halite::Lh;

use super::csr::Csr;
use super::engine::Crowd;
use super::error::GraphError;
use super::input::{Edge, Input};
use super::words;

/// Maximum number of vertices.
pub const VERTICES_MAX: u64 = u32::MAX as u64;

/// One worker's part of a graph.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Ids of the vertices that this worker owns, ascending.
    pub ids: Vec<u64>,
    /// For each worker, the range of the vertex numbers that it owns.
    pub owners: Vec<Range<usize>>,
    /// For each vertex of this worker, its in-neighbours, each given by its vertex number.
    pub sources: Csr,
    /// For each vertex of this worker, the count of its outgoing edges.
    pub out_degrees: Vec<u32>,
}

impl Shard {
    /// Returns the number of vertices of all workers.
    pub fn vertices(&self) -> usize {
        self.owners.last().map_or(0, |last| last.end)
    }

    /// Reads this worker's part of the input and exchanges edges with all workers. With `both_ways`, each edge is
    /// loaded in both directions. All workers must call this.
    pub async fn load(crowd: &Crowd, input: &Input, both_ways: bool) -> Result<Shard, GraphError> {
        let reserved = match input.edges_max(crowd.workers) {
            // Reserves the memory first, so that a graph that does not fit fails before minutes of work.
            Some(edges) => Some(publish_pairs(crowd, edges * if both_ways { 2 } else { 1 }).await?),
            None => None,
        };
        let mut edges = input.part(crowd.me, crowd.workers)?;
        if both_ways {
            let reversed: Vec<Edge> = edges.iter().map(|(from, to)| (*to, *from)).collect();
            edges.extend(reversed);
        }
        let degrees = count_ids(edges.iter().map(|(from, _)| *from).collect());
        let edges = exchange_through(crowd, reserved, edges).await?;
        let degrees = exchange(crowd, degrees).await?;
        let mut ids: Vec<u64> = edges.iter().chain(&degrees).map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let (numbers, owners) = number_vertices(crowd, &ids).await?;
        let begin = owners[crowd.me].start;
        let mut out_degrees = vec![0; ids.len()];
        for (count, id) in degrees {
            out_degrees[numbers.of(id) as usize - begin] += count as u32;
        }
        let numbered: Vec<(u32, u32)> =
            edges.iter().map(|(from, to)| (numbers.of(*to) - begin as u32, numbers.of(*from))).collect();
        let sources = Csr::new(ids.len(), numbered.iter().copied());
        Ok(Shard { ids, owners, sources, out_degrees })
    }
}

/// Returns the worker that owns a vertex.
fn owner(id: u64, workers: usize) -> usize {
    let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((hash * workers as u64) >> 32) as usize
}

/// Counts equal ids. Returns pairs of a count and an id.
pub(super) fn count_ids(mut ids: Vec<u64>) -> Vec<(u64, u64)> {
    ids.sort_unstable();
    ids.chunk_by(|one, next| one == next).map(|run| (run.len() as u64, run[0])).collect()
}

/// Sends each pair to the owner of the vertex with the id in the second element. Returns the pairs that this worker
/// receives.
pub(super) async fn exchange(crowd: &Crowd, pairs: Vec<(u64, u64)>) -> Result<Vec<(u64, u64)>, GraphError> {
    exchange_through(crowd, None, pairs).await
}

/// Allocates a region from which other workers read up to `count` pairs.
async fn publish_pairs(crowd: &Crowd, count: u64) -> Result<Lh, GraphError> {
    let bytes = 2 * crowd.workers as u64 * 8 + count * 16;
    crowd.publish("pairs", bytes, "the data that it sends to other workers").await
}

/// Does what [`exchange`] does. Uses the region `reserved` if one is given.
async fn exchange_through(
    crowd: &Crowd,
    reserved: Option<Lh>,
    pairs: Vec<(u64, u64)>,
) -> Result<Vec<(u64, u64)>, GraphError> {
    let lh = match reserved {
        Some(lh) => lh,
        None => publish_pairs(crowd, pairs.len() as u64).await?,
    };
    let mut by_owner = vec![Vec::new(); crowd.workers];
    pairs.into_iter().for_each(|pair| by_owner[owner(pair.1, crowd.workers)].push(pair));
    // The header has two words for each owner: the number of its pairs, and their offset.
    let mut end = 2 * crowd.workers as u64 * 8;
    let mut header = Vec::new();
    for pairs in &by_owner {
        header.extend([pairs.len() as u64, end]);
        end += pairs.len() as u64 * 16;
    }
    let mut at = words::write(&crowd.session, lh, 0, header).await?;
    for pairs in by_owner {
        let pairs = pairs.into_iter().flat_map(|(first, id)| [first, id]);
        at = words::write(&crowd.session, lh, at, pairs).await?;
    }
    crowd.meet().await?;
    let mut received = Vec::new();
    for worker in 0..crowd.workers {
        let region = crowd.open(worker, "pairs").await?;
        let mut entry = Vec::with_capacity(2);
        words::read(&crowd.session, region, 2 * crowd.me as u64 * 8, 2, |word| entry.push(word)).await?;
        let mut first = None;
        words::read(&crowd.session, region, entry[1], 2 * entry[0] as usize, |word| match first.take() {
            None => first = Some(word),
            Some(first) => received.push((first, word)),
        })
        .await?;
        crowd.session.unmap(region).await?;
    }
    // After this barrier, all workers have read their parts.
    crowd.meet().await?;
    crowd.session.free(lh).await?;
    Ok(received)
}

/// The number of each vertex, by id.
enum Numbers {
    /// Indexed by id, if the highest id is not much larger than the number of vertices.
    Dense(Vec<u32>),
    Sparse(HashMap<u64, u32>),
}

impl Numbers {
    fn of(&self, id: u64) -> u32 {
        match self {
            Numbers::Dense(numbers) => numbers[id as usize],
            Numbers::Sparse(numbers) => numbers[&id],
        }
    }
}

/// Numbers the vertices of all workers in the order of workers, and those of a worker in the order of ids.
async fn number_vertices(crowd: &Crowd, ids: &[u64]) -> Result<(Numbers, Vec<Range<usize>>), GraphError> {
    let lh = crowd.publish("ids", (ids.len() as u64 + 1) * 8, "the ids of its vertices").await?;
    let count = ids.len() as u64;
    words::write(&crowd.session, lh, 0, [count].into_iter().chain(ids.iter().copied())).await?;
    crowd.meet().await?;
    let mut all = Vec::new();
    let mut owners = Vec::new();
    for worker in 0..crowd.workers {
        let region: Lh = crowd.open(worker, "ids").await?;
        let (mut count, begin) = (0, all.len());
        words::read(&crowd.session, region, 0, 1, |word| count = word).await?;
        let vertices = begin as u64 + count;
        if vertices > VERTICES_MAX {
            return Err(GraphError::TooManyVertices { vertices });
        }
        words::read(&crowd.session, region, 8, count as usize, |id| all.push(id)).await?;
        owners.push(begin..all.len());
        crowd.session.unmap(region).await?;
    }
    crowd.meet().await?;
    crowd.session.free(lh).await?;
    let numbered = all.iter().copied().zip(0..);
    let numbers = match all.iter().max() {
        Some(max) if *max < 4 * all.len() as u64 + 1024 => {
            let mut numbers = vec![0; *max as usize + 1];
            numbered.for_each(|(id, number)| numbers[id as usize] = number);
            Numbers::Dense(numbers)
        }
        _ => Numbers::Sparse(numbered.collect()),
    };
    Ok((numbers, owners))
}
