//! Calls with inputs of more than one packet.

use super::kinds::long_input;
use super::*;

/// Executes a call with an input of `len` bytes. Returns the number of packets with the input.
#[track_caller]
fn check_input(world: &mut World, len: usize) -> usize {
    let before = world.sent.len();
    let input = long_input(len);
    let outcome = world.call(&input);
    assert!(outcome == answer_to(&input), "{len} bytes: {:.100}", format!("{outcome:?}"));
    assert!(world.received.pop() == Some(input), "{len} bytes");
    assert!(world.received.is_empty(), "{len} bytes: a call arrives once");
    world.sent[before..].iter().filter(|packet| [0xec, 0xcf].contains(&packet[0])).count()
}

#[test]
fn inputs_of_all_lengths_arrive_once_despite_packet_faults() {
    for faults in [Faults::default(), Faults { lost: 10, repeated: 10, late: 10 }] {
        for payload_max in [PAYLOAD_BYTES_FIRST, 3_000, PAYLOAD_BYTES_MAX] {
            // The requester needs no right to write memory.
            let mut world = World::new(Rights::Read);
            world.requester.set_payload_max(payload_max);
            world.faults = faults;
            for round in 0..10 {
                for len in [4, 1_024, 1_025, 2_048, 2_049, 5_000, 60_000, CALL_BYTES_MAX - 1, CALL_BYTES_MAX]
                {
                    world.answer_after_ns = Some(if round == 3 { 2 * EFFECT_LIFE_NS } else { 1_000 });
                    check_input(&mut world, len);
                }
            }
        }
    }
}

#[test]
fn an_input_takes_as_few_packets_as_possible() {
    let mut world = World::new(Rights::Read);
    check_input(&mut world, 4);
    assert_eq!(check_input(&mut world, PAYLOAD_BYTES_FIRST), 1);
    assert_eq!(check_input(&mut world, 5 * PAYLOAD_BYTES_FIRST), 5);
    world.requester.set_payload_max(PAYLOAD_BYTES_MAX);
    assert_eq!(check_input(&mut world, PAYLOAD_BYTES_MAX), 1);
    assert_eq!(check_input(&mut world, 5 * PAYLOAD_BYTES_MAX), 5);
}

/// Posts a call of `len` bytes, and lets time pass until the responder has reserved memory for it and parts are under way.
fn begin(world: &mut World, len: usize) {
    world.requester.post(1, Work::Call { bytes: long_input(len) }).unwrap();
    while world.sent.iter().all(|packet| packet[0] != 0xcf) {
        assert!(world.step());
    }
}

/// No copy of a part, and none of the call, may complete it later.
#[test]
fn a_call_is_not_executed_if_a_part_of_its_input_never_arrives() {
    let mut world = World::new(Rights::Read);
    check_input(&mut world, 4);
    begin(&mut world, CALL_BYTES_MAX);
    let begin_ns = world.now_ns;
    // The path loses all parts, but nothing else.
    (world.faulty, world.faults.lost) = (Some(0xcf), 100);
    let outcome = loop {
        let has_progress = world.step();
        if let Some(done) = world.requester.poll_done() {
            break done.outcome;
        }
        assert!(has_progress);
    };
    assert_eq!(outcome, Outcome::MaybeDone);
    assert!(world.now_ns < begin_ns + 3_000_000_000, "{} ns", world.now_ns - begin_ns);
    while world.step() {}
    assert!(world.received.is_empty());
    world.now_ns += 4 * EFFECT_LIFE_NS;
    world.responder.sweep(world.now_ns);
    assert_eq!(world.responder.sweep_ns(), None, "the responder forgets the input");
    world.faults.lost = 0;
    check_input(&mut world, CALL_BYTES_MAX);
}

