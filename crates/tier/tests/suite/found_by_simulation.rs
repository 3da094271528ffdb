//! Named scenarios that simulated clusters found in the engine: see `docs/found-by-simulation.md`.

use crate::common;

use common::*;
use halite_fabric::PeerId;
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::{Command, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, RegionCommand};
use halite_tier::permissions::Permissions;

fn begin_to_move(c: &mut Cluster, host: usize, slot: SlotRef, to: u32) -> OpId {
    let moving = c.submit(host, Command::RegionCommand(slot, RegionCommand::Move { to: NodeId(to) }));
    c.run();
    moving
}

/// Past bug: the home freed the region before the directory had released the name, so another node found the name
/// taken.
#[test]
fn names_are_free_when_free_returns() {
    let mut c = Cluster::of(3);
    let lh = c.alloc(2, "salt", CHUNK_BYTES, Placement::Local);
    c.held = vec![(2, 0)];
    let freeing = c.submit(2, Command::RegionCommand(lh, RegionCommand::Free));
    c.run();
    assert!(!c.has_ended(2, freeing), "the directory has not released the name");
    c.held = vec![];
    c.run();
    assert_eq!(c.outcome(2, freeing), Some(Ok(Outcome::Done)));
    c.alloc(0, "salt", CHUNK_BYTES, Placement::Local);
}

/// Past bug: a new handle was the first with the region's new place, and the pending updates of older handles were
/// dropped.
#[test]
fn new_handles_at_the_end_of_a_move_keep_old_ones_valid() {
    let mut c = Cluster::of(3);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    let early = c.map(2, "salt");
    c.slow_to_copy = true;
    begin_to_move(&mut c, 1, home, 0);
    assert_eq!(c.copies_under_way(), 1, "the last chunk is frozen and being copied");
    // A thread at the mapper is in the middle of another access, so its handles wait.
    let path = c.hosts[2].path.clone();
    let pin = path.pins().pin();
    c.finish_copies();
    c.run();
    let late =
        c.submit(2, Command::Map { name: "salt".into(), wanted: Permissions::READ | Permissions::WRITE });
    drop(pin);
    c.run();
    let late = slot(c.outcome(2, late).expect("the region is where it goes"));
    let there = c.map(0, "salt");
    assert_eq!(c.extents(2, early), c.extents(0, there), "commands go where the region is");
    c.write(2, late, 0, b"pepper");
    let (host, mut seen) = (&c.hosts[2], [0; 6]);
    assert_eq!(host.path.read(host.session, early, 0, &mut seen), Ok(6), "and so do accesses");
    assert_eq!(&seen, b"pepper");
}

/// Two nodes lose contact, and no other node learns of it.
fn lose_contact(c: &mut Cluster, a: usize, b: usize) {
    c.kills = false;
    c.lose(a, b, false);
    c.lose(b, a, false);
    c.run();
}

/// Past bug: an owner reused the chunks of a home that it could not reach, while the home let new nodes map the region.
#[test]
fn chunks_of_an_unreachable_home_stay_held() {
    let mut c = Cluster::of(2);
    let wide = c.alloc(0, "wide", 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(0), NodeId(1)]));
    c.write(0, wide, CHUNK_BYTES, b"pepper");
    lose_contact(&mut c, 0, 1);
    assert_eq!(c.memory(1), (CHUNK_BYTES, 0), "the owner keeps its chunk");
    let newcomer = c.add(2, ARENA_BYTES);
    let lh = c.map(newcomer, "wide");
    let (host, mut seen) = (&c.hosts[newcomer], [0; 6]);
    assert_eq!(host.path.read(host.session, lh, CHUNK_BYTES, &mut seen), Ok(6));
    assert_eq!(&seen, b"pepper");
    let (host, mut seen) = (&c.hosts[0], [0; 6]);
    let there = host.path.read(host.session, wide, CHUNK_BYTES, &mut seen);
    assert_eq!(there, Err(Blocked::Down(c.hosts[1].incarnation)), "the home cannot reach it");
}

/// Past bug: a restarted node was asked to copy into memory of its former incarnation, and refused the request as
/// malformed.
#[test]
fn moves_to_a_restarted_node_fail() {
    let mut c = Cluster::of(4);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    c.write(1, home, 0, b"salt");
    c.map(3, "salt");
    // The mapper's acknowledgement of the freeze is late.
    c.held = vec![(3, 1)];
    let moving = begin_to_move(&mut c, 1, home, 2);
    c.kill(2);
    c.add(2, ARENA_BYTES);
    assert!(!c.has_ended(1, moving), "the copy waits for the mapper");
    c.held = vec![];
    c.run();
    assert_eq!(c.outcome(1, moving), Some(Err(ErrorReply::PeerDown(NodeId(2)).into())));
    assert_eq!(c.read(1, home, 0, 4), b"salt");
}

