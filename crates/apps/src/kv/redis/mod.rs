//! Serves a store to clients of Redis, in the second and third version of its protocol.
//!
//! ```text
//!   sockets -> request: bounded parser -> commands: plan -> backend -> a shard of this process, at once, under its lock
//!      ^                                                      |     -> memory of another owner, one-sided
//!      +------- reply <---------------------------------------+     -> calls of all clients, posted together
//! ```
//!
//! One thread serves all connections.  What a client asks for is done in its order; what several ask for in one turn of the loop goes to
//! other owners in one row of calls.  Each command about one key is atomic, at the owner of the key; one about several keys is
//! so for each of them.

mod backend;
mod client;
mod commands;
mod connection;
mod glob;
mod reply;
mod request;
mod server;

pub use backend::{Clock, REPLY_BYTES_MAX};
pub use request::{ARGS_MAX, Args, LINE_BYTES_MAX, Parser, ProtocolError, REQUEST_BYTES_MAX};
pub use server::{CLIENTS_MAX, Server, ServerError, ServerStopper};
