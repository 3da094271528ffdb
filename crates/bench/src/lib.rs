//! Benchmarks of Halite: against its usual alternatives (`peers`), and in instructions per operation (`price`).
//!
//! Applications do not link this crate.

pub mod markers;
pub mod peers;
#[cfg(target_arch = "x86_64")]
pub mod price;
