//! Reports about other nodes that are late, repeated, wrong or malicious: living nodes lose nothing by them, and dead
//! ones are dead for all.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_fabric::{Key, PeerId};
use halite_tier::access::RegionOffset;
use halite_tier::effect::{Command, Outcome, Placement};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation};
use halite_tier::layout::{Extent, Extents};
use halite_tier::link;
use halite_tier::message::{self, Member, Message, NodeState, Notice, RegionCommand, Reply, Request};

fn cluster_of(count: usize) -> Cluster {
    let mut cluster = Cluster::of(count);
    cluster.adapters = true;
    cluster
}

fn on(nodes: &[u32]) -> Placement {
    Placement::Spread(nodes.iter().copied().map(NodeId).collect())
}

/// Sends a message from one host to another, whatever its state.
fn send_message(cluster: &mut Cluster, from: usize, to: usize, message: Message) {
    let now_ns = cluster.now_ns;
    for frame in link::frames(&message::encode(&message), 1 << 20) {
        cluster.hosts[to].engine.handle_message(now_ns, PeerId(from as u32 + 1), &frame);
    }
}

fn state(cluster: &mut Cluster, seen_by: usize, node: u32) -> Option<NodeState> {
    let Ok(Outcome::Status(all)) = cluster.command(seen_by, Command::Status) else { panic!("no status") };
    all.iter().find(|status| status.node == NodeId(node)).map(|status| status.state)
}

/// Cuts a host's power: no node sees its process end.
fn switch_off(cluster: &mut Cluster, host: usize) {
    cluster.hosts[host].running = false;
    cluster.wires.retain(|(from, to), _| *from != host && *to != host);
}

/// Adds a host of that number that meets no host of `absent` until all else is done.
fn add_without(cluster: &mut Cluster, number: u32, absent: &[usize]) -> usize {
    absent.iter().for_each(|host| cluster.hosts[*host].running = false);
    let host = cluster.add_late(number, ARENA_BYTES);
    absent.iter().for_each(|host| cluster.hosts[*host].running = true);
    host
}

#[test]
fn the_maximum_pairing_number_ends_nothing() {
    let mut cluster = cluster_of(2);
    send_message(&mut cluster, 1, 0, Message::Notice(Notice::Paired { pairing: u64::MAX }));
    cluster.part(&[0], &[1]);
    cluster.sleep(2 * LEASE_NS);
    cluster.cut.clear();
    cluster.sleep(3 * LEASE_NS);
    assert!(cluster.hosts[0].engine.is_connected_to(NodeId(1)));
}

#[test]
fn impossible_reservations_are_refused() {
    let mut cluster = cluster_of(3);
    cluster.held = vec![(0, 1), (0, 2), (1, 0), (2, 0)];
    cluster.submit(0, common::allocation(None, 3 * CHUNK_BYTES, on(&[0, 1, 2])));
    cluster.run();
    let (mut assembler, mut asked) = (link::Assembler::default(), None);
    for frame in cluster.wires[&(0, 1)].iter() {
        if let Ok(Some(bytes)) = assembler.handle_frame(frame)
            && let Ok(Message::Request { id, body: Request::Reserve { region, .. } }) =
                message::decode(&bytes)
        {
            asked = Some((id, region));
        }
    }
    let ((id, region), owner) = (asked.expect("a reservation was requested"), cluster.hosts[1].incarnation);
    let at = |offset, len| -> Extents { [Extent { owner, key: Key(0), offset, len }].into_iter().collect() };
    let reserved = Reply::Reserved { extents: at(u64::MAX - 3, CHUNK_BYTES) };
    send_message(&mut cluster, 1, 0, Message::Reply { id, body: Ok(reserved) });
    let held = vec![(region, at(0, 64))];
    send_message(
        &mut cluster,
        1,
        0,
        Message::Notice(Notice::Held { held, done: true, seat: None, time_ns: 0 }),
    );
}

#[test]
fn one_of_two_claimants_of_a_number_joins() {
    let mut cluster = cluster_of(2);
    let both = [cluster.add_late(2, ARENA_BYTES), cluster.add_late(2, ARENA_BYTES)];
    cluster.run();
    let is_taken = |host: &&usize| cluster.hosts[**host].engine.is_connected_to(NodeId(0));
    assert_eq!(both.iter().filter(is_taken).count(), 1);
}

