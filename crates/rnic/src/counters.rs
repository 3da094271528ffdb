//! Packet counters of a queue pair.

use core::ops::Add;

/// Packet counts since the queue pair was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Packets sent, including retransmitted packets.
    pub sent: u64,
    /// Request packets that were retransmitted; included in `sent`.
    pub repeated: u64,
    /// Losses that the requester has detected: lost request packets, and lost response packets. A few of these packets
    /// were only late.
    pub lost: u64,
    /// Packets that arrived, including dropped packets.
    pub arrived: u64,
    /// Dropped packets: addressed to another queue pair, or arrived before this queue pair was ready or after the
    /// connection ended.
    pub misdirected: u64,
    /// Dropped packets: the sequence number is too far from the expected one.
    pub out_of_window: u64,
    /// Dropped requests: an earlier packet is missing.
    pub ahead: u64,
    /// Requests that arrived early and were kept until all earlier packets had arrived.
    pub kept: u64,
    /// Duplicates of requests that were already executed or kept. The responder answered each duplicate again.
    pub duplicates: u64,
    /// Dropped responses: duplicates, and responses to requests that are not outstanding.
    pub stale: u64,
    /// Dropped packets: responses that do not match their request, and duplicate requests whose response this end no
    /// longer stores.
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
