//! Named scenarios of past bugs, each found by an attempt to break the engine.

use crate::common;
use common::*;
use halite_fabric::Key;
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::*;
use halite_tier::ids::*;
use halite_tier::layout::{Extent, Extents};
use halite_tier::message::*;
use halite_tier::permissions::*;

/// A zombie mapped a region before the region's home died: the owner must keep the chunks.
#[test]
fn chunks_of_a_dead_home_are_quarantined_for_zombies() {
    let mut c = Cluster::of(3);
    // Node 3 (M) is the mapper that stops, 2 the home, 1 the owner of the chunks.
    let m = c.add(9, 0);
    c.alloc(0, "wide", 4 * CHUNK_BYTES, Placement::Spread(vec![NodeId(2), NodeId(1)]));
    c.map(m, "wide");
    c.kills = false; // Fence::Never
    c.stop(m);
    c.sleep(LEASE_NS * 2);
    c.kill(2); // the home dies, cleanly
    c.run();
    let (_, quarantined) = c.memory(1);
    assert_eq!(quarantined, 2 * CHUNK_BYTES, "the zombie can still write there");
}

/// An unmap notice that takes the detour over the former home arrives after a later map.
#[test]
fn late_unmap_notices_keep_new_mappings() {
    let mut c = Cluster::of(4);
    let lh = c.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(1)));
    let m = c.map(3, "salt");
    // The next home's Settle to 3 is late, so 3 still considers node 1 the home.
    c.held = vec![(2, 3)];
    assert_eq!(
        c.command(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(2) })),
        Ok(Outcome::Done)
    );
    // 3 unmaps: the notice goes to node 1, whose wire to 2 is slow.
    c.held = vec![(2, 3), (1, 2)];
    assert_eq!(c.command(3, Command::Unmap(m)), Ok(Outcome::Done));
    // 3 maps again: the directory names node 2.
    c.held = vec![(1, 2)];
    let again = c.map(3, "salt");
    c.held = vec![];
    c.run();
    // Node 3 must learn that the region was freed.
    assert_eq!(c.command(0, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
    let host = &c.hosts[3];
    let w = host.path.write(host.session, again, 0, b"STALE!");
    assert!(matches!(w, Err(Blocked::Stale)), "{w:?}");
}

/// Replies as node 1 to node 0's request for memory, with `extent`.
fn forge_reservation(c: &mut Cluster, extent: Extent) {
    let id = c.wires[&(0, 1)].iter().find_map(|frame| match decode(&frame[1..]) {
        Ok(Message::Request { id, body: Request::Reserve { .. } }) => Some(id),
        _ => None,
    });
    let reply = Reply::Reserved { extents: Extents::from_slice(&[extent]) };
    c.forge(1, 0, &Message::Reply { id: id.expect("memory was requested"), body: Ok(reply) });
    c.run();
}

/// A member replies with memory that is not its own, for a new region and for a region that moves.
#[test]
fn forged_reservations_do_no_harm() {
    let last = ARENA_BYTES / 4 / CHUNK_BYTES;
    for (key, chunk) in (0..last).map(|chunk| (Key(0), chunk)).chain([(Key(77), 0)]) {
        for moves in [false, true] {
            let mut c = Cluster::of(3);
            let victim = c.alloc(0, "victim", CHUNK_BYTES, Placement::Local);
            c.write(0, victim, 0, b"precious");
            let asked = match moves {
                true => {
                    let lh = c.alloc(0, "mover", CHUNK_BYTES, Placement::Local);
                    Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) })
                }
                false => {
                    allocation(Some("two"), 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(0), NodeId(1)]))
                }
            };
            let op = c.submit(0, asked);
            c.held = vec![(0, 1)];
            c.run();
            let owner = c.hosts[0].incarnation;
            forge_reservation(&mut c, Extent { owner, key, offset: chunk * CHUNK_BYTES, len: CHUNK_BYTES });
            if moves {
                assert_eq!(c.outcome(0, op), Some(Err(ErrorReply::Malformed.into())));
            }
            let third = c.alloc(0, "third", CHUNK_BYTES, Placement::Local);
            c.write(0, third, 0, b"THIEF!!!");
            assert_eq!(c.read(0, victim, 0, 8), b"precious", "chunk {chunk}");
        }
    }
}

/// A node that died before the directory was ready had claimed a name.
#[test]
fn dead_claimants_get_no_names() {
    let mut c = Cluster::of(3);
    c.kill(0);
    c.run();
    // Node 2's names are late at the restarted directory.
    c.held = vec![(2, 3)];
    let d = c.add_late(0, ARENA_BYTES);
    c.run();
    let op = c.submit(1, allocation(Some("salt"), CHUNK_BYTES, Placement::Local));
    c.run();
    assert!(!c.has_ended(1, op), "parked");
    c.kill(1);
    c.run();
    c.held = vec![];
    c.run();
    let r = c.command(d, allocation(Some("salt"), CHUNK_BYTES, Placement::Local));
    assert!(r.is_ok(), "{r:?}");
}

