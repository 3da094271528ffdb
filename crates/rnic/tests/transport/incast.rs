//! Many who send to one: what becomes of the receive buffers of its sockets, and how much comes through.  All in virtual time, where the
//! receiver's processor takes a while for each packet, so that packets wait in the buffers.

use halite_rnic::{Config, Congestion, Mtu};

use crate::emulator::*;

/// What a stock kernel counts for a socket that asks for nothing.
const STOCK_BYTES: u64 = 212_992;
/// Slower than the wire: a packet of 4 KiB every 2 us.
const PACKET_NS: u64 = 2 * US;

fn config() -> Config {
    Config { mtu: Mtu::Bytes4096, ..ends(Congestion::Grant) }
}

/// A wire of 40 Gb/s that loses nothing, and so many senders who write all the time, of which each socket has at most so many.
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

    /// Megabits a second of each, over so many milliseconds.
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
    assert!(most <= 1.2 * least, "all have as much, within a fifth: {each:?}");
}

/// What one sender moves by itself, in Mb/s.
fn alone(work: Work) -> f64 {
    let mut one = Incast::new(1, 16, work);
    one.run(20);
    let goodput = one.run(30)[0];
    assert_eq!((one.lost(), one.repeated()), (0, 0));
    goodput
}

#[test]
fn sixty_four_who_begin_at_once_lose_nothing_and_move_as_much_as_one() {
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
fn where_no_more_sockets_can_be_had_what_is_lost_is_repeated_and_nobody_has_less_than_half_a_share() {
    let one = alone(Work::Writes(16384));
    let mut many = Incast::new(64, 64, Work::Writes(16384));
    many.run(50);
    let each = many.run(200);
    let all: f64 = each.iter().sum();
    assert!(many.lost() > 0, "one packet of each is more than the buffer holds");
    assert!(all >= 0.9 * one, "{all} of 64, {one} of one");
    let share = all / 64.0;
    assert!(each.iter().all(|each| (share / 2.0..share * 2.0).contains(each)), "{each:?}");
}
