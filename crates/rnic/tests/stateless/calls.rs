//! Calls with answers of more than one packet.

use super::*;

/// Executes a call with an answer of `len` bytes, and checks the answer. Returns the number of packets of the requester.
#[track_caller]
fn check_answer(world: &mut World, len: usize) -> usize {
    world.answer_bytes_min = len;
    let before = world.sent.len();
    let answer = world.call(b"salt");
    assert!(answer == Outcome::Success(answer_bytes(b"salt", len)), "{len} bytes");
    world.sent.len() - before
}

#[test]
fn answers_of_all_lengths_arrive_once_despite_packet_faults() {
    for faults in [Faults::default(), Faults { lost: 10, repeated: 10, late: 10 }] {
        // The requester needs no right to read memory.
        let mut world = World::new(Rights::Write);
        world.faults = faults;
        for round in 0..20 {
            for len in [4, 1_023, 1_025, 2_048, 5_000, 60_000, CALL_BYTES_MAX] {
                world.answer_after_ns = Some(if round == 3 { 2 * EFFECT_LIFE_NS } else { 1_000 });
                check_answer(&mut world, len);
                assert_eq!(std::mem::take(&mut world.received), [b"salt"]);
            }
        }
    }
}

#[test]
fn an_answer_of_one_packet_is_not_fetched() {
    let mut world = World::new(Rights::Read);
    check_answer(&mut world, 4);
    assert_eq!(check_answer(&mut world, PAYLOAD_BYTES_FIRST), 1);
    // The packet with the length of the answer has its first bytes.
    assert_eq!(check_answer(&mut world, PAYLOAD_BYTES_FIRST + 1), 2);
    assert_eq!(check_answer(&mut world, 5 * PAYLOAD_BYTES_FIRST), 5);
}

/// The record would forget it before all of it has arrived.
#[test]
fn an_answer_is_kept_while_it_is_fetched() {
    let mut world = World::new(Rights::Read);
    world.delay_ns = EFFECT_LIFE_NS / 2 - 1_000_000;
    check_answer(&mut world, 4);
    let begin_ns = world.now_ns;
    check_answer(&mut world, CALL_BYTES_MAX);
    assert!(world.now_ns > begin_ns + 4 * EFFECT_LIFE_NS, "{} ns", world.now_ns - begin_ns);
}

#[test]
fn an_answer_that_is_not_fetched_in_time_costs_nothing() {
    let mut world = World::new(Rights::Read);
    check_answer(&mut world, 4);
    world.answer_bytes_min = CALL_BYTES_MAX;
    world.requester.post(1, Work::Call { bytes: b"salt".to_vec() }).unwrap();
    while world.received.len() < 2 {
        assert!(world.step());
    }
    world.requests_lost_until_ns = world.now_ns + 5 * EFFECT_LIFE_NS;
    while world.now_ns < world.requests_lost_until_ns {
        assert!(world.step());
    }
    world.responder.sweep(world.now_ns);
    assert_eq!((world.responder.recorded(), world.responder.sweep_ns()), (0, None));
    while world.step() {}
    assert_eq!(world.requester.poll_done().map(|done| done.outcome), Some(Outcome::MaybeDone));
    assert_eq!(world.received.len(), 2, "the call was executed once");
}

/// Sends a call of the requester with this queue pair. Returns the id of its message.
fn call_of(world: &mut World, qpn: u32) -> u64 {
    let grant = world.responder.grant(address(), Qpn::new(qpn), KEY, Rights::Read);
    let mut requester = Requester::new(grant, 1);
    requester.post(1, Work::Call { bytes: b"salt".to_vec() }).unwrap();
    let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    let len = requester.poll_transmit(world.now_ns, &world.clock, &mut buffer).expect("a packet");
    let body = buffer[..len - ICRC_BYTES].to_vec();
    let answer = world.responder.handle_packet(world.now_ns, address(), &body, &world.memory, &mut buffer);
    assert_eq!(answer, None, "the process will answer");
    world.responder.poll_message().expect("a call").id
}

#[test]
fn long_answers_wait_while_the_record_is_full() {
    let mut world = World::new(Rights::Read);
    check_answer(&mut world, 4);
    let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    // The record of one interval has 16 MiB.
    let calls: Vec<u64> =
        (0..=(16 << 20) / CALL_BYTES_MAX as u32).map(|client| call_of(&mut world, 10 + client)).collect();
    let (last, others) = calls.split_last().unwrap();
    for call in others {
        let answer = vec![7; CALL_BYTES_MAX];
        assert!(world.responder.answer(world.now_ns, *call, &answer, &mut buffer).is_ok());
    }
    let long = [7; PAYLOAD_BYTES_FIRST + 1];
    assert_eq!(world.responder.answer(world.now_ns, *last, &long, &mut buffer), Err(AnswerError::Busy));
    world.now_ns += 2 * EFFECT_LIFE_NS;
    assert!(world.responder.answer(world.now_ns, *last, &long, &mut buffer).is_ok());
}
