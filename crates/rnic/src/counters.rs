//! What a queue pair counts: all that it drops, and all that it does twice.

use core::ops::Add;

/// Packets, since the queue pair was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Sent, repetitions included.
    pub sent: u64,
    /// Of these, requests that had been sent before.
    pub repeated: u64,
    /// Arrived, whatever became of them.
    pub arrived: u64,
    /// Dropped: for another queue pair, or before this one was ready, or after its end.
    pub misdirected: u64,
    /// Dropped: too far from what is expected.
    pub out_of_window: u64,
    /// Dropped: requests behind one that is missing.
    pub ahead: u64,
    /// Requests that came before their turn, and were kept until then.
    pub kept: u64,
    /// Requests that had been carried out, or kept, and were answered again.
    pub duplicates: u64,
    /// Dropped: answers to what has been answered, or that nothing asked for.
    pub stale: u64,
    /// Dropped: answers that do not fit, repeated requests that cannot be answered again.
    pub malformed: u64,
    /// Times that the timer ran out.
    pub timeouts: u64,
    /// Times that something missing was asked for, by either side.
    pub naks: u64,
    /// Times that there was no receive, on either side.
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
