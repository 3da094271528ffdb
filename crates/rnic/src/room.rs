//! Room: divides a socket's receive buffer among the peers that send to the socket.
//!
//! ```text
//!   │ one packet of each peer │ requests of active peers │ responses to local reads │ read, not freed by Linux  │
//!    ◄────── reserved ───────► ◄──── half the rest ─────► ◄──── half the rest ─────► ◄─ quarter of the buffer ─►
//! ```
//!
//! *The rest* is the part of the first three quarters beyond the reserved packets. All sizes are the bytes that Linux
//! charges to the buffer, which exceed the lengths of the packets. Every peer may send one packet at any time, and
//! recently active peers share the rest. So Linux drops no packet as long as the buffer has room for one packet from
//! each peer.
//!
//! When shares change, shrinking shares shrink first, and other shares grow only into the freed room. So the sum of all
//! grants never exceeds the buffer.

use std::time::Duration;

use crate::config::nanoseconds;

/// Time for which a silent lane keeps its share. The peer's process may wait for a core for about this long.
const IDLE: Duration = Duration::from_millis(100);
/// Maximum grant of a lane, in packets. With the longest packets, this is 1 MiB, which a receiver that has waited for a
/// core processes within some milliseconds.
pub const GRANT_MAX: u32 = 256;
/// Upper bound, in bytes, of all headers of a packet and of `skb_shared_info`, which Linux stores after the payload.
const OVERHEAD_BYTES: u32 = 500;
/// Size of the kernel's `sk_buff`, in bytes.
const SK_BUFF_BYTES: u32 = 256;

/// Returns the bytes that Linux charges to a receive buffer (`truesize`) for one packet with `payload` bytes of
/// payload: the allocation, rounded up to a power of two, and the `sk_buff`. For a packet of a train, Linux charges
/// about half of this.
pub fn packet_takes_bytes(payload: u32) -> u32 {
    (payload + OVERHEAD_BYTES).next_power_of_two() + SK_BUFF_BYTES
}

/// One lane's share of a socket's receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Bytes of the receive buffer that the longest packet of the lane takes.
    pub takes_bytes: u32,
    /// Time in ns of the peer's last packet other than an acknowledgement; `None` if no such packet has arrived.
    pub used_ns: Option<u64>,
    /// Maximum number of request packets that the peer may have in flight.
    pub grant: u32,
    /// Maximum number of read response packets that may be in flight to this end.
    pub answers: u32,
}

/// The usable part of a socket's receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    bytes: u64,
}

impl Room {
    /// Creates the room of a receive buffer. `buffer_bytes` is the size that Linux reports for the socket
    /// (`SO_RCVBUF`).
    pub fn new(buffer_bytes: usize) -> Room {
        // Linux releases the space of read datagrams only when they fill a quarter of the buffer, or when the queue is
        // empty.
        Room { bytes: buffer_bytes as u64 / 4 * 3 }
    }

    /// Recomputes the shares of `lanes`, which belong to `peers` peers. Returns true if each active lane now has its
    /// full share. Otherwise, some lanes wait for room that others still hold: send the lowered grants to the peers,
    /// then call this method again.
    pub fn share(&self, now_ns: u64, peers: usize, lanes: &mut [Share]) -> bool {
        let packet_bytes = lanes.iter().map(|lane| u64::from(lane.takes_bytes)).max().unwrap_or(0);
        let half = self.bytes.saturating_sub(peers as u64 * packet_bytes) / 2;
        let active = lanes.iter().filter(|lane| is_active(lane, now_ns)).count() as u64;
        let granted: u64 = lanes.iter().map(Share::granted_bytes).sum();
        let (share_bytes, mut free_bytes) = (half / active.max(1), half.saturating_sub(granted));
        let mut is_settled = true;
        for lane in lanes.iter_mut() {
            lane.answers = lane.target(half / (active + u64::from(!is_active(lane, now_ns))));
            if !is_active(lane, now_ns) {
                continue;
            }
            let target = lane.target(share_bytes);
            if lane.grant > target {
                lane.grant = target;
            } else {
                let packet_bytes = u64::from(lane.takes_bytes);
                let raised = (free_bytes / packet_bytes).min(u64::from(target - lane.grant)) as u32;
                free_bytes -= u64::from(raised) * packet_bytes;
                lane.grant += raised;
                is_settled &= lane.grant == target;
            }
        }
        if !is_settled || granted > half {
            // Idle lanes release their shares.
            let idle = lanes.iter_mut().filter(|lane| !is_active(lane, now_ns));
            idle.for_each(|lane| lane.grant = 1);
        }
        is_settled
    }
}

