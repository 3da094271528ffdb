//! Named scenarios of what once went wrong, each found by somebody who tried to break the engine.

use crate::common;
use common::*;
use halite_fabric::{Key, PeerId};
use halite_tier::access::{Blocked, SlotRef};
use halite_tier::effect::*;
use halite_tier::ids::*;
use halite_tier::layout::{Extent, Extents};
use halite_tier::message::*;
use halite_tier::permissions::*;

/// A zombie that mapped a region before the region's home died: the chunk owner must keep the chunks back.
#[test]
fn a_zombie_outlives_the_home_and_its_chunks_stay_back() {
    let mut c = Cluster::of(3);
    // 3 = M, the mapper that stops; 2 = home; 1 = chunk owner.
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

/// Unmapped takes the detour over the former home and overtakes... a later Map.
#[test]
fn a_late_unmapping_does_not_strike_a_mapper_off_that_maps_again() {
    let mut c = Cluster::of(4);
    let lh = c.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(1)));
    let m = c.map(3, "salt");
    // New home's Settle to 3 is late, so 3 still believes in node 1.
    c.held = vec![(2, 3)];
    assert_eq!(
        c.command(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(2) })),
        Ok(Outcome::Done)
    );
    // 3 gives its handle up: Unmapped goes to node 1, whose wire to 2 is slow.
    c.held = vec![(2, 3), (1, 2)];
    assert_eq!(c.command(3, Command::Unmap(m)), Ok(Outcome::Done));
    // 3 maps anew: directory says node 2.
    c.held = vec![(1, 2)];
    let again = c.map(3, "salt");
    c.held = vec![];
    c.run();
    // free: does 3 hear of it?
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

/// A member lies in its answer to Reserve.
fn lying_reserve(extent: impl Fn(NodeIncarnation) -> Extent) -> Vec<u8> {
    let mut c = Cluster::of(3);
    let victim = c.alloc(0, "victim", CHUNK_BYTES, Placement::Local);
    c.write(0, victim, 0, b"precious");
    c.submit(0, allocation(Some("two"), 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(0), NodeId(1)])));
    c.held = vec![(0, 1)];
    c.run();
    // What node 0 asked of node 1: find the request id.
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
fn a_member_that_lies_of_what_it_reserved_destroys_nothing() {
    let got = lying_reserve(|me| Extent { owner: me, key: Key(0), offset: 0, len: CHUNK_BYTES });
    assert_eq!(got, b"precious");
}
#[test]
fn a_member_that_lies_with_an_unknown_key_destroys_nothing() {
    lying_reserve(|me| Extent { owner: me, key: Key(77), offset: 0, len: CHUNK_BYTES });
}

/// A name claimed by a node that died before the directory was ready.
#[test]
fn a_name_is_not_given_to_the_dead() {
    let mut c = Cluster::of(3);
    c.kill(0);
    c.run();
    // restarts; node 2's names are late
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

/// Memory reserved for a home that died while the arena was being cleaned.
#[test]
fn memory_is_not_reserved_for_the_dead() {
    let mut c = Cluster::of(3);
    // fill 1's arena, free it, slow to clean
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

/// A map under way while the node leaves.
#[test]
fn a_map_that_comes_back_after_the_goodbye_gives_no_handle() {
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

/// The directory restarts while a name is claimed and its region is being made.
#[test]
fn a_name_has_one_region_even_if_the_directory_restarts_while_it_is_made() {
    let mut c = Cluster::of(3);
    c.held = vec![(1, 2)];
    c.submit(1, allocation(Some("salt"), 2 * CHUNK_BYTES, Placement::Spread(vec![NodeId(1), NodeId(2)])));
    c.run(); // claimed, reserve to 2 is under way
    c.kill(0);
    c.run();
    let d = c.add(0, ARENA_BYTES);
    let r = c.command(d, allocation(Some("salt"), CHUNK_BYTES, Placement::Local));
    c.held = vec![];
    c.run();
    let (used, _) = c.memory(1);
    assert!(r.is_err() || used == 0, "two regions of one name");
}

/// Wherever in the segment the victim is.
#[test]
fn a_member_that_lies_anywhere_in_the_segment_destroys_nothing() {
    for chunk in 0..ARENA_BYTES / 4 / CHUNK_BYTES {
        let lie = move |me| Extent { owner: me, key: Key(0), offset: chunk * CHUNK_BYTES, len: CHUNK_BYTES };
        assert_eq!(lying_reserve(lie), b"precious", "offset {}", chunk * CHUNK_BYTES);
    }
}

/// A gigantic Reserve / Alloc from a member.
#[test]
fn huge_numbers_from_a_member_are_answered_and_do_no_harm() {
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

/// A member's answer to the Reserve of a move names memory of the home itself.
#[test]
fn a_member_that_lies_in_a_move_gets_nothing() {
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
    // Node 0's arena is given out from offset 0 on; the victim was first.
    let mut extents = Extents::new();
    extents.push(Extent { owner: me, key: Key(0), offset: chunk * CHUNK_BYTES, len: CHUNK_BYTES });
    say(&mut c, id, Reply::Reserved { extents });
    assert_eq!(c.outcome(0, op), Some(Err(ErrorReply::Malformed.into())));
    assert_eq!(c.read(0, victim, 0, 8), b"precious");
}

/// The home dies while its new owner copies a chunk: that memory is nobody's before the copy is over.
#[test]
fn memory_that_a_copy_still_runs_into_is_not_given_to_anybody() {
    let mut c = Cluster::of(3);
    let lh = c.alloc(0, "salt", CHUNK_BYTES, Placement::On(NodeId(2)));
    c.slow_to_copy = true;
    c.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    c.run();
    c.kill(2);
    c.run();
    assert_eq!(c.memory(1), (CHUNK_BYTES, 0), "the copy still runs");
    c.finish_copies();
    c.run();
    assert_eq!(c.memory(1), (0, 0));
}

/// Frees a region while somebody at host 2 is in the middle of an access through a handle that `give_up` ends.
fn free_during_an_access(give_up: impl FnOnce(&mut Cluster, SlotRef)) {
    let mut c = Cluster::of(3);
    let home = c.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    let lh = c.map(2, "salt");
    let path = c.hosts[2].path.clone();
    let access = path.pins().pin();
    give_up(&mut c, lh);
    let freeing = c.submit(1, Command::RegionCommand(home, RegionCommand::Free));
    c.run();
    assert!(!c.has_ended(1, freeing), "the access may still change the bytes, also those of a new owner");
    drop(access);
    c.run();
    assert_eq!(c.outcome(1, freeing), Some(Ok(Outcome::Done)));
}

/// Who did not map the region any more acknowledged at once, although it had yet to say that to the home.
#[test]
fn a_region_is_not_freed_while_it_is_accessed_through_a_handle_that_is_being_given_up() {
    free_during_an_access(|c, lh| {
        c.submit(2, Command::Unmap(lh));
    });
}

/// A node that leaves makes its handles stale by itself.
#[test]
fn a_region_is_not_freed_while_it_is_accessed_by_a_node_that_leaves() {
    free_during_an_access(|c, lh| c.hosts[2].path.slots().retire(lh.index).expect("nobody else has"));
}
