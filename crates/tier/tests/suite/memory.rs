//! Memory operations: commands that travel to the owners of memory, and their fate when nodes die or regions change
//! midway.

use crate::common;
use common::*;
use halite_tier::access::{RegionOffset, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::{NodeId, RequestId};
use halite_tier::layout::{Extent, Extents};
use halite_tier::message::{CopySegment, ErrorReply, Message, RegionCommand, Request, decode};

fn at(slot: SlotRef, offset: u64) -> RegionOffset {
    RegionOffset { slot, offset }
}

/// Starts a fill of a whole region on node 1, requested by node 2, that ends when the test finishes copies.
fn slow_fill(c: &mut Cluster, lh: SlotRef, len: u64) -> OpId {
    c.slow_to_copy = true;
    let op = c.submit(2, Command::Fill { at: at(lh, 0), len, byte: 7 });
    c.run();
    assert!(c.copies_under_way() == 1 && !c.has_ended(2, op));
    op
}

/// Returns three nodes that post to each other, and handles to a region on node 1: of node 0, which allocated it, and
/// of node 2.
fn posted(len: u64) -> (Cluster, SlotRef, SlotRef) {
    let mut c = Cluster::reaching(3, true);
    let master = c.alloc(0, "salt", len, Placement::On(NodeId(1)));
    let lh = c.map(2, "salt");
    (c, master, lh)
}

#[test]
fn frees_wait_for_commands_in_flight() {
    let (mut c, master, lh) = posted(CHUNK_BYTES);
    let filling = slow_fill(&mut c, lh, CHUNK_BYTES);
    let freeing = c.submit(0, Command::RegionCommand(master, RegionCommand::Free));
    c.run();
    assert!(!c.has_ended(0, freeing), "a mapper's command is in flight");
    c.finish_copies();
    c.run();
    assert!(matches!(c.outcome(2, filling), Some(Ok(Outcome::Stepped(_)))));
    assert_eq!(c.outcome(0, freeing), Some(Ok(Outcome::Done)));
}

#[test]
fn memory_of_running_commands_stays_reserved() {
    // Two segments, and so two steps.
    let len = ARENA_BYTES / 2;
    let (mut c, master, lh) = posted(len);
    slow_fill(&mut c, lh, len);
    c.kill(2);
    c.run();
    let freed = c.submit(0, Command::RegionCommand(master, RegionCommand::Free));
    c.run();
    assert!(!c.has_ended(0, freed), "the current step writes to it");
    assert_eq!(c.memory(1).0, len);
    // The rest is too little for this.
    let other = allocation(None, ARENA_BYTES - len + CHUNK_BYTES, Placement::On(NodeId(1)));
    let refused = c.command(0, other.clone());
    assert!(matches!(refused, Err(CommandError::Refused(ErrorReply::NoSpace { .. }))), "{refused:?}");
    c.finish_copies();
    c.run();
    assert_eq!(c.copies_under_way(), 0, "no further step is wanted");
    assert_eq!((c.outcome(0, freed), c.memory(1).0), (Some(Ok(Outcome::Done)), 0));
    let other = slot(c.command(0, other));
    c.slow_to_copy = false;
    assert!(c.peek(0, other).iter().all(|byte| *byte == 0));
}

#[test]
fn no_space_error_reports_the_largest_free_piece() {
    let mut c = Cluster::reaching(2, true);
    let piece = ARENA_BYTES / 8;
    let held: Vec<SlotRef> =
        (0..8).map(|_| slot(c.command(0, allocation(None, piece, Placement::On(NodeId(1)))))).collect();
    for lh in held.iter().step_by(2) {
        c.command(0, Command::RegionCommand(*lh, RegionCommand::Free)).unwrap();
    }
    let Command::Alloc { name, placement, everyone, populate, .. } =
        allocation(None, 2 * piece, Placement::On(NodeId(1)))
    else {
        unreachable!()
    };
    let whole =
        Command::Alloc { name, len: 2 * piece, chunk_bytes: 2 * piece, placement, everyone, populate };
    let refused = ErrorReply::NoSpace { wanted: 2 * piece, available: 4 * piece, largest: piece };
    assert_eq!(c.command(0, whole), Err(CommandError::Refused(refused)));
}

/// Sends a request of node 2 to node 1.
fn send_request(c: &mut Cluster, body: Request) {
    c.forge(2, 1, &Message::Request { id: RequestId(1 << 40), body });
}

/// Node 2's request to node 1 for a fill of a region's first bytes.
fn request_for(c: &mut Cluster, lh: SlotRef) -> Request {
    c.held = vec![(2, 1)];
    c.submit(2, Command::Fill { at: at(lh, 0), len: CHUNK_BYTES, byte: 7 });
    c.run();
    let frames: Vec<u8> = c.wires[&(2, 1)].iter().flat_map(|frame| frame[1..].to_vec()).collect();
    match decode(&frames) {
        Ok(Message::Request { body, .. }) => body,
        other => panic!("expected a request, not {other:?}"),
    }
}

#[test]
fn late_commands_change_no_reused_memory() {
    let (mut c, master, lh) = posted(CHUNK_BYTES);
    let place = c.extents(0, master);
    let late = request_for(&mut c, lh);
    c.held.clear();
    c.run();
    assert_eq!(c.peek(0, master), vec![7; CHUNK_BYTES as usize]);
    assert_eq!(c.command(0, Command::RegionCommand(master, RegionCommand::Free)), Ok(Outcome::Done));
    let next = c.alloc(1, "next", CHUNK_BYTES, Placement::Local);
    assert_eq!(c.extents(1, next), place);
    send_request(&mut c, late);
    c.run();
    assert_eq!(c.peek(1, next), vec![0; CHUNK_BYTES as usize]);
}

#[test]
fn malformed_commands_change_nothing() {
    let (mut c, master, lh) = posted(CHUNK_BYTES);
    let other = c.alloc(1, "other", CHUNK_BYTES, Placement::Local);
    assert!(c.command(2, Command::Fill { at: at(lh, 0), len: CHUNK_BYTES, byte: 5 }).is_ok());
    let Request::FillBytes { region, parts, .. } = request_for(&mut c, lh) else { panic!("expected a fill") };
    c.wires.clear();
    c.held.clear();
    let good = parts[0];
    let bad = [
        Extent { len: good.len + 1, ..good },
        Extent { offset: u64::MAX, ..good },
        Extent { len: 0, ..good },
        Extent { owner: c.hosts[0].incarnation, ..good },
        c.extents(1, other)[0],
    ];
    for to in bad {
        send_request(&mut c, Request::FillBytes { region, parts: Extents::from_slice(&[to]), byte: 1 });
        let copy_segments = vec![CopySegment { from: good, to }];
        send_request(&mut c, Request::CopyBytes { to: region, from: region, copy_segments, backward: true });
    }
    let from = Extent { offset: u64::MAX, owner: c.hosts[0].incarnation, ..good };
    let copy_segments = vec![CopySegment { from, to: good }];
    send_request(&mut c, Request::CopyBytes { to: region, from: region, copy_segments, backward: false });
    c.run();
    assert_eq!(c.peek(0, master), vec![5; CHUNK_BYTES as usize]);
    assert_eq!(c.peek(1, other), vec![0; CHUNK_BYTES as usize]);
}
