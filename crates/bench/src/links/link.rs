//! One direction of an emulated network: decides the fate of each packet, and when it arrives.
//!
//! It has no clock, thread or device: time is an argument, and the same seed and packets give the same fates.

use std::time::Duration;

use fastrand::Rng;

/// Properties of a link. Chances are per million packets.
#[derive(Clone, Debug)]
pub struct Link {
    /// Bandwidth.
    pub bits_per_second: u64,
    /// Maximum length of the queue; packets beyond it are dropped.
    pub queue_bytes: u64,
    /// Time from the end of sending to arrival.
    pub delay: Duration,
    /// Maximum additional delay, random for each packet. Packets stay in order.
    pub jitter: Duration,
    /// Chance that a single packet is lost.
    pub lost: u32,
    /// Chance that a packet begins a lost train: `train_packets` packets in a row, which are all lost.
    pub trains_lost: u32,
    /// Number of packets in a lost train. A train ends after a millisecond, even if it has fewer packets.
    pub train_packets: u32,
    /// Chance that a packet arrives twice, the second time after another delay.
    pub duplicated: u32,
    /// Chance that a bit of a packet is flipped such that the checksums of IP and UDP do not detect it.
    pub damaged: u32,
    /// Chance that a packet is delayed by `reorder_delay`, so that later packets overtake it.
    pub reordered: u32,
    /// Extra delay of a packet that is overtaken.
    pub reorder_delay: Duration,
    /// True if the link drops all packets.
    pub is_down: bool,
    /// Maximum length of a packet with its IP header; longer packets are dropped silently.
    pub bytes_max: usize,
}

impl Link {
    /// Creates a link that drops packets only if its queue is full.
    pub fn new(bits_per_second: u64, delay: Duration, queue_bytes: u64) -> Link {
        Link {
            bits_per_second,
            queue_bytes,
            delay,
            jitter: Duration::ZERO,
            lost: 0,
            trains_lost: 0,
            train_packets: 16,
            duplicated: 0,
            damaged: 0,
            reordered: 0,
            reorder_delay: Duration::ZERO,
            is_down: false,
            bytes_max: usize::MAX,
        }
    }

    /// Sets the number of lost packets per million, all of them in trains.
    pub fn losing_trains(self, per_million: u32) -> Link {
        Link { trains_lost: per_million / self.train_packets, ..self }
    }
}

/// Counts of packets by fate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fates {
    /// Packets handed to the link.
    pub offered: u64,
    /// Bytes of delivered packets, including IP headers.
    pub carried_bytes: u64,
    /// Packets lost by chance, alone or in trains.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub overflowed: u64,
    /// Packets dropped because the link was down.
    pub cut: u64,
    /// Packets dropped because they were too long.
    pub too_long: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets delivered with a flipped bit.
    pub damaged: u64,
    /// Packets that were delayed so that later packets overtake them.
    pub reordered: u64,
}

/// The state of a link. Times are in nanoseconds since an instant that the caller chooses.
#[derive(Debug)]
pub struct Direction {
    link: Link,
    /// Time at which the link has sent its last packet.
    free_ns: u64,
    /// Latest arrival of a packet that was not held back.
    last_ns: u64,
    train_left: u32,
    train_ends_ns: u64,
    random: Rng,
    fates: Fates,
}

impl Direction {
    /// Creates an empty link.
    pub fn new(link: Link, seed: u64) -> Direction {
        let random = Rng::with_seed(seed);
        Direction {
            link,
            free_ns: 0,
            last_ns: 0,
            train_left: 0,
            train_ends_ns: 0,
            random,
            fates: Fates::default(),
        }
    }

    /// Changes the link for future packets; packets in flight arrive as before.
    pub fn set(&mut self, link: Link) {
        self.link = link;
        self.train_left = 0;
    }

    /// Returns the counts so far.
    pub fn fates(&self) -> Fates {
        self.fates
    }

    /// Sends an IP packet, and may flip a bit in it. Returns the arrival times, in ns, of the packet and of its
    /// duplicate; `None` for one that does not arrive.
    pub fn send(&mut self, now_ns: u64, packet: &mut [u8]) -> [Option<u64>; 2] {
        self.fates.offered += 1;
        if self.link.is_down {
            self.fates.cut += 1;
            return [None; 2];
        }
        let queued_ns = self.free_ns.saturating_sub(now_ns);
        if queued_ns > self.wire_ns(self.link.queue_bytes) {
            self.fates.overflowed += 1;
            return [None; 2];
        }
        self.free_ns = self.free_ns.max(now_ns) + self.wire_ns(packet.len() as u64);
        if packet.len() > self.link.bytes_max {
            self.fates.too_long += 1;
            return [None; 2];
        }
        if self.is_lost(now_ns) {
            self.fates.lost += 1;
            return [None; 2];
        }
        self.fates.carried_bytes += packet.len() as u64;
        if self.draw(self.link.damaged) && damage(packet, &mut self.random) {
            self.fates.damaged += 1;
        }
        self.arrivals()
    }

    /// Returns the arrivals of the packet that was just sent.
    fn arrivals(&mut self) -> [Option<u64>; 2] {
        let jitter_ns = match self.link.jitter.as_nanos() as u64 {
            0 => 0,
            max_ns => self.random.u64(..max_ns),
        };
        let delay_ns = self.link.delay.as_nanos() as u64;
        let in_order_ns = (self.free_ns + delay_ns + jitter_ns).max(self.last_ns);
        let is_overtaken = self.draw(self.link.reordered);
        self.fates.reordered += u64::from(is_overtaken);
        let at_ns = match is_overtaken {
            true => in_order_ns + self.link.reorder_delay.as_nanos() as u64,
            false => in_order_ns,
        };
        self.last_ns = in_order_ns;
        let is_duplicated = self.draw(self.link.duplicated);
        self.fates.duplicated += u64::from(is_duplicated);
        [Some(at_ns), is_duplicated.then_some(at_ns + delay_ns)]
    }

