//! What can go wrong with a store.

use halite::{AccessError, CallError, RegionError, ServeError};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The options, or what stands in the region of that name, describe no store.
    #[error("{what} is {value}; it must be {wanted}")]
    NotAStore {
        /// Which part.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        wanted: &'static str,
    },
    /// A key or a value is longer than any may be.
    #[error("the {what} has {len} bytes; the maximum is {max}")]
    TooLong {
        /// Which of both.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// The node of the shard has no memory left; nothing was changed.
    #[error("the node that holds the key's shard is out of memory")]
    Full,
    /// The directory of names does not answer, and without it the store gets no more memory; nothing was changed.
    #[error("the directory of names does not answer, so the shard cannot get more memory")]
    NoDirectory,
    /// The value is to be a number of 64 bits in decimal, and is none; nothing was changed.
    #[error("the value is not a 64-bit integer")]
    NotANumber,
    /// The sum would be no number of 64 bits; nothing was changed.
    #[error("the result exceeds 64 bits")]
    Overflow,
    /// The owner of a shard has ended; its node may serve another store by now.
    #[error("the shard is no longer served")]
    Ended,
    /// What a shard answers makes no sense, or entries that nobody changes are damaged.
    #[error("shard {shard} {what}")]
    Damaged {
        /// Which.
        shard: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A region could not be made, found or freed; or was lost with its node.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A region could not be read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The owner of a shard could not be asked.  What was to be changed may have been, or not.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A shard could not be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}
