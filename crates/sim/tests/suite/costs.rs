//! What requests cost: each field of a profile shows in the time that a story takes.

use crate::common;

use std::time::Duration;

use common::{Pair, pair, pass, remote};
use halite_fabric::{
    Class, Fabric, Lane, Local, Operation, PeerId, RemoteAddress, Sleeper, Status, WorkId, WorkRequest,
};
use halite_sim::{Link, Profile};

/// Nothing costs anything but what a story sets.
fn free() -> Profile {
    Profile {
        post_ns: 0,
        doorbell_ns: 0,
        pcie_ns: 0,
        dma_ns_per_kib: 0,
        atomic_ns: 0,
        wire_ns: 1000,
        bandwidth_bytes_per_us: 1_000_000_000,
        header_bytes: 0,
        completion_ns: 0,
        poll_ns: 0,
        interrupt_ns: 0,
        ..Profile::rnic_100g()
    }
}

/// How long `operation` takes until its issuer polls its completion.
fn takes_ns(profile: Profile, operation: impl Fn(&Pair) -> Operation<'static>) -> u64 {
    let pair = pair(1, profile);
    let operation = operation(&pair);
    let begin_ns = pair.world.now_ns();
    pair.one.post(1, operation);
    loop {
        match pair.one.ended().first() {
            Some((1, Status::Success)) => return pair.world.now_ns() - begin_ns,
            Some(other) => panic!("{other:?}"),
            None => pass(&pair.world, 1),
        }
        assert!(pair.world.now_ns() < begin_ns + 10_000_000, "it never ends");
    }
}

fn target(pair: &Pair) -> RemoteAddress {
    remote(pair.two.key, 0)
}

fn small_write(pair: &Pair) -> Operation<'static> {
    Operation::Write { local: Local::Inline(b"12345678"), remote: target(pair) }
}

fn write(len: u64) -> impl Fn(&Pair) -> Operation<'static> {
    move |pair| Operation::Write { local: pair.one.source(len), remote: target(pair) }
}

fn read(len: u64) -> impl Fn(&Pair) -> Operation<'static> {
    move |pair| Operation::Read { local: pair.one.source(len), remote: target(pair) }
}

fn fetch_add(pair: &Pair) -> Operation<'static> {
    Operation::FetchAdd { remote: target(pair), add: 1 }
}

#[test]
fn without_other_costs_a_request_is_a_round_trip() {
    // A nanosecond is the least that sending eight bytes takes.
    let nearly = |ns: u64| (2000..2010).contains(&ns);
    assert!(nearly(takes_ns(free(), small_write)));
    assert!(nearly(takes_ns(free(), fetch_add)));
    assert!(nearly(takes_ns(free(), read(8))));
}

/// What `change` adds to the time of an operation.
#[track_caller]
fn check(
    change: impl Fn(Profile) -> Profile,
    operation: impl Fn(&Pair) -> Operation<'static>,
    expected_ns: u64,
) {
    let added = takes_ns(change(free()), &operation) - takes_ns(free(), &operation);
    assert_eq!(added, expected_ns);
}

#[test]
fn each_step_adds_its_cost() {
    check(|free| Profile { post_ns: 50, ..free }, small_write, 50);
    check(|free| Profile { doorbell_ns: 70, ..free }, small_write, 70);
    check(|free| Profile { completion_ns: 90, ..free }, small_write, 90);
    check(|free| Profile { interrupt_ns: 5000, ..free }, small_write, 5000);
    check(|free| Profile { atomic_ns: 110, ..free }, fetch_add, 110);
    // The doorbell, and at the target; a source is fetched, there and back; a read crosses at both ends.
    check(|free| Profile { pcie_ns: 100, ..free }, small_write, 200);
    check(|free| Profile { pcie_ns: 100, ..free }, write(8), 400);
    check(|free| Profile { pcie_ns: 100, ..free }, read(8), 500);
    // On either side.
    check(|free| Profile { dma_ns_per_kib: 80, ..free }, write(4096), 640);
    check(|free| Profile { dma_ns_per_kib: 80, ..free }, read(4096), 640);
}

