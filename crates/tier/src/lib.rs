//! The tier's logic, without input or output.
//!
//! Names, permissions, handles, homes, membership: state machines that receive messages, time and seeds, and return
//! effects.  This crate uses no socket, thread, clock, environment variable or global, and no provider by name.
//! `docs/protocol.md` describes the messages between nodes.

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
pub mod region;
pub mod rpc;
pub mod store;
