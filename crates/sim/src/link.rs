//! Links between hosts: latency, bandwidth and faults.

use crate::counters::Counters;
use crate::random::Random;

/// Properties of one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// True if the link carries packets, false if it drops all of them.
    pub up: bool,
    /// Propagation delay: the time from sending a packet's last bit to receiving it.
    pub latency_ns: u64,
    /// Transmission rate; a packet waits while an earlier one is being sent.
    pub bandwidth_bytes_per_us: u64,
    /// Maximum extra delay of a packet; the actual delay is random for each packet.
    pub jitter_ns: u64,
    /// Lost packets per million.
    pub loss_ppm: u32,
    /// Duplicated packets per million.
    pub duplicate_ppm: u32,
    /// Reordered packets per million: each takes three times the latency, so that later packets may overtake it.
    pub reorder_ppm: u32,
    /// Damaged packets per million.
    pub corrupt_ppm: u32,
    /// Whether the receiver's checksum detects damaged packets.
    pub corruption: Corruption,
}

/// Whether the checksum at the receiver detects a damaged packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Corruption {
    /// The checksum detects the damage, and the receiver drops the packet.
    #[default]
    Caught,
    /// The checksum does not detect the damage: the packet reaches memory with one flipped bit in its payload, as if
    /// the bit had flipped before the sender computed the checksum.
    Uncaught,
}

impl Link {
    /// Creates a link without faults. Panics if the bandwidth is 0.
    pub fn new(latency_ns: u64, bandwidth_bytes_per_us: u64) -> Link {
        assert!(
            bandwidth_bytes_per_us > 0,
            "a link needs a bandwidth of at least 1 byte/us; for a link that drops all packets, use Link::down"
        );
        Link {
            up: true,
            latency_ns,
            bandwidth_bytes_per_us,
            jitter_ns: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            corruption: Corruption::Caught,
        }
    }

    /// Returns this link in the down state, in which it drops all packets.
    pub fn down(self) -> Link {
        Link { up: false, ..self }
    }

    fn is_clean(&self) -> bool {
        let faults = self.loss_ppm | self.duplicate_ppm | self.reorder_ppm | self.corrupt_ppm;
        self.up && faults == 0 && self.jitter_ns == 0
    }
}

/// A link, and the time until which it is busy.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    link: Link,
    is_clean: bool,
    /// Time at which all packets sent so far have left.
    free_ns: u64,
}

/// The result of sending a piece of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transit {
    Lost,
    Sent {
        /// Time at which the last bit left.
        left_ns: u64,
        arrives_ns: u64,
    },
}

/// The result of sending a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delivery {
    /// Arrival time without jitter and reordering.
    pub(crate) on_time_ns: u64,
    /// Delays of the datagram and of its duplicate; `None` if that copy does not arrive.
    pub(crate) delays_ns: [Option<u64>; 2],
    /// True if a bit is flipped.
    pub(crate) is_damaged: bool,
}

impl Wire {
    pub(crate) fn new(link: Link) -> Wire {
        Wire { link, is_clean: link.is_clean(), free_ns: 0 }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn set(&mut self, link: Link) {
        self.is_clean = link.is_clean();
        self.link = link;
    }

    /// Sends a piece of a copy: `len` bytes that are ready at `now_ns`. A damaged piece counts as lost, and a duplicate
    /// only occupies the wire.
    #[inline]
    pub(crate) fn send_piece(
        &mut self,
        now_ns: u64,
        len: u64,
        random: &mut Random,
        counters: &mut Counters,
    ) -> Transit {
        counters.packets += 1;
        let transmit_ns = self.transmit_ns(len);
        let left_ns = self.free_ns.max(now_ns) + transmit_ns;
        let arrives_ns = left_ns + self.link.latency_ns;
        if self.is_clean {
            self.free_ns = left_ns;
            return Transit::Sent { left_ns, arrives_ns };
        }
        if !self.link.up {
            counters.lost += 1;
            return Transit::Lost;
        }
        self.free_ns = left_ns;
        self.send_with_faults(left_ns, transmit_ns, random, counters)
    }

    /// Sends a datagram of `len` bytes, which the link may lose, duplicate, delay or damage.
    pub(crate) fn send_datagram(
        &mut self,
        now_ns: u64,
        len: u64,
        random: &mut Random,
        counters: &mut Counters,
    ) -> Delivery {
        counters.packets += 1;
        let link = self.link;
        let lost = Delivery { on_time_ns: now_ns, delays_ns: [None; 2], is_damaged: false };
        if !link.up {
            counters.lost += 1;
            return lost;
        }
        let transmit_ns = self.transmit_ns(len);
        self.free_ns = self.free_ns.max(now_ns) + transmit_ns;
        let on_time_ns = self.free_ns + link.latency_ns;
        if self.is_clean {
            return Delivery { on_time_ns, delays_ns: [Some(0), None], is_damaged: false };
        }
        if random.chance_ppm(link.loss_ppm) {
            counters.lost += 1;
            return lost;
        }
        let is_damaged = random.chance_ppm(link.corrupt_ppm);
        let delay_ns = self.delay_ns(random, counters);
        let duplicate_delay_ns = random.chance_ppm(link.duplicate_ppm).then(|| {
            counters.duplicated += 1;
            self.free_ns += transmit_ns;
            transmit_ns + self.delay_ns(random, counters)
        });
        Delivery { on_time_ns, delays_ns: [Some(delay_ns), duplicate_delay_ns], is_damaged }
    }

    fn transmit_ns(&self, len: u64) -> u64 {
        (len * 1000).div_ceil(self.link.bandwidth_bytes_per_us)
    }

    /// Returns the time at which all packets sent so far have left.
    pub(crate) fn free_ns(&self) -> u64 {
        self.free_ns
    }

    /// Draws the delay that jitter and reordering add to a packet.
    fn delay_ns(&self, random: &mut Random, counters: &mut Counters) -> u64 {
        let jitter_ns = match self.link.jitter_ns {
            0 => 0,
            max_ns => random.between(0, max_ns),
        };
        let is_overtaken = random.chance_ppm(self.link.reorder_ppm);
        counters.reordered += u64::from(is_overtaken);
        jitter_ns + if is_overtaken { 2 * self.link.latency_ns } else { 0 }
    }

    fn send_with_faults(
        &mut self,
        left_ns: u64,
        transmit_ns: u64,
        random: &mut Random,
        counters: &mut Counters,
    ) -> Transit {
        let link = self.link;
        if random.chance_ppm(link.loss_ppm) {
            counters.lost += 1;
            return Transit::Lost;
        }
        if random.chance_ppm(link.corrupt_ppm) {
            counters.corrupted_caught += 1;
            return Transit::Lost;
        }
        if random.chance_ppm(link.duplicate_ppm) {
            // The duplicate occupies the wire; the receiver discards it by its sequence number.
            counters.duplicated += 1;
            self.free_ns += transmit_ns;
        }
        let arrives_ns = left_ns + link.latency_ns + self.delay_ns(random, counters);
        Transit::Sent { left_ns, arrives_ns }
    }
}