#[test]
fn polling_is_cheaper_than_an_interrupt() {
    let polled_ns = |armed: bool| {
        let pair = pair(1, Profile { poll_ns: 30, interrupt_ns: 4000, ..free() });
        pair.one.fabric.arm(armed.then_some(Sleeper::Progress));
        pair.one.post(1, small_write(&pair));
        let begin_ns = pair.world.now_ns();
        while pair.one.ended().is_empty() {
            pass(&pair.world, 1);
        }
        pair.world.now_ns() - begin_ns
    };
    assert_eq!(polled_ns(true) - polled_ns(false), 3970);
}

#[test]
fn long_writes_take_as_long_as_their_bandwidth_says() {
    let slow = Profile { bandwidth_bytes_per_us: 1000, ..free() };
    let takes = takes_ns(slow.clone(), write(1 << 20));
    // Each packet has 16 bytes of a queue pair's own, the first says where to in 16 more, and the acknowledgement has 20.
    assert_eq!(takes, (1 << 20) + 256 * 16 + 16 + 20 + 2000);
    // Headers take their turn, one per packet and one for the acknowledgement.
    let takes_with = takes_ns(Profile { header_bytes: 100, ..slow }, write(1 << 20));
    assert_eq!(takes_with - takes, (256 + 1) * 100);
}

#[test]
fn connections_of_one_link_queue_for_it() {
    let Pair { world, one, two } = pair(1, Profile { bandwidth_bytes_per_us: 1000, ..free() });
    one.fabric.connect("two", b"again");
    pass(&world, 10_000);
    let second = one.connected();
    let request = |peer: PeerId, id| {
        let operation = Operation::Write { local: one.source(10_000), remote: remote(two.key, 0) };
        one.fabric
            .post(
                peer,
                Lane::FIRST,
                &[WorkRequest { id: WorkId(id), operation, signalled: true, solicited: true }],
            )
            .unwrap();
    };
    request(one.peer, 1);
    request(second, 2);
    pass(&world, 20_000);
    assert!(one.ended().is_empty(), "they share what one alone would need 10 us of");
    pass(&world, 3_000);
    assert_eq!(one.ended().len(), 2);
}

/// What is short goes together, or an acknowledgement, which comes last, would wait behind message after message.
#[test]
fn acknowledgements_do_not_wait_while_long_and_short_requests_take_turns() {
    // A packet takes 264 us, and a message is posted each 250.
    let slow = Profile { bandwidth_bytes_per_us: 16, ..Profile::rnic_100g() };
    let Pair { world, one, two } = &pair(1, slow);
    let bulk = Lane { number: 1, class: Class::Bulk };
    let write = Operation::Write { local: one.source(256 << 10), remote: remote(two.key, 0) };
    one.fabric.post(one.peer, bulk, &[common::request(0, write)]).unwrap();
    let mut newest = 0;
    for id in 1..30 {
        one.post(id, Operation::Send { bytes: b"beside it", imm: 0 });
        two.post(id, Operation::Send { bytes: b"towards it", imm: 0 });
        pass(world, 250_000);
        newest = two.ended().last().map_or(newest, |(ended, _)| *ended);
        assert!(newest + 3 >= id, "{id} was posted, and {newest} is the newest that is acknowledged");
    }
    assert_eq!(world.counters().retransmitted, 0);
}

#[test]
fn a_write_lands_in_pieces_and_in_order() {
    let pair = pair(1, Profile { bandwidth_bytes_per_us: 1000, mtu_bytes: 1024, ..free() });
    pair.post_long_write(7, 64 << 10);
    let mut seen = Vec::new();
    for _ in 0..64 {
        pass(&pair.world, 1024);
        seen.push(pair.two.landed(7, 1024));
    }
    assert!(seen.is_sorted(), "{seen:?}");
    seen.dedup();
    assert!(seen.len() > 60, "{seen:?}");
}

