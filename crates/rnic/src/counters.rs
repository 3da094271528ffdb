//! Packet counters of a queue pair.

use core::ops::Add;

/// Packet counts of one queue pair since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Packets sent, including retransmitted packets.
    pub sent: u64,
    /// Request packets that were retransmitted; included in `sent`.
    pub repeated: u64,
    /// Request and response packets that the requester has declared lost. A few of them were only late.
    pub lost: u64,
    /// Packets that arrived, including dropped packets.
    pub arrived: u64,
    /// Arrived packets that were dropped because they were addressed to another queue pair, or came before this queue
    /// pair was ready or after the connection ended.
    pub misdirected: u64,
    /// Arrived packets that were dropped because their sequence number is too far from the expected one.
    pub out_of_window: u64,
    /// Requests that were dropped because an earlier packet is missing.
    pub ahead: u64,
    /// Requests that arrived early, and were kept until all earlier packets had arrived, and responses that overtook an
    /// earlier one.
    pub kept: u64,
    /// Duplicates of executed or kept requests, each of which the responder answered again, and, with selective repeat,
    /// of responses with data.
    pub duplicates: u64,
    /// Other responses that were dropped because they are duplicates, or answer no outstanding request.
    pub stale: u64,
    /// Packets that were dropped because they are responses that do not match their request, or duplicate requests
    /// whose response this end no longer stores.
    pub malformed: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Reports of missing packets (sequence NAKs), sent or received.
    pub naks: u64,
    /// RNR NAKs, sent or received.
    pub rnr_naks: u64,
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            sent: self.sent + other.sent,
            repeated: self.repeated + other.repeated,
            lost: self.lost + other.lost,
            arrived: self.arrived + other.arrived,
            misdirected: self.misdirected + other.misdirected,
            out_of_window: self.out_of_window + other.out_of_window,
            ahead: self.ahead + other.ahead,
            kept: self.kept + other.kept,
            duplicates: self.duplicates + other.duplicates,
            stale: self.stale + other.stale,
            malformed: self.malformed + other.malformed,
            timeouts: self.timeouts + other.timeouts,
            naks: self.naks + other.naks,
            rnr_naks: self.rnr_naks + other.rnr_naks,
        }
    }
}
