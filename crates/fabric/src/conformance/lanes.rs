//! Cases about lanes: a lane keeps the order of its requests, and does not wait for another lane.

use std::collections::BTreeMap;

use super::node::{Pair, SEGMENT_BYTES, bytes_of, quiet, request};
use super::{Harness, skip};
use crate::{Class, Event, Lane, Local, Operation, PostCause, Status};

const SMALL: Lane = Lane::FIRST;
const LONG: Lane = Lane { number: 1, class: Class::Bulk, flow: 0 };

/// Returns true if the provider has two lanes; otherwise prints that the case is skipped.
fn has_two_lanes(pair: &Pair<'_>) -> bool {
    let has_two_lanes = pair.one.fabric.capabilities(pair.to_two).lanes > 1;
    if !has_two_lanes {
        skip("the provider has a single lane");
    }
    has_two_lanes
}

/// Returns a write of the whole segment.
fn long(pair: &Pair<'_>) -> Operation<'static> {
    Operation::Write { local: pair.local(0, SEGMENT_BYTES), remote: pair.at(0) }
}

/// Expects that the requests of each lane take effect and complete in order, even if lanes share one queue.
pub fn each_lane_keeps_its_order(harness: &dyn Harness) {
    const EACH: u32 = 20;
    let mut pair = Pair::new(harness);
    let lanes = [SMALL, LONG, Lane { number: 255, class: Class::Bulk, flow: 0 }];
    let lane_count = pair.one.fabric.capabilities(pair.to_two).lanes;
    for number in 0..EACH {
        for lane in lanes {
            let imm = u32::from(lane.number) << 16 | number;
            let at = u64::from(lane.number) * 8;
            let number = u64::from(number).to_le_bytes();
            let write = Operation::Write { local: Local::Inline(&number), remote: pair.at(at) };
            let send = Operation::Send { bytes: b"", imm };
            pair.one.post_in(pair.to_two, lane, &[quiet(0, write), request(imm.into(), send)]);
        }
    }
    let mut received = BTreeMap::new();
    let mut ended = BTreeMap::new();
    let check_next = |last: &mut BTreeMap<usize, u32>, imm: u32, lane: u32| {
        let order = Lane { number: lane as u8, class: Class::Bulk, flow: 0 }.order_among(lane_count);
        assert!(last.get(&order).is_none_or(|before| before & 0xffff <= imm & 0xffff), "lane {lane}: {imm}");
        last.insert(order, imm);
    };
    for _ in 0..EACH * lanes.len() as u32 {
        let (_, imm) = pair.two.received();
        let written = pair
            .target
            .1
            .load_u64(u64::from(imm >> 16) * 8)
            .expect("the word is aligned and within the segment");
        assert!(written >= u64::from(imm & 0xffff), "the message arrived before the write that precedes it");
        check_next(&mut received, imm, imm >> 16);
        let (id, status) = pair.one.ended();
        assert_eq!(status, Status::Success);
        check_next(&mut ended, id as u32, id as u32 >> 16);
    }
    pair.one.expect_nothing();
    pair.two.expect_nothing();
}

/// Expects that a small request posted after a long write completes after the write in the same lane, and before the
/// write in another lane.
pub fn small_requests_overtake_only_other_lanes(harness: &dyn Harness) {
    if harness.moves_by_itself() {
        return skip("the long request may complete before the small one is posted");
    }
    let mut pair = Pair::new(harness);
    let has_two_lanes = has_two_lanes(&pair);
    pair.source.1.fill(0, SEGMENT_BYTES, 7).expect("the range lies within the segment");
    let send = |imm| Operation::Send { bytes: b"small", imm };
    pair.one.post_in(pair.to_two, LONG, &[request(1, long(&pair)), request(2, send(2))]);
    pair.one.post_in(pair.to_two, SMALL, &[request(3, send(3))]);
    let order = if has_two_lanes { [3, 2] } else { [2, 3] };
    let last = SEGMENT_BYTES - 1;
    for imm in order {
        assert_eq!(pair.two.received(), (b"small".to_vec(), imm));
        let is_behind = !has_two_lanes || imm == 2;
        let is_written = bytes_of(&pair.target.1, last, 1) == [7];
        assert_eq!(is_written, is_behind, "when message {imm} arrived");
    }
    let ended: Vec<u64> = (0..3).map(|_| pair.one.ended().0).collect();
    assert_eq!(ended, if has_two_lanes { [3, 1, 2] } else { [1, 2, 3] });
    pair.one.expect_nothing();
}

/// Expects that a request whose completion was polled takes effect before any later request, even in another lane.
pub fn completed_work_precedes_later_posts_in_any_lane(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    for (round, [first, then]) in (1..).zip([[LONG, SMALL], [SMALL, LONG]]) {
        pair.source.1.fill(0, SEGMENT_BYTES, round).expect("the range lies within the segment");
        pair.one.post_in(pair.to_two, first, &[request(1, long(&pair))]);
        assert_eq!(pair.one.ended(), (1, Status::Success));
        let message = Operation::Send { bytes: b"done", imm: 0 };
        pair.one.post_in(pair.to_two, then, &[quiet(2, message)]);
        assert_eq!(pair.two.received().0, b"done");
        let bytes = bytes_of(&pair.target.1, 0, SEGMENT_BYTES as usize);
        assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
    }
}

/// Expects that the other lane accepts requests while the queue of one lane is full, and that a `Room` event follows
/// for the full lane.
pub fn a_full_lane_blocks_no_other(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    if !has_two_lanes(&pair) {
        return;
    }
    let refused = (0..100_000).find_map(|_| {
        let write = quiet(0, Operation::Write { local: pair.local(0, 60_000), remote: pair.at(0) });
        pair.one.fabric.post(pair.to_two, LONG, &[write]).err()
    });
    assert_eq!(refused.map(|error| error.cause), Some(PostCause::QueueFull));
    pair.one.post_in(pair.to_two, SMALL, &[request(1, Operation::Send { bytes: b"through", imm: 0 })]);
    assert_eq!(pair.two.received().0, b"through");
    let events = [pair.one.event(), pair.one.event()];
    let room = Event::Room { peer: pair.to_two };
    assert_eq!(events.iter().filter(|event| **event == room).count(), 1, "{events:?}");
    pair.one.post_in(pair.to_two, LONG, &[request(2, Operation::Send { bytes: b"at last", imm: 0 })]);
    assert_eq!(pair.one.ended(), (2, Status::Success));
    assert_eq!(pair.two.received().0, b"at last");
    pair.one.expect_nothing();
}

/// Expects that if a request of either lane ends the connection, the outstanding requests of both lanes complete before
/// the disconnection.
pub fn a_connection_ends_with_all_of_its_lanes(harness: &dyn Harness) {
    if harness.moves_by_itself() {
        return skip("the connection may end before all requests are posted");
    }
    for (round, broken_in) in [SMALL, LONG].into_iter().enumerate() {
        let names = [format!("one-{round}"), format!("two-{round}")];
        let mut pair = Pair::between(harness, [&names[0], &names[1]]);
        let unknown = crate::RemoteAddress { key: crate::Key(77), offset: 0 };
        let wrong = Operation::Write { local: Local::Inline(b"nowhere"), remote: unknown };
        let numbers = 0..30;
        for id in numbers.clone() {
            let lane = if id % 2 == 0 { SMALL } else { LONG };
            let write = Operation::Write { local: pair.local(0, 60_000), remote: pair.at(0) };
            pair.one.post_in(pair.to_two, lane, &[request(id, write)]);
            if id == 9 {
                pair.one.post_in(pair.to_two, broken_in, &[request(100, wrong)]);
            }
        }
        if !harness.refusal_ends_connection() {
            pair.two.fabric.disconnect(pair.to_one);
        }
        let (mut ended, end) = pair.one.ended_until_end();
        assert_eq!(end, Event::Disconnected { peer: pair.to_two });
        let refused = ended.remove(&100).expect("the refused request has completed");
        assert!(!harness.refusal_ends_connection() || refused == Status::RemoteAccess, "{refused:?}");
        assert_eq!(ended.into_keys().collect::<Vec<_>>(), numbers.collect::<Vec<_>>());
        assert_eq!(pair.one.event(), Event::CutOff { peer: pair.to_two, exited: false });
        let late = Operation::Send { bytes: b"", imm: 0 };
        for lane in [SMALL, LONG] {
            let refused = pair
                .one
                .fabric
                .post(pair.to_two, lane, &[request(1, late)])
                .expect_err("the peer is disconnected");
            assert_eq!(refused.cause, PostCause::NotConnected);
        }
        pair.one.expect_nothing();
    }
}
