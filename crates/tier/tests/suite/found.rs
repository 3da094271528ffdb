//! Named scenarios of past bugs, each found by an attempt to break the engine.

use crate::common;
use common::*;
use halite_fabric::{Key, PeerId};
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::*;
use halite_tier::ids::*;
use halite_tier::layout::{Extent, Extents};
use halite_tier::message::*;
use halite_tier::permissions::*;

/// A zombie mapped a region before the region's home died: the owner must keep the chunks.
#[test]
fn chunks_stay_back_for_zombies_of_a_dead_home() {
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
    // Does 3 learn of the free?
    assert_eq!(c.command(0, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
    let other = c.alloc(0, "other", CHUNK_BYTES, Placement::On(NodeId(2)));
    let host = &c.hosts[3];
    let w = host.path.write(host.session, again, 0, b"STALE!");
    println!(
        "write through the freed region's handle: {w:?}; other region reads {:?}",
        String::from_utf8_lossy(&c.read(0, other, 0, 6))
    );
    assert!(matches!(w, Err(Blocked::Stale)), "{w:?}");
}

/// A member sends false extents in its reply to Reserve.
fn lying_reserve(extent: impl Fn(NodeIncarnation) -> Extent) -> Vec<u8> {
    let mut c = Cluster::of(3);
    let victim = c.alloc(0, "victim", CHUNK_BYTES, Placement::Local);
    c.write(0, victim, 0, b"precious");
    c.submit(0, allocation(Some("two"), 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(0), NodeId(1)])));
    c.held = vec![(0, 1)];
    c.run();
    // Finds the id of node 0's request to node 1.
    let frames: Vec<Vec<u8>> = c.wires.get(&(0, 1)).into_iter().flatten().cloned().collect();
    let id = frames
        .iter()
        .find_map(|f| match decode(&f[1..]) {
            Ok(Message::Request { id, body: Request::Reserve { .. } }) => Some(id),
            _ => None,
        })
        .expect("reserve was asked");
    let mut extents = Extents::new();
    extents.push(extent(c.hosts[0].incarnation));
    let reply = Message::Reply { id, body: Ok(Reply::Reserved { extents }) };
    let mut frame = vec![1];
    frame.extend(encode(&reply));
    let now = c.now_ns;
    c.hosts[0].engine.handle_message(now, PeerId(2), &frame);
    c.run();
    let got = c.read(0, victim, 0, 8);
    let third = c.alloc(0, "third", CHUNK_BYTES, Placement::Local);
    c.write(0, third, 0, b"THIEF!!!");
    got
}
#[test]
fn false_reservations_destroy_nothing() {
    let got = lying_reserve(|me| Extent { owner: me, key: Key(0), offset: 0, len: CHUNK_BYTES });
    assert_eq!(got, b"precious");
}
#[test]
fn false_keys_destroy_nothing() {
    lying_reserve(|me| Extent { owner: me, key: Key(77), offset: 0, len: CHUNK_BYTES });
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
    println!("alloc of a dead node's name: {r:?}; stat {:?}", c.command(d, Command::Stat("salt".into())));
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
    assert_eq!(c.outcome(2, op), Some(Err(ErrorReply::NodeClosed.into())));
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

/// At any place in the segment.
#[test]
fn false_offsets_destroy_nothing() {
    for chunk in 0..ARENA_BYTES / 4 / CHUNK_BYTES {
        let lie = move |me| Extent { owner: me, key: Key(0), offset: chunk * CHUNK_BYTES, len: CHUNK_BYTES };
        assert_eq!(lying_reserve(lie), b"precious", "offset {}", chunk * CHUNK_BYTES);
    }
}

/// A member sends an enormous Reserve or Alloc.
#[test]
fn huge_requests_do_no_harm() {
    for (len, chunk) in [
        (u64::MAX, 4096),
        (u64::MAX, 1 << 63),
        (u64::MAX - 4094, 4096),
        (1 << 63, 1 << 63),
        ((1 << 63) + 1, 1 << 63),
    ] {
        for spread in [vec![NodeId(0)], vec![NodeId(0), NodeId(1)], vec![NodeId(1), NodeId(0), NodeId(2)]] {
            let mut c = Cluster::of(3);
            {
                for body in [
                    Request::Alloc {
                        name: None,
                        len,
                        chunk_bytes: chunk,
                        nodes: spread.clone(),
                        maker: Principal("x".into()),
                        everyone: Permissions::empty(),
                        populate: false,
                    },
                    Request::Reserve {
                        region: RegionId { origin: Incarnation(5), serial: 1 },
                        chunk_bytes: chunk,
                        len,
                        populate: false,
                    },
                ] {
                    let mut frame = vec![1];
                    frame.extend(encode(&Message::Request { id: RequestId(77), body }));
                    let now = c.now_ns;
                    c.hosts[0].engine.handle_message(now, PeerId(2), &frame);
                    c.run();
                }
            }
            assert_eq!(c.memory(0), (0, 0), "{len} bytes in chunks of {chunk}");
        }
    }
}

/// A member's reply to the Reserve of a move names memory of the home itself.
#[test]
fn false_extents_in_moves_gain_nothing() {
    for chunk in 0..256 {
        lie_in_a_move(chunk);
    }
}
fn lie_in_a_move(chunk: u64) {
    let mut c = Cluster::of(3);
    let victim = c.alloc(0, "victim", CHUNK_BYTES, Placement::Local);
    c.write(0, victim, 0, b"precious");
    let lh = c.alloc(0, "mover", CHUNK_BYTES, Placement::Local);
    let op = c.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    c.held = vec![(0, 1)];
    c.run();
    let ids = |c: &Cluster, want: fn(&Request) -> bool| -> RequestId {
        c.wires
            .get(&(0, 1))
            .into_iter()
            .flatten()
            .find_map(|f| match decode(&f[1..]) {
                Ok(Message::Request { id, body }) if want(&body) => Some(id),
                _ => None,
            })
            .expect("asked")
    };
    let say = |c: &mut Cluster, id, reply| {
        let mut frame = vec![1];
        frame.extend(encode(&Message::Reply { id, body: Ok(reply) }));
        let now = c.now_ns;
        c.hosts[0].engine.handle_message(now, PeerId(2), &frame);
        c.run();
    };
    let id = ids(&c, |r| matches!(r, Request::Reserve { .. }));
    let me = c.hosts[0].incarnation;
    // Node 0's arena is allocated from offset 0 on, and the victim came first.
    let mut extents = Extents::new();
    extents.push(Extent { owner: me, key: Key(0), offset: chunk * CHUNK_BYTES, len: CHUNK_BYTES });
    say(&mut c, id, Reply::Reserved { extents });
    assert_eq!(c.outcome(0, op), Some(Err(ErrorReply::Malformed.into())));
    assert_eq!(c.read(0, victim, 0, 8), b"precious");
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

/// A node that no longer mapped the region acknowledged at once, with its unmap notice still to come.
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
