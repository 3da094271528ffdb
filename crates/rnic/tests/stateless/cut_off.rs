//! A requester that is cut off has no effect any more, while others go on.

use super::*;

const OTHER: Qpn = Qpn::new(6);

/// Executes a write of another requester at the same address.
fn write_of_another(world: &mut World, bytes: &[u8]) {
    let grant = world.responder.grant(address(), OTHER, KEY, Rights::ReadWrite);
    let mut requester = Requester::new(grant, world.now_ns);
    requester.post(1, Work::Write { address: 128, bytes: bytes.to_vec() }).unwrap();
    let (mut buffer, mut answer) =
        ([0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX], [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX]);
    while let Some(len) = requester.poll_transmit(world.now_ns, &world.clock, &mut buffer) {
        let body = &buffer[..len - ICRC_BYTES];
        let len = world.responder.handle_packet(world.now_ns, address(), body, &world.memory, &mut answer);
        let body = &answer[..len.expect("an answer") - ICRC_BYTES];
        requester.handle_packet(world.now_ns, &mut world.clock, body, &world.theirs);
    }
    assert_eq!(requester.poll_done().map(|done| done.outcome), Some(Outcome::Success(Vec::new())));
}

/// The memory that it named is reused at once.
#[test]
fn a_delayed_write_of_a_cut_off_requester_has_no_effect() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(64, b"salt"), Outcome::Success(Vec::new()));
    world.requester.post(1, Work::Write { address: 64, bytes: b"late".to_vec() }).unwrap();
    world.next_delay_ns = Some(EFFECT_LIFE_NS / 2);
    while world.to_responder.is_empty() {
        assert!(world.step());
    }
    world.responder.cut_off(address(), Qpn::new(5)).unwrap();
    world.memory.0.borrow_mut()[64..69].copy_from_slice(b"reuse");
    write_of_another(&mut world, b"bread");
    while world.step() {}
    assert_eq!(world.requester.poll_done().map(|done| done.outcome), Some(Outcome::MaybeDone));
    assert_eq!(&world.memory.0.borrow()[64..69], b"reuse");
    assert_eq!(&world.memory.0.borrow()[128..133], b"bread");
    let counters = world.responder.counters();
    assert!(counters.cut_off > 1 && counters.forged == 0, "{counters:?}");
    // After it is readmitted, only its new requests have an effect.
    assert!(world.responder.readmit(address(), Qpn::new(5)));
    assert!(!world.responder.readmit(address(), Qpn::new(5)));
    for copy in world.sent.clone() {
        world.deliver(&copy);
    }
    assert_eq!(&world.memory.0.borrow()[64..69], b"reuse");
    assert_eq!(world.write(64, b"again"), Outcome::Success(Vec::new()));
    assert_eq!(&world.memory.0.borrow()[64..69], b"again");
}

#[test]
fn orders_and_calls_of_a_cut_off_requester_end() {
    let mut world = World::new(Rights::ReadWrite);
    world.answer_after_ns = None;
    let kinds = [(OrderKind::Read, 8), (OrderKind::Write, 8), (OrderKind::Read, 3_000)];
    world.requester.post(1, Work::Call { bytes: b"salt".to_vec() }).unwrap();
    let call = loop {
        assert!(world.step());
        if let Some(message) = world.responder.poll_message() {
            break message.id;
        }
    };
    for (kind, len) in kinds {
        world.begin(Order { kind, local: 64, remote: 0, remote_key: KEY, len });
    }
    let of_another = Order { kind: OrderKind::Read, local: 0, remote: 0, remote_key: KEY, len: 8 };
    let target = Target { qpn: OTHER, ..target() };
    world.responder.order(world.now_ns, target, of_another, &world.memory).unwrap();
    assert!(world.step());
    assert_eq!((world.orders_sent.len(), world.to_requester.len()), (4, 0), "the orders have arrived");
    world.responder.cut_off(address(), Qpn::new(5)).unwrap();
    let ends: Vec<_> = std::iter::from_fn(|| world.responder.poll_order()).map(|done| done.outcome).collect();
    assert_eq!((ends, world.responder.orders()), (vec![OrderOutcome::MaybeDone; 3], 1));
    let mut buffer = [0; OVERHEAD_BYTES + PAYLOAD_BYTES_MAX];
    let answered = world.responder.answer(world.now_ns, call, b"bread", &mut buffer);
    assert_eq!(answered, Err(AnswerError::Unknown));
    while world.step() {}
    assert!(world.memory.0.borrow().iter().all(|byte| *byte == 0), "no order wrote anything");
}

#[test]
fn as_many_requesters_as_the_list_has_room_for_are_cut_off() {
    let mut world = World::new(Rights::ReadWrite);
    for qpn in 0..4_096 {
        assert_eq!(world.responder.cut_off(address(), Qpn::new(qpn)), Ok(()));
    }
    assert_eq!(world.responder.cut_off(address(), Qpn::new(4_096)), Err(CutOffFull));
    assert_eq!(world.responder.cut_off(address(), Qpn::new(0)), Ok(()), "it is listed already");
    assert!(world.responder.readmit(address(), Qpn::new(0)));
    assert_eq!(world.responder.cut_off(address(), Qpn::new(4_096)), Ok(()));
}

#[test]
fn a_call_in_progress_is_not_executed_again_after_readmission() {
    // With a longer T, the repeated call has not expired.
    for (len, life_ns) in [(4, 1), (3 * PAYLOAD_BYTES_FIRST, 1), (4, 20), (3 * PAYLOAD_BYTES_FIRST, 20)] {
        let mut world = World::new(Rights::Read);
        world.responder = Responder::with_effect_life(1, [9; 32], life_ns * EFFECT_LIFE_NS);
        let grant = world.responder.grant(address(), Qpn::new(5), KEY, Rights::Read);
        world.requester = Requester::new(grant, 1);
        world.answer_after_ns = Some(1_000_000_000);
        world.requester.post(1, Work::Call { bytes: kinds::long_input(len) }).unwrap();
        while world.received.is_empty() {
            assert!(world.step());
        }
        // The requester learns that its call is in progress.
        let begin_ns = world.now_ns;
        while world.now_ns < begin_ns + EFFECT_LIFE_NS / 5 {
            assert!(world.step());
        }
        world.calls.clear();
        world.responder.cut_off(address(), Qpn::new(5)).unwrap();
        world.responder.readmit(address(), Qpn::new(5));
        while world.step() {}
        let is_maybe_done =
            world.requester.poll_done().is_some_and(|done| done.outcome == Outcome::MaybeDone);
        assert!(is_maybe_done && world.received.len() == 1, "{len} bytes, T of {life_ns}");
    }
}