    fn is_lost(&mut self, now_ns: u64) -> bool {
        if self.train_left > 0 && now_ns < self.train_ends_ns {
            self.train_left -= 1;
            return true;
        }
        if self.draw(self.link.trains_lost) {
            self.train_left = self.link.train_packets.saturating_sub(1);
            self.train_ends_ns = now_ns + TRAIN_NS;
            return true;
        }
        self.draw(self.link.lost)
    }

    /// Returns the time that sending `bytes` takes.
    fn wire_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.link.bits_per_second)) as u64
    }

    fn draw(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.random.u32(..1_000_000) < per_million
    }
}

/// Maximum duration of a train. Packets of a train are sent together; packets at long intervals do not form a train.
const TRAIN_NS: u64 = 1_000_000;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;

/// Flips a bit in a datagram's payload and removes its checksum, as if a router had damaged the packet in its memory
/// and recomputed the checksum. Other packets stay intact: the receiver's kernel would detect the damage,
/// which equals a loss.
fn damage(packet: &mut [u8], random: &mut Rng) -> bool {
    let is_udp = packet.first() == Some(&0x45) && packet.get(9) == Some(&UDP);
    let begin = IPV4_BYTES + UDP_BYTES;
    if !is_udp || packet.len() <= begin {
        return false;
    }
    let bit = random.usize(..8 * (packet.len() - begin));
    packet[begin + bit / 8] ^= 1 << (bit % 8);
    packet[IPV4_BYTES + 6..begin].fill(0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    /// One byte per nanosecond.
    const RATE: u64 = 8_000_000_000;

    fn link() -> Link {
        Link::new(RATE, Duration::from_millis(1), 10_000)
    }

    fn send(direction: &mut Direction, now_ns: u64) -> [Option<u64>; 2] {
        direction.send(now_ns, &mut [0; 1000])
    }

    #[test]
    fn packets_leave_in_sequence_and_arrive_after_the_delay() {
        let mut direction = Direction::new(link(), 1);
        assert_eq!(send(&mut direction, 0), [Some(MS + 1000), None]);
        assert_eq!(send(&mut direction, 0), [Some(MS + 2000), None]);
        assert_eq!(send(&mut direction, 5000), [Some(MS + 6000), None]);
    }

    #[test]
    fn a_full_queue_drops_packets() {
        let mut direction = Direction::new(link(), 1);
        let arrived = (0..20).filter(|_| send(&mut direction, 0)[0].is_some()).count();
        assert_eq!((arrived, direction.fates().overflowed), (11, 9), "one packet is being sent, ten wait");
    }

    #[test]
    fn single_packets_are_lost_at_the_configured_rate() {
        let mut direction = Direction::new(Link { lost: 50_000, ..link() }, 1);
        (0..100_000).for_each(|at| _ = send(&mut direction, at * 1000));
        assert!((4_700..5_300).contains(&direction.fates().lost), "{:?}", direction.fates());
    }

    #[test]
    fn trains_are_lost_whole() {
        let mut direction = Direction::new(link().losing_trains(50_000), 1);
        let lost: Vec<bool> = (0..100_000).map(|at| send(&mut direction, at * 1000)[0].is_none()).collect();
        assert!((4_000..6_000).contains(&direction.fates().lost), "{:?}", direction.fates());
        let runs = lost.split(|is_lost| !is_lost).map(<[bool]>::len).filter(|len| *len > 0);
        assert!(runs.clone().all(|len| len >= 16), "{:?}", runs.collect::<Vec<_>>());
    }

    #[test]
    fn packets_at_long_intervals_form_no_train() {
        let mut direction = Direction::new(link().losing_trains(50_000), 1);
        let lost = (0..10_000).filter(|at| send(&mut direction, at * 2 * MS)[0].is_none()).count();
        assert!((10..60).contains(&lost), "{lost} of 10,000, one for each of some 31 trains");
    }

    #[test]
    fn held_back_packets_are_overtaken() {
        let reorder_delay = Duration::from_micros(5);
        let mut direction = Direction::new(Link { reordered: 500_000, reorder_delay, ..link() }, 1);
        let at: Vec<u64> = (0..100).filter_map(|at| send(&mut direction, at * 1000)[0]).collect();
        assert!(!at.is_sorted() && at.len() == 100);
    }

    #[test]
    fn damage_flips_one_bit_of_the_payload() {
        let mut packet = [0; 100];
        (packet[0], packet[9], packet[27]) = (0x45, UDP, 9);
        let before = packet;
        assert!(damage(&mut packet, &mut Rng::with_seed(1)));
        let flipped: u32 = (28..100).map(|at| (packet[at] ^ before[at]).count_ones()).sum();
        assert_eq!((flipped, &packet[26..28]), (1, &[0, 0][..]));
        assert_eq!(packet[..26], before[..26]);
    }

    #[test]
    fn a_down_link_drops_all_and_a_black_hole_long_packets() {
        let mut direction = Direction::new(Link { is_down: true, ..link() }, 1);
        assert_eq!(send(&mut direction, 0), [None; 2]);
        direction.set(Link { bytes_max: 999, ..link() });
        assert_eq!(send(&mut direction, 0), [None; 2]);
        assert!(direction.send(0, &mut [0; 999])[0].is_some());
        assert_eq!((direction.fates().cut, direction.fates().too_long), (1, 1));
    }
}
