//! What is wrong with what went over the wire, by several independent looks at it.  Each returns findings.

use std::collections::{BTreeMap, BTreeSet};

use halite_rnic::wire::bth::Bth;
use halite_rnic::wire::{Headers, Packet};

use crate::common::pcap::Datagram;
use crate::outside::Row;

/// Whether all that is on the wire is what its sender says it has sent, byte by byte.
pub fn bytes(wire: &[Datagram], trace: &[Datagram], has_checksums: bool) -> Vec<String> {
    let mut findings = Vec::new();
    if wire.len() != trace.len() {
        findings.push(format!("{} packets on the wire, of {} that were sent", wire.len(), trace.len()));
    }
    for (index, (seen, sent)) in wire.iter().zip(trace).enumerate() {
        let masked = |datagram: &Datagram| {
            let mut bytes = datagram.ip.clone();
            let udp = bytes.len() - datagram.payload().len() - 8;
            if udp == 40 {
                // The kernel's label.
                bytes[1..4].fill(0);
            }
            if !has_checksums {
                bytes[udp + 6..udp + 8].fill(0);
            }
            bytes
        };
        let (seen, sent) = (masked(seen), masked(sent));
        if let Some(at) = (0..seen.len().max(sent.len())).find(|at| seen.get(*at) != sent.get(*at)) {
            findings.push(format!("packet {index}, byte {at}: another than was sent"));
        }
    }
    findings
}

/// Whether what others read in each packet is what its sender meant.
pub fn fields(rows: &[&Row], trace: &[Datagram]) -> Vec<String> {
    let mut findings = Vec::new();
    if rows.len() != trace.len() {
        findings.push(format!("{} packets are decoded, of {} that were sent", rows.len(), trace.len()));
    }
    for (index, (row, sent)) in rows.iter().zip(trace).enumerate() {
        let meant = meant(sent);
        for name in row.fields.keys().chain(meant.keys()) {
            let (read, meant) = (row.fields.get(name), meant.get(name));
            if read != meant {
                findings.push(format!("packet {index}, {name}: {read:x?} is read, {meant:x?} was meant"));
            }
        }
    }
    findings
}

/// What its sender means by a packet, by the names that others have for it.
fn meant(sent: &Datagram) -> BTreeMap<&'static str, u64> {
    let (body, icrc) = sent.payload().split_last_chunk::<4>().unwrap();
    let packet = Packet::parse(body).unwrap();
    let place = Bth::new_checked(body).unwrap().place();
    let pad = packet.payload.len().wrapping_neg() & 3;
    let mut fields = BTreeMap::from([
        ("udp.srcport", sent.source.port().into()),
        ("udp.dstport", sent.target.port().into()),
        ("udp.length", sent.payload().len() as u64 + 8),
        ("infiniband.bth.opcode", packet.headers.opcode() as u64),
        ("infiniband.bth.se", packet.solicited.into()),
        ("infiniband.bth.m", 1),
        ("infiniband.bth.padcnt", pad as u64),
        ("infiniband.bth.tver", 0),
        ("infiniband.bth.p_key", 0xffff),
        ("infiniband.bth.destqp", packet.dest_qp.value().into()),
        ("infiniband.bth.a", packet.ack_request.into()),
        ("infiniband.bth.reserved7", place.into()),
        ("infiniband.bth.psn", packet.psn.value().into()),
        // Others show it as its bytes come.
        ("infiniband.invariant.crc", u32::from_be_bytes(*icrc).into()),
    ]);
    if sent.source.is_ipv4() {
        fields.insert("ip.id", place.into());
    }
    if matches!(
        packet.headers,
        Headers::Missing(_) | Headers::Probe(_) | Headers::ProbeAnswer(_) | Headers::Part(_)
    ) {
        // Others know these by their transport header only; `about_path` and `about_losses` look at the rest.
        fields.remove("infiniband.invariant.crc");
        return fields;
    }
    if !packet.payload.is_empty() {
        fields.insert("data.len", (packet.payload.len() + pad) as u64);
    }
    let mut add = |name, value| {
        fields.insert(name, value);
    };
    match packet.headers {
        Headers::WriteFirst(reth) | Headers::WriteOnly { reth, .. } | Headers::ReadRequest(reth) => {
            add("infiniband.reth.va", reth.address);
            add("infiniband.reth.r_key", reth.rkey.into());
            add("infiniband.reth.dmalen", reth.len.into());
        }
        Headers::CompareSwap(atomic) | Headers::FetchAdd(atomic) => {
            add("infiniband.reth.va", atomic.address);
            add("infiniband.reth.r_key", atomic.rkey.into());
            add("infiniband.atomiceth.swapdt", atomic.swap_or_add);
            add("infiniband.atomiceth.cmpdt", atomic.compare);
        }
        Headers::ReadResponseFirst(aeth)
        | Headers::ReadResponseLast(aeth)
        | Headers::ReadResponseOnly(aeth)
        | Headers::Acknowledge(aeth)
        | Headers::AtomicAcknowledge { aeth, .. } => {
            add("infiniband.aeth.syndrome", aeth.syndrome.byte().into());
            add("infiniband.aeth.msn", aeth.msn.into());
        }
        _ => {}
    }
    match packet.headers {
        Headers::SendLast { imm: Some(imm) }
        | Headers::SendOnly { imm: Some(imm) }
        | Headers::WriteLast { imm: Some(imm) }
        | Headers::WriteOnly { imm: Some(imm), .. } => add("infiniband.immdt", imm.into()),
        Headers::AtomicAcknowledge { old, .. } => add("infiniband.atomicacketh.origremdt", old),
        _ => {}
    }
    fields
}

