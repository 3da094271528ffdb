//! One direction of an emulated network: what becomes of a packet, and when it arrives.
//!
//! Knows no clock, thread or device: time comes in, and the same seed and packets give the same fates.

use std::time::Duration;

use fastrand::Rng;

/// What a link does to packets.  Chances are of a million packets.
#[derive(Clone, Debug)]
pub struct Link {
    /// Packets leave one behind the other.
    pub bits_per_second: u64,
    /// What waits to leave, at most; what comes then is lost.
    pub queue_bytes: u64,
    /// From the end of its way out to its arrival.
    pub delay: Duration,
    /// Packets take up to so much longer, in their order.
    pub jitter: Duration,
    /// Single packets that vanish.
    pub lost: u32,
    /// Packets with which a loss of `train_packets` in a row begins.
    pub trains_lost: u32,
    /// Packets that are lost one behind the other, unless a millisecond passes first: later ones belong to another train.
    pub train_packets: u32,
    /// Packets that come twice, the second time by another delay later.
    pub twice: u32,
    /// Packets in which a bit is flipped where no checksum of IP or UDP shows it.
    pub damaged: u32,
    /// Packets that are held back by `held_back`, so that others overtake them.
    pub overtaken: u32,
    /// By how much.
    pub held_back: Duration,
    /// Nothing comes through.
    pub is_down: bool,
    /// What is longer, its IP header included, vanishes without a word.
    pub bytes_max: usize,
}

impl Link {
    /// Loses nothing but what its queue has no room for.
    pub fn new(bits_per_second: u64, delay: Duration, queue_bytes: u64) -> Link {
        Link {
            bits_per_second,
            queue_bytes,
            delay,
            jitter: Duration::ZERO,
            lost: 0,
            trains_lost: 0,
            train_packets: 16,
            twice: 0,
            damaged: 0,
            overtaken: 0,
            held_back: Duration::ZERO,
            is_down: false,
            bytes_max: usize::MAX,
        }
    }

    /// Loses so many of a million packets, all of them in trains.
    pub fn losing_trains(self, of_million: u32) -> Link {
        Link { trains_lost: of_million / self.train_packets, ..self }
    }
}

/// What has become of packets so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fates {
    /// Packets that came to the link.
    pub came: u64,
    /// Bytes of those that went through, headers of IP included.
    pub carried_bytes: u64,
    /// Lost by chance, singly or in trains.
    pub lost: u64,
    /// Lost since the queue was full.
    pub overflowed: u64,
    /// Lost since the link was down.
    pub cut: u64,
    /// Lost since they were too long.
    pub too_long: u64,
    /// Delivered twice.
    pub twice: u64,
    /// Delivered with a bit flipped.
    pub damaged: u64,
    /// Held back.
    pub overtaken: u64,
}

/// A link at work.  Times are nanoseconds since an instant of the caller's.
#[derive(Debug)]
pub struct Direction {
    link: Link,
    /// When the last packet will have left.
    free_ns: u64,
    /// When the last one arrives that was not held back.
    last_ns: u64,
    train_left: u32,
    train_ends_ns: u64,
    random: Rng,
    fates: Fates,
}

impl Direction {
    /// With nothing in it.
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

    /// From now on packets meet another link; those that are under way arrive as they would have.
    pub fn set(&mut self, link: Link) {
        self.link = link;
        self.train_left = 0;
    }

    /// What has become of packets so far.
    pub fn fates(&self) -> Fates {
        self.fates
    }