/// The directory knew two incarnations of one number, and a later node took the living one for ended.
#[test]
fn missed_incarnations_do_not_end_the_next() {
    let mut cluster = cluster_of(4);
    cluster.alloc(2, "wide", 2 * CHUNK_BYTES, on(&[2, 1]));
    switch_off(&mut cluster, 0);
    switch_off(&mut cluster, 2);
    cluster.sleep(2 * LEASE_NS);
    let directory = add_without(&mut cluster, 0, &[3]);
    cluster.hosts[3].running = false;
    let again = add_without(&mut cluster, 2, &[1]);
    cluster.hosts[3].running = true;
    // Its first messages are late.
    cluster.held = vec![(again, directory)];
    cluster.run();
    cluster.held.clear();
    cluster.run();
    cluster.sleep(6 * LEASE_NS);
    let late = cluster.add(4, ARENA_BYTES);
    cluster.alloc(again, "own", 2 * CHUNK_BYTES, on(&[2, 4]));
    for other in [directory, again] {
        cluster.part(&[late], &[other]);
        cluster.sleep(2 * LEASE_NS);
        cluster.cut.clear();
        cluster.sleep(6 * LEASE_NS);
    }
    assert_eq!(cluster.hosts[late].engine.incarnation_of(NodeId(2)), Some(cluster.hosts[again].incarnation));
    assert_eq!(cluster.memory(late).0, CHUNK_BYTES, "its chunk stays held");
}

/// The others learned of the next incarnation while paired with the last, and never again.
#[test]
fn restarted_nodes_are_met_by_all() {
    let mut cluster = cluster_of(4);
    cluster.part(&[0], &[1]);
    cluster.sleep(2 * LEASE_NS);
    switch_off(&mut cluster, 1);
    let again = add_without(&mut cluster, 1, &[2, 3]);
    cluster.run();
    cluster.sleep(20 * LEASE_NS);
    for host in [2, 3] {
        assert_eq!(
            cluster.hosts[host].engine.incarnation_of(NodeId(1)),
            Some(cluster.hosts[again].incarnation),
            "host {host}"
        );
    }
}

#[test]
fn restarted_directories_can_forget_unseen_deaths() {
    let mut cluster = cluster_of(4);
    cluster.alloc(3, "wide", 2 * CHUNK_BYTES, on(&[3, 1]));
    cluster.part(&[0], &[3]);
    cluster.sleep(2 * LEASE_NS);
    cluster.kill(0);
    cluster.sleep(LEASE_NS);
    let directory = add_without(&mut cluster, 0, &[3]);
    cluster.part(&[directory], &[3]);
    cluster.sleep(LEASE_NS);
    switch_off(&mut cluster, 3);
    cluster.sleep(3 * LEASE_NS);
    assert_eq!(state(&mut cluster, 1, 3), Some(NodeState::Unreachable));
    assert_eq!(cluster.command(1, Command::ForgetNode(NodeId(3))), Ok(Outcome::Done));
    cluster.run();
    assert_eq!(cluster.memory(1), (0, 0));
}

/// The handle was gone, its command was not, and a sealed region changed.
#[test]
fn pairing_waits_for_commands_of_unmapped_handles() {
    let mut cluster = cluster_of(3);
    let wide = cluster.alloc(0, "wide", 2 * CHUNK_BYTES, on(&[0, 1]));
    let slot = cluster.map(2, "wide");
    cluster.slow_to_copy = true;
    let at = RegionOffset { slot, offset: CHUNK_BYTES };
    cluster.submit(2, Command::Fill { at, len: CHUNK_BYTES, byte: 7 });
    cluster.run();
    cluster.submit(2, Command::Unmap(slot));
    cluster.run();
    let seal = cluster.submit(0, Command::RegionCommand(wide, RegionCommand::Seal));
    cluster.run();
    cluster.part(&[0], &[2]);
    cluster.sleep(5 * LEASE_NS / 4);
    cluster.cut.clear();
    cluster.sleep(3 * LEASE_NS / 4);
    assert_eq!(cluster.copies_under_way(), 1, "host 1 executes it");
    assert!(!cluster.has_ended(0, seal));
    cluster.slow_to_copy = false;
    cluster.finish_copies();
    cluster.sleep(4 * LEASE_NS);
    assert_eq!(cluster.outcome(0, seal), Some(Ok(Outcome::Done)));
}

