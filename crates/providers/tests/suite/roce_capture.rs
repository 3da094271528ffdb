//! What a roce fabric writes down of its own packets.

use crate::common;

use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use common::pair::Pair;
use common::pcap::{Datagram, datagrams};
use common::{Cluster, bytes_of, inline, remote};
use halite_fabric::{Local, Operation};
use halite_providers::roce::OpenError;
use halite_providers::{RoceConfig, RoceFabric};

fn config(cluster: &Cluster, name: &str) -> RoceConfig {
    let pcap = Some(cluster.0.join(format!("{name}.pcap")));
    RoceConfig { pcap, ..RoceConfig::new(&cluster.0, name) }
}

/// Every kind of request, some of them in many packets.
fn use_all(pair: &mut Pair) {
    let (key, window) = pair.ends[1].register(1 << 20);
    let (own_key, own) = pair.ends[0].register(1 << 20);
    let bytes: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
    own.write(0, &bytes).unwrap();
    let local = Local::Registered { key: own_key, offset: 0, len: 300_000 };
    pair.run(0, Operation::Write { local, remote: remote(key, 4) });
    assert_eq!(bytes_of(&window, 4, 300_000), bytes);
    pair.run(0, Operation::WriteImm { local: inline(b"seven"), remote: remote(key, 1), imm: 7 });
    let local = Local::Registered { key: own_key, offset: 500_000, len: 100_000 };
    pair.run(0, Operation::Read { local, remote: remote(key, 8) });
    assert_eq!(pair.run(0, Operation::FetchAdd { remote: remote(key, 800_000), add: 3 }), 0);
    assert_eq!(pair.run(0, Operation::CompareSwap { remote: remote(key, 800_000), expected: 3, new: 5 }), 3);
    pair.run(0, Operation::Send { bytes: &bytes[..50_000], imm: 9 });
    pair.run(1, Operation::Send { bytes: b"and back", imm: 9 });
}

/// Of a capture, what went from one port to another, without the times.
fn between(path: &Path, source: u16, target: u16) -> Vec<Vec<u8>> {
    let wanted = |datagram: &Datagram| datagram.source.port() == source && datagram.target.port() == target;
    datagrams(path).into_iter().filter(wanted).map(|datagram| datagram.ip).collect()
}

fn both_ends_write_the_same(address: IpAddr) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let begin = now();
    let cluster = Cluster::new();
    let [one, two] = ["one", "two"].map(|name| RoceConfig { address, ..config(&cluster, name) });
    let mut pair = Pair::open(one, two);
    use_all(&mut pair);
    let ports = [0, 1].map(|end: usize| pair.ends[end].fabric.local_address().port());
    let sent = pair.ends[0].counters().sent;
    let [one, two] = ["one.pcap", "two.pcap"].map(|name| cluster.0.join(name));
    let there = between(&one, ports[0], ports[1]);
    assert!(there.len() > 90 && there.len() as u64 >= sent, "{} packets of {sent}", there.len());
    let span = begin..=now();
    assert!(datagrams(&one).iter().all(|datagram| span.contains(&datagram.time)), "each has its time");
    let (back, files) = (between(&two, ports[1], ports[0]), [&two, &one]);
    for (sent, at) in [(there, 0), (back, 1)] {
        let received = between(files[at], ports[at], ports[1 - at]);
        // The last acknowledgement may be under way.
        assert!(received.len() > 20 && received.len() + 1 >= sent.len());
        assert_eq!(sent[..received.len()], received);
    }
}

#[test]
fn what_one_end_sends_both_write_with_the_same_headers() {
    both_ends_write_the_same("127.0.0.1".parse().unwrap());
}

#[test]
fn what_one_end_sends_over_ipv6_both_write_with_the_same_headers() {
    both_ends_write_the_same("::1".parse().unwrap());
}

#[test]
fn a_capture_that_is_full_stops_no_packet() {
    let cluster = Cluster::new();
    let one = RoceConfig { pcap_bytes_max: 100_000, ..config(&cluster, "one") };
    let mut pair = Pair::open(one, config(&cluster, "two"));
    use_all(&mut pair);
    let len = std::fs::metadata(cluster.0.join("one.pcap")).unwrap().len();
    assert!((90_000..=100_000).contains(&len), "{len} bytes");
    assert!(!datagrams(&cluster.0.join("one.pcap")).is_empty(), "it ends with a whole packet");
}

#[test]
fn a_file_that_another_fabric_writes_is_refused() {
    let cluster = Cluster::new();
    let one = config(&cluster, "one");
    let two = RoceConfig { pcap: one.pcap.clone(), ..config(&cluster, "two") };
    let _writes = RoceFabric::open(one).unwrap();
    match RoceFabric::open(two) {
        Err(OpenError::Pcap { path, .. }) => assert_eq!(path, cluster.0.join("one.pcap")),
        other => panic!("{other:?}"),
    }
}
