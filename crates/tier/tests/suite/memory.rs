//! Memory operations: commands that travel to the owners of memory, and their fate when nodes die or regions change
//! midway.

use crate::common;
use common::*;
use fastrand::Rng;
use halite_fabric::PeerId;
use halite_tier::access::{Blocked, CopySide, RegionOffset, SlotRef, Step};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::{NodeId, RequestId};
use halite_tier::layout::{Extent, Extents};
use halite_tier::message::{CopySegment, ErrorReply, Message, RegionCommand, Request, decode, encode};
use proptest::prelude::*;

fn at(slot: SlotRef, offset: u64) -> RegionOffset {
    RegionOffset { slot, offset }
}

/// Fills like a session: directly where reachable, otherwise by commands.
fn fill(c: &mut Cluster, host: usize, to: RegionOffset, len: u64, byte: u8) {
    let (mut to, mut len) = (to, len);
    while len > 0 {
        let (path, session) = (c.hosts[host].path.clone(), c.hosts[host].session);
        let step = match path.fill(session, to, len, byte) {
            Ok(step) => step,
            Err(Blocked::Post { .. }) => stepped(c.command(host, Command::Fill { at: to, len, byte })),
            Err(blocked) => panic!("the fill is blocked: {blocked:?}"),
        };
        (to.offset, len) = (to.offset + step.len, len - step.len);
    }
}

fn stepped(outcome: Result<Outcome, CommandError>) -> Step {
    match outcome {
        Ok(Outcome::Stepped(step)) => step,
        other => panic!("expected a step, not {other:?}"),
    }
}

/// Copies likewise, in single steps chosen by `picks`.
fn copy(
    c: &mut Cluster,
    host: usize,
    to: RegionOffset,
    from: RegionOffset,
    len: u64,
    picks: &mut dyn FnMut() -> u64,
) {
    let (mut to, mut from, mut len) = (to, from, len);
    while len > 0 {
        let (path, session) = (c.hosts[host].path.clone(), c.hosts[host].session);
        let step = match path.copy(session, to, from, len) {
            Ok(step) => step,
            Err((_, Blocked::Post { .. })) => {
                let op = c.submit(host, Command::Copy { to, from, len });
                while !c.has_ended(host, op) {
                    c.step_one(picks());
                }
                stepped(c.outcome(host, op).unwrap())
            }
            Err(blocked) => panic!("the copy is blocked: {blocked:?}"),
        };
        if !step.backward {
            (to.offset, from.offset) = (to.offset + step.len, from.offset + step.len);
        }
        len -= step.len;
    }
}

/// A fill of a whole region on node 1, requested by node 2, started but not done.
fn slow_fill(c: &mut Cluster, lh: SlotRef, len: u64) -> OpId {
    c.slow_to_copy = true;
    let op = c.submit(2, Command::Fill { at: at(lh, 0), len, byte: 7 });
    c.run();
    assert!(c.copies_under_way() == 1 && !c.has_ended(2, op));
    op
}

/// Three nodes that post to each other, and a region on node 1: its handles at node 0, which made it, and at node 2.
fn posted(len: u64) -> (Cluster, SlotRef, SlotRef) {
    let mut c = Cluster::reaching(3, true);
    let master = c.alloc(0, "salt", len, Placement::On(NodeId(1)));
    let lh = c.map(2, "salt");
    (c, master, lh)
}

