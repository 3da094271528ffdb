//! The laboratory: the conformance suite of the public API, peers measured side by side, what operations cost in instructions.
//!
//! Nothing here is part of what applications link.  The suite is a library so that each provider, present or future,
//! can be put through the same functions.

pub mod conformance;
pub mod links;
pub mod markers;
pub mod peers;
#[cfg(target_arch = "x86_64")]
pub mod price;
