//! The roce fabric over a wire that loses, damages, translates and forges packets.
//!
//! Each test creates networks, which requires root and some programs. Where these are missing, the test is skipped, or
//! fails if `HALITE_NETWORK` is set.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod drops;
mod flows;
mod forged;
mod traffic;
mod translated;
mod wire;
mod world;
