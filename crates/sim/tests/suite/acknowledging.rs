//! Times of acknowledgements, and the time at which a peer was last heard.

use crate::common;

use common::{Pair, pair, remote, run_for};
use halite_fabric::{Class, Fabric, Lane, Local, Operation, WorkRequest};
use halite_sim::Profile;

fn small_write(pair: &Pair) -> Operation<'static> {
    Operation::Write { local: Local::Inline(b"12345678"), remote: remote(pair.two.key, 0) }
}

/// A queue pair sends several short packets in one turn. Otherwise an acknowledgement, which is sent last, would wait
/// behind one message after another.
#[test]
fn acknowledgements_do_not_wait_behind_bulk() {
    // A packet takes 264 us, and the test posts a message every 250 us.
    let slow = Profile { bandwidth_bytes_per_us: 16, ..Profile::rnic_100g() };
    let Pair { world, one, two } = &pair(1, slow);
    let bulk = Lane { number: 1, class: Class::Bulk, flow: 0 };
    let write = Operation::Write { local: one.source(256 << 10), remote: remote(two.key, 0) };
    one.fabric.post(one.peer, bulk, &[common::request(0, write)]).unwrap();
    let mut newest = 0;
    for id in 1..30 {
        one.post(id, Operation::Send { bytes: b"beside it", imm: 0 });
        two.post(id, Operation::Send { bytes: b"towards it", imm: 0 });
        run_for(world, 250_000);
        newest = two.completed().last().map_or(newest, |(ended, _)| *ended);
        assert!(newest + 3 >= id, "{id} was posted, and only {newest} is acknowledged");
    }
    // An overdue acknowledgement takes a turn of the link, and may delay one message for longer than its timeout.
    assert!(world.counters().retransmitted <= 1);
}

#[test]
fn an_acknowledgement_shows_that_its_peer_is_alive() {
    let pair = pair(1, Profile::roce_100g());
    let Pair { world, one, two } = &pair;
    let heard_us = |side: &common::Side| side.fabric.heard(side.peer).expect("it is connected").as_micros();
    run_for(world, 1_000_000);
    assert!(heard_us(one) >= 1000 && heard_us(two) >= 1000);
    one.post(1, small_write(&pair));
    run_for(world, 500_000);
    assert!((490..500).contains(&heard_us(one)) && (490..500).contains(&heard_us(two)));
    // No thread waits for this write, so its acknowledgement may be delayed by half a millisecond.
    let quiet = WorkRequest { signalled: false, ..common::request(2, small_write(&pair)) };
    one.fabric.post(one.peer, Lane::FIRST, &[quiet]).unwrap();
    run_for(world, 600_000);
    assert!((90..100).contains(&heard_us(one)));
    world.pause(two.host);
    one.post(3, small_write(&pair));
    run_for(world, 1_000_000);
    assert!(heard_us(one) >= 1090, "the peer is stopped");
    world.resume(two.host);
    run_for(world, 10_000);
    assert!(heard_us(one) < 10);
}
