//! Serves a store to Redis clients, in versions 2 and 3 of the protocol.
//!
//! ```text
//!   sockets -> request: bounded parser -> commands: plan -> backend -> a shard of this process, under its lock
//!      ^                                                      |     -> memory of another owner, where loads reach it
//!      |                                                      |     -> task -> executor: calls, and posted reads
//!      +------- reply <---------------------------------------+-----------------+
//! ```
//!
//! One thread serves all connections and never waits for an owner: only the clients of a silent owner wait. A client's
//! requests are executed in order; requests of several clients to one shard in one turn of the loop travel together. A
//! command about one key is atomic, at the owner of the key; a command about several keys is atomic for each key.

mod backend;
mod client;
mod commands;
mod connection;
mod executor;
mod glob;
mod reply;
mod request;
mod server;
mod task;

pub use backend::Clock;
pub use request::{ARGS_MAX, Args, LINE_BYTES_MAX, Parser, ProtocolError, REQUEST_BYTES_MAX};
pub use server::{CLIENTS_MAX, Server, ServerError, ServerStopper};
pub use task::REPLY_BYTES_MAX;
