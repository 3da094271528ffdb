//! No packet makes a stateless responder, and no answer makes a requester, panic, hang or access memory without the
//! right. Packets are random, valid, or forged with a valid tag.

#![no_main]

use halite_rnic::stateless::{
    CALL_BYTES_MAX, Grant, Lane, NOTE_BYTES, NOTED_BYTES_MAX, OVERHEAD_BYTES, Order, OrderKind,
    PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX, Requester, Responder, Rights, SEND_BYTES_MAX, ServerClock,
    Target, Work,
};
use halite_rnic::wire::{ICRC_BYTES, Qpn};
use halite_rnic::{Access, Memory, Operation, Refused, Remote, Request, Source};
use libfuzzer_sys::fuzz_target;
use polyval::Polyval;
use polyval::universal_hash::UniversalHash as _;

struct Bytes;

const LEN: u64 = 4096;

impl Memory for Bytes {
    fn check(&self, key: u32, _: Access, address: u64, len: u64) -> Result<(), Refused> {
        if key == 0 && address.checked_add(len).is_some_and(|end| end <= LEN) { Ok(()) } else { Err(Refused) }
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        assert!(self.check(key, Access::Read, address, target.len() as u64).is_ok());
        Ok(())
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        assert!(self.check(key, Access::Write, address, source.len() as u64).is_ok());
        Ok(())
    }

    fn fetch_add(&self, key: u32, address: u64, _: u64) -> Result<u64, Refused> {
        assert!(self.check(key, Access::Atomic, address, 8).is_ok() && address.is_multiple_of(8));
        Ok(1)
    }

    fn compare_swap(&self, key: u32, address: u64, _: u64, _: u64) -> Result<u64, Refused> {
        self.fetch_add(key, address, 0)
    }
}

/// The responder's memory: panics at an access that the grant does not permit.
struct Granted(Grant);

impl Granted {
    fn assert_key(&self, key: u32) {
        assert!(self.0.rights == Rights::AnyKey || key == self.0.rkey, "the grant has another key");
    }
}

impl Memory for Granted {
    fn check(&self, key: u32, access: Access, address: u64, len: u64) -> Result<(), Refused> {
        Bytes.check(key, access, address, len)
    }

    fn read(&self, key: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        self.assert_key(key);
        assert!(self.0.rights.read());
        Bytes.read(key, address, target)
    }

