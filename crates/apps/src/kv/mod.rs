//! A key-value store: clients read the owner's memory directly, and send changes to the owner as calls.
//!
//! ```text
//!   reader --bucket--> table of the shard --entry, then slot again--> heap      two reads, no thread of the owner
//!   writer --call--> owner: writes the entry elsewhere, then the slot that points to it
//! ```
//!
//! If a slot is the same before and after the read of its entry, the entry was valid in between, so reads are
//! linearizable. A reader never mistakes a reused block for the value, because the block's checksum or key, or the
//! slot, differs. A table that is three quarters full is replaced by one of twice the length, and readers of the old
//! table find the new one.
//!
//! Keys expire by the clock of their owner, so clients call the owner to read a key that has an expiry.

mod decimal;
mod error;
mod fields;
mod heap;
mod layout;
mod limit;
mod owner;
pub mod redis;
mod shard;
mod store;
mod wire;

pub use error::KvError;
pub use layout::{KEY_BYTES_MAX, SHARDS_MAX, VALUE_BYTES_MAX};
pub use limit::{Eviction, MemoryLimit, UnknownEviction};
pub use owner::{Local, Owner, Stopper};
pub use store::{SetOptions, Store};
pub use wire::{Expires, Only, When};
