//! The operations of the golden table.

use std::time::Duration;

use halite::{Lh, NodeId, Permissions, Placement, ReadOp, Session, WriteOp};

use super::cluster::{Cluster, FUNCTION, PORT};
use crate::futures::both;

/// The node that holds all regions.
const HOME: NodeId = NodeId(1);
/// Timeout that exceeds every operation.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Number of accesses per batch.
const PIECES: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    Read,
    Write,
    ReadBatch,
    WriteBatch,
    FetchAdd,
    CompareSwap,
    Fill,
    Copy,
    Call,
    Send,
    Lock,
    Barrier,
    Alloc,
    Map,
    Move,
}

/// Returns all rows: jobs with their bytes, 0 for operations without a size.
pub(super) fn all() -> impl Iterator<Item = (Job, u64)> {
    let sizes: [(Job, &[u64]); 15] = [
        (Job::Read, &[8, 4 << 10, 64 << 10, 1 << 20]),
        (Job::Write, &[8, 4 << 10, 64 << 10, 1 << 20]),
        (Job::ReadBatch, &[PIECES * 64]),
        (Job::WriteBatch, &[PIECES * 64]),
        (Job::FetchAdd, &[8]),
        (Job::CompareSwap, &[8]),
        (Job::Fill, &[4 << 10, 1 << 20]),
        (Job::Copy, &[4 << 10, 1 << 20]),
        (Job::Call, &[8, 4 << 10, 64 << 10, 1 << 20]),
        (Job::Send, &[8, 4 << 10, 64 << 10]),
        (Job::Lock, &[0]),
        (Job::Barrier, &[0]),
        (Job::Alloc, &[4 << 10, 1 << 20]),
        (Job::Map, &[0]),
        (Job::Move, &[4 << 10, 1 << 20]),
    ];
    sizes.into_iter().flat_map(|(job, sizes)| sizes.iter().map(move |bytes| (job, *bytes)))
}

impl Job {
    pub(super) fn name(self) -> &'static str {
        match self {
            Job::Read => "read",
            Job::Write => "write",
            Job::ReadBatch => "read_batch of 64 pieces",
            Job::WriteBatch => "write_batch of 64 pieces",
            Job::FetchAdd => "fetch_add",
            Job::CompareSwap => "compare_swap",
            Job::Fill => "fill",
            Job::Copy => "copy within the other node",
            Job::Call => "call, answered by 8 bytes",
            Job::Send => "send",
            Job::Lock => "lock and unlock, free",
            Job::Barrier => "barrier of both nodes",
            Job::Alloc => "alloc on the other node, and free",
            Job::Map => "map and unmap",
            Job::Move => "move there or back",
        }
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Job::FetchAdd | Job::CompareSwap)
    }

    /// Returns true if bytes of the region cross the network.
    pub(super) fn carries_bytes(self) -> bool {
        matches!(
            self,
            Job::Read | Job::Write | Job::ReadBatch | Job::WriteBatch | Job::Call | Job::Send | Job::Move
        )
    }
}

/// A session that repeats one operation.
pub(super) struct Worker {
    job: Job,
    session: Session,
    /// Session of the other node, for barriers.
    partner: Session,
    name: String,
    bytes: u64,
    buffer: Vec<u8>,
    /// Region of the worker, once prepared.
    lh: Option<Lh>,
    done: u64,
}

impl Worker {
    pub(super) fn new(cluster: &Cluster, job: Job, bytes: u64, number: u32) -> Worker {
        Worker {
            job,
            session: cluster.session(0),
            partner: cluster.session(1),
            name: format!("worker {number}"),
            bytes,
            buffer: vec![7; bytes as usize],
            lh: None,
            done: 0,
        }
    }

    /// Creates the region on the other node.
    pub(super) async fn prepare(&mut self) {
        let allocated =
            self.session.alloc(Some(&self.name), 2 * self.bytes.max(8), Placement::On(HOME), ALL).await;
        self.lh = Some(allocated.expect("there is room"));
    }

    pub(super) async fn repeat(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.run_once().await.unwrap_or_else(|error| panic!("{}: {error}", self.job.name()));
            self.done += 1;
        }
    }

    async fn run_once(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let (session, name, bytes) = (&self.session, self.name.as_str(), self.bytes);
        let lh = self.lh.expect("the worker has been prepared");
        match self.job {
            Job::Read => session.read(lh, 0, &mut self.buffer).await?,
            Job::Write => session.write(lh, 0, &self.buffer).await?,
            Job::ReadBatch => {
                let pieces = self.buffer.chunks_mut((bytes / PIECES) as usize);
                let piece = |(offset, into)| ReadOp { lh, offset, into };
                session
                    .read_batch(&mut piece_offsets(bytes).zip(pieces).map(piece).collect::<Vec<_>>())
                    .await?
            }
            Job::WriteBatch => {
                let pieces = self.buffer.chunks((bytes / PIECES) as usize);
                let piece = |(offset, from)| WriteOp { lh, offset, from };
                session.write_batch(&piece_offsets(bytes).zip(pieces).map(piece).collect::<Vec<_>>()).await?
            }
            Job::FetchAdd => drop(session.fetch_add(lh, 0, 1).await?),
            Job::CompareSwap => drop(session.compare_swap(lh, 0, self.done, self.done + 1).await?),
            Job::Fill => session.fill(lh, 0, bytes, 7).await?,
            Job::Copy => session.copy(lh, bytes, lh, 0, bytes).await?,
            Job::Call => drop(session.call(HOME, FUNCTION, &self.buffer, TIMEOUT).await?),
            Job::Send => session.send(HOME, PORT, &self.buffer).await?,
            Job::Lock => session.lock(name).await?.unlock().await?,
            Job::Barrier => {
                let there = self.partner.barrier(name, 2, TIMEOUT);
                let (here, there) = both(session.barrier(name, 2, TIMEOUT), there).await;
                here?;
                there?;
            }
            Job::Alloc => session.free(session.alloc(None, bytes, Placement::On(HOME), ALL).await?).await?,
            Job::Map => session.unmap(session.map(name, Permissions::READ).await?).await?,
            Job::Move => session.move_to(lh, NodeId((self.done % 2) as u32)).await?,
        }
        Ok(())
    }
}

const ALL: Permissions = Permissions::all();

/// Returns the offsets of a batch's pieces: every second piece of those that fit into the region.
fn piece_offsets(bytes: u64) -> impl Iterator<Item = u64> {
    (0..PIECES).map(move |piece| 2 * piece * (bytes / PIECES))
}
