//! Errors of a log.

use halite::{AccessError, NodeId, RegionError};

use crate::directory::is_without_directory;

/// Cause of a failed operation on a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The options are invalid, or the region of that name holds no log.
    #[error("{what} is {value}; it must be {wanted}")]
    NotALog {
        /// The invalid property.
        what: &'static str,
        /// Value of the property.
        value: u64,
        /// The valid values.
        wanted: &'static str,
    },
    /// A record does not fit into a segment; nothing was appended.
    #[error("the record takes {len} bytes; a segment of this log holds at most {max} contiguous bytes")]
    TooLong {
        /// Length in bytes, including the framing of a transaction's records.
        len: u64,
        /// Maximum length in bytes.
        max: u64,
    },
    /// No node has memory for another segment; nothing was appended.
    ///
    /// A retry can succeed once memory is available again. If the log [begins](super::Log::start) before `first`,
    /// trimming the log makes memory available, because it frees old segments.
    #[error("no memory for another segment; trim the log or use larger arenas")]
    Full {
        /// First position of the segment.
        first: u64,
    },
    /// Followers assumed that this writer was dead, and skipped each of its attempts; nothing was appended.
    #[error(
        "append failed after {attempts} attempts: followers skipped the record because writing it exceeded their timeout; nothing was appended"
    )]
    Outpaced {
        /// Number of attempts.
        attempts: u32,
    },
    /// The records at this position have been freed by a trim.
    #[error("the log begins at {first}; earlier records were trimmed")]
    Trimmed {
        /// First position of the log.
        first: u64,
    },
    /// A segment was lost with the node that held it.
    #[error("segment {segment} of the log was lost with node {node}")]
    Lost {
        /// Number of the segment.
        segment: u64,
        /// The lost node.
        node: NodeId,
        /// First position after the segment.
        next: u64,
    },
    /// The bytes of a visible record do not match its checksum.
    #[error("the record at {position} is damaged: its checksum does not match")]
    Damaged {
        /// Position of the record.
        position: u64,
    },
    /// The directory of names does not answer, so the log cannot find, create or free segments that are not mapped yet.
    /// Nothing was appended. A retry can succeed once the directory answers again.
    #[error("the directory of names does not answer, so the log's next segment is unreachable: {0}")]
    NoDirectory(#[source] RegionError),
    /// A region could not be allocated, mapped or freed.
    #[error(transparent)]
    Region(RegionError),
    /// A region could not be read or written. An append that fails with this error may have taken effect.
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
