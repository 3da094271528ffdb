//! Incast: many senders to one host, the receive buffers of its sockets, and the goodput.  All in virtual time, in which the receiver
//! takes time for each packet, so that packets queue in the buffers.

use halite_rnic::{Config, Congestion, Mtu};

use crate::emulator::*;

/// Default receive buffer of a Linux socket (`net.core.rmem_default`).
const STOCK_BYTES: u64 = 212_992;
/// Receiver's time per packet, longer than the wire takes: a packet of 4 KiB every 2 us.
const PACKET_NS: u64 = 2 * US;

fn config() -> Config {
    Config { mtu: Mtu::Bytes4096, ..ends(Congestion::Grant) }
}

/// Senders that write continuously over a lossless wire of 40 Gb/s to the sockets of one host.
struct Incast {
    net: Net,
    senders: Vec<usize>,
    sockets: usize,
}

impl Incast {
    fn new(senders: usize, of_each_socket: usize, work: Work) -> Incast {
        let link = Link::new(40_000_000_000, 5 * US, 1 << 30);
        let mut net = Net::new(&[link.clone(), link], 1);
        net.host(PACKET_NS);
        let sockets = senders.div_ceil(of_each_socket);
        (0..sockets).for_each(|_| assert!(net.open_socket(STOCK_BYTES) < sockets));
        let connect = |sender| net.connect_to_socket(&config(), [0, 1], sender / of_each_socket, work);
        let senders = (0..senders).map(connect).collect();
        Incast { net, senders, sockets }
    }

    /// Goodput of each sender in Mb/s, over `ms` milliseconds.
    fn run(&mut self, ms: u64) -> Vec<f64> {
        self.net.goodput(&self.senders, ms * MS)
    }

    fn lost(&self) -> u64 {
        (0..self.sockets).map(|socket| self.net.lost_at(socket)).sum()
    }

    fn repeated(&self) -> u64 {
        self.senders.iter().map(|end| self.net.counters(*end).repeated).sum()
    }
}

fn check_fair(each: &[f64]) {
    let (least, most) =
        each.iter().fold((f64::MAX, 0f64), |(least, most), each| (least.min(*each), most.max(*each)));
    assert!(most <= 1.2 * least, "goodputs differ by more than a fifth: {each:?}");
}

/// Goodput of a single sender in Mb/s.
fn alone(work: Work) -> f64 {
    let mut one = Incast::new(1, 16, work);
    one.run(20);
    let goodput = one.run(30)[0];
    assert_eq!((one.lost(), one.repeated()), (0, 0));
    goodput
}

#[test]
fn sixty_four_senders_lose_nothing_and_match_the_goodput_of_one() {
    for work in [Work::Writes(16384), Work::Writes(4096), Work::Writes(64)] {
        let one = alone(work);
        let mut many = Incast::new(64, 16, work);
        for ms in [10, 30] {
            let each = many.run(ms);
            let all: f64 = each.iter().sum();
            assert!(all >= 0.9 * one, "{work:?}: {all} of 64, {one} of one, within {ms} ms");
            check_fair(&each);
        }
        assert_eq!((many.lost(), many.repeated()), (0, 0), "{work:?}");
    }
}

#[test]
fn sixty_four_senders_to_one_socket_get_half_to_twice_a_fair_share() {
    let one = alone(Work::Writes(16384));
    let mut many = Incast::new(64, 64, Work::Writes(16384));
    many.run(50);
    let each = many.run(200);
    let all: f64 = each.iter().sum();
    assert!(many.lost() > 0, "the buffer should not hold one packet of each sender");
    assert!(all >= 0.9 * one, "{all} of 64, {one} of one");
    let share = all / 64.0;
    assert!(each.iter().all(|each| (share / 2.0..share * 2.0).contains(each)), "{each:?}");
}
