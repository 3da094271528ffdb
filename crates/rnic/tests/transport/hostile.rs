//! Invalid packets: misdirected, outdated, far ahead, malformed, or out of context. Peers that acknowledge nothing.

use std::collections::BTreeSet;

use halite_rnic::wire::{
    AethRepr, AtomicEthRepr, Credit, Headers, Nak, Packet, Psn, Qpn, RethRepr, Syndrome,
};
use halite_rnic::{Cause, Config, Event, Mtu, State, Status};
use proptest::prelude::*;

use crate::pair::*;

const TO_B: Qpn = Qpn::new(0xbbb);
const TO_A: Qpn = Qpn::new(0xaaa);

fn packet(dest_qp: Qpn, psn: Psn, headers: Headers, payload: &[u8]) -> Packet<'_> {
    Packet { dest_qp, psn, ack_request: true, solicited: false, headers, payload }
}

fn write_only(rkey: u32, len: u32) -> Headers {
    Headers::WriteOnly { reth: RethRepr { address: 0, rkey, len }, imm: None }
}

fn ack(syndrome: Syndrome) -> Headers {
    Headers::Acknowledge(AethRepr { syndrome, msn: 1 })
}

/// Runs `then` on a pair in which A has written once, and checks that the connection still works.
fn check_connection_survives(then: impl FnOnce(&mut Pair)) -> Pair {
    let mut pair = Pair::with(Default::default(), [0xff_fff0, 0x10]);
    pair.a().write(0, b"first");
    pair.run();
    then(&mut pair);
    pair.run();
    pair.a().write(0, b"after");
    pair.a().fetch_add(64, 1);
    pair.b().send(b"back", None);
    pair.run();
    assert_eq!(pair.b().memory.get(0, 5), b"after");
    assert_eq!(pair.b().memory.word(64), 1);
    assert_eq!(pair.a().received().len(), 1);
    assert!(pair.a().completions().iter().all(|(_, status)| *status == Status::Success));
    pair
}

#[test]
fn outdated_and_distant_requests_are_dropped() {
    let mut pair = check_connection_survives(|pair| {
        for key in [KEY, 99] {
            let (past, replayed) = (pair.psn(A, 0), Psn::new(pair.psn(A, 0).value().wrapping_sub(1 << 23)));
            let ahead = pair.psn(A, (1 << 22) + 1);
            pair.forge(B, &packet(TO_B, past, write_only(key, 4), b"evil"));
            pair.forge(B, &packet(TO_B, replayed, write_only(key, 4), b"evil"));
            pair.forge(B, &packet(TO_B, ahead, write_only(key, 4), b"evil"));
            let reth = RethRepr { address: 0, rkey: 99, len: 4 };
            pair.forge(B, &packet(TO_B, past, Headers::ReadRequest(reth), b""));
            let long = RethRepr { address: 0, rkey: KEY, len: u32::MAX };
            pair.forge(B, &packet(TO_B, past, Headers::ReadRequest(long), b""));
            let further = RethRepr { address: 0, rkey: KEY, len: 2000 };
            pair.forge(B, &packet(TO_B, past, Headers::ReadRequest(further), b""));
            let eth = AtomicEthRepr { address: 64, rkey: key, swap_or_add: 1, compare: 0 };
            pair.forge(B, &packet(TO_B, past, Headers::FetchAdd(eth), b""));
        }
    });
    let counters = pair.b().qp.counters();
    assert_eq!((counters.out_of_window, counters.duplicates, counters.malformed), (4, 2, 8));
}

#[test]
fn unsolicited_responses_are_dropped() {
    let mut pair = check_connection_survives(|pair| {
        let credit = Syndrome::Ack(Credit::at_most(32768));
        let aeth = AethRepr { syndrome: credit, msn: 9 };
        for psn in [1, 5, 1 << 22, (1 << 24) - 100] {
            let psn = pair.psn(A, psn);
            pair.forge(A, &packet(TO_A, psn, ack(credit), b""));
            pair.forge(A, &packet(TO_A, psn, ack(Syndrome::Nak(Nak::RemoteAccess)), b""));
            pair.forge(A, &packet(TO_A, psn, ack(Syndrome::Nak(Nak::Sequence)), b""));
            pair.forge(A, &packet(TO_A, psn, Headers::ReadResponseOnly(aeth), b"evil"));
            pair.forge(A, &packet(TO_A, psn, Headers::AtomicAcknowledge { aeth, old: 1 }, b""));
        }
        assert_eq!(pair.a().qp.window_packets(), 64, "forged grants have no effect");
    });
    assert_eq!(pair.a().qp.counters().out_of_window, 15);
    assert_eq!(pair.a().qp.counters().stale, 5);
}

