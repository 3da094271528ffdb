//! Errors of distributed shared memory.

use halite::{AccessError, BarrierError, NamedCallError, RegionError, ServeError};
use halite_mem::PagedError;

/// An operation on shared pages failed.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum DsmError {
    /// The system does not report page faults to this process.
    #[error(transparent)]
    Pages(#[from] PagedError),
    /// A range of bytes does not lie within the shared pages.
    #[error("bytes {begin} to {end} are not inside the shared pages, which have {len} bytes")]
    OutOfBounds {
        /// Where the range begins.
        begin: u64,
        /// Where it ends.
        end: u64,
        /// Length of all pages.
        len: u64,
    },
    /// The offset of a word is not a multiple of 8.
    #[error("the word at offset {offset} is not aligned to 8 bytes")]
    Misaligned {
        /// Offset of the word.
        offset: u64,
    },
    /// A store outside of a section that may write; nothing was stored.
    #[error("page {page} is not in a section of this worker that may write; acquire it with Access::Write")]
    NotAcquired {
        /// The page.
        page: usize,
    },
    /// A page could not be read from its home, or written to it. All later accesses of this worker fail, too.
    #[error("shared pages: {0}")]
    Access(#[from] AccessError),
    /// The region of a worker cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The workers did not all arrive.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// This worker cannot serve the others.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The lock server did not answer.
    #[error("sections of shared pages: {0}")]
    Locks(#[from] NamedCallError),
    /// A worker may still have old copies of released pages. The section stays held.
    #[error("worker {worker} did not discard its copies of released pages; its section stays held")]
    Invalidate {
        /// The worker.
        worker: usize,
        /// Why.
        source: NamedCallError,
    },
    /// Another worker could not reach this one, so its copies may be old.
    #[error("this worker was unreachable and may have old copies of shared pages; open them anew")]
    Lost,
}
