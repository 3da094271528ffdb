//! Orders: requests of the responder that a requester executes.

use super::*;

/// Length of a transfer that does not fit into one packet.
const LONG: usize = PAYLOAD_BYTES_FIRST + 1;

fn order(kind: OrderKind, local: usize, remote: usize, len: usize) -> Order {
    Order { kind, local: local as u64, remote: remote as u64, remote_key: KEY, len: len as u32 }
}

/// Orders transfers at random, between requests of the requester, and compares both memories with a model.
#[track_caller]
fn check_orders(faults: Faults) {
    let mut world = World::new(Rights::ReadWrite);
    world.faults = faults;
    let mut ours = world.memory.0.borrow().clone();
    let mut theirs = world.theirs.0.borrow().clone();
    for round in 0..200u8 {
        let len = world.below(3 * PAYLOAD_BYTES_FIRST as u64) as usize;
        let local = world.below((MEMORY_BYTES - len) as u64) as usize;
        let remote = world.below((MEMORY_BYTES - len) as u64) as usize;
        let kind = if round % 2 == 0 { OrderKind::Read } else { OrderKind::Write };
        match kind {
            OrderKind::Read => ours[local..local + len].copy_from_slice(&theirs[remote..remote + len]),
            OrderKind::Write => theirs[remote..remote + len].copy_from_slice(&ours[local..local + len]),
        }
        assert_eq!(world.order(order(kind, local, remote, len)), OrderOutcome::Success, "round {round}");
        ours[0] = round;
        assert_eq!(world.write(0, &[round]), Outcome::Success(Vec::new()));
    }
    assert!(*world.memory.0.borrow() == ours && *world.theirs.0.borrow() == theirs);
}

#[test]
fn orders_are_executed_once_despite_packet_faults() {
    check_orders(Faults::default());
    check_orders(Faults { lost: 10, ..Faults::default() });
    check_orders(Faults { lost: 5, repeated: 10, late: 10 });
}

#[test]
fn replayed_order_has_no_effect() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.order(order(OrderKind::Read, 64, 0, 8)), OrderOutcome::Success);
    let copies = world.orders_sent.clone();
    assert_eq!(world.write(64, b"later..."), Outcome::Success(Vec::new()));
    for after_ns in [0, EFFECT_LIFE_NS / 2, EFFECT_LIFE_NS, 3 * EFFECT_LIFE_NS] {
        world.now_ns += after_ns;
        for copy in &copies {
            world.to_requester.push((world.now_ns, copy.clone()));
        }
        while world.step() {}
        assert_eq!(&world.memory.0.borrow()[64..72], b"later...", "after {after_ns} ns");
        assert_eq!(world.responder.poll_order(), None);
    }
}

/// The responder repeats the WQEP until the end of the order arrives, so that a copy may be younger than T long after this
/// end, and arrive after the ends of other orders.
#[test]
fn an_order_whose_end_arrived_late_is_executed_once() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(64, b"before.."), Outcome::Success(Vec::new()));
    world.begin(order(OrderKind::Read, 64, 0, LONG));
    let is_executed = |world: &World| world.memory.0.borrow()[64..72] == world.theirs.0.borrow()[..8];
    while !is_executed(&world) {
        assert!(world.step());
    }
    // Requests, and so the end of the order, are lost for a while.
    world.requests_lost_until_ns = world.now_ns + 150_000_000;
    while world.orders_sent.len() < 2 || world.now_ns < world.requests_lost_until_ns {
        assert!(world.step());
    }
    while world.responder.poll_order().is_none() {
        assert!(world.step());
    }
    // The last WQEP arrives twice; another order ends meanwhile.
    let copy = world.orders_sent.last().unwrap().clone();
    let sent_ns = u64::from_be_bytes(copy[20..28].try_into().unwrap());
    while world.responder.orders() > 0 || world.requester.outstanding() > 0 {
        assert!(world.step());
    }
    world.now_ns += 1_000_000;
    assert_eq!(world.order(order(OrderKind::Read, 4 * LONG, 0, LONG)), OrderOutcome::Success);
    world.memory.0.borrow_mut()[64..72].copy_from_slice(b"later...");
    world.now_ns = world.now_ns.max(sent_ns + EFFECT_LIFE_NS - 1_000_000);
    world.to_requester.push((world.now_ns, copy));
    while world.step() {}
    assert_eq!(&world.memory.0.borrow()[64..72], b"later...");
}

