//! Tests of graphs, the log, the key-value store and its Redis front end.

#[path = "../common/mod.rs"]
mod common;
mod dsm;
mod graph;
mod kv;
mod log;
mod redis;
mod redis_replies;
