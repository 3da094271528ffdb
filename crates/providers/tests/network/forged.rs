//! Packets that the peer did not send, or not now, from its address and from others.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use halite_providers::RoceConfig;
use halite_providers::roce::{Counters, Dropped};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::checks::icrc_of;
use crate::common::Cluster;
use crate::common::pair::Pair;
use crate::common::pcap::{Datagram, datagrams};
use crate::traffic::Traffic;
use crate::world::Network;

/// How many packets are forged before the fabric is polled, so that all of them find room in its socket.
const AT_ONCE: usize = 16;
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

/// Two ends, of which the first writes its packets down, and somebody on its side who sends what they like.
struct Stage {
    _network: Network,
    cluster: Cluster,
    pair: Pair,
    traffic: Traffic,
    forger: OwnedFd,
}

/// What the second end counts.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    dropped: Dropped,
    queue_pairs: Counters,
}

impl Stage {
    fn new() -> Option<Stage> {
        let network = Network::new()?;
        network.cut_trains();
        let cluster = Cluster::new();
        let pcap = Some(cluster.0.join("one.pcap"));
        let one = RoceConfig { pcap, ..network.config(&cluster, 0) };
        let mut pair = network.connect([one, network.config(&cluster, 1)]);
        let mut traffic = Traffic::new(&pair, 9);
        traffic.run(&mut pair, 60);
        pair.settle();
        let raw =
            || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        let forger = network.inside(0, raw).unwrap();
        Some(Stage { _network: network, cluster, pair, traffic, forger })
    }

    /// All that the first end has sent to the second.
    fn sent(&self) -> Vec<Datagram> {
        let own = self.pair.ends[0].fabric.local_address();
        let all = datagrams(&self.cluster.0.join("one.pcap")).into_iter();
        all.filter(|datagram| datagram.source == own).collect()
    }

    /// The last that was sent with this opcode.
    fn last(&self, opcode: u8) -> Datagram {
        self.sent().into_iter().rfind(|datagram| datagram.payload()[0] == opcode).unwrap()
    }

    fn counted(&self) -> Counted {
        let end = &self.pair.ends[1];
        Counted { dropped: end.fabric.dropped(), queue_pairs: end.counters() }
    }

    /// Sends whole datagrams, each of which the second end counts as `count` says; nothing else comes of them.
    #[track_caller]
    fn inject(&mut self, datagrams: &[Vec<u8>], count: fn(&Counted) -> u64) {
        self.pair.settle();
        let before = count(&self.counted());
        for (index, part) in datagrams.chunks(AT_ONCE).enumerate() {
            for datagram in part {
                let target: [u8; 4] = datagram[16..20].try_into().unwrap();
                let target: SocketAddr = (target, 0).into();
                sendto(&self.forger, datagram, SendFlags::empty(), &target).unwrap();
            }
            let so_far = (index * AT_ONCE + part.len()) as u64;
            self.pair.until("forged packets", |pair| {
                let end = &pair.ends[1];
                let now = Counted { dropped: end.fabric.dropped(), queue_pairs: end.counters() };
                (count(&now) - before >= so_far).then_some(())
            });
        }
        assert_eq!(count(&self.counted()) - before, datagrams.len() as u64);
        self.expect_no_harm();
    }

    fn expect_no_harm(&mut self) {
        self.pair.settle();
        for end in &self.pair.ends {
            assert!(end.events.is_empty(), "{:?}", end.events);
        }
        self.traffic.check_memory();
    }

    /// The two go on as if nothing had been.
    fn go_on(mut self) {
        self.traffic.run(&mut self.pair, 100);
    }
}

/// A datagram with another packet in it, and an ICRC that is right.
fn carrying(datagram: &Datagram, source: SocketAddr, body: &[u8]) -> Vec<u8> {
    let (SocketAddr::V4(source), SocketAddr::V4(target)) = (source, datagram.target) else { unreachable!() };
    let udp_len = (8 + body.len() + 4) as u16;
    let place = body.get(8).map_or(0, |byte| byte & 0x7f);
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, place, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(source.ip().octets());
    ip.extend(target.ip().octets());
    ip.extend(source.port().to_be_bytes());
    ip.extend(target.port().to_be_bytes());
    ip.extend(udp_len.to_be_bytes());
    // No checksum of UDP.
    ip.extend([0, 0]);
    ip.extend(body);
    ip.extend([0; 4]);
    let icrc = icrc_of(&ip).to_le_bytes();
    let at = ip.len() - 4;
    ip[at..].copy_from_slice(&icrc);
    ip
}

fn body(datagram: &Datagram) -> &[u8] {
    let payload = datagram.payload();
    &payload[..payload.len() - 4]
}

#[test]
fn what_the_peer_has_sent_and_a_stranger_repeats_is_refused() {
    let Some(mut stage) = Stage::new() else { return };
    let sent = stage.sent();
    assert!(sent.len() > 100);
    let before = stage.counted().queue_pairs;
    let other_address =
        |datagram: &Datagram| carrying(datagram, (STRANGER, datagram.source.port()).into(), body(datagram));
    let other_port = |datagram: &Datagram| {
        let source = (datagram.source.ip(), datagram.source.port() ^ 1).into();
        carrying(datagram, source, body(datagram))
    };
    // The very packet, right for the address that it does not come from.
    let as_it_was = |datagram: &Datagram| {
        let mut ip = datagram.ip.clone();
        ip[12..16].copy_from_slice(&STRANGER.octets());
        ip[26..28].fill(0);
        ip
    };
    let refused = |counted: &Counted| counted.dropped.refused;
    stage.inject(&sent.iter().map(as_it_was).collect::<Vec<_>>(), refused);
    stage.inject(&sent.iter().map(other_address).collect::<Vec<_>>(), refused);
    stage.inject(&sent.iter().map(other_port).collect::<Vec<_>>(), refused);
    assert_eq!(stage.counted().queue_pairs, before, "no queue pair has seen them");
    stage.go_on();
}

