//! A key-value store: readers read the memory of others by themselves; changes are calls to the owner of the shard.
//!
//! ```text
//!   reader --bucket--> table of the shard --entry, and the slot once more--> heap         two reads, and no thread of the owner
//!   writer --call--> owner: writes an entry elsewhere, then the slot that leads to it
//! ```
//!
//! What a slot led to before and after an entry was read was there in between, so that reads are linearizable, and an entry whose
//! memory is used anew meanwhile is not taken for a value: its checksum, its key or its slot is another.
//! A table that is three quarters full is replaced by one of twice the length; readers of the old one are led on.
//!
//! Keys expire by the clock of their owner, which is asked for those that do.

mod error;
mod heap;
mod layout;
mod owner;
pub mod redis;
mod shard;
mod store;
mod wire;

pub use error::KvError;
pub use layout::{KEY_BYTES_MAX, SHARDS_MAX, VALUE_BYTES_MAX};
pub use owner::{Local, Owner, Stopper};
pub use store::{SetOptions, Store};
pub use wire::{Expires, Only, When};
