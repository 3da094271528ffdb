//! The congestion window of a stateless pair's requester: the maximum number of packets in flight.
//!
//! The window doubles in each round trip until it reaches half of the window at the last loss. Then it grows by one packet
//! per round trip. A loss halves the window, at most once per round trip.

/// Minimum and first window: packets of 1 KiB that each requester may have in flight at any time.
pub const WINDOW_PACKETS: usize = 16;
/// Maximum window: 256 KiB, less than the receive buffer of a socket that has no other sender.
const WINDOW_PACKETS_MAX: usize = 256;

/// The window; see the header of this file.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) packets: usize,
    /// Window below which each answer adds a packet (slow start).
    threshold: usize,
    /// Answers since the last growth.
    answers: usize,
    /// Time of the last loss. Losses of packets that were sent before it belong to the same window.
    lost_ns: u64,
    /// True once a packet that was first sent after the last loss is answered, so a round trip has passed. Until then,
    /// further timeouts do not prove a loss: the path may have become longer.
    is_past_loss: bool,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            packets: WINDOW_PACKETS,
            threshold: WINDOW_PACKETS_MAX,
            answers: 0,
            lost_ns: 0,
            is_past_loss: true,
        }
    }
}

impl Window {
    /// Handles the answer to a packet that was first sent at `sent_ns`, in `copies` copies, and that counts as `weight`
    /// packets.
    pub(super) fn on_answer(&mut self, sent_ns: u64, copies: u32, weight: usize) {
        self.is_past_loss |= sent_ns >= self.lost_ns;
        if copies > 1 {
            return;
        }
        self.answers += weight;
        let is_below = self.packets < self.threshold;
        if is_below || self.answers >= self.packets {
            self.answers = 0;
            self.packets = (self.packets + if is_below { weight } else { 1 }).min(WINDOW_PACKETS_MAX);
        }
    }

    /// Handles the first timeout of a packet that was sent at `sent_ns`.
    pub(super) fn on_timeout(&mut self, now_ns: u64, sent_ns: u64) {
        if sent_ns >= self.lost_ns && self.is_past_loss {
            (self.lost_ns, self.is_past_loss) = (now_ns, false);
            self.threshold = (self.packets / 2).max(WINDOW_PACKETS);
            self.packets = self.threshold;
        }
    }
}
