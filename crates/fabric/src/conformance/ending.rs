//! Cases about the end of a connection and its outstanding requests.

use super::node::{Pair, SEGMENT_BYTES, bytes_of, quiet};
use super::{Harness, skip};
use crate::{CompletionKind, CutOff, Event, Local, Operation, PostCause, Status};

/// Expects that each end reports the other end as cut off, no matter which end disconnects.
pub fn disconnecting_cuts_both_ends_off(harness: &dyn Harness) {
    for one_disconnects in [true, false] {
        let names = [format!("one-{one_disconnects}"), format!("two-{one_disconnects}")];
        let mut pair = Pair::between(harness, [&names[0], &names[1]]);
        let (to_two, to_one) = (pair.to_two, pair.to_one);
        match one_disconnects {
            true => pair.one.fabric.disconnect(to_two),
            false => pair.two.fabric.disconnect(to_one),
        }
        pair.one.gone(to_two);
        pair.two.gone(to_one);
        for (node, peer) in [(&mut pair.one, to_two), (&mut pair.two, to_one)] {
            assert_eq!(node.fabric.cut_off(peer), CutOff::Done);
            let late = node.try_post(peer, &[quiet(1, Operation::Send { bytes: b"too late", imm: 0 })]);
            assert_eq!(late.expect_err("the peer is disconnected").cause, PostCause::NotConnected);
            node.expect_nothing();
        }
    }
}

/// Expects that bytes written before a close are in the peer's memory when the peer reports the disconnection.
pub fn posted_work_arrives_before_a_close(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    for imm in 0..20 {
        pair.one.send(pair.to_two, b"before close", imm);
    }
    let write = Operation::WriteImm { local: Local::Inline(b"last"), remote: pair.at(8), imm: 20 };
    pair.one.post(pair.to_two, 7, write);
    pair.one.fabric.close();
    for imm in 0..20 {
        assert_eq!(pair.two.received(), (b"before close".to_vec(), imm));
    }
    assert_eq!(pair.two.completion().kind, CompletionKind::Notified { imm: 20 });
    assert_eq!(bytes_of(&pair.target.1, 8, 4), b"last");
    pair.two.gone(pair.to_one);
    assert_eq!(pair.one.ended(), (7, Status::Success));
    pair.one.gone(pair.to_two);
    pair.one.expect_nothing();
    pair.two.expect_nothing();
}

/// Expects that a peer writes no byte after the fabric has reported the peer as cut off, although many writes are in
/// flight.
pub fn a_peer_that_is_cut_off_writes_nothing(harness: &dyn Harness) {
    let mut pair = Pair::new(harness);
    pair.source.1.fill(0, SEGMENT_BYTES, 7).expect("the range lies within the segment");
    let write = quiet(1, Operation::Write { local: pair.local(0, SEGMENT_BYTES), remote: pair.at(0) });
    pair.one.try_post(pair.to_two, &[write; 4]).expect("the requests fit the queue");
    match pair.two.fabric.cut_off(pair.to_one) {
        CutOff::NotPermitted => {
            skip("a process may not kill itself, so this fabric only disconnects");
            pair.two.fabric.disconnect(pair.to_one);
            pair.two.gone(pair.to_one);
        }
        CutOff::Done => {
            let after = bytes_of(&pair.target.1, 0, SEGMENT_BYTES as usize);
            pair.two.gone(pair.to_one);
            assert!(after == bytes_of(&pair.target.1, 0, SEGMENT_BYTES as usize));
        }
        CutOff::Started => {
            assert_eq!(pair.two.event(), Event::Disconnected { peer: pair.to_one });
            assert!(matches!(pair.two.event(), Event::CutOff { .. }));
        }
    }
    assert_eq!(pair.two.fabric.cut_off(pair.to_one), CutOff::Done);
    pair.target.1.fill(0, SEGMENT_BYTES, 1).expect("the range lies within the segment");
    let late = Operation::Write { local: Local::Inline(b"late"), remote: pair.at(0) };
    let _ = pair.one.try_post(pair.to_two, &[quiet(2, late)]);
    pair.two.expect_nothing();
    assert!(bytes_of(&pair.target.1, 0, SEGMENT_BYTES as usize).iter().all(|byte| *byte == 1));
}

/// Expects that the owner of a segment does not report a peer as cut off while the peer holds a window of the segment,
/// no matter which end closes its fabric.
pub fn a_held_window_delays_the_cut_off(harness: &dyn Harness) {
    for holder_leaves in [false, true] {
        let names = [format!("one-{holder_leaves}"), format!("two-{holder_leaves}")];
        let mut pair = Pair::between(harness, [&names[0], &names[1]]);
        let (to_two, to_one) = (pair.to_two, pair.to_one);
        let Some(held) = pair.one.fabric.direct(to_two, pair.target.0) else {
            return skip("loads and stores do not reach the memory of peers");
        };
        if holder_leaves {
            pair.one.fabric.close();
        } else {
            pair.two.fabric.close();
        }
        assert_eq!(pair.one.event(), Event::Disconnected { peer: to_two });
        assert!(pair.one.fabric.direct(to_two, pair.target.0).is_none(), "the connection has ended");
        held.write(0, b"late").expect("the range lies within the segment");
        assert_eq!(bytes_of(&pair.target.1, 0, 4), b"late");
        // The disconnection may be reported at once, or together with the cut-off.
        let mut events = pair.two.rest();
        assert!(events.is_empty() || events == [Event::Disconnected { peer: to_one }], "{events:?}");
        drop(held);
        while events.len() < 2 {
            events.push(pair.two.event());
        }
        let expected = [Event::Disconnected { peer: to_one }, Event::CutOff { peer: to_one, exited: false }];
        assert_eq!(events, expected);
        assert_eq!(pair.one.event(), Event::CutOff { peer: to_two, exited: false });
    }
}
