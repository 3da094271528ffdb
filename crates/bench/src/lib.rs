//! Measures Halite beside what its users would pick instead (`peers`), over emulated networks (`links`), and in instructions (`price`).
//!
//! Applications do not link this crate.

pub mod links;
pub mod markers;
pub mod peers;
#[cfg(target_arch = "x86_64")]
pub mod price;
