//! Tests of the log, the key-value store and its Redis front end.

#[path = "../common/mod.rs"]
mod common;
mod kv;
mod log;
mod redis;
mod redis_replies;
