//! How the senders of a socket share its receive buffer.
//!
//! ```text
//!   │ one packet of each peer │ what peers write, active ones │ answers to our reads │ read, not given back yet │
//!    ◄──────── kept ─────────► ◄───────────── half ──────────► ◄───────── half ─────► ◄────── a quarter ───────►
//! ```
//!
//! All is counted as the system counts: by what a packet takes of the buffer, which is more than it holds.  A peer that has said nothing for
//! long may send one packet all the same, and those that have sent lately share the rest: so however many there are, nothing is lost as long as
//! the buffer holds one packet of each.
//!
//! A share is raised only into room that nobody holds, and lowered before: so what is granted at a time is never more than there is.

use std::time::Duration;

use crate::config::nanoseconds;

/// How long a lane that sends nothing keeps its share at least: a process that waits for its processor is silent for as long.
const IDLE: Duration = Duration::from_millis(100);
/// Most packets that a lane may have under way, however much room there is: 1 MiB of the longest, so that a receiver that has to wait for its
/// processor has some milliseconds of work when it runs.
pub const GRANT_MAX: u32 = 256;
/// Headers of all layers below, what the kernel keeps behind the bytes, and rounding.
const AROUND_BYTES: u32 = 500;
/// The kernel's own record of a packet.
const RECORD_BYTES: u32 = 256;

/// What a datagram with the longest packet of so much payload takes of the receive buffer of a socket of Linux, if it comes alone: its bytes,
/// as its allocator rounds them up, and a record (`truesize`).  Those of a train take about half.
pub fn packet_takes_bytes(payload: u32) -> u32 {
    (payload + AROUND_BYTES).next_power_of_two() + RECORD_BYTES
}

/// The share of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// What one of its packets takes at most.
    pub takes_bytes: u32,
    /// When it last sent something, in nanoseconds, if it ever did.
    pub used_ns: Option<u64>,
    /// Packets that the peer may have under way, as it was told.
    pub grant: u32,
    /// Packets of answers that we may have under way.
    pub answers: u32,
}

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    bytes: u64,
}

impl Room {
    /// That of a socket whose receive buffer has so many bytes, as the system counts.
    pub fn new(buffer_bytes: usize) -> Room {
        // Linux gives back what was read when that is a quarter, or nothing is left to be read.
        Room { bytes: buffer_bytes as u64 / 4 * 3 }
    }

    /// Shares among the lanes of so many peers, anew.  Says whether each has what is its own; where not, the others are to hear first of what
    /// they have no longer, and it is shared again.
    pub fn share(&self, now_ns: u64, peers: usize, lanes: &mut [Share]) -> bool {
        let takes = lanes.iter().map(|lane| u64::from(lane.takes_bytes)).max().unwrap_or(0);
        let half = self.bytes.saturating_sub(peers as u64 * takes) / 2;
        let active = lanes.iter().filter(|lane| is_active(lane, now_ns)).count() as u64;
        let held: u64 = lanes.iter().map(Share::held_bytes).sum();
        let (each, mut spare) = (half / active.max(1), half.saturating_sub(held));
        let mut is_settled = true;
        for lane in lanes.iter_mut() {
            lane.answers = lane.target(half / (active + u64::from(!is_active(lane, now_ns))));
            if !is_active(lane, now_ns) {
                continue;
            }
            let target = lane.target(each);
            if lane.grant > target {
                lane.grant = target;
            } else {
                let takes = u64::from(lane.takes_bytes);
                let raised = (spare / takes).min(u64::from(target - lane.grant)) as u32;
                spare -= u64::from(raised) * takes;
                lane.grant += raised;
                is_settled &= lane.grant == target;
            }
        }
        if !is_settled || held > half {
            // What was left to who needs it no longer.
            let idle = lanes.iter_mut().filter(|lane| !is_active(lane, now_ns));
            idle.for_each(|lane| lane.grant = 1);
        }
        is_settled
    }
}

impl Share {
    /// A lane that has sent nothing yet, whose packets have at most so much payload.
    pub fn new(payload: u32) -> Share {
        Share { takes_bytes: packet_takes_bytes(payload), used_ns: None, grant: 1, answers: 1 }
    }

    /// Besides the one packet that is kept for its peer.
    fn held_bytes(&self) -> u64 {
        u64::from(self.grant.saturating_sub(1)) * u64::from(self.takes_bytes)
    }

    fn target(&self, bytes: u64) -> u32 {
        (1 + bytes / u64::from(self.takes_bytes)).min(u64::from(GRANT_MAX)) as u32
    }
}

fn is_active(lane: &Share, now_ns: u64) -> bool {
    is_used(lane.used_ns, now_ns)
}