#[test]
fn exits_before_pairing_again_are_deaths() {
    let mut cluster = cluster_of(3);
    cluster.alloc(2, "wide", 2 * CHUNK_BYTES, on(&[2, 1]));
    cluster.map(1, "wide");
    let path = cluster.hosts[1].path.clone();
    let pin = path.pins().pin();
    cluster.part(&[1, 0], &[2]);
    cluster.sleep(2 * LEASE_NS);
    cluster.cut.clear();
    cluster.part(&[0], &[2]);
    cluster.sleep(LEASE_NS);
    assert!(cluster.hosts[1].engine.awaits_first_words());
    switch_off(&mut cluster, 2);
    let now_ns = cluster.now_ns;
    cluster.hosts[1].engine.handle_disconnected(now_ns, PeerId(3));
    cluster.hosts[1].engine.handle_cut_off(now_ns, PeerId(3), true);
    drop(pin);
    cluster.sleep(5 * LEASE_NS);
    assert_eq!(state(&mut cluster, 1, 2), Some(NodeState::Dead));
}

#[test]
fn reported_numbers_take_none_away() {
    let mut cluster = cluster_of(2);
    let incarnation = NodeIncarnation { node: NodeId(999), id: Incarnation(5) };
    let member = Member { incarnation, pid: 1, bytes_total: 0, state: NodeState::Alive, loss: None };
    let members = vec![(member, String::new())];
    send_message(&mut cluster, 1, 0, Message::Notice(Notice::Seen { members, ended: Vec::new() }));
    assert_eq!(cluster.command(1, Command::TakeNumber), Ok(Outcome::Number(NodeId(2))));
}

/// One node has seen an end and another has not; the directory hears from them in either order.
#[test]
fn restarted_directories_announce_ends() {
    for order in [[2, 1], [1, 2]] {
        let mut cluster = cluster_of(4);
        cluster.alloc(3, "wide", 2 * CHUNK_BYTES, on(&[3, 1]));
        cluster.kill(0);
        switch_off(&mut cluster, 3);
        let now_ns = cluster.now_ns;
        cluster.hosts[2].engine.handle_disconnected(now_ns, PeerId(4));
        cluster.hosts[2].engine.handle_cut_off(now_ns, PeerId(4), true);
        cluster.sleep(2 * LEASE_NS);
        let directory = 4;
        cluster.held = vec![(1, directory), (2, directory)];
        cluster.add_late(0, ARENA_BYTES);
        cluster.run();
        for host in [1, 2] {
            let frame = cluster.wires.get_mut(&(host, directory)).and_then(|wire| wire.pop_front());
            let (frame, now_ns) = (frame.expect("the hello of the pairing"), cluster.now_ns);
            cluster.hosts[directory].engine.handle_message(now_ns, PeerId(host as u32 + 1), &frame);
        }
        for host in order {
            cluster.held.retain(|wire| *wire != (host, directory));
            cluster.run();
        }
        cluster.sleep(20 * LEASE_NS);
        assert_eq!(cluster.memory(1), (0, 0), "{order:?}");
    }
}

/// A restarted directory learns of members from the others, one of which missed the end of a node's former incarnation.
#[test]
fn unreachable_nodes_survive_reports_of_their_predecessor() {
    let mut cluster = cluster_of(4);
    let incarnation = cluster.hosts[1].incarnation;
    let former = NodeIncarnation { id: Incarnation(7), ..incarnation };
    cluster.part(&[1], &[3]);
    cluster.sleep(2 * LEASE_NS);
    let unreachable = vec![(Member::unseen(former), "nowhere".to_owned())];
    send_message(
        &mut cluster,
        0,
        3,
        Message::Notice(Notice::Known { living: vec![], unreachable, ended: vec![] }),
    );
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    assert!(cluster.hosts[3].engine.is_connected_to(NodeId(1)));
    assert!(cluster.hosts[1].engine.is_connected_to(NodeId(3)));
}