/// A home died while the arena was being cleaned for its reservation.
#[test]
fn dead_homes_get_no_memory() {
    let mut c = Cluster::of(3);
    // Fills 1's arena and frees it, with slow cleaning.
    let lh = c.alloc(0, "big", ARENA_BYTES, Placement::On(NodeId(1)));
    c.slow_to_clean = true;
    c.command(0, Command::RegionCommand(lh, RegionCommand::Free)).unwrap();
    let op =
        c.submit(2, allocation(Some("two"), 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(2), NodeId(1)])));
    c.run();
    assert!(!c.has_ended(2, op));
    c.kill(2);
    c.run();
    c.slow_to_clean = false;
    c.clean();
    c.run();
    c.sleep(LEASE_NS * 3);
    assert_eq!(c.memory(1), (0, 0));
}

/// A map is in flight while the node leaves.
#[test]
fn map_replies_after_leaving_give_no_handles() {
    let mut c = Cluster::of(3);
    let lh = c.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(1)));
    c.held = vec![(1, 2)];
    let op =
        c.submit(2, Command::Map { name: "salt".into(), wanted: Permissions::READ | Permissions::WRITE });
    c.run();
    let now = c.now_ns;
    c.hosts[2].engine.leave(now);
    c.run();
    c.held = vec![];
    c.run();
    assert_eq!(c.outcome(2, op), Some(Err(ErrorReply::NodeClosed(NodeId(2)).into())));
    assert_eq!(c.command(0, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
}

/// The directory restarts while a name is claimed and its region is made.
#[test]
fn names_are_unique_if_the_directory_restarts() {
    let mut c = Cluster::of(3);
    c.held = vec![(1, 2)];
    c.submit(1, allocation(Some("salt"), 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(1), NodeId(2)])));
    c.run(); // claimed, reserve to 2 is in flight
    c.kill(0);
    c.run();
    let d = c.add(0, ARENA_BYTES);
    let r = c.command(d, allocation(Some("salt"), CHUNK_BYTES, Placement::Local));
    c.held = vec![];
    c.run();
    let (used, _) = c.memory(1);
    assert!(r.is_err() || used == 0, "two regions of one name");
}

/// A member sends an enormous Reserve or Alloc.
#[test]
fn huge_requests_do_no_harm() {
    let lengths = [(u64::MAX, 4096), (u64::MAX, 1 << 63), (u64::MAX - 4094, 4096), ((1 << 63) + 1, 1 << 63)];
    for (len, chunk_bytes) in lengths {
        for nodes in [vec![NodeId(0)], vec![NodeId(1), NodeId(0), NodeId(2)]] {
            let mut c = Cluster::of(3);
            let (maker, everyone) = (Principal("x".into()), Permissions::empty());
            let region = RegionId { origin: Incarnation(5), serial: 1 };
            let alloc =
                Request::Alloc { name: None, len, chunk_bytes, nodes, maker, everyone, populate: false };
            let reserve = Request::Reserve { region, chunk_bytes, len, populate: false };
            for body in [alloc, reserve] {
                c.forge(1, 0, &Message::Request { id: RequestId(77), body });
                c.run();
            }
            assert_eq!(c.memory(0), (0, 0), "{len} bytes in chunks of {chunk_bytes}");
        }
    }
}

/// The home dies while its new owner copies a chunk: the memory stays reserved until the copy has ended.
#[test]
fn targets_of_running_copies_stay_reserved() {
    let mut c = Cluster::of(3);
    let lh = c.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(2)));
    c.slow_to_copy = true;
    c.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    c.run();
    c.kill(2);
    c.run();
    assert_eq!(c.memory(1), (CHUNK_BYTES, 0), "the copy is in progress");
    c.finish_copies();
    c.run();
    assert_eq!(c.memory(1), (0, 0));
}

/// Frees a region while an access at host 2 uses a handle that `end_handle` ends.
fn free_during_an_access(end_handle: impl FnOnce(&mut Cluster, SlotRef)) {
    let mut c = Cluster::of(3);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    let lh = c.map(2, "salt");
    let path = c.hosts[2].path.clone();
    let access = path.pins().pin();
    end_handle(&mut c, lh);
    let freeing = c.submit(1, Command::RegionCommand(home, RegionCommand::Free));
    c.run();
    assert!(!c.has_ended(1, freeing), "the access may still change the bytes");
    drop(access);
    c.run();
    assert_eq!(c.outcome(1, freeing), Some(Ok(Outcome::Done)));
}

/// Past bug: a node that no longer mapped the region acknowledged at once, before its unmap notice arrived.
#[test]
fn frees_wait_for_accesses_through_unmapped_handles() {
    free_during_an_access(|c, lh| {
        c.submit(2, Command::Unmap(lh));
    });
}

/// A node that leaves makes its handles stale by itself.
#[test]
fn frees_wait_for_accesses_by_leaving_nodes() {
    free_during_an_access(|c, lh| c.hosts[2].path.slots().retire(lh.index).expect("not retired yet"));
}
