//! Errors of a key-value store.

use halite::{AccessError, CallError, RegionError, ServeError};

/// Cause of a failed operation on a store.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The options are invalid, or the region of that name holds no store.
    #[error("{what} is {value}; it must be {wanted}")]
    NotAStore {
        /// The invalid property.
        what: &'static str,
        /// Value of the property.
        value: u64,
        /// The valid values.
        wanted: &'static str,
    },
    /// A key or a value exceeds the maximum length.
    #[error("the {what} has {len} bytes; the maximum is {max}")]
    TooLong {
        /// The part that is too long: `key` or `value`.
        what: &'static str,
        /// Length in bytes.
        len: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The node of the shard has no memory left, or the shard has reached its limit; nothing was changed.
    #[error("the key's shard is out of memory, or at its limit; remove keys, or use a larger arena or limit")]
    Full,
    /// The directory of names does not answer, so the store cannot allocate memory. Nothing was changed.
    #[error("the directory of names does not answer, so the shard cannot get more memory; try again later")]
    NoDirectory,
    /// The value is not a 64-bit number in decimal; nothing was changed.
    #[error("the value is not a 64-bit integer")]
    NotANumber,
    /// The sum exceeds 64 bits; nothing was changed.
    #[error("the result exceeds 64 bits")]
    Overflow,
    /// The owner of a shard has ended. The same node may serve another store by now.
    #[error("the owner of the shard has ended; open the store again")]
    Ended,
    /// The answer of a shard is malformed, or an entry is damaged although the owner is not changing it.
    #[error("shard {shard} {what}")]
    Damaged {
        /// Number of the shard.
        shard: usize,
        /// Description of the damage.
        what: &'static str,
    },
    /// A region could not be allocated, mapped or freed, or was lost with its node.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A region could not be read or written.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The call to the owner of a shard failed. The change may have been made.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A shard could not be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}
