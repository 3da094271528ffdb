//! The logic of the tier (Halite's layer between applications and the network), without input or output.
//!
//! The crate consists of state machines for names, permissions, handles, homes and membership, which receive messages,
//! time and seeds, and return effects. It uses no socket, thread, clock, environment variable or global, and names no
//! provider. `docs/protocol.md` describes the messages between nodes.
//!
//! Terms:
//!
//! - A *region* is memory with a name and permissions. Its *chunks* lie in the memory (*arena*) of nodes, their
//!   *owners*.
//! - The *home* of a region is the node that orders all changes of the region. A *mapper* is a node whose sessions have
//!   *handles* to the region.
//! - A *node* is one instance of the tier. An *incarnation* is one run of a node: its number and a random id. Numbers
//!   below 1000 belong to *permanent* nodes, others to *ephemeral* ones.
//! - A *pairing* is a period in which two incarnations work together. It ends when the connection ends, or when one of
//!   them is silent for a *lease*.
//! - A peer is *cut off* once it can no longer access this node's memory. Memory that a peer may still write to stays
//!   in *quarantine*: it is not reused.
//! - The *directory* maps names to regions and their homes. Node 0 keeps it, or an *outside store* (etcd). Its *seat*
//!   is the node that lists the members.

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
