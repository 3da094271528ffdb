//! Packet counters of a queue pair.

use core::ops::Add;

/// Packet counts since the queue pair was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Sent, including retransmitted packets.
    pub sent: u64,
    /// Retransmitted request packets among those sent.
    pub repeated: u64,
    /// Arrived, including dropped packets.
    pub arrived: u64,
    /// Dropped: for another queue pair, before this one was ready, or after the connection ended.
    pub misdirected: u64,
    /// Dropped: sequence number too far from the expected one.
    pub out_of_window: u64,
    /// Dropped: requests behind a gap.
    pub ahead: u64,
    /// Early requests kept until the gap before them closed.
    pub kept: u64,
    /// Duplicate requests, which were executed or kept before; each got a response again.
    pub duplicates: u64,
    /// Dropped: duplicate or unsolicited responses.
    pub stale: u64,
    /// Dropped: responses that do not match their request, and duplicate requests whose response is no longer
    /// available.
    pub malformed: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// Reports of missing packets, sent or received.
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
