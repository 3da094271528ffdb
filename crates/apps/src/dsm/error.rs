//! Errors of distributed shared memory.

use halite::{AccessError, BarrierError, CallError, NamedCallError, RegionError, ServeError};
use halite_mem::PagedError;

/// An operation on shared pages failed.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum DsmError {
    /// The system does not report page faults to this process.
    #[error(transparent)]
    Pages(#[from] PagedError),
    /// The system refused a thread for this worker's services.
    #[error(
        "cannot start a thread for shared pages: {0}; raise the limit on threads (`ulimit -u`, pids.max)"
    )]
    NoThread(std::io::Error),
    /// A range of bytes does not lie within the shared pages.
    #[error("bytes {begin} to {end} are not inside the shared pages, which have {len} bytes")]
    OutOfBounds {
        /// Offset of the first byte of the range.
        begin: u64,
        /// Offset after the last byte of the range.
        end: u64,
        /// Length of all shared pages, in bytes.
        len: u64,
    },
    /// The offset of a word is not a multiple of 8.
    #[error("the word at offset {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// Offset of the word.
        offset: u64,
    },
    /// A store reached a page that this worker has not acquired for writing. Nothing was stored.
    #[error("this worker has not acquired page {page} for writing; acquire it with Access::Write")]
    NotAcquired {
        /// Number of the page.
        page: usize,
    },
    /// A page could not be read from its home, or written to it. All later accesses of this worker fail, too.
    #[error("access to shared pages failed: {0}; all later accesses of this worker fail, too")]
    Access(#[from] AccessError),
    /// A task accessed a page that it had not touched. All later accesses of this worker fail, too.
    #[error("page {page} was absent; a task must touch a page before it accesses the page")]
    Untouched {
        /// Number of the page.
        page: usize,
    },
    /// The region of a worker cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Not all workers reached the barrier.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// This worker cannot open its server for the other workers.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The call to the lock server, which grants and ends sections, failed.
    #[error("a request to the lock server of shared pages failed: {0}")]
    Locks(#[from] NamedCallError),
    /// The call that releases an earlier section at the lock server failed.
    #[error("cannot release shared pages: {0}")]
    Release(#[from] CallError),
    /// A worker may still have old copies of released pages. The section that changed these pages stays held.
    #[error("worker {worker} did not discard its copies of released pages; their section stays held")]
    Invalidate {
        /// Number of the worker.
        worker: usize,
        /// Error of the call to the worker.
        source: NamedCallError,
    },
    /// Another worker could not reach this worker, so this worker's copies of pages may be old.
    #[error("this worker was unreachable and may have old copies of shared pages; open the range again")]
    Lost,
}