/// The process may reuse the memory of an order T after its unknown outcome.
#[test]
fn an_order_has_no_effect_later_than_t_after_its_unknown_outcome() {
    for (kind, len) in
        [(OrderKind::Read, 8), (OrderKind::Write, 8), (OrderKind::Read, LONG), (OrderKind::Write, LONG)]
    {
        let mut world = World::new(Rights::ReadWrite);
        assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
        for at in [0, 4 * LONG] {
            world.begin(order(kind, at, at, len));
        }
        // Both orders arrive, and then nothing for longer than the responder waits.
        world.requests_lost_until_ns = world.now_ns + 2_500_000_000;
        while world.orders_sent.len() < 2 || !world.to_requester.is_empty() {
            assert!(world.step());
        }
        world.answers_lost_until_ns = world.requests_lost_until_ns;
        let mut ended = 0;
        while ended < 2 {
            assert!(world.step());
            let ends = std::iter::from_fn(|| world.responder.poll_order());
            ended += ends.inspect(|done| assert_eq!(done.outcome, OrderOutcome::MaybeDone)).count();
        }
        let end_ns = world.now_ns;
        assert!(end_ns < world.requests_lost_until_ns);
        while world.now_ns < end_ns + EFFECT_LIFE_NS {
            assert!(world.step());
        }
        let before = (world.memory.0.borrow().clone(), world.theirs.0.borrow().clone());
        while world.step() {}
        assert!(
            *world.memory.0.borrow() == before.0 && *world.theirs.0.borrow() == before.1,
            "{kind:?} {len}"
        );
    }
}

/// A transfer that takes longer than the responder's first wait continues after each WQEP.
#[test]
fn a_slow_order_is_executed() {
    for kind in [OrderKind::Read, OrderKind::Write] {
        let mut world = World::new(Rights::ReadWrite);
        world.delay_ns = 10_000_000;
        world.faults.lost = 5;
        assert_eq!(world.order(order(kind, 0, 256, 60_000)), OrderOutcome::Success, "{kind:?}");
        world.requests_lost_until_ns = world.now_ns + 1_000_000_000;
        world.answers_lost_until_ns = world.requests_lost_until_ns;
        assert_eq!(world.order(order(kind, 0, 256, 8)), OrderOutcome::Success, "{kind:?}");
    }
}

#[test]
fn an_order_whose_end_was_lost_is_not_repeated_in_a_new_epoch() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.write(64, b"before.."), Outcome::Success(Vec::new()));
    // After the WQEP, RD and RDA, the CQEP is lost.
    world.chosen = Some((3, Vec::new()));
    world.begin(order(OrderKind::Read, 64, 0, LONG));
    while world.chosen.is_some() {
        assert!(world.step());
    }
    assert_eq!(world.memory.0.borrow()[64..72], world.theirs.0.borrow()[..8], "the order was executed");
    world.responder.raise_epoch([3; 32]);
    let grant = world.responder.grant(address(), Qpn::new(5), KEY, Rights::ReadWrite);
    world.requester.regrant(grant);
    assert_eq!(world.write(64, b"later..."), Outcome::Success(Vec::new()));
    while world.step() {}
    assert_eq!(&world.memory.0.borrow()[64..72], b"later...");
    let end = world.responder.poll_order().map(|done| done.outcome);
    assert_eq!((end, world.responder.poll_order()), (Some(OrderOutcome::MaybeDone), None));
}

#[test]
fn an_order_for_other_memory_is_refused() {
    let mut world = World::new(Rights::ReadWrite);
    for kind in [OrderKind::Read, OrderKind::Write] {
        assert_eq!(world.order(order(kind, 0, MEMORY_BYTES - 2, 4)), OrderOutcome::Refused, "theirs");
        assert_eq!(world.order(order(kind, MEMORY_BYTES - 2, 0, 4)), OrderOutcome::Refused, "ours");
        assert_eq!(world.order(Order { remote_key: 9, ..order(kind, 0, 0, 4) }), OrderOutcome::Refused);
        // The transfer's length makes no difference for the rights.
        let rights = if kind == OrderKind::Read { Rights::Read } else { Rights::Write };
        for len in [4, LONG] {
            let target = Target { rights, ..target() };
            world.responder.order(world.now_ns, target, order(kind, 0, 0, len), &world.memory).unwrap();
            let end = world.responder.poll_order().map(|done| done.outcome);
            assert_eq!(end, Some(OrderOutcome::Refused), "{kind:?} of {len} B");
        }
    }
}

#[test]
fn a_short_order_takes_three_packets() {
    for kind in [OrderKind::Read, OrderKind::Write] {
        let mut world = World::new(Rights::ReadWrite);
        assert_eq!(world.write(0, b"salt"), Outcome::Success(Vec::new()));
        let before = (world.sent.len(), world.orders_sent.len());
        let order = order(kind, 64, 4096, PAYLOAD_BYTES_FIRST);
        assert_eq!(world.order(order), OrderOutcome::Success);
        // The third is the answer to the end, the only packet of the requester.
        let packets = (world.sent.len() - before.0, world.orders_sent.len() - before.1);
        assert_eq!(packets, (1, 1), "{kind:?}");
        let here = world.memory.0.borrow()[64..][..PAYLOAD_BYTES_FIRST].to_vec();
        assert!(here == world.theirs.0.borrow()[4096..][..PAYLOAD_BYTES_FIRST], "{kind:?}");
    }
}

