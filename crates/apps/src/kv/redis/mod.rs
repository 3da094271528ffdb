//! Serves a store to clients of Redis, in the second and third version of its protocol.
//!
//! ```text
//!   sockets -> request: bounded parser -> commands: plan -> backend -> a shard of this process, at once, under its lock
//!      ^                                                      |     -> memory of another owner, where loads reach it
//!      |                                                      |     -> task -> executor: calls, and reads that are posted
//!      +------- reply <---------------------------------------+-----------------+
//! ```
//!
//! One thread serves all connections, and waits for no owner: who wants something of one that is silent waits alone.  What a client asks
//! for is done in its order; what several ask of one shard in one turn of the loop goes there in one row of calls.  Each command about one key is atomic, at the owner of the key; one about several keys is
//! so for each of them.

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