/// Whether who sent then still counts as sending.
pub(crate) fn is_used(used_ns: Option<u64>, now_ns: u64) -> bool {
    used_ns.is_some_and(|used_ns| now_ns < used_ns.saturating_add(nanoseconds(IDLE)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Receive buffer of a stock kernel, in bytes as it counts them: twice its limit for requests.
    const STOCK_BYTES: usize = 2 * 212_992;
    const LONG: u64 = 1_000_000_000;

    fn lanes(count: usize) -> Vec<Share> {
        vec![Share::new(4096); count]
    }

    fn uses(lane: &mut Share, now_ns: u64) {
        lane.used_ns = Some(now_ns);
    }

    fn grants(lanes: &[Share]) -> Vec<u32> {
        lanes.iter().map(|lane| lane.grant).collect()
    }

    /// Measured on Linux 6.18 over loopback, by SO_MEMINFO.
    #[test]
    fn packets_take_what_the_kernel_says() {
        let longest = [256, 512, 1024, 2048, 4096].map(packet_takes_bytes);
        assert_eq!(longest, [1280, 1280, 2304, 4352, 8448]);
    }

    #[test]
    fn who_sends_alone_has_half_of_the_room() {
        let mut lanes = lanes(2);
        uses(&mut lanes[1], LONG);
        assert!(Room::new(STOCK_BYTES).share(LONG, 1, &mut lanes));
        assert_eq!(grants(&lanes), [1, 19]);
    }

    #[test]
    fn a_newcomer_waits_until_the_others_have_less() {
        let (room, mut lanes) = (Room::new(STOCK_BYTES), lanes(4));
        uses(&mut lanes[0], LONG);
        assert!(room.share(LONG, 2, &mut lanes));
        assert_eq!(grants(&lanes), [18, 1, 1, 1]);
        uses(&mut lanes[2], LONG);
        assert!(!room.share(LONG, 2, &mut lanes), "all is held");
        assert_eq!(grants(&lanes), [9, 1, 1, 1]);
        assert!(room.share(LONG, 2, &mut lanes));
        assert_eq!(grants(&lanes), [9, 1, 9, 1]);
    }

    #[test]
    fn who_is_silent_for_long_keeps_what_nobody_needs() {
        let (room, mut lanes) = (Room::new(STOCK_BYTES), lanes(4));
        uses(&mut lanes[0], 0);
        assert!(room.share(0, 2, &mut lanes));
        assert!(room.share(LONG, 2, &mut lanes));
        assert_eq!(grants(&lanes), [18, 1, 1, 1], "nobody else sends");
        uses(&mut lanes[2], LONG);
        assert!(!room.share(LONG, 2, &mut lanes));
        assert_eq!(grants(&lanes), [1, 1, 1, 1]);
        assert!(room.share(LONG, 2, &mut lanes));
        assert_eq!(grants(&lanes), [1, 1, 18, 1]);
    }

    #[test]
    fn sixteen_who_send_have_one_each_and_more_where_there_is_more() {
        for (buffer_bytes, each) in [(STOCK_BYTES / 2, 1), (STOCK_BYTES, 1), (8 << 20, 23)] {
            let mut lanes = lanes(32);
            lanes.iter_mut().step_by(2).for_each(|lane| uses(lane, LONG));
            assert!(Room::new(buffer_bytes).share(LONG, 16, &mut lanes));
            assert_eq!(grants(&lanes), [each, 1].repeat(16));
        }
    }

    proptest! {
        /// For all senders and times: what may be in flight, each share as its peer was told at first or at last, fits.
        #[test]
        fn what_is_granted_fits_at_any_time(
            buffer_bytes in 20_000usize..1 << 23,
            peers in 1usize..20,
            payload in prop::sample::select(vec![256u32, 1024, 4096]),
            steps in prop::collection::vec((0usize..40, 0u64..80_000_000), 1..100),
        ) {
            let room = Room::new(buffer_bytes);
            let (mut lanes, mut now_ns) = (vec![Share::new(payload); 2 * peers], 0);
            for (who, later_ns) in steps {
                now_ns += later_ns;
                let who = who % lanes.len();
                uses(&mut lanes[who], now_ns);
                let before = lanes.clone();
                let is_settled = room.share(now_ns, peers, &mut lanes);
                // A peer that has not heard yet may send as much as it was told before.
                let most = before.iter().zip(&lanes).map(|(before, after)| before.held_bytes().max(after.held_bytes()));
                let half = (buffer_bytes as u64 / 4 * 3).saturating_sub(peers as u64 * u64::from(packet_takes_bytes(payload))) / 2;
                prop_assert!(most.sum::<u64>() <= half);
                if !is_settled {
                    prop_assert!(room.share(now_ns, peers, &mut lanes), "the second time there is room");
                }
                let active: Vec<u32> = lanes.iter().filter(|lane| is_active(lane, now_ns)).map(|lane| lane.grant).collect();
                prop_assert!(active.iter().all(|grant| *grant == active[0]), "all that send have as much: {active:?}");
                prop_assert!(lanes.iter().all(|lane| (1..=GRANT_MAX).contains(&lane.grant)));
            }
        }
    }
}