    /// Sends an IP packet, and may flip a bit in it; returns when it arrives, if it does, and when once more.
    pub fn send(&mut self, now_ns: u64, packet: &mut [u8]) -> [Option<u64>; 2] {
        self.fates.came += 1;
        if self.link.is_down {
            self.fates.cut += 1;
            return [None; 2];
        }
        let waits_ns = self.free_ns.saturating_sub(now_ns);
        if waits_ns > self.wire_ns(self.link.queue_bytes) {
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
        if self.happens(self.link.damaged) && damage(packet, &mut self.random) {
            self.fates.damaged += 1;
        }
        self.arrivals()
    }

    /// When what has just left arrives.
    fn arrivals(&mut self) -> [Option<u64>; 2] {
        let jitter_ns = match self.link.jitter.as_nanos() as u64 {
            0 => 0,
            most => self.random.u64(..most),
        };
        let delay_ns = self.link.delay.as_nanos() as u64;
        let in_order_ns = (self.free_ns + delay_ns + jitter_ns).max(self.last_ns);
        let is_overtaken = self.happens(self.link.overtaken);
        self.fates.overtaken += u64::from(is_overtaken);
        let at_ns = match is_overtaken {
            true => in_order_ns + self.link.held_back.as_nanos() as u64,
            false => in_order_ns,
        };
        self.last_ns = in_order_ns;
        let comes_twice = self.happens(self.link.twice);
        self.fates.twice += u64::from(comes_twice);
        [Some(at_ns), comes_twice.then_some(at_ns + delay_ns)]
    }

    fn is_lost(&mut self, now_ns: u64) -> bool {
        if self.train_left > 0 && now_ns < self.train_ends_ns {
            self.train_left -= 1;
            return true;
        }
        if self.happens(self.link.trains_lost) {
            self.train_left = self.link.train_packets.saturating_sub(1);
            self.train_ends_ns = now_ns + TRAIN_NS;
            return true;
        }
        self.happens(self.link.lost)
    }

    /// How long so many bytes take to leave.
    fn wire_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.link.bits_per_second)) as u64
    }

    fn happens(&mut self, of_million: u32) -> bool {
        of_million > 0 && self.random.u32(..1_000_000) < of_million
    }
}

/// Packets of a train leave together.  One who has fallen silent and asks at long intervals is not sending one.
const TRAIN_NS: u64 = 1_000_000;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;

/// Flips a bit in what a datagram carries, and takes its checksum away, as a router does that damages it in its own memory and
/// computes the sum anew.  Leaves others alone: a receiver's kernel would find them damaged, which is the same as lost.
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
    /// A byte a nanosecond.
    const RATE: u64 = 8_000_000_000;

    fn link() -> Link {
        Link::new(RATE, Duration::from_millis(1), 10_000)
    }

    fn send(direction: &mut Direction, now_ns: u64) -> [Option<u64>; 2] {
        direction.send(now_ns, &mut [0; 1000])
    }

    #[test]
    fn packets_leave_one_behind_the_other_and_arrive_a_delay_later() {
        let mut direction = Direction::new(link(), 1);
        assert_eq!(send(&mut direction, 0), [Some(MS + 1000), None]);
        assert_eq!(send(&mut direction, 0), [Some(MS + 2000), None]);
        assert_eq!(send(&mut direction, 5000), [Some(MS + 6000), None]);
    }

    #[test]
    fn a_queue_that_is_full_loses_what_comes() {
        let mut direction = Direction::new(link(), 1);
        let arrived = (0..20).filter(|_| send(&mut direction, 0)[0].is_some()).count();
        assert_eq!((arrived, direction.fates().overflowed), (11, 9), "what leaves, and ten that wait");
    }

    #[test]
    fn single_packets_are_lost_as_often_as_was_asked_for() {
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
    fn who_asks_at_long_intervals_is_not_taken_for_a_train() {
        let mut direction = Direction::new(link().losing_trains(50_000), 1);
        let lost = (0..10_000).filter(|at| send(&mut direction, at * 2 * MS)[0].is_none()).count();
        assert!((10..60).contains(&lost), "{lost} of 10,000, one for each of some 31 trains");
    }

    #[test]
    fn who_is_held_back_is_overtaken() {
        let held_back = Duration::from_micros(5);
        let mut direction = Direction::new(Link { overtaken: 500_000, held_back, ..link() }, 1);
        let at: Vec<u64> = (0..100).filter_map(|at| send(&mut direction, at * 1000)[0]).collect();
        assert!(!at.is_sorted() && at.len() == 100);
    }

    #[test]
    fn damage_changes_one_bit_of_what_a_datagram_carries() {
        let mut packet = [0; 100];
        (packet[0], packet[9], packet[27]) = (0x45, UDP, 9);
        let before = packet;
        assert!(damage(&mut packet, &mut Rng::with_seed(1)));
        let flipped: u32 = (28..100).map(|at| (packet[at] ^ before[at]).count_ones()).sum();
        assert_eq!((flipped, &packet[26..28]), (1, &[0, 0][..]));
        assert_eq!(packet[..26], before[..26]);
    }

    #[test]
    fn nothing_comes_through_a_link_that_is_down_and_nothing_long_through_a_black_hole() {
        let mut direction = Direction::new(Link { is_down: true, ..link() }, 1);
        assert_eq!(send(&mut direction, 0), [None; 2]);
        direction.set(Link { bytes_max: 999, ..link() });
        assert_eq!(send(&mut direction, 0), [None; 2]);
        assert!(direction.send(0, &mut [0; 999])[0].is_some());
        assert_eq!((direction.fates().cut, direction.fates().too_long), (1, 1));
    }
}
