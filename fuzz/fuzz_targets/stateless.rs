//! No packet, forged or made by a requester with any rights, harms a stateless responder, and no answer a requester.

#![no_main]

use halite_rnic::stateless::{
    Lane, NOTE_BYTES, NOTED_BYTES_MAX, OVERHEAD_BYTES, Order, OrderKind, PAYLOAD_BYTES_FIRST,
    PAYLOAD_BYTES_MAX, Requester, Responder, Rights, SEND_BYTES_MAX, ServerClock, Target, Work,
};
use halite_rnic::wire::{ICRC_BYTES, Qpn};
use halite_rnic::{Access, Memory, Operation, Refused, Remote, Request, Source};
use libfuzzer_sys::fuzz_target;

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
        Work::Call { bytes } => bytes.len() > payload_max,
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
    assert!(requester.poll_done().is_some(), "each packet was answered");
    let target = Target { to: from, qpn: Qpn::new(3), rkey: rkey % 2, rights };
    let kind = if kind.is_multiple_of(2) { OrderKind::Read } else { OrderKind::Write };
    let order = Order { kind, local: address, remote: address, remote_key: rkey % 2, len: u32::from(len) };
    responder.order(now_ns, target, order).expect("there is room");
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
    assert!(responder.poll_order().is_some(), "each packet of the order was answered");
    exchange(now_ns, address, &note);
});

/// Two lanes write to each other; the requests of each carry its answers to the other.
fn exchange(now_ns: u64, address: u64, bytes: &[u8]) {
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
