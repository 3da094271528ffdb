//! Counts of what a world did.

use serde::Serialize;

/// How often things happened since the world was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    /// Events of the network and timers.
    pub events: u64,
    /// Times that a task was polled.
    pub polls: u64,
    /// Requests posted.
    pub posts: u64,
    /// Payload bytes of requests posted; an atomic counts as 8.
    pub bytes: u64,
    /// Packets sent, acknowledgements and those lost included.
    pub packets: u64,
    /// Packets that a link lost, or that found it down.
    pub lost: u64,
    /// Packets that arrived twice, the second of which was discarded.
    pub duplicated: u64,
    /// Packets that were overtaken, which cost a round trip.
    pub reordered: u64,
    /// Packets that were damaged and found out, hence lost.
    pub corrupted_caught: u64,
    /// Packets that were damaged and landed.
    pub corrupted_uncaught: u64,
    /// Attempts after the first.
    pub retransmitted: u64,
    /// Packets that arrived where their connection no longer was.
    pub dropped: u64,
    /// Requests that an adapter refused, for the memory that they named, and their connections with them.
    pub refused: u64,
    /// Times that a message found no receive waiting for it.
    pub receiver_not_ready: u64,
    /// Completions handed to pollers.
    pub completions: u64,
}
