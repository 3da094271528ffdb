//! Serves a store to Redis clients, in versions 2 and 3 of the protocol.
//!
//! ```text
//!   sockets -> request: bounded parser -> commands: plan -> backend -> a shard of this process, under its lock
//!      ^                                                      |     -> memory of another owner, where loads reach it
//!      |                                                      |     -> task -> executor: calls, and posted reads
//!      +------- reply <---------------------------------------+-----------------+
//! ```
//!
//! One thread serves all connections and never waits for an owner. If an owner does not answer, only the clients that
//! need it wait. The requests of a client are executed in order. If several clients send requests to the same shard in
//! one turn of the loop, its owner receives them in one call. A command on one key is atomic, because the key's
//! owner executes it. A command on several keys is atomic for each key, not as a whole; a transaction is atomic.

mod backend;
mod bits;
mod client;
mod commands;
mod config;
mod connection;
mod executor;
mod glob;
mod lcs;
mod multi_key;
mod reply;
mod request;
mod server;
mod task;
mod transaction;

pub use backend::Clock;
pub use request::{ARGS_MAX, Args, Excess, LINE_BYTES_MAX, Parsed, Parser, ProtocolError, REQUEST_BYTES_MAX};
pub use server::{CLIENTS_MAX, Server, ServerControl, ServerError};
pub use task::REPLY_BYTES_MAX;