fn broken(side: CopySide, node: u32) -> Result<Outcome, CommandError> {
    Err(CommandError::Broken { side, refusal: ErrorReply::PeerDown(NodeId(node)) })
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
fn unmaps_wait_for_commands_in_flight() {
    let mut c = Cluster::reaching(3, true);
    // No other node maps it: the region ends with this handle.
    let command = allocation(None, CHUNK_BYTES, Placement::On(NodeId(1)));
    let lh = slot(c.command(2, command));
    slow_fill(&mut c, lh, CHUNK_BYTES);
    let unmapping = c.submit(2, Command::Unmap(lh));
    c.run();
    assert!(!c.has_ended(2, unmapping));
    assert_eq!(c.memory(1).0, CHUNK_BYTES);
    c.finish_copies();
    c.run();
    assert_eq!(c.outcome(2, unmapping), Some(Ok(Outcome::Done)));
    assert_eq!(c.memory(1).0, 0);
}

#[test]
fn moves_wait_for_commands_in_flight() {
    let (mut c, master, lh) = posted(2 * CHUNK_BYTES);
    let filling = slow_fill(&mut c, lh, CHUNK_BYTES);
    let moving = c.submit(0, Command::RegionCommand(master, RegionCommand::Move { to: NodeId(0) }));
    c.run();
    assert_eq!(c.copies_under_way(), 1, "the chunk is not copied to its new place yet");
    // It is frozen for later clients.
    let late = c.submit(2, Command::Fill { at: at(lh, 0), len: CHUNK_BYTES, byte: 9 });
    let changing = CommandError::Access { side: CopySide::Target, blocked: Blocked::Changing };
    assert_eq!(c.outcome(2, late), None);
    c.run();
    assert_eq!(c.outcome(2, late), Some(Err(changing)));
    c.slow_to_copy = false;
    c.finish_copies();
    c.run();
    assert!(matches!(c.outcome(2, filling), Some(Ok(_))));
    assert_eq!(c.outcome(0, moving), Some(Ok(Outcome::Done)));
    fill(&mut c, 2, at(lh, CHUNK_BYTES), 1, 9);
    let mut expected = vec![7; CHUNK_BYTES as usize];
    expected.push(9);
    assert_eq!(c.peek(0, master)[..expected.len()], expected);
}

#[test]
fn commands_fail_when_their_owner_dies() {
    let (mut c, _, lh) = posted(CHUNK_BYTES);
    let filling = slow_fill(&mut c, lh, CHUNK_BYTES);
    let unmapping = c.submit(2, Command::Unmap(lh));
    c.kill(1);
    c.run();
    assert_eq!(c.outcome(2, filling), Some(broken(CopySide::Target, 1)));
    assert_eq!(c.outcome(2, unmapping), Some(Ok(Outcome::Done)));
}

#[test]
fn copies_name_a_dead_source() {
    let (mut c, _, lh) = posted(CHUNK_BYTES);
    let from = c.alloc(2, "pepper", CHUNK_BYTES, Placement::On(NodeId(0)));
    c.slow_to_copy = true;
    let op = c.submit(2, Command::Copy { to: at(lh, 0), from: at(from, 0), len: CHUNK_BYTES });
    c.run();
    assert_eq!(c.copies_under_way(), 1);
    c.kill(0);
    c.finish_copies();
    c.run();
    assert_eq!(c.outcome(2, op), Some(broken(CopySide::Source, 0)));
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

/// Sends a request of node 2 to node 1.
fn send_request(c: &mut Cluster, body: Request) {
    let mut frame = vec![1];
    frame.extend(encode(&Message::Request { id: RequestId(1 << 40), body }));
    let now_ns = c.now_ns;
    c.hosts[1].engine.handle_message(now_ns, PeerId(3), &frame);
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
    let heir = c.alloc(1, "heir", CHUNK_BYTES, Placement::Local);
    assert_eq!(c.extents(1, heir), place);
    send_request(&mut c, late);
    c.run();
    assert_eq!(c.peek(1, heir), vec![0; CHUNK_BYTES as usize]);
}

#[test]
fn malformed_commands_change_nothing() {
    let (mut c, master, lh) = posted(CHUNK_BYTES);
    let other = c.alloc(1, "other", CHUNK_BYTES, Placement::Local);
    fill(&mut c, 2, at(lh, 0), CHUNK_BYTES, 5);
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

/// The nodes that hold a region's chunks in turn, and its length.
fn any_region() -> impl Strategy<Value = (Vec<u32>, u64)> {
    let nodes = prop::sample::subsequence(vec![0u32, 1, 2], 1..=3).prop_shuffle();
    (nodes, 1..8 * CHUNK_BYTES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn copies_match_an_array_model(
        regions in [any_region(), any_region()], posted: bool, host in 0usize..3, seed: u64,
        copies in prop::collection::vec((0usize..2, 0usize..2, any::<[u16; 3]>()), 1..6),
    ) {
        let mut c = Cluster::reaching(3, posted);
        let mut random = Rng::with_seed(seed);
        let mut pick = || random.u64(..);
        let mut models = Vec::new();
        for (index, (nodes, len)) in regions.iter().enumerate() {
            let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
            let lh = c.alloc(host, &format!("region {index}"), *len, Placement::Spread(nodes));
            models.push((lh, vec![0u8; *len as usize]));
        }
        for (lh, model) in &mut models {
            // Stripes of odd widths, each by a command of its own.
            let mut from = 0;
            while from < model.len() {
                let len = (pick() as usize % 5000 + 1).min(model.len() - from);
                let byte = pick() as u8;
                fill(&mut c, host, at(*lh, from as u64), len as u64, byte);
                model[from..from + len].fill(byte);
                from += len;
            }
        }
        for (source, target, [from, to, len]) in copies {
            let bytes = models[source].1.clone();
            let (from, to) = (from as usize % bytes.len(), to as usize % models[target].1.len());
            let len = len as usize % (bytes.len() - from).min(models[target].1.len() - to).max(1);
            let ends = (at(models[target].0, to as u64), at(models[source].0, from as u64));
            copy(&mut c, host, ends.0, ends.1, len as u64, &mut pick);
            models[target].1[to..to + len].copy_from_slice(&bytes[from..from + len]);
            for (lh, model) in &models {
                prop_assert!(c.peek(host, *lh) == *model);
            }
        }
    }
}
