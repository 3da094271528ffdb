//! What nodes say of others, late, twice, wrongly or with ill will: nobody who lives loses anything by it, and who is dead is so for all.

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

/// What one host says to another, whatever it knows.
fn say(cluster: &mut Cluster, from: usize, to: usize, message: Message) {
    let now_ns = cluster.now_ns;
    for frame in link::frames(&message::encode(&message), 1 << 20) {
        cluster.hosts[to].engine.handle_message(now_ns, PeerId(from as u32 + 1), &frame);
    }
}

fn state(cluster: &mut Cluster, seen_by: usize, node: u32) -> Option<NodeState> {
    let Ok(Outcome::Status(all)) = cluster.command(seen_by, Command::Status) else { panic!("no status") };
    all.iter().find(|status| status.node == NodeId(node)).map(|status| status.state)
}

/// It loses power: nobody sees its process end.
fn switch_off(cluster: &mut Cluster, host: usize) {
    cluster.hosts[host].running = false;
    cluster.wires.retain(|(from, to), _| *from != host && *to != host);
}

/// A host of that number that meets none of `absent` before all else has happened.
fn add_without(cluster: &mut Cluster, number: u32, absent: &[usize]) -> usize {
    absent.iter().for_each(|host| cluster.hosts[*host].running = false);
    let host = cluster.add_late(number, ARENA_BYTES);
    absent.iter().for_each(|host| cluster.hosts[*host].running = true);
    host
}

#[test]
fn the_highest_number_of_a_pairing_is_no_end() {
    let mut cluster = cluster_of(2);
    say(&mut cluster, 1, 0, Message::Notice(Notice::Paired { pairing: u64::MAX }));
    cluster.part(&[0], &[1]);
    cluster.sleep(2 * LEASE_NS);
    cluster.cut.clear();
    cluster.sleep(3 * LEASE_NS);
    assert!(cluster.hosts[0].engine.is_connected_to(NodeId(1)));
}

#[test]
fn an_owner_that_reserves_bytes_beyond_all_memory_is_refused() {
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
    let ((id, region), owner) = (asked.expect("it was asked to reserve"), cluster.hosts[1].incarnation);
    let at = |offset, len| -> Extents { [Extent { owner, key: Key(0), offset, len }].into_iter().collect() };
    let reserved = Reply::Reserved { extents: at(u64::MAX - 3, CHUNK_BYTES) };
    say(&mut cluster, 1, 0, Message::Reply { id, body: Ok(reserved) });
    let held = vec![(region, at(0, 64))];
    say(&mut cluster, 1, 0, Message::Notice(Notice::Held { held, done: true, seat: None, time_ns: 0 }));
}

#[test]
fn of_two_that_claim_one_number_at_once_one_is_taken() {
    let mut cluster = cluster_of(2);
    let both = [cluster.add_late(2, ARENA_BYTES), cluster.add_late(2, ARENA_BYTES)];
    cluster.run();
    let is_taken = |host: &&usize| cluster.hosts[**host].engine.is_connected_to(NodeId(0));
    assert_eq!(both.iter().filter(is_taken).count(), 1);
}

/// The directory knew two incarnations of one number, and the node that joined later took the living one for ended.
#[test]
fn an_incarnation_that_another_node_still_misses_takes_nothing_from_the_next_of_its_number() {
    let mut cluster = cluster_of(4);
    cluster.alloc(2, "wide", 2 * CHUNK_BYTES, on(&[2, 1]));
    switch_off(&mut cluster, 0);
    switch_off(&mut cluster, 2);
    cluster.sleep(2 * LEASE_NS);
    let directory = add_without(&mut cluster, 0, &[3]);
    cluster.hosts[3].running = false;
    let again = add_without(&mut cluster, 2, &[1]);
    cluster.hosts[3].running = true;
    // What it says first comes late.
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
    assert_eq!(cluster.memory(late).0, CHUNK_BYTES, "it holds what it held");
}

/// The others heard of the next incarnation while they saw the last, and never again.
#[test]
fn a_node_that_is_restarted_while_some_see_its_last_incarnation_is_met_by_all() {
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
fn a_node_that_dies_unseen_can_be_forgotten_by_a_directory_that_never_met_it() {
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

/// The handle was gone, the command was not, and a sealed region changed.
#[test]
fn a_command_of_a_handle_that_was_given_up_keeps_two_from_being_paired_anew() {
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
    assert_eq!(cluster.copies_under_way(), 1, "host 1 is at it");
    assert!(!cluster.has_ended(0, seal));
    cluster.slow_to_copy = false;
    cluster.finish_copies();
    cluster.sleep(4 * LEASE_NS);
    assert_eq!(cluster.outcome(0, seal), Some(Ok(Outcome::Done)));
}

#[test]
fn a_process_that_exits_before_it_is_paired_anew_is_dead() {
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
fn a_node_that_is_said_to_have_a_high_number_takes_none_away() {
    let mut cluster = cluster_of(2);
    let incarnation = NodeIncarnation { node: NodeId(999), id: Incarnation(5) };
    let member = Member { incarnation, pid: 1, bytes_total: 0, state: NodeState::Alive, loss: None };
    let members = vec![(member, String::new())];
    say(&mut cluster, 1, 0, Message::Notice(Notice::Seen { members, ended: Vec::new() }));
    assert_eq!(cluster.command(1, Command::TakeNumber), Ok(Outcome::Number(NodeId(2))));
}

/// Of an end that one node has seen and another not, the directory was told in either order.
#[test]
fn an_end_of_which_a_restarted_directory_hears_first_is_told_to_who_misses_the_node() {
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
            let (frame, now_ns) = (frame.expect("it is paired, it says"), cluster.now_ns);
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

/// A directory that was restarted hears of members from the others, also from one that has missed that the former incarnation of a node is over.
#[test]
fn who_is_out_of_sight_is_not_taken_for_dead_where_the_directory_names_its_former_incarnation() {
    let mut cluster = cluster_of(4);
    let incarnation = cluster.hosts[1].incarnation;
    let former = NodeIncarnation { id: Incarnation(7), ..incarnation };
    cluster.part(&[1], &[3]);
    cluster.sleep(2 * LEASE_NS);
    let unreachable = vec![(Member::unseen(former), "nowhere".to_owned())];
    say(&mut cluster, 0, 3, Message::Notice(Notice::Known { living: vec![], unreachable, ended: vec![] }));
    cluster.cut.clear();
    cluster.sleep(2 * LEASE_NS);
    assert!(cluster.hosts[3].engine.is_connected_to(NodeId(1)));
    assert!(cluster.hosts[1].engine.is_connected_to(NodeId(3)));
}