/// As above, but all chunks are copied. The restarted node must not adopt a region whose bytes ended with its former
/// incarnation.
#[test]
fn regions_are_not_handed_to_a_restarted_node() {
    let mut c = Cluster::of(4);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    c.map(3, "salt");
    c.slow_to_copy = true;
    let moving = begin_to_move(&mut c, 1, home, 2);
    // The mapper's acknowledgement of the new place is late.
    c.held = vec![(3, 1)];
    c.finish_copies();
    c.run();
    c.kill(2);
    c.add(2, ARENA_BYTES);
    assert!(!c.has_ended(1, moving), "the handover waits for all mappers");
    c.held = vec![];
    c.run();
    assert_eq!(c.outcome(1, moving), Some(Err(ErrorReply::PeerDown(NodeId(2)).into())));
    assert_eq!(
        c.command(1, Command::RegionCommand(home, RegionCommand::Free)),
        Ok(Outcome::Done),
        "the home stays"
    );
}

/// Past bug: the next home was silent and declared dead when the request to adopt arrived. When it resumed, the region
/// had two homes, each of which lacked some mappers.
#[test]
fn unanswered_handovers_leave_one_home() {
    let mut c = Cluster::of(4);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    c.write(1, home, 0, b"salt");
    c.slow_to_copy = true;
    let moving = begin_to_move(&mut c, 1, home, 2);
    c.held = vec![(1, 2)];
    c.finish_copies();
    c.run();
    assert!(!c.has_ended(1, moving), "the next home has not answered");
    c.kills = false;
    c.lose(1, 2, false);
    c.run();
    assert_eq!(c.outcome(1, moving), Some(Err(ErrorReply::PeerDown(NodeId(2)).into())));
    c.held = vec![];
    c.run();
    let there = c.map(0, "salt");
    assert_eq!(c.read(0, there, 0, 4), b"salt", "it was handed over");
    assert_eq!(
        c.command(1, Command::RegionCommand(home, RegionCommand::Free)),
        Err(ErrorReply::PeerDown(NodeId(2)).into()),
        "the former home does not free it"
    );
}

/// Only the next home has lost contact with a mapper when it adopts the region. The lost contact is no acknowledgement:
/// the mapper may still write.
#[test]
fn handed_over_memory_waits_for_lost_mappers() {
    let mut c = Cluster::of(4);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    c.map(3, "salt");
    c.kills = false;
    c.slow_to_copy = true;
    let moving = begin_to_move(&mut c, 1, home, 2);
    c.held = vec![(3, 1)];
    c.finish_copies();
    c.run();
    c.held = vec![(1, 2)];
    c.run();
    assert!(!c.has_ended(1, moving), "the handover is in flight, its mapper alive for the sender");
    let lost = PeerId(3 + 1);
    c.hosts[2].engine.handle_disconnected(c.now_ns, lost, None);
    c.held = vec![];
    c.run();
    assert_eq!(c.outcome(1, moving), Some(Ok(Outcome::Done)));
    let freeing = c.submit(1, Command::RegionCommand(home, RegionCommand::Free));
    c.run();
    assert!(!c.has_ended(1, freeing), "the mapper is not cut off");
    assert_eq!(c.memory(2), (CHUNK_BYTES, 0));
    c.hosts[2].engine.handle_cut_off(c.now_ns, lost, true);
    c.run();
    assert_eq!(c.outcome(1, freeing), Some(Ok(Outcome::Done)));
    assert_eq!(c.memory(2), (0, 0));
}

/// Past bug: the directory answered once all nodes that had connected so far had reported their names, without the
/// names of a slower node.
#[test]
fn directories_answer_after_meeting_all_nodes() {
    let mut c = Cluster::of(3);
    c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    c.kill(0);
    c.run();
    c.hosts[1].running = false;
    let directory = c.add_late(0, ARENA_BYTES);
    c.hosts[directory].engine.begin_to_meet();
    c.run();
    let map = Command::Map { name: "salt".into(), wanted: Permissions::READ };
    let mapping = c.submit(2, map);
    c.run();
    assert!(!c.has_ended(2, mapping), "a node is not connected yet");
    c.hosts[1].running = true;
    c.connect(directory, 1);
    c.hosts[directory].engine.handle_all_met(c.now_ns);
    c.run();
    slot(c.outcome(2, mapping).expect("all have reported their names"));
}

/// Past bug: while the former home announced the move to the mappers, it let another node map the region, and did not
/// wait for that node's acknowledgement. The node's handle led to freed memory.
#[test]
fn maps_during_a_handover_reach_no_freed_memory() {
    let mut c = Cluster::of(4);
    let home = c.alloc(2, "salt", CHUNK_BYTES, Placement::Local);
    c.map(3, "salt");
    c.slow_to_copy = true;
    let moving = begin_to_move(&mut c, 2, home, 1);
    c.held = vec![(3, 2)];
    c.finish_copies();
    c.run();
    c.held = vec![(3, 2), (2, 0)];
    let map = Command::Map { name: "salt".into(), wanted: Permissions::READ };
    let mapping = c.submit(0, map);
    c.run();
    c.held = vec![(2, 0)];
    c.run();
    assert_eq!(c.outcome(2, moving), Some(Ok(Outcome::Done)));
    let freed = c.command(2, Command::RegionCommand(home, RegionCommand::Free));
    assert_eq!(freed, Ok(Outcome::Done));
    c.held = vec![];
    c.run();
    assert_eq!(c.outcome(0, mapping), Some(Err(ErrorReply::NotFound.into())));
}

