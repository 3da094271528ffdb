//! Captures of a roce fabric's own packets.

use crate::common;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use common::pair::Pair;
use common::pcap::{Datagram, datagrams, icrc_of};
use common::{Cluster, bytes_of, inline, remote};
use halite_fabric::{Fabric, Local, Operation};
use halite_providers::roce::{OpenError, ResponderMode};
use halite_providers::{RoceConfig, RoceFabric};

fn config(cluster: &Cluster, name: &str) -> RoceConfig {
    let pcap = Some(cluster.0.join(format!("{name}.pcap")));
    RoceConfig { pcap, ..RoceConfig::new(&cluster.0, name) }
}

/// Posts each kind of request, some with many packets.
fn post_all_kinds(pair: &mut Pair) {
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

/// Returns the packets of a capture from one port to another, without their times.
fn packets_between(path: &Path, source: u16, target: u16) -> Vec<Vec<u8>> {
    let wanted = |datagram: &Datagram| datagram.source.port() == source && datagram.target.port() == target;
    datagrams(path).into_iter().filter(wanted).map(|datagram| datagram.ip).collect()
}

#[test]
fn both_ends_capture_the_same_packets() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let begin = now();
    let cluster = Cluster::new();
    let [one, two] = ["one", "two"].map(|name| config(&cluster, name));
    let mut pair = Pair::open(one, two);
    post_all_kinds(&mut pair);
    let ports = [0, 1].map(|end: usize| pair.ends[end].fabric.local_address().port());
    let sent = pair.ends[0].counters().sent;
    let [one, two] = ["one.pcap", "two.pcap"].map(|name| cluster.0.join(name));
    let there = packets_between(&one, ports[0], ports[1]);
    assert!(there.len() > 90 && there.len() as u64 >= sent, "{} packets of {sent}", there.len());
    assert!(datagrams(&one).iter().all(|sent| sent.payload().ends_with(&icrc_of(&sent.ip).to_le_bytes())));
    let span = begin..=now();
    assert!(
        datagrams(&one).iter().all(|datagram| span.contains(&datagram.time)),
        "a packet has a wrong time"
    );
    let (back, files) = (packets_between(&two, ports[1], ports[0]), [&two, &one]);
    for (sent, at) in [(there, 0), (back, 1)] {
        let received = packets_between(files[at], ports[at], ports[1 - at]);
        // The last acknowledgement may not have arrived yet.
        assert!(received.len() > 20 && received.len() + 1 >= sent.len());
        assert_eq!(sent[..received.len()], received);
    }
}

/// Long packets cost less per byte; stateless lanes send them once probes of this length have been answered.
#[test]
fn stateless_lanes_send_packets_as_long_as_the_probes() {
    let cluster = Cluster::new();
    let configs = ["one", "two"]
        .map(|name| RoceConfig { responder: ResponderMode::Stateless, ..config(&cluster, name) });
    let [one, two] = configs;
    let mut pair = Pair::open(one, two);
    pair.wait_for("the path", |pair| {
        let end = &pair.ends[0];
        end.fabric.path(end.peer).filter(|path| path.is_known)
    });
    post_all_kinds(&mut pair);
    let ports = [0, 1].map(|end: usize| pair.ends[end].fabric.local_address().port());
    let longest = |source: usize, target: usize, is_stateless: bool| {
        let sent = packets_between(&cluster.0.join("one.pcap"), ports[source], ports[target]);
        // The opcode follows the headers of IPv4 and UDP.
        let lengths = sent.iter().filter(|ip| (ip[28] >= 0xe0) == is_stateless).map(Vec::len);
        lengths.max().expect("there are packets of both kinds")
    };
    for (source, target) in [(0, 1), (1, 0)] {
        assert_eq!(longest(source, target, true), longest(source, target, false), "from end {source}");
    }
}

#[test]
fn a_file_into_which_another_fabric_captures_is_refused() {
    let cluster = Cluster::new();
    let one = config(&cluster, "one");
    let two = RoceConfig { pcap: one.pcap.clone(), ..config(&cluster, "two") };
    let _one = RoceFabric::open(one).unwrap();
    match RoceFabric::open(two) {
        Err(OpenError::Pcap { path, .. }) => assert_eq!(path, cluster.0.join("one.pcap")),
        other => panic!("{other:?}"),
    }
}
