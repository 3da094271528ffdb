//! Counters of events in a simulated world.

use serde::Serialize;

/// Counts of events, over all hosts, since the world was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    /// Network events and timers handled.
    pub events: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Requests posted to fabrics.
    pub posts: u64,
    /// Payload bytes of posted requests; an atomic counts as 8.
    pub bytes: u64,
    /// Packets sent, including acknowledgements and lost packets.
    pub packets: u64,
    /// Packets that a link lost, or that were sent while the link was down.
    pub lost: u64,
    /// Packets that arrived twice; the second copy was discarded.
    pub duplicated: u64,
    /// Packets delayed by the reordering fault: each arrives two link latencies late, so that later packets may
    /// overtake it.
    pub reordered: u64,
    /// Damaged packets that a checksum detected; they did not land.
    pub corrupted_caught: u64,
    /// Damaged packets that no checksum detected; they landed.
    pub corrupted_uncaught: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Packets dropped because their connection had ended when they arrived.
    pub dropped: u64,
    /// Requests that an adapter refused because they named invalid memory; each refusal ends the connection.
    pub refused: u64,
    /// Messages that found no posted receive.
    pub receiver_not_ready: u64,
    /// Completions returned by polls.
    pub completions: u64,
}