/// As in `new_handles_at_the_end_of_a_move_keep_old_ones_valid`, but the region moves to its own home, which redirects
/// no mapper and answers map requests at once.
#[test]
fn new_handles_during_a_move_home_keep_old_ones_valid() {
    let mut c = Cluster::of(3);
    let spread = Placement::Spread([1, 2].map(NodeId).to_vec());
    let home = c.alloc(1, "salt", 2 * CHUNK_BYTES, spread);
    let early = c.map(0, "salt");
    c.slow_to_copy = true;
    begin_to_move(&mut c, 1, home, 1);
    assert_eq!(c.copies_under_way(), 1, "the last chunk is frozen and being copied");
    let path = c.hosts[0].path.clone();
    let pin = path.pins().pin();
    c.finish_copies();
    c.run();
    let late = c.map(0, "salt");
    drop(pin);
    c.run();
    let there = c.map(2, "salt");
    assert_eq!(c.extents(0, early), c.extents(2, there), "commands go where the region is");
    c.write(0, late, CHUNK_BYTES, b"pepper");
    let (host, mut seen) = (&c.hosts[0], [0; 6]);
    assert_eq!(host.path.read(host.session, early, CHUNK_BYTES, &mut seen), Ok(6), "and so do accesses");
    assert_eq!(&seen, b"pepper");
}

/// While the region's home is unknown, a request for its watchers fails like a map request.
#[test]
fn list_watchers_fails_while_the_home_is_unknown() {
    let mut c = Cluster::of(4);
    c.adapters = true;
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    let mapped = c.map(3, "salt");
    c.slow_to_copy = true;
    let moving = begin_to_move(&mut c, 1, home, 2);
    c.slow_to_copy = false;
    c.finish_copies();
    c.held = vec![(1, 2), (2, 3), (2, 0)];
    c.run();
    c.part(&[1], &[2]);
    c.held = vec![(1, 2)];
    c.sleep(3 * LEASE_NS);
    c.held.clear();
    assert_eq!(c.outcome(1, moving), Some(Err(ErrorReply::PeerDown(NodeId(2)).into())));
    let watch = Command::Watch { slot: mapped, port: 7 };
    for command in [Command::ListWatchers(mapped), watch] {
        assert_eq!(c.command(3, command), Err(ErrorReply::PeerDown(NodeId(2)).into()));
    }
}

/// Past bug: when the first incarnation ended, a node paired with the second, which was dead by then, before it
/// recorded the third. It then refused the third. The directory did not know the second, and so could not announce its
/// end.
#[test]
fn dead_incarnation_does_not_block_its_successor() {
    let mut c = Cluster::of(4);
    c.adapters = true;
    let crash = |c: &mut Cluster, host: usize| {
        c.stop(host);
        c.wires.retain(|(from, to), _| *from != host && *to != host);
    };
    crash(&mut c, 1);
    c.part(&[0], &[3]);
    c.sleep(2 * LEASE_NS);
    let second = c.add_unmet(1, ARENA_BYTES);
    c.connect(second, 3);
    c.run();
    assert!(c.hosts[3].engine.awaits_first_words(), "the number is in use");
    crash(&mut c, second);
    let third = c.add_unmet(1, ARENA_BYTES);
    c.connect(third, 0);
    c.run();
    c.cut.clear();
    c.sleep(2 * LEASE_NS);
    assert_eq!(c.hosts[3].engine.incarnation_of(NodeId(1)), Some(c.hosts[third].incarnation));
}

/// Past bug: a home that had claimed the name but did not have the region yet refused a map request. The refused node
/// reported that it did not map the region, just when its own allocation ended, so the home did not list it as a
/// mapper.
#[test]
fn mapper_refused_during_its_alloc_stays_listed() {
    let mut c = Cluster::of(4);
    c.held = vec![(3, 2)];
    let spread = Placement::Spread(vec![NodeId(2), NodeId(3)]);
    let allocation = c.submit(1, allocation(Some("salt"), 2 * CHUNK_BYTES, spread));
    c.run();
    c.held = vec![(3, 2), (2, 1)];
    let mapping = c.submit(1, Command::Map { name: "salt".into(), wanted: Permissions::READ });
    c.run();
    c.held = vec![(3, 2), (1, 2)];
    c.run();
    assert_eq!(c.outcome(1, mapping), Some(Err(ErrorReply::NotFound.into())));
    c.held = vec![(1, 2)];
    c.run();
    let lh = slot(c.outcome(1, allocation).expect("node 3 has reserved its chunk"));
    c.held.clear();
    c.run();
    assert_eq!(c.info(2, "salt").mappers, [NodeId(1)]);
    let other = c.map(0, "salt");
    c.command(1, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(0) })).expect("node 0 has room");
    assert_eq!(c.extents(1, lh), c.extents(0, other), "the handle goes where the region is");
}
