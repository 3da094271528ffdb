//! All operations between two processes, as they are on the wire.

use halite_providers::Mtu;

use crate::common::Cluster;
use crate::common::pcap::{Datagram, datagrams};
use crate::outside::{Listening, Row, decode};
use crate::roles::{self, STEPS};
use crate::world::Network;
use crate::{checks, story};

/// All that is known of what went over the wire.
#[derive(Clone)]
struct Seen {
    wire: Vec<Datagram>,
    rows: Vec<Row>,
    /// What each end has written down of what it sent.
    traces: [Vec<Datagram>; 2],
    mtu: Mtu,
    has_checksums: bool,
}

impl Seen {
    /// Has two processes do all that there is to do, and listens.
    fn new(network: &Network, mtu: Mtu, family: &str, has_checksums: bool) -> Seen {
        let cluster = Cluster::new();
        let listening = Listening::start(network, 0);
        roles::play(network, &cluster, mtu, family);
        let file = cluster.0.join("wire.pcap");
        listening.end(&file);
        let traces = [0, 1].map(|side| {
            let all = datagrams(&roles::trace(&cluster, side));
            let is_sent = |datagram: &Datagram| datagram.source.ip() == roles::address(family, side);
            all.into_iter().filter(is_sent).collect::<Vec<_>>()
        });
        let [one, two] = traces.each_ref().map(|trace| trace[0].source);
        let is_theirs = |datagram: &Datagram| {
            [datagram.source, datagram.target].iter().all(|end| [one, two].contains(end))
        };
        let wire = datagrams(&file).into_iter().filter(is_theirs).collect();
        let rows = decode(&file, one.port());
        Seen { wire, rows, traces, mtu, has_checksums }
    }

    fn sent_by(&self, side: usize) -> Vec<&Row> {
        let source = self.traces[side][0].source.ip().to_string();
        self.rows.iter().filter(|row| row.source == source).collect()
    }

    fn findings(&self) -> Vec<String> {
        let mut findings = checks::checksums(&self.wire);
        findings.extend(checks::about_path(&self.wire));
        findings.extend(checks::about_losses(&self.wire).0);
        for side in 0..2 {
            let (trace, rows) = (&self.traces[side], self.sent_by(side));
            let is_sent = |datagram: &&Datagram| datagram.source == trace[0].source;
            let wire: Vec<Datagram> = self.wire.iter().filter(is_sent).cloned().collect();
            findings.extend(checks::bytes(&wire, trace, self.has_checksums));
            findings.extend(checks::fields(&rows, trace));
            let peers = self.sent_by(1 - side);
            let requests: Vec<&Row> = rows.into_iter().filter(|row| story::is_request(row)).collect();
            let answers: Vec<&Row> = peers.into_iter().filter(|row| story::is_answer(row)).collect();
            findings.extend(story::findings(&requests, &answers, self.mtu.bytes().into(), &STEPS));
        }
        findings
    }

    #[track_caller]
    fn check(&self) {
        let findings = self.findings();
        let shown = findings.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(findings.is_empty(), "{} findings:\n{shown}", findings.len());
    }
}

/// Trains are cut by the kernel before they are on the wire.
fn of_trains(mtu: Mtu, family: &str) -> Option<Seen> {
    let network = Network::new()?;
    network.cut_trains();
    Some(Seen::new(&network, mtu, family, false))
}

#[test]
fn packets_of_trains_mean_to_others_what_was_sent() {
    let Some(seen) = of_trains(Mtu::Bytes4096, "4") else { return };
    assert!(seen.wire.iter().any(|packet| packet.identification() > 1), "there were no trains");
    seen.check();
}

#[test]
fn packets_over_ipv6_mean_to_others_what_was_sent() {
    let Some(seen) = of_trains(Mtu::Bytes1024, "6") else { return };
    seen.check();
}

#[test]
fn packets_that_leave_one_by_one_mean_to_others_what_was_sent() {
    let Some(network) = Network::new() else { return };
    network.cut_trains();
    network.without_checksums();
    Seen::new(&network, Mtu::Bytes1024, "4", true).check();
}

/// What is told of what went over the wire if somebody makes one mistake.
#[track_caller]
fn expect_finding(seen: &Seen, mistake: impl FnOnce(&mut Seen), expected: &str) {
    let mut wrong = seen.clone();
    mistake(&mut wrong);
    let findings = wrong.findings();
    assert!(findings.iter().any(|finding| finding.contains(expected)), "{expected}: {findings:#?}");
}

#[test]
fn no_mistake_is_overlooked() {
    let Some(seen) = of_trains(Mtu::Bytes4096, "4") else { return };
    seen.check();
    let opcode = |row: &Row| row.fields["infiniband.bth.opcode"];
    let at = |wanted: u64| seen.rows.iter().position(|row| opcode(row) == wanted).unwrap();
    let set = |wanted: usize, name: &'static str, value| {
        move |seen: &mut Seen| {
            *seen.rows[wanted].fields.get_mut(name).unwrap() = value;
        }
    };
    // Of the sender's own trace: the number of a packet, and its ICRC.
    let change = |byte: fn(usize) -> usize| {
        move |seen: &mut Seen| {
            let is_known = |sent: &&mut Datagram| sent.payload()[0] < 0x20;
            let ip = &mut seen.traces[0].iter_mut().find(is_known).unwrap().ip;
            let at = byte(ip.len());
            ip[at] ^= 1;
        }
    };
    expect_finding(&seen, change(|_| 28 + 11), "infiniband.bth.psn");
    expect_finding(&seen, change(|_| 28 + 11), "another than was sent");
    expect_finding(&seen, change(|len| len - 1), "infiniband.invariant.crc");
    // On the wire: a byte of a payload, of a header, and of the checksum.
    for byte in [|len| len - 8, |_| 28 + 5, |len| len - 1] as [fn(usize) -> usize; 3] {
        let damage = |seen: &mut Seen| {
            let ip = &mut seen.wire[at(1)].ip;
            let at = byte(ip.len());
            ip[at] ^= 0x40;
        };
        expect_finding(&seen, damage, "a wrong ICRC");
    }
    expect_finding(&seen, |seen| drop(seen.wire.remove(5)), "packets on the wire");
    // Of what is about the path: a length, and an answer.
    let longer = |seen: &mut Seen| {
        let probe = seen.wire.iter_mut().find(|datagram| datagram.payload()[0] == 0xd0).unwrap();
        probe.ip.extend([0; 4]);
    };
    expect_finding(&seen, longer, "no probe");
    let unanswered = |seen: &mut Seen| seen.wire.retain(|datagram| datagram.payload()[0] != 0xd1);
    expect_finding(&seen, unanswered, "are answered by");
    // In what others read: lengths, messages without begin or end, and a packet that is missing.
    expect_finding(&seen, set(at(10), "infiniband.reth.dmalen", 4095), "no message of one packet");
    expect_finding(&seen, set(at(1), "data.len", 4092), "a payload of 4092");
    expect_finding(&seen, set(at(0), "infiniband.bth.opcode", 1), "belongs to no message");
    expect_finding(&seen, set(at(3), "infiniband.bth.opcode", 1), "in the middle of a message");
    let (missing, number) = (&seen.rows[at(11)], "infiniband.bth.psn");
    let forget = |seen: &mut Seen| {
        seen.rows.retain(|row| row.source != missing.source || row.fields[number] != missing.fields[number]);
    };
    expect_finding(&seen, forget, "are missing");
}