impl Share {
    /// Returns the share of a lane that has received no packet yet and whose packets carry at most `payload` bytes.
    pub fn new(payload: u32) -> Share {
        Share { takes_bytes: packet_takes_bytes(payload), used_ns: None, grant: 1, answers: 1 }
    }

    /// Returns the bytes granted in addition to the reserved packet.
    fn granted_bytes(&self) -> u64 {
        u64::from(self.grant.saturating_sub(1)) * u64::from(self.takes_bytes)
    }

    /// Returns the grant in packets for which `bytes` beyond the reserved packet suffice.
    fn target(&self, bytes: u64) -> u32 {
        (1 + bytes / u64::from(self.takes_bytes)).min(u64::from(GRANT_MAX)) as u32
    }
}

fn is_active(lane: &Share, now_ns: u64) -> bool {
    is_recent(lane.used_ns, now_ns)
}

/// Returns true if a lane that last sent at `used_ns` still counts as active.
pub(crate) fn is_recent(used_ns: Option<u64>, now_ns: u64) -> bool {
    used_ns.is_some_and(|used_ns| now_ns < used_ns.saturating_add(nanoseconds(IDLE)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The largest receive buffer of a default Linux, in bytes: twice `net.core.rmem_max`.
    const STOCK_BYTES: usize = 2 * 212_992;
    const START_NS: u64 = 1_000_000_000;

    fn lanes(count: usize) -> Vec<Share> {
        vec![Share::new(4096); count]
    }

    fn mark_used(lane: &mut Share, now_ns: u64) {
        lane.used_ns = Some(now_ns);
    }

    fn grants(lanes: &[Share]) -> Vec<u32> {
        lanes.iter().map(|lane| lane.grant).collect()
    }

    #[test]
    fn a_new_sender_waits_until_other_shares_have_shrunk() {
        let (room, mut lanes) = (Room::new(STOCK_BYTES), lanes(4));
        mark_used(&mut lanes[0], START_NS);
        assert!(room.share(START_NS, 2, &mut lanes));
        assert_eq!(grants(&lanes), [18, 1, 1, 1]);
        mark_used(&mut lanes[2], START_NS);
        assert!(!room.share(START_NS, 2, &mut lanes), "no room is free");
        assert_eq!(grants(&lanes), [9, 1, 1, 1]);
        assert!(room.share(START_NS, 2, &mut lanes));
        assert_eq!(grants(&lanes), [9, 1, 9, 1]);
    }

    proptest! {
        /// A peer may use its old grant until it receives the lowered one.
        #[test]
        fn grants_fit_the_buffer_at_any_time(
            buffer_bytes in 20_000usize..1 << 23,
            peers in 1usize..20,
            payload in prop::sample::select(vec![256u32, 1024, 4096]),
            steps in prop::collection::vec((0usize..40, 0u64..80_000_000), 1..100),
        ) {
            let room = Room::new(buffer_bytes);
            let (mut lanes, mut now_ns) = (vec![Share::new(payload); 2 * peers], 0);
            for (lane, later_ns) in steps {
                now_ns += later_ns;
                let lane = lane % lanes.len();
                mark_used(&mut lanes[lane], now_ns);
                let before = lanes.clone();
                let is_settled = room.share(now_ns, peers, &mut lanes);
                let used = before.iter().zip(&lanes).map(|(before, after)| before.granted_bytes().max(after.granted_bytes()));
                let half = (buffer_bytes as u64 / 4 * 3).saturating_sub(peers as u64 * u64::from(packet_takes_bytes(payload))) / 2;
                prop_assert!(used.sum::<u64>() <= half);
                if !is_settled {
                    prop_assert!(room.share(now_ns, peers, &mut lanes), "a second pass raises every share");
                }
                let active: Vec<u32> = lanes.iter().filter(|lane| is_active(lane, now_ns)).map(|lane| lane.grant).collect();
                prop_assert!(active.iter().all(|grant| *grant == active[0]), "active shares differ: {active:?}");
                prop_assert!(lanes.iter().all(|lane| (1..=GRANT_MAX).contains(&lane.grant)));
            }
        }
    }
}
