//! The roce fabric over a wire that loses, damages, translates and forges packets.
//!
//! Each test makes networks of its own, which takes root and some programs; it is left out where these are missing, and fails if
//! `HALITE_NETWORK` is set.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod drops;
mod forged;
mod traffic;
mod translated;
mod wire;
mod world;
