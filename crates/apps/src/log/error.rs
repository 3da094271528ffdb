//! What can go wrong with a log.

use halite::{AccessError, NodeId, RegionError};

use crate::directory::is_without_directory;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The options, or what stands in the region of that name, describe no log.
    #[error("{what} is {value}; it must be {wanted}")]
    NotALog {
        /// Which part.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        wanted: &'static str,
    },
    /// A record does not fit into a segment; nothing was appended.
    #[error("the record takes {len} bytes; a segment of this log holds at most {max} contiguous bytes")]
    TooLong {
        /// Its length in bytes, with what frames the records of a transaction.
        len: u64,
        /// The longest.
        max: u64,
    },
    /// There is no memory for another segment; nothing was appended.  It can be tried again once old ones have been freed, if the log
    /// [begins](super::Log::start) before `first`, or once others have left memory.
    #[error("no memory for another segment; trim the log or use larger arenas")]
    Full {
        /// The first position of the segment.
        first: u64,
    },
    /// Followers have taken this writer for dead again and again while it appended; nothing was appended.
    #[error(
        "append failed after {attempts} attempts: followers skipped the record because writing it exceeded their timeout; nothing was appended"
    )]
    Outpaced {
        /// How often it was tried.
        attempts: u32,
    },
    /// The position has been freed.
    #[error("the log begins at {first}; earlier records were trimmed")]
    Trimmed {
        /// The first position that is kept.
        first: u64,
    },
    /// A segment was lost with the node that held it.
    #[error("segment {segment} of the log was lost with node {node}")]
    Lost {
        /// Which.
        segment: u64,
        /// With whom.
        node: NodeId,
        /// The first position after it.
        next: u64,
    },
    /// A record is visible, and its bytes are not those that were appended.
    #[error("the record at {position} is damaged: its checksum does not match")]
    Damaged {
        /// Where.
        position: u64,
    },
    /// The directory of names does not answer, and without it no segment is found, made or freed that is not at hand.  Nothing was appended;
    /// it can be tried again, and goes on where it was once the directory is back.
    #[error("the directory of names does not answer, so the log's next segment is unreachable: {0}")]
    NoDirectory(#[source] RegionError),
    /// A region could not be made, found or freed.
    #[error(transparent)]
    Region(RegionError),
    /// A region could not be read or written.  Of an append: maybe done.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl From<RegionError> for LogError {
    fn from(error: RegionError) -> LogError {
        if is_without_directory(error.cause()) {
            return LogError::NoDirectory(error);
        }
        LogError::Region(error)
    }
}