#[test]
fn inputs_of_silent_requesters_take_room_for_two_to_three_times_t_only() {
    let mut world = World::new(Rights::Read);
    check_input(&mut world, 4);
    let begin_call = |world: &mut World, client: u32| {
        let grant = world.responder.grant(address(), Qpn::new(client), KEY, Rights::Read);
        let mut requester = Requester::new(grant, 1);
        requester.post(1, Work::Call { bytes: vec![1; CALL_BYTES_MAX] }).unwrap();
        let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
        let len = requester.poll_transmit(world.now_ns, &world.clock, &mut buffer).expect("a packet");
        let body = buffer[..len - ICRC_BYTES].to_vec();
        world.responder.handle_packet(world.now_ns, address(), &body, &world.memory, &mut buffer);
    };
    // Inputs have 16 MiB.
    let count = (16 << 20) / CALL_BYTES_MAX as u32;
    (0..count).for_each(|client| begin_call(&mut world, 10 + client));
    assert_eq!(world.responder.counters().busy, 0);
    begin_call(&mut world, 10 + count);
    assert_eq!(world.responder.counters().busy, 1);
    // A requester has one call at a time, so its next one takes the room of the last.
    begin_call(&mut world, 10);
    assert_eq!(world.responder.counters().busy, 1);
    check_input(&mut world, PAYLOAD_BYTES_FIRST);
    world.now_ns += 2 * EFFECT_LIFE_NS;
    check_input(&mut world, CALL_BYTES_MAX);
}

#[test]
fn a_requester_that_is_cut_off_has_no_input_any_more() {
    let mut world = World::new(Rights::Read);
    check_input(&mut world, 4);
    begin(&mut world, CALL_BYTES_MAX);
    world.responder.cut_off(address(), Qpn::new(5)).unwrap();
    world.responder.readmit(address(), Qpn::new(5));
    while world.step() {}
    // It may have been executed, as far as the requester knows.
    let is_maybe_done = world.requester.poll_done().is_some_and(|done| done.outcome == Outcome::MaybeDone);
    assert!(is_maybe_done && world.received.is_empty());
}

#[test]
fn the_room_of_an_input_is_free_when_the_process_has_it() {
    let mut world = World::new(Rights::Read);
    // The answers must not fill the record.
    world.answer_after_ns = Some(2_000_000);
    check_input(&mut world, 4);
    for _ in 0..2 * (16 << 20) / CALL_BYTES_MAX {
        check_input(&mut world, CALL_BYTES_MAX);
    }
}

/// A part is given up, but the answer shows that the call has all its input.
#[test]
fn a_call_whose_answer_arrives_after_an_interruption_ends() {
    for (lost_ms, answered_ms) in [(90, 80), (130, 120), (140, 100), (150, 130), (155, 150)] {
        let mut world = World::new(Rights::Read);
        check_input(&mut world, 4);
        world.answer_after_ns = Some(answered_ms * 1_000_000);
        // The requester does not learn that the parts have arrived.
        (world.faulty, world.faults.lost) = (Some(0xe1), 100);
        begin(&mut world, 5_000);
        world.faults.lost = 0;
        world.answers_lost_until_ns = world.now_ns + lost_ms * 1_000_000;
        while world.step() {}
        let outcome = world.requester.poll_done().map(|done| done.outcome);
        assert!(outcome == Some(answer_to(&long_input(5_000))), "{lost_ms} and {answered_ms} ms");
    }
}

/// A bystander can repeat a packet without a key.
#[test]
fn a_repeated_call_does_not_keep_an_input() {
    let mut world = World::new(Rights::Read);
    check_input(&mut world, 4);
    begin(&mut world, CALL_BYTES_MAX);
    let call = world.sent.iter().rfind(|packet| packet[0] == 0xec).unwrap().clone();
    world.to_responder.clear();
    let mut answer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    for _ in 0..20 {
        world.now_ns += EFFECT_LIFE_NS / 2;
        world.responder.handle_packet(world.now_ns, address(), &call, &world.memory, &mut answer);
    }
    assert_eq!(world.responder.sweep_ns(), None, "the responder has no input any more");
}