#[test]
fn a_source_is_read_when_its_packet_leaves_and_an_inline_one_when_it_is_posted() {
    let pair = pair(1, Profile { bandwidth_bytes_per_us: 1000, mtu_bytes: 1024, ..free() });
    let mut inline = *b"before";
    let local = Local::Inline(&inline);
    pair.one.post(2, Operation::Write { local, remote: remote(pair.two.key, 500_000) });
    inline.copy_from_slice(b"after!");
    pair.post_long_write(7, 10 << 10);
    pass(&pair.world, 5 << 10);
    pair.one.memory.fill(0, 10 << 10, 8).unwrap();
    pass(&pair.world, 100_000);
    let landed = pair.two.bytes(0, 10 << 10);
    assert_eq!((landed[0], landed[(10 << 10) - 1]), (7, 8));
    assert_eq!(pair.two.bytes(500_000, 6), b"before");
}

#[test]
fn the_profile_of_an_adapter_is_of_the_right_magnitude() {
    let idle = takes_ns(Profile::rnic_100g(), |pair| {
        pair.one.fabric.arm(None);
        small_write(pair)
    });
    assert!((1_500..2_500).contains(&idle), "{idle}");
    let long = takes_ns(Profile::rnic_100g(), write(1 << 20));
    let bytes_per_us = (1_000 << 20) / long;
    assert!((10_000..12_500).contains(&bytes_per_us), "{bytes_per_us}");
}

#[test]
fn a_round_trip_is_what_acknowledgements_take_and_follows_the_link() {
    let pair = pair(1, Profile::rnic_100g());
    let Pair { world, one, two } = &pair;
    let round_trip = || one.fabric.round_trip(one.peer);
    assert_eq!(round_trip(), None, "nothing was sent yet");
    let exchange = |count| {
        for _ in 0..count {
            one.post(1, small_write(&pair));
            pass(world, 100_000);
            one.ended();
        }
    };
    exchange(1);
    // There and back, into memory, and the completion behind it.
    let near = round_trip().expect("one was measured");
    assert!((1000..2000).contains(&near.as_nanos()), "{near:?}");
    pair.there(|link| Link { latency_ns: link.latency_ns + 10_000, ..link });
    exchange(1);
    let between = round_trip().expect("two were measured");
    assert!(between > near && between < near + Duration::from_nanos(2000), "{between:?}: it is smoothed");
    exchange(60);
    let far = round_trip().expect("many were measured");
    assert!(far > near + Duration::from_nanos(9900), "{far:?}");
    assert_eq!(two.fabric.round_trip(PeerId(77)), None);
    assert_eq!(one.fabric.heard(one.peer), None, "an adapter acknowledges, whatever its process does");
}

#[test]
fn a_process_that_acknowledges_was_heard_when_its_last_acknowledgement_came() {
    let pair = pair(1, Profile::roce_100g());
    let Pair { world, one, two } = &pair;
    let heard_us = |side: &common::Side| side.fabric.heard(side.peer).expect("it is connected").as_micros();
    pass(world, 1_000_000);
    assert!(heard_us(one) >= 1000 && heard_us(two) >= 1000);
    one.post(1, small_write(&pair));
    pass(world, 500_000);
    assert!((490..500).contains(&heard_us(one)) && (490..500).contains(&heard_us(two)));
    // Quietly, so that nobody is told, and it may be acknowledged half a millisecond later.
    let quiet = WorkRequest { signalled: false, ..common::request(2, small_write(&pair)) };
    one.fabric.post(one.peer, Lane::FIRST, &[quiet]).unwrap();
    pass(world, 600_000);
    assert!((90..100).contains(&heard_us(one)));
    world.pause(two.host);
    one.post(3, small_write(&pair));
    pass(world, 1_000_000);
    assert!(heard_us(one) >= 1090, "it stands still");
    world.resume(two.host);
    pass(world, 10_000);
    assert!(heard_us(one) < 10);
}