#[test]
fn peer_that_acknowledges_nothing_gets_at_most_one_window() {
    let config = Config { selective: true, fills_path: true, mtu: Mtu::Bytes256, ..lease_ms(5000) };
    let mut pair = Pair::with(config, [0, 0]);
    pair.b().qp.set_grant(0, u32::MAX);
    pair.a().write(0, b"first");
    pair.run();
    let window = pair.a().qp.window_packets() as usize;
    pair.set_filter(|sent| if sent.from == B { Fate::Lost } else { Fate::Delivered });
    for _ in 0..4 {
        pair.a().write(0, &[7; 250 * 256]);
    }
    pair.run();
    let sent: BTreeSet<&String> = pair.log.iter().filter(|line| line.starts_with("a WriteOnly ")).collect();
    assert!(window <= 300 && sent.len() <= 1 + window, "{} packets for a window of {window}", sent.len());
    let statuses: Vec<Status> = pair.a().completions().iter().map(|(_, status)| *status).collect();
    let (failed, in_flight, unsent) = (Status::RetryExceeded, Status::Aborted, Status::Flushed);
    assert_eq!(statuses, [Status::Success, failed, in_flight, unsent, unsent]);
}

#[test]
fn requests_out_of_context_end_the_connection() {
    let full = [7; 1024];
    let reth = |len| RethRepr { address: 0, rkey: KEY, len };
    let eth = AtomicEthRepr { address: 4, rkey: KEY, swap_or_add: 1, compare: 0 };
    /// Headers and payload of each packet.
    type Packets<'a> = &'a [(Headers, &'a [u8])];
    let cases: [(&str, Packets<'_>); 14] = [
        ("a middle without a first", &[(Headers::WriteMiddle, &full)]),
        ("a last without a first", &[(Headers::WriteLast { imm: None }, &full)]),
        ("a send's middle without a first", &[(Headers::SendMiddle, &full)]),
        (
            "a send's last in a write",
            &[(Headers::WriteFirst(reth(2000)), &full), (Headers::SendLast { imm: None }, &[1])],
        ),
        (
            "a read in the middle of a write",
            &[(Headers::WriteFirst(reth(2000)), &full), (Headers::ReadRequest(reth(4)), &[])],
        ),
        ("a first in the middle of a send", &[(Headers::SendFirst, &full), (Headers::SendFirst, &full)]),
        ("a first that is not full", &[(Headers::WriteFirst(reth(2000)), &full[..1000])]),
        ("a first that is the whole message", &[(Headers::WriteFirst(reth(1024)), &full)]),
        ("a last that is empty", &[(Headers::SendFirst, &full), (Headers::SendLast { imm: None }, &[])]),
        (
            "a last that is too long",
            &[(Headers::WriteFirst(reth(1025)), &full), (Headers::WriteLast { imm: None }, &[1, 2])],
        ),
        (
            "a middle that completes the message",
            &[(Headers::WriteFirst(reth(2048)), &full), (Headers::WriteMiddle, &full)],
        ),
        ("an only with another length", &[(write_only(KEY, 5), &[1, 2, 3, 4])]),
        ("an unaligned word", &[(Headers::FetchAdd(eth), &[])]),
        ("a read of too many packets", &[(Headers::ReadRequest(reth(u32::MAX)), &[])]),
    ];
    for (case, packets) in cases {
        let mut pair = Pair::new();
        for (after, (headers, payload)) in packets.iter().enumerate() {
            assert_eq!(pair.b().qp.state(), State::ReadyToSend, "{case}");
            let psn = pair.psn(A, after as u32);
            pair.forge(B, &packet(TO_B, psn, *headers, payload));
        }
        pair.run();
        let broken = Event::Broken { cause: Cause::PeerErred(Nak::InvalidRequest) };
        assert_eq!(pair.b().events.last(), Some(&broken), "{case}");
        let psn = packets.len() - 1;
        assert_eq!(pair.log, [format!("b Acknowledge {psn} InvalidRequest")], "{case}");
    }
}

#[test]
fn endless_message_is_refused_at_the_maximum_length() {
    let mut pair = Pair::new();
    let mut sent = 0;
    pair.forge(B, &packet(TO_B, Psn::new(0x11), Headers::SendFirst, &[7; 1024]));
    while pair.b().qp.state() == State::ReadyToSend {
        sent += 1;
        pair.forge(B, &packet(TO_B, Psn::new(0x11 + sent), Headers::SendMiddle, &[7; 1024]));
    }
    assert_eq!(sent, 64);
}

#[test]
fn duplicate_reads_share_one_pending_response() {
    let mut pair = Pair::new();
    let reth = |len| RethRepr { address: 0, rkey: KEY, len };
    pair.forge(B, &packet(TO_B, Psn::new(0x11), Headers::ReadRequest(reth(40_000)), b""));
    for round in 0..10_000 {
        pair.forge(B, &packet(TO_B, Psn::new(0x11 + round % 39), Headers::ReadRequest(reth(1024)), b""));
    }
    pair.run();
    assert!(pair.log.len() <= 40 + 16, "{} packets", pair.log.len());
}

#[test]
fn duplicate_reads_leave_room_for_new_reads() {
    let mut pair = Pair::new();
    let mut read = |after: u32, len| {
        let reth = RethRepr { address: 0, rkey: KEY, len };
        pair.forge(B, &packet(TO_B, Psn::new(0x11 + after), Headers::ReadRequest(reth), b""));
    };
    (0..8).for_each(|index| read(4 * index, 4096));
    (0..32).for_each(|psn| read(psn, 1024));
    (32..40).for_each(|psn| read(psn, 1024));
    assert_eq!(pair.b().qp.state(), State::ReadyToSend);
    pair.run();
    for psn in 32..40 {
        assert!(pair.log.contains(&format!("b ReadResponseOnly {psn}")), "{:?}", pair.log);
    }
    // These are one more than `answers_max` permits.
    let mut read = |psn: u32| {
        let reth = RethRepr { address: 0, rkey: KEY, len: 1024 };
        pair.forge(B, &packet(TO_B, Psn::new(0x11 + psn), Headers::ReadRequest(reth), b""));
    };
    (40..57u32).for_each(&mut read);
    assert_eq!(pair.b().qp.state(), State::Error);
}

fn any_headers() -> impl Strategy<Value = Headers> {
    let reth = (0u64..300, prop::sample::select(vec![KEY, READ_ONLY, 9]), 0u32..800)
        .prop_map(|(address, rkey, len)| RethRepr { address, rkey, len });
    let eth = (0u64..40, prop::sample::select(vec![KEY, READ_ONLY]), any::<u64>()).prop_map(
        |(word, rkey, swap_or_add)| AtomicEthRepr { address: word * 4, rkey, swap_or_add, compare: 0 },
    );
    let syndromes: Vec<Syndrome> = (0..=255).filter_map(|byte| Syndrome::parse(byte).ok()).collect();
    let aeth =
        (prop::sample::select(syndromes), 0u32..10).prop_map(|(syndrome, msn)| AethRepr { syndrome, msn });
    let simple = prop::sample::select(vec![
        Headers::SendFirst,
        Headers::SendMiddle,
        Headers::SendLast { imm: None },
        Headers::SendOnly { imm: Some(1) },
        Headers::WriteMiddle,
        Headers::WriteLast { imm: Some(2) },
        Headers::ReadResponseMiddle,
    ]);
    prop_oneof![
        simple,
        reth.clone().prop_map(Headers::WriteFirst),
        reth.clone().prop_map(|reth| Headers::WriteOnly { reth, imm: Some(3) }),
        reth.prop_map(Headers::ReadRequest),
        eth.clone().prop_map(Headers::FetchAdd),
        eth.prop_map(Headers::CompareSwap),
        aeth.clone().prop_map(Headers::Acknowledge),
        aeth.clone().prop_map(Headers::ReadResponseOnly),
        aeth.clone().prop_map(Headers::Missing),
        aeth.prop_map(|aeth| Headers::AtomicAcknowledge { aeth, old: 5 }),
    ]
}

proptest! {
    /// Forged packets cause no panic and no packet storm, and every request completes.
    #[test]
    fn each_request_completes_once_despite_forged_packets(
        forged in prop::collection::vec((any::<bool>(), -3i32..6, any_headers(), 0usize..3), 1..40),
        selective in any::<bool>(),
    ) {
        let config = halite_rnic::Config { mtu: Mtu::Bytes256, selective, ..lease_ms(20) };
        let mut pair = Pair::with(config, [0xff_fffe, 2]);
        for side in [A, B] {
            pair.end(side).write(0, &[1; 700]);
            pair.end(side).read(4096, 0, 700);
            pair.end(side).fetch_add(64, 1);
        }
        for (to_a, after, headers, len) in forged {
            let (to, qp) = if to_a { (A, TO_A) } else { (B, TO_B) };
            // A response carries the number of its request.
            let requester = if headers.opcode().is_response() { to } else { to.other() };
            let psn = pair.psn(requester, after as u32);
            let takes_payload = !matches!(
                headers,
                Headers::ReadRequest(_) | Headers::FetchAdd(_) | Headers::CompareSwap(_)
                    | Headers::Acknowledge(_) | Headers::AtomicAcknowledge { .. }
            );
            let payload = &[9; 256][..if takes_payload { [0, 188, 256][len] } else { 0 }];
            pair.forge(to, &packet(qp, psn, headers, payload));
            let now = pair.now_ns;
            pair.run_until(now + 3_000);
        }
        pair.run();
        for side in [A, B] {
            let ids: Vec<u64> = pair.end(side).completions().iter().map(|(id, _)| *id).collect();
            prop_assert_eq!(ids, vec![0, 1, 2]);
        }
    }
}
