//! Middleware and composites over scripted fabrics.

#[path = "../common/mod.rs"]
mod common;
mod composite;
mod fault;
mod trace;