    fn write(&self, key: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        self.assert_key(key);
        assert!(self.0.rights.write());
        Bytes.write(key, address, source)
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, Refused> {
        self.assert_key(key);
        assert!(self.0.rights.read() && self.0.rights.write());
        Bytes.fetch_add(key, address, add)
    }

    fn compare_swap(&self, key: u32, address: u64, expected: u64, new: u64) -> Result<u64, Refused> {
        self.fetch_add(key, address, expected ^ new)
    }
}

fuzz_target!(|input: (u32, u8, u64, u16, u8, u32, Vec<u8>)| {
    let (rkey, rights, address, len, kind, now_ns, bytes) = input;
    let now_ns = u64::from(now_ns);
    let from = "10.0.0.1:4791".parse().expect("an address");
    let rights = [Rights::Read, Rights::Write, Rights::ReadWrite, Rights::AnyKey][usize::from(rights) % 4];
    let mut responder = Responder::new(1, [7; 32]);
    let mut requester = Requester::new(responder.grant(from, Qpn::new(3), rkey % 2, rights), 1);
    let payload_max = if kind < 128 { PAYLOAD_BYTES_FIRST } else { PAYLOAD_BYTES_MAX };
    requester.set_payload_max(payload_max);
    let mut clock = ServerClock::default();
    let (mut packet, mut answer) =
        ([0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX], [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX]);
    requester.handle_packet(now_ns, &mut clock, &bytes, &Bytes);
    let _ = responder.handle_packet(now_ns, from, &bytes, &Bytes, &mut answer);
    let note = bytes.clone();
    let work = match kind % 7 {
        0 => Work::Read { address, len: usize::from(len) },
        1 => Work::Write { address, bytes },
        2 => Work::FetchAdd { address, add: u64::from(len) },
        3 => Work::CompareSwap { address, expected: 0, new: u64::from(len) },
        4 => Work::Send { bytes },
        5 => Work::WriteNote { address, note_and_bytes: bytes },
        _ => Work::Call { bytes },
    };
    let is_too_long = match &work {
        Work::Send { bytes } => bytes.len() > SEND_BYTES_MAX,
        Work::Call { bytes } => bytes.len() > CALL_BYTES_MAX,
        Work::WriteNote { note_and_bytes, .. } => {
            !(NOTE_BYTES..=NOTE_BYTES + NOTED_BYTES_MAX).contains(&note_and_bytes.len())
        }
        _ => false,
    };
    assert_eq!(requester.post_to(1, rkey % 2, work, false).is_err(), is_too_long);
    if is_too_long {
        return;
    }
    for _ in 0..200 {
        let Some(len) = requester.poll_transmit(now_ns, &clock, &mut packet) else { break };
        let body = &packet[..len - ICRC_BYTES];
        if let Some(len) = responder.handle_packet(now_ns, from, body, &Bytes, &mut answer) {
            requester.handle_packet(now_ns, &mut clock, &answer[..len - ICRC_BYTES], &Bytes);
        }
        while let Some(message) = responder.poll_message() {
            if let Ok((_, len)) = responder.answer(now_ns, message.id, &message.bytes, &mut answer) {
                requester.handle_packet(now_ns, &mut clock, &answer[..len - ICRC_BYTES], &Bytes);
            }
        }
    }
    assert!(requester.poll_done().is_some(), "the request has completed");
    let target = Target { to: from, qpn: Qpn::new(3), rkey: rkey % 2, rights };
    let kind = if kind.is_multiple_of(2) { OrderKind::Read } else { OrderKind::Write };
    let order = Order { kind, local: address, remote: address, remote_key: rkey % 2, len: u32::from(len) };
    responder.order(now_ns, target, order, &Bytes).expect("there is room");
    for _ in 0..200 {
        if let Some((_, len)) = responder.poll_transmit(now_ns, &mut packet) {
            requester.handle_packet(now_ns, &mut clock, &packet[..len - ICRC_BYTES], &Bytes);
        }
        let Some(len) = requester.poll_transmit(now_ns, &clock, &mut packet) else { break };
        let body = &packet[..len - ICRC_BYTES];
        if let Some(len) = responder.handle_packet(now_ns, from, body, &Bytes, &mut answer) {
            requester.handle_packet(now_ns, &mut clock, &answer[..len - ICRC_BYTES], &Bytes);
        }
    }
    assert!(responder.poll_order().is_some(), "the order has completed");
    check_forged_packets(now_ns, rkey % 2, rights, &note);
    check_two_lanes(now_ns, address, &note);
});

/// Length in bytes of the input for one forged packet.
const FIELDS_BYTES: usize = 40;

/// Delivers packets with arbitrary fields and a valid tag: only a requester with a grant or the responder can send them.
fn check_forged_packets(now_ns: u64, rkey: u32, rights: Rights, bytes: &[u8]) {
    let from = "10.0.0.1:4791".parse().expect("an address");
    let mut responder = Responder::new(1, [7; 32]);
    let grant = responder.grant(from, Qpn::new(3), rkey, rights);
    let (mut requester, mut lane) = (Requester::new(grant.clone(), 1), Lane::default());
    lane.set_grant(grant.clone(), 1, 1_000_000_000);
    let works = [
        Work::Read { address: 0, len: 3_000 },
        Work::FetchAdd { address: 0, add: 1 },
        Work::Write { address: 0, bytes: vec![1; 3_000] },
        Work::Call { bytes: vec![1; 3_000] },
    ];
    for (id, work) in (0..).zip(works) {
        requester.post_to(id, rkey, work, true).expect("there is room");
    }
    let source = Source::Inline(vec![1; 64]);
    let operation = Operation::Write { source, remote: Remote { rkey, address: 0 }, imm: Some(7) };
    lane.post(Request { id: 0, operation, signalled: true, solicited: false });
    let mut clock = ServerClock::default();
    let memory = Granted(grant.clone());
    let target = Target { to: from, qpn: Qpn::new(3), rkey, rights };
    for (kind, len) in [(OrderKind::Read, 8), (OrderKind::Write, 8), (OrderKind::Read, 3_000)] {
        let order = Order { kind, local: 0, remote: 0, remote_key: rkey, len };
        responder.order(now_ns, target, order, &memory).expect("there is room");
    }
    let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    for (round, fields) in (1..).zip(bytes.chunks_exact(FIELDS_BYTES)) {
        let now_ns = now_ns + round * 1_000_000;
        while requester.poll_transmit(now_ns, &clock, &mut buffer).is_some() {}
        while lane.poll_transmit(now_ns, &clock, &Bytes, &mut buffer).is_some() {}
        if round == 8 {
            responder.cut_off(from, Qpn::new(3)).expect("the list has room");
        } else if round == 10 {
            responder.readmit(from, Qpn::new(3));
        }
        let packet = forged_packet(fields.try_into().expect("a chunk has this length"), now_ns, &grant);
        requester.handle_packet(now_ns, &mut clock, &packet, &Bytes);
        lane.handle_answer(now_ns, &mut clock, &packet, &Bytes);
        if let Some(answer) = responder.execute(now_ns, from, &packet, &memory, &mut buffer) {
            if let Some(ack) = answer.acknowledged {
                lane.handle_ack(now_ns, &mut clock, ack, &Bytes);
            }
            answer.seal(&mut buffer);
        }
        while let Some(message) = responder.poll_message() {
            if message.is_call {
                let _ = responder.answer(now_ns, message.id, &message.bytes, &mut buffer);
            } else {
                lane.handle_message(message);
            }
        }
        while requester.poll_done().is_some() || lane.poll_event().is_some() {}
        while responder.poll_order().is_some() {}
    }
}

/// Returns a packet with these fields, and a tag with the key of the grant; see docs/protocol.md.
fn forged_packet(fields: &[u8; FIELDS_BYTES], now_ns: u64, grant: &Grant) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_be_bytes(fields[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_be_bytes(fields[at..at + 8].try_into().expect("eight bytes"));
    let [kind, choices, status, content, ..] = *fields;
    let has = |bit: u8| choices & 1 << bit != 0;
    // Most packets have plausible values, which pass the first checks.
    let carried = u32_at(4) as usize % if has(0) { PAYLOAD_BYTES_MAX + 2 } else { 32 };
    let len = if has(1) { u32_at(8) } else { carried as u32 };
    let number = if has(2) { u64_at(12) } else { u64_at(12) % 16 };
    let stamp_ns = if has(3) { u64_at(20) } else { now_ns.saturating_sub(u64_at(20) % 100_000_000) };
    let address = if has(4) { u64_at(28) } else { u64_at(28) % (LEN + 16) };
    let rkey = if has(5) { u32_at(36) } else { grant.rkey };
    let rights = match grant.rights {
        Rights::Read => 1,
        Rights::Write => 2,
        Rights::ReadWrite => 3,
        Rights::AnyKey => 7,
    };
    // RDC has an opcode apart from the others.
    let opcode = if choices & 0xc0 == 0xc0 { 0xcf } else { 0xe0 | kind & 0x1f };
    let mut packet = vec![opcode, 0x40, 0xff, 0xff, 0, 0, 0, 3, 0, 0, 0, 0];
    for field in [number, stamp_ns, address] {
        packet.extend(field.to_be_bytes());
    }
    for field in [rkey, len, grant.epoch] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend([rights, status % 6]);
    packet.extend((carried as u16).to_be_bytes());
    packet.resize(packet.len() + carried.next_multiple_of(4), content);
    if opcode & 0x10 != 0 {
        packet.extend([(number % 4).to_be_bytes(), now_ns.to_be_bytes()].concat());
    }
    let tag = tag(&grant.key, &packet);
    packet.extend(tag);
    packet
}

/// Computes a tag as docs/protocol.md describes it (ROCE-STATELESS-3).
fn tag(key: &[u8; 32], packet: &[u8]) -> [u8; 16] {
    let body = &packet[12..];
    let covered = if body.len() <= 56 {
        body.to_vec()
    } else {
        let mut digest = Polyval::new(key[16..].as_array().expect("half a key").into());
        digest.update_padded(body);
        digest.finalize().to_vec()
    };
    let mut input = [0; 64];
    input[..covered.len()].copy_from_slice(&covered);
    input[56..].copy_from_slice(&[&packet[..1], &packet[5..8], &(body.len() as u32).to_be_bytes()].concat());
    let mut half = [0; 32];
    half[..16].copy_from_slice(&key[..16]);
    blake3::keyed_hash(&half, &input).as_bytes()[..16].try_into().expect("16 bytes")
}

/// Lets two lanes write to each other. The requests of each lane carry its answers to the other.
fn check_two_lanes(now_ns: u64, address: u64, bytes: &[u8]) {
    let addresses = ["10.0.0.1:4791", "10.0.0.2:4791"].map(|address| address.parse().expect("an address"));
    let mut responders = [1, 2].map(|secret| Responder::new(1, [secret; 32]));
    let mut lanes = [Lane::default(), Lane::default()];
    let mut clocks = [ServerClock::default(); 2];
    for (end, lane) in lanes.iter_mut().enumerate() {
        let grant = responders[1 - end].grant(addresses[end], Qpn::new(3), 0, Rights::AnyKey);
        lane.set_grant(grant, 1 << 32, 1_000_000_000);
        for id in 0..3 {
            let (source, remote) = (Source::Inline(bytes.to_vec()), Remote { rkey: 0, address });
            let operation = Operation::Write { source, remote, imm: Some(7).filter(|_| id == 1) };
            lane.post(Request { id, operation, signalled: true, solicited: false });
        }
    }
    let (mut packet, mut buffer) =
        ([0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX], [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX]);
    for round in 0..4_000 {
        let from = round % 2;
        let [own, peer] = lanes.get_disjoint_mut([from, 1 - from]).expect("two lanes");
        let request = own.poll_transmit(now_ns, &clocks[from], &Bytes, &mut packet);
        let Some(len) = request.or_else(|| own.poll_answer(&mut packet)) else { continue };
        let body = &packet[..len - ICRC_BYTES];
        if peer.handle_answer(now_ns, &mut clocks[1 - from], body, &Bytes) {
            continue;
        }
        let (responder, requester) = (&mut responders[1 - from], addresses[from]);
        let Some(answer) = responder.execute(now_ns, requester, body, &Bytes, &mut buffer) else { continue };
        if let Some(message) = responder.poll_message() {
            peer.handle_message(message);
        }
        if let Some(ack) = answer.acknowledged {
            peer.handle_ack(now_ns, &mut clocks[1 - from], ack, &Bytes);
        }
        if answer.has_payload() {
            let len = answer.seal(&mut buffer);
            own.handle_answer(now_ns, &mut clocks[from], &buffer[..len - ICRC_BYTES], &Bytes);
        } else {
            peer.hold_answer(answer);
        }
    }
    assert!(lanes.iter().all(|lane| lane.posted() == 0), "each write has completed");
}
