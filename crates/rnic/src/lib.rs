//! A software RDMA adapter as a pure protocol core: RoCEv2 packets, and reliable connections over them.
//!
//! This crate makes no system calls: its driver owns the sockets, threads and clocks, and passes packets and the time
//! in nanoseconds. [`wire`] defines the packet formats. A [`QueuePair`] is one end of a connection, and accesses memory
//! through [`Memory`].
//!
//! ```text
//!   datagram ─► Flow::open ─► Packet::parse ─► QueuePair::handle_packet ─► Memory, events
//!   datagram ◄─ Flow::seal ◄─────────────────── QueuePair::poll_transmit ◄─ Memory, requests
//! ```
//!
//! In [`stateless`], a responder serves any number of requesters from constant memory.
//!
//! A *train* is a sequence of packets that one system call sends. A *grant* is the number of packets for which the
//! receiver reserves room in its receive buffer; the grant is the sender's window. A *lane* is one of several
//! connections between the same two ends.

#![forbid(unsafe_code)]

mod config;
mod congestion;
mod context;
mod counters;
mod held;
mod kept;
mod layout;
mod memory;
mod parts;
mod path;
mod queue_pair;
mod requester;
mod responder;
pub mod room;
mod round_trip;
pub mod stateless;
pub mod wire;
mod work;

pub use config::{Config, Mtu, Retry};
pub use congestion::{Congestion, Controller};
pub use counters::Counters;
pub use held::Held;
pub use memory::{Access, Memory, Refused};
pub use queue_pair::{QueuePair, State};
pub use work::{Cause, Event, Local, Operation, PostError, Remote, Request, Source, Status};