/// The responder reads the bytes once, so copies of the order cannot differ.
#[test]
fn a_repeated_short_order_carries_the_same_bytes() {
    let mut world = World::new(Rights::ReadWrite);
    world.memory.0.borrow_mut()[64..72].copy_from_slice(b"in order");
    world.chosen = Some((0, Vec::new()));
    world.begin(order(OrderKind::Write, 64, 0, 8));
    world.memory.0.borrow_mut()[64..72].copy_from_slice(b"later...");
    while world.step() {}
    assert_eq!(world.orders_sent.len(), 2);
    assert_eq!(&world.theirs.0.borrow()[..8], b"in order");
}

/// Returns the end of the first order of a responder with the same secret, for a read of `len` bytes.
fn end_of_another_order(len: usize) -> Vec<u8> {
    let mut other = World::new(Rights::ReadWrite);
    assert_eq!(other.order(order(OrderKind::Read, 0, 0, len)), OrderOutcome::Success);
    other.sent.pop().unwrap()
}

#[test]
fn the_end_of_a_short_read_with_other_bytes_than_ordered_writes_nothing() {
    for len in [0, 7, 9, PAYLOAD_BYTES_FIRST, LONG] {
        let mut world = World::new(Rights::ReadWrite);
        world.begin(order(OrderKind::Read, 64, 0, 8));
        let end = end_of_another_order(len);
        world.deliver(&end);
        assert!(world.memory.0.borrow().iter().all(|byte| *byte == 0), "{len} bytes");
        assert_eq!(world.responder.poll_order().map(|done| done.outcome), Some(OrderOutcome::MaybeDone));
    }
    // Nor does one with bytes that were not ordered.
    for other in [order(OrderKind::Write, 64, 0, 8), order(OrderKind::Read, 64, 0, LONG)] {
        let mut world = World::new(Rights::ReadWrite);
        world.begin(other);
        world.deliver(&end_of_another_order(8));
        assert!(world.memory.0.borrow().iter().all(|byte| *byte == 0));
        assert_eq!(world.responder.poll_order().map(|done| done.outcome), Some(OrderOutcome::MaybeDone));
    }
}

#[test]
fn the_end_of_a_short_read_is_written_only_while_its_requester_has_the_order() {
    let end = end_of_another_order(8);
    // The order is one of another queue pair.
    let mut world = World::new(Rights::ReadWrite);
    let target = Target { qpn: Qpn::new(6), ..target() };
    world.responder.order(world.now_ns, target, order(OrderKind::Read, 64, 0, 8), &world.memory).unwrap();
    world.deliver(&end);
    assert_eq!((world.responder.poll_order(), world.memory.word(64)), (None, 0));
    // The responder has given the order up, and the memory has another use.
    let mut world = World::new(Rights::ReadWrite);
    world.faults.lost = 100;
    assert_eq!(world.order(order(OrderKind::Read, 64, 0, 8)), OrderOutcome::MaybeDone);
    world.deliver(&end);
    assert_eq!((world.responder.poll_order(), world.memory.word(64)), (None, 0));
    // The key was withdrawn.
    let mut world = World::new(Rights::ReadWrite);
    world.begin(order(OrderKind::Read, 64, 0, 8));
    world.memory.1 = Some(KEY + 1);
    world.deliver(&end);
    assert_eq!(world.responder.poll_order().map(|done| done.outcome), Some(OrderOutcome::Refused));
    assert_eq!(world.memory.word(64), 0);
}

#[test]
fn an_order_for_a_silent_requester_ends() {
    let mut world = World::new(Rights::ReadWrite);
    world.faults.lost = 100;
    assert_eq!(world.order(order(OrderKind::Read, 0, 0, 4)), OrderOutcome::MaybeDone);
}

#[test]
fn forged_orders_have_no_effect() {
    let mut world = World::new(Rights::ReadWrite);
    assert_eq!(world.order(order(OrderKind::Write, 0, 64, 8)), OrderOutcome::Success);
    let before = world.theirs.0.borrow().clone();
    let copy = world.orders_sent[0].clone();
    for byte in (0..copy.len()).filter(|byte| *byte == 0 || (5..8).contains(byte) || *byte >= 12) {
        let mut other = copy.clone();
        other[byte] ^= 1;
        world.to_requester.push((world.now_ns, other));
        world.to_requester.push((world.now_ns, copy[..byte].to_vec()));
    }
    while world.step() {}
    assert!(*world.theirs.0.borrow() == before);
}
