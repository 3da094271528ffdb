//! Memory that other processes may write.
//!
//! A [`Segment`] is memory that several processes map at once; a [`Window`] is a bounds-checked view of a part of a
//! segment. Other processes may write to this memory at any time, so no method lends it as `&[u8]`: callers copy bytes
//! or use atomics. A [`Paged`] is private memory; the program provides each page at the first access. This crate knows
//! no network, names or permissions.

#![allow(unsafe_code)]

pub mod allocator;
mod copy;
pub mod doorbell;
pub mod exchange;
pub mod fork;
pub mod heap;
pub mod paged;
pub mod pins;
pub mod ring;
pub mod segment;
pub mod slots;
mod sync;
pub mod window;

pub use allocator::{Allocator, BadFree, Extent};
pub use doorbell::{Doorbell, Sleeper};
pub use fork::Process;
pub use paged::{Fault, Paged, PagedError};
pub use pins::{COUNTS, Elapsed, GracePeriod, Pin, Pins};
pub use segment::{DiscardError, OpenError, PagePolicy, Segment};
pub use slots::{Lookup, SlotError, Slots};
pub use window::{AccessError, OutOfBounds, Window};