/// Whether what is about the path is as docs/protocol.md has it, and each probe is answered; knows nothing of `halite_rnic`.
pub fn about_path(wire: &[Datagram]) -> Vec<String> {
    let of = |opcode: u8| {
        wire.iter().map(|datagram| datagram.payload()).filter(move |payload| payload[0] == opcode)
    };
    let is_right = |payload: &&[u8]| {
        let [size, found, grant, rest @ ..] = &payload[12..payload.len() - 4] else { return false };
        // An answer grants one packet at least, and a probe grants nothing.
        let is_granting = payload[0] == 0xd1;
        *size < 5
            && *found < 5
            && (*grant > 0) == is_granting
            && payload.len() == 44 + (256 << size)
            && rest.iter().all(|byte| *byte == 0)
    };
    let wrong = of(0xd0).chain(of(0xd1)).filter(|payload| !is_right(payload));
    let mut findings: Vec<String> = wrong.map(|payload| format!("no probe: {:x?}", &payload[..16])).collect();
    let sizes_and_numbers = |opcode| -> Vec<(u8, Vec<u8>)> {
        let mut all: Vec<_> = of(opcode).map(|payload| (payload[12], payload[9..12].to_vec())).collect();
        all.sort();
        all
    };
    let (probes, answers) = (sizes_and_numbers(0xd0), sizes_and_numbers(0xd1));
    if probes.is_empty() || probes != answers {
        findings.push(format!("probes {probes:?} are answered by {answers:?}"));
    }
    findings
}

/// Whether each packet that says what is missing is as docs/protocol.md has it, and true: all before its number has been sent, that itself was, and so were
/// those that it says are kept, to who says so.  Knows nothing of `halite_rnic`.  Returns the findings, and how many such packets there are.
pub fn about_losses(wire: &[Datagram]) -> (Vec<String>, usize) {
    let number = |payload: &[u8]| u32::from_be_bytes([0, payload[9], payload[10], payload[11]]);
    let mut requests: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    let (mut findings, mut count) = (Vec::new(), 0);
    // Queue pairs of a connection are known by what they are sent: who sends to which, is not said.
    for datagram in wire {
        let payload = datagram.payload();
        let (from, to) = (datagram.source, datagram.target);
        match payload[0] {
            0x00..=0x0c | 0x13 | 0x14 => {
                requests.entry((from, to)).or_default().insert(number(payload));
            }
            0xc0 => {
                count += 1;
                let (syndrome, bits) = (payload[12], &payload[16..payload.len() - 4]);
                if syndrome > 31 || bits.len() > 128 || bits.len() % 4 != 0 || payload[1] & 0x3f != 0 {
                    findings.push(format!("no word of what is missing: {payload:x?}"));
                }
                let missing = number(payload);
                let is_set = |index: &usize| bits[index / 8] >> (index % 8) & 1 == 1;
                let kept =
                    (0..8 * bits.len()).filter(is_set).map(|index| (missing + 1 + index as u32) & 0xff_ffff);
                let sent = requests.get(&(to, from));
                let is_sent = |number: &u32| sent.is_some_and(|sent| sent.contains(number));
                if let Some(never) = kept.into_iter().find(|number| !is_sent(number)) {
                    findings.push(format!("{never} is kept, and was never sent"));
                }
            }
            _ => {}
        }
    }
    (findings, count)
}

/// Whether each packet has the ICRC that the architecture asks for, bit by bit out of what is on the wire.
pub fn checksums(wire: &[Datagram]) -> Vec<String> {
    let is_wrong = |datagram: &&Datagram| {
        let icrc = datagram.payload().last_chunk().unwrap();
        icrc_of(&datagram.ip) != u32::from_le_bytes(*icrc)
    };
    wire.iter().filter(is_wrong).map(|datagram| format!("a wrong ICRC: {datagram:x?}")).collect()
}

/// Out of a whole datagram; the four bytes at its end, where the ICRC stands, may have any value.
pub fn icrc_of(ip: &[u8]) -> u32 {
    let mut masked = ip.to_vec();
    let transport = match ip[0] >> 4 {
        4 => {
            // Service, hops and checksum.
            [1, 8, 10, 11].into_iter().for_each(|at| masked[at] = 0xff);
            28
        }
        _ => {
            // Class, label and hops.
            [1, 2, 3, 7].into_iter().for_each(|at| masked[at] = 0xff);
            masked[0] |= 0x0f;
            48
        }
    };
    // The checksum of UDP, and the marks of congestion.
    masked[transport - 2..transport].fill(0xff);
    masked[transport + 4] = 0xff;
    let covered = [0xff; 8].iter().chain(&masked[..masked.len() - 4]);
    let mut register = u32::MAX;
    for byte in covered {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            let feedback = if register & 1 == 1 { 0xedb8_8320 } else { 0 };
            register = register >> 1 ^ feedback;
        }
    }
    !register
}
