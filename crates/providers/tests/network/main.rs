//! The roce fabric over a wire that loses, damages and forges packets, and as others see it.
//!
//! Each test makes networks of its own, which takes root and some programs; it is left out where these are missing, and fails if
//! `HALITE_NETWORK` is set.

mod checks;
#[path = "../common/mod.rs"]
mod common;
mod damage;
mod drops;
mod forged;
mod links;
mod outside;
mod residue;
mod roles;
mod story;
mod traffic;
mod translated;
mod wire;
mod world;