#[test]
fn what_the_peer_has_sent_and_the_network_repeats_is_not_done_again() {
    let Some(mut stage) = Stage::new() else { return };
    let sent = stage.sent();
    // Overwrites what the first ones wrote.
    stage.traffic.run(&mut stage.pair, 60);
    stage.pair.settle();
    let before = stage.counted();
    // A probe is answered as often as it comes, and does nothing.
    let is_probe = |datagram: &&Datagram| datagram.payload()[0] == 0xd0;
    let all: Vec<Vec<u8>> =
        sent.iter().filter(|datagram| !is_probe(datagram)).map(|datagram| datagram.ip.clone()).collect();
    stage.inject(&all, |counted| counted.queue_pairs.arrived);
    let after = stage.counted();
    println!("before {before:?}\nafter {after:?}");
    assert_eq!(after.dropped, before.dropped);
    let kinds = |counted: &Counted| {
        counted.queue_pairs.duplicates + counted.queue_pairs.stale + counted.queue_pairs.malformed
    };
    assert_eq!(kinds(&after) - kinds(&before), all.len() as u64);
    stage.go_on();
}

#[test]
fn forged_packets_from_the_peers_address_are_counted_for_what_they_are() {
    let Some(mut stage) = Stage::new() else { return };
    let write = stage.last(0x0a);
    let acknowledge = stage.last(0x11);
    let with = |datagram: &Datagram, at: usize, bytes: &[u8]| {
        let mut body = body(datagram).to_vec();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        carrying(datagram, datagram.source, &body)
    };
    let psn = |datagram: &Datagram, ahead: u32| {
        let [high, middle, low] = [9, 10, 11].map(|at| datagram.payload()[at]);
        (u32::from_be_bytes([0, high, middle, low]) + ahead).to_be_bytes()[1..].to_vec()
    };
    let mut wrong_icrc = carrying(&write, write.source, body(&write));
    *wrong_icrc.last_mut().unwrap() ^= 1;
    let cut = |len: usize| carrying(&write, write.source, &body(&write)[..len]);
    let mut too_short = write.ip[..28].to_vec();
    too_short.extend([1; 8]);
    too_short[2..4].copy_from_slice(&36_u16.to_be_bytes());
    too_short[24..28].copy_from_slice(&[0, 16, 0, 0]);

    stage.inject(&[wrong_icrc], |counted| counted.dropped.refused);
    let strangers = [with(&write, 5, &[0x5a, 0xa5, 0x5a]), too_short];
    stage.inject(&strangers, |counted| counted.dropped.strangers);
    let opcodes = [0x15, 0x1f, 0x64, 0xc1, 0xff].map(|opcode| with(&write, 0, &[opcode]));
    stage.inject(&opcodes, |counted| counted.dropped.malformed);
    // Another version; without all of RETH, with and without any of it; padding of what has none.
    let malformed = [with(&write, 1, &[0x41]), cut(12), cut(24), with(&acknowledge, 1, &[0x70])];
    stage.inject(&malformed, |counted| counted.dropped.malformed);
    let far = [with(&write, 9, &psn(&write, 5 << 20)), with(&write, 9, &psn(&write, 11 << 20))];
    stage.inject(&far, |counted| counted.queue_pairs.out_of_window);
    // Further behind one that is missing than is kept: not even its bytes land, though the key is right.
    // So far that the largest grant does not reach there, which a lane that has been alone for a while has.
    stage.inject(&[with(&write, 9, &psn(&write, 2000))], |counted| counted.queue_pairs.ahead);
    // Of what has been answered: refusals, and the answer to a read.  Of what was never sent: an acknowledgement.
    let refusals = [0x60, 0x61, 0x62, 0x63, 0x20].map(|syndrome| with(&acknowledge, 12, &[syndrome]));
    stage.inject(&refusals, |counted| counted.queue_pairs.stale);
    let answer = stage.last(0x10);
    stage.inject(&[answer.ip], |counted| counted.queue_pairs.stale);
    stage.inject(&[with(&acknowledge, 9, &psn(&acknowledge, 1000))], |counted| {
        counted.queue_pairs.out_of_window
    });
    stage.go_on();
}

#[test]
fn noise_from_anybody_harms_nobody() {
    let Some(mut stage) = Stage::new() else { return };
    let write = stage.last(0x0a);
    let mut random = fastrand::Rng::with_seed(10);
    let mut noise = |from: Ipv4Addr| {
        let mut noise = |_| {
            let bytes: Vec<u8> = (0..12 + random.usize(0..500)).map(|_| random.usize(0..256) as u8).collect();
            carrying(&write, (from, write.source.port()).into(), &bytes)
        };
        (0..500).map(&mut noise).collect::<Vec<_>>()
    };
    let both = [noise(STRANGER), noise(Ipv4Addr::new(10, 77, 0, 1))].concat();
    stage.inject(&both, |counted| counted.dropped.strangers);
    stage.go_on();
}
