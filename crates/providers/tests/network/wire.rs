//! Compares the packets of a fabric with Wireshark's decoding of them.

use std::path::Path;
use std::process::Command;

use halite_providers::RoceConfig;
use halite_rnic::wire::{Headers, Packet};

use crate::common::Cluster;
use crate::common::pcap::{Datagram, datagrams};
use crate::traffic::Traffic;
use crate::world::Network;

/// Compared fields, without the prefix "infiniband.".
const FIELDS: [&str; 16] = [
    "bth.opcode",
    "bth.se",
    "bth.padcnt",
    "bth.destqp",
    "bth.a",
    "bth.psn",
    "reth.va",
    "reth.r_key",
    "reth.dmalen",
    "atomiceth.swapdt",
    "atomiceth.cmpdt",
    "aeth.syndrome",
    "aeth.msn",
    "atomicacketh.origremdt",
    "immdt",
    "invariant.crc",
];

type Values = [Option<u64>; FIELDS.len()];

/// Decodes the packets of a capture from or to this port as RoCEv2.
fn decode(capture: &Path, port: u16) -> Vec<Values> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(capture);
    command.args(["-d", &format!("udp.port=={port},infiniband"), "-Y", &format!("udp.port=={port}")]);
    // Turns off heuristics that decode payloads as other protocols.
    command.args(["--disable-heuristic", "eth_over_ib", "--disable-heuristic", "mellanox_eoib"]);
    command.args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=f", "-e", "_ws.malformed"]);
    command.args(FIELDS.map(|field| format!("-einfiniband.{field}")));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let row = |line: &str| {
        let mut columns = line.split('\t');
        assert_eq!(columns.next(), Some(""), "malformed: {line}");
        let values = columns.zip(FIELDS).map(|(text, field)| number(field, text));
        values.collect::<Vec<_>>().try_into().unwrap()
    };
    String::from_utf8(output.stdout).unwrap().lines().map(row).collect()
}

fn number(field: &str, text: &str) -> Option<u64> {
    match (text.strip_prefix("0x"), text) {
        (_, "") => None,
        (_, "True") => Some(1),
        (_, "False") => Some(0),
        (Some(hex), _) => Some(u64::from_str_radix(hex, 16).unwrap()),
        // Fields that Wireshark shows as bytes.
        (None, hex) if field == "immdt" => Some(u64::from_str_radix(hex, 16).unwrap()),
        (None, decimal) => Some(decimal.parse().unwrap()),
    }
}

/// Returns the fields of a packet as sent; `None` for Halite's own opcodes, of which Wireshark knows only the
/// transport header.
fn expected(sent: &Datagram) -> Option<Values> {
    let (body, icrc) = sent.payload().split_last_chunk::<4>().unwrap();
    let packet = Packet::parse(body).unwrap();
    let (mut reth, mut words, mut aeth, mut old, mut imm) = ([None; 3], [None; 2], [None; 2], None, None);
    match packet.headers {
        Headers::Missing(_) | Headers::Probe(_) | Headers::ProbeAnswer(_) | Headers::Part(_) => return None,
        Headers::WriteFirst(eth) | Headers::WriteOnly { reth: eth, .. } | Headers::ReadRequest(eth) => {
            reth = [eth.address, eth.rkey.into(), eth.len.into()].map(Some);
        }
        Headers::CompareSwap(eth) | Headers::FetchAdd(eth) => {
            reth = [Some(eth.address), Some(eth.rkey.into()), None];
            words = [eth.swap_or_add, eth.compare].map(Some);
        }
        Headers::ReadResponseFirst(eth)
        | Headers::ReadResponseLast(eth)
        | Headers::ReadResponseOnly(eth)
        | Headers::Acknowledge(eth)
        | Headers::AtomicAcknowledge { aeth: eth, .. } => {
            aeth = [eth.syndrome.byte().into(), eth.msn.into()].map(Some);
        }
        _ => {}
    }
    match packet.headers {
        Headers::SendLast { imm: own }
        | Headers::SendOnly { imm: own }
        | Headers::WriteLast { imm: own }
        | Headers::WriteOnly { imm: own, .. } => imm = own.map(u64::from),
        Headers::AtomicAcknowledge { old: own, .. } => old = Some(own),
        _ => {}
    }
    let pad = packet.payload.len().wrapping_neg() & 3;
    let opcode = packet.headers.opcode() as u64;
    let bth = [opcode, packet.solicited.into(), pad as u64, packet.dest_qp.value().into()];
    let bth = bth.into_iter().chain([packet.ack_request.into(), packet.psn.value().into()]).map(Some);
    // Wireshark shows the ICRC in the byte order of the wire.
    let rest = [old, imm, Some(u32::from_be_bytes(*icrc).into())];
    let values = bth.chain(reth).chain(words).chain(aeth).chain(rest);
    values.collect::<Vec<_>>().try_into().ok()
}

#[test]
fn wireshark_decodes_the_sent_fields() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let capture = cluster.0.join("one.pcap");
    let one = RoceConfig { pcap: Some(capture.clone()), ..network.config(&cluster, 0) };
    let mut pair = network.connect([one, network.config(&cluster, 1)]);
    Traffic::new(&pair, 4).run(&mut pair, 60);
    pair.settle();
    let (sent, rows) = (datagrams(&capture), decode(&capture, pair.ends[0].fabric.local_address().port()));
    assert!(sent.len() > 200 && sent.len() == rows.len(), "{} packets, {} rows", sent.len(), rows.len());
    for (index, (sent, row)) in sent.iter().zip(&rows).enumerate() {
        if let Some(expected) = expected(sent) {
            assert_eq!(*row, expected, "packet {index} of {FIELDS:?}");
        }
    }
}
