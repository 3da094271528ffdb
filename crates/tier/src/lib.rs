//! The logic of the tier, without input or output.
//!
//! The crate consists of state machines for names, permissions, handles, homes and membership, which receive messages,
//! time and seeds, and return effects. It uses no socket, thread, clock, environment variable or global, and names no
//! provider. `docs/protocol.md` describes the messages between nodes.

pub mod access;
pub mod directory;
pub mod effect;
pub mod engine;
pub mod hello;
pub mod ids;
pub mod layout;
pub mod link;
pub mod lockword;
pub mod mapper;
pub mod members;
pub mod message;
pub mod names;
pub mod news;
pub mod permissions;
pub mod qos;
pub mod quota;
pub mod region;
pub mod rpc;
pub mod store;
