//! Forged and replayed packets, from the peer's address and from other addresses.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use halite_fabric::Fabric;
use halite_providers::RoceConfig;
use halite_providers::roce::{Counters, Dropped, ResponderMode};
use halite_rnic::wire::Flow;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::common::Cluster;
use crate::common::pair::Pair;
use crate::common::pcap::{Datagram, datagrams};
use crate::traffic::Traffic;
use crate::world::Network;

/// Number of forged packets between two polls of the fabric. They fit into its socket buffer.
const AT_ONCE: usize = 16;

/// Two ends, of which the first captures its packets, and a raw socket on the first side that sends forged packets.
struct Setup {
    _network: Network,
    cluster: Cluster,
    pair: Pair,
    traffic: Traffic,
    forger: OwnedFd,
}

/// Counters of the second end.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Counted {
    dropped: Dropped,
    queue_pairs: Counters,
    /// Packets of the peer that the queue pairs or the stateless lanes handled.
    arrived: u64,
}

impl Setup {
    fn new(responder: ResponderMode) -> Option<Setup> {
        let network = Network::new()?;
        network.disable_offload();
        let cluster = Cluster::new();
        let pcap = Some(cluster.0.join("one.pcap"));
        let one = RoceConfig { pcap, responder, ..network.config(&cluster, 0) };
        let two = RoceConfig { responder, ..network.config(&cluster, 1) };
        let mut pair = network.connect([one, two]);
        let mut traffic = Traffic::new(&pair, 9);
        traffic.run(&mut pair, 60);
        pair.settle();
        let raw =
            || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        let forger = network.inside(0, raw).unwrap();
        Some(Setup { _network: network, cluster, pair, traffic, forger })
    }

    /// Returns the packets that the first end has sent to the second.
    fn sent(&self) -> Vec<Datagram> {
        let own = self.pair.ends[0].fabric.local_address();
        let all = datagrams(&self.cluster.0.join("one.pcap")).into_iter();
        all.filter(|datagram| datagram.source == own).collect()
    }

    fn counted(&self) -> Counted {
        counted(&self.pair)
    }

    /// Sends whole datagrams, and checks that the second end counts each of them in `count`, without any other effect.
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
            self.pair
                .wait_for("forged packets", |pair| (count(&counted(pair)) - before >= so_far).then_some(()));
        }
        assert_eq!(count(&self.counted()) - before, datagrams.len() as u64);
        self.check_unchanged();
    }

    fn check_unchanged(&mut self) {
        self.pair.settle();
        for end in &self.pair.ends {
            assert!(end.events.is_empty(), "{:?}", end.events);
        }
        self.traffic.check_memory();
    }

    /// Checks that the connection still works.
    fn check_connection_works(mut self) {
        self.traffic.run(&mut self.pair, 100);
    }
}

fn counted(pair: &Pair) -> Counted {
    let end = &pair.ends[1];
    let arrived = end.fabric.path(end.peer).expect("the connection lives").arrived;
    Counted { dropped: end.fabric.dropped(), queue_pairs: end.counters(), arrived }
}

#[test]
fn replayed_packets_have_no_effect() {
    let Some(mut setup) = Setup::new(ResponderMode::Stateful) else { return };
    let sent = setup.sent();
    // Overwrites the bytes that the first writes wrote.
    setup.traffic.run(&mut setup.pair, 60);
    setup.pair.settle();
    let before = setup.counted();
    // Each copy of a probe is answered, and has no other effect.
    let is_probe = |datagram: &&Datagram| datagram.payload()[0] == 0xd0;
    let all: Vec<Vec<u8>> =
        sent.iter().filter(|datagram| !is_probe(datagram)).map(|datagram| datagram.ip.clone()).collect();
    setup.inject(&all, |counted| counted.arrived);
    let after = setup.counted();
    println!("before {before:?}\nafter {after:?}");
    assert_eq!(after.dropped, before.dropped);
    let kinds = |counted: &Counted| {
        counted.queue_pairs.duplicates + counted.queue_pairs.stale + counted.queue_pairs.malformed
    };
    assert_eq!(kinds(&after) - kinds(&before), all.len() as u64);
    setup.check_connection_works();
}

#[test]
fn replayed_packets_of_stateless_lanes_have_no_effect() {
    let Some(mut setup) = Setup::new(ResponderMode::Stateless) else { return };
    let sent = setup.sent();
    // Overwrites the bytes that the first writes wrote.
    setup.traffic.run(&mut setup.pair, 60);
    let all: Vec<Vec<u8>> = sent
        .iter()
        .filter(|datagram| datagram.payload()[0] >= 0xe0)
        .map(|datagram| datagram.ip.clone())
        .collect();
    assert!(all.len() > 30, "{}", all.len());
    let before = setup.counted();
    setup.inject(&all, |counted| counted.arrived);
    assert_eq!(setup.counted().dropped, before.dropped);
    setup.check_connection_works();
}

/// A host on the path knows the numbers in each packet, but not the key of its tag. The queue pairs of the connection, which
/// need no tag, execute nothing.
#[test]
fn packets_without_a_tag_do_not_reach_the_memory_behind_stateless_lanes() {
    const WRITE_ONLY: u8 = 0x0a;
    let Some(mut setup) = Setup::new(ResponderMode::Stateless) else { return };
    let sent = setup.sent();
    let with_opcode = |opcode: u8| sent.iter().filter(move |datagram| datagram.payload()[0] == opcode);
    let write = with_opcode(0xe0).next().expect("a write was sent");
    // The first number of a packet of the queue pair, and the address and the key of the memory.
    let (psn, target) = (write.payload()[12..16].to_vec(), write.payload()[28..40].to_vec());
    let forged = with_opcode(0xd0).map(|probe| {
        // A probe has the number of the receiver's queue pair.
        let mut packet = probe.payload()[..12].to_vec();
        packet[0] = WRITE_ONLY;
        packet[9..12].copy_from_slice(&psn[1..]);
        packet.extend([&target[..], &8_u32.to_be_bytes(), b"forged!!", &[0; 4]].concat());
        Flow::new(probe.source, probe.target).seal(0, &mut packet);
        // The kernel fills the length and the checksum of the IP header; the UDP checksum stays 0.
        let mut datagram = probe.ip[..28].to_vec();
        datagram[24..26].copy_from_slice(&(8 + packet.len() as u16).to_be_bytes());
        datagram[26..28].fill(0);
        [datagram, packet].concat()
    });
    let forged: Vec<Vec<u8>> = forged.collect();
    assert!(!forged.is_empty(), "each lane probes the path");
    setup.inject(&forged, |counted| counted.dropped.refused);
    setup.check_connection_works();
}
