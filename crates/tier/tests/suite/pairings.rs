//! Nodes that lose contact, connected by adapters: links fail, nodes live, and nothing is lost.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_fabric::PeerId;
use halite_tier::access::{RegionOffset, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, Reach, RegionCommand};
use halite_tier::permissions::{Grantee, Permissions};

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE);
const ALL: Permissions = RIGHTS.union(Permissions::MASTER);

/// Nodes behind adapters, each with a region that all others map, and one region with a chunk on each.
struct World {
    cluster: Cluster,
    memory: Vec<(u64, u64)>,
}

fn name_of(host: usize) -> String {
    format!("of {host}")
}

impl World {
    fn of(count: usize) -> World {
        let mut cluster = Cluster::of(count);
        cluster.adapters = true;
        for host in 0..count {
            let own = cluster.alloc(host, &name_of(host), CHUNK_BYTES, Placement::Local);
            cluster.write(host, own, 0, name_of(host).as_bytes());
        }
        let nodes: Vec<NodeId> = (0..count as u32).rev().map(NodeId).collect();
        let wide = cluster.alloc(0, "wide", count as u64 * CHUNK_BYTES, Placement::Spread(nodes));
        for chunk in 0..count as u64 {
            cluster.write(0, wide, chunk * CHUNK_BYTES, format!("chunk {chunk}").as_bytes());
        }
        for (host, other) in (0..count).flat_map(|host| (0..count).map(move |other| (host, other))) {
            cluster.map(host, &name_of(other));
        }
        for host in 1..count {
            cluster.map(host, "wide");
        }
        let memory = (0..count).map(|host| cluster.memory(host)).collect();
        World { cluster, memory }
    }

    /// Host 2 starts to fill host 1's part of "wide", which takes until copies are finished.
    fn begin_a_slow_fill(&mut self) -> OpId {
        let at = RegionOffset { slot: self.cluster.map(2, "wide"), offset: CHUNK_BYTES };
        self.cluster.slow_to_copy = true;
        let fill = self.cluster.submit(2, Command::Fill { at, len: CHUNK_BYTES, byte: 7 });
        self.cluster.run();
        fill
    }

    fn count(&self) -> usize {
        self.memory.len()
    }

    fn part(&mut self, these: &[usize], those: &[usize]) {
        self.cluster.part(these, those);
    }

    fn sleep(&mut self, leases: u64) {
        self.cluster.sleep(leases * LEASE_NS);
    }

    fn heal(&mut self) {
        self.cluster.cut.clear();
        self.sleep(2);
    }

    fn is_paired(&self, one: usize, other: usize) -> bool {
        let incarnation_of = |host: usize| self.cluster.hosts[host].incarnation;
        let sees = |a: usize, b: usize| {
            self.cluster.hosts[a].engine.incarnation_of(incarnation_of(b).node) == Some(incarnation_of(b))
        };
        sees(one, other) && sees(other, one)
    }

    fn state(&mut self, seen_by: usize, host: usize) -> NodeState {
        let node = self.cluster.hosts[host].incarnation.node;
        match self.cluster.command(seen_by, Command::Status) {
            Ok(Outcome::Status(all)) => {
                all.iter().find(|status| status.node == node).expect("a known node").state
            }
            other => panic!("{other:?}"),
        }
    }

    /// Checks that all nodes reach all regions, and that all can be freed.
    fn check_nothing_is_lost(mut self) {
        let count = self.count();
        for (host, other) in (0..count).flat_map(|host| (0..count).map(move |other| (host, other))) {
            assert!(host == other || self.is_paired(host, other), "{host} and {other} are paired");
            let lh = self.cluster.map(host, &name_of(other));
            let expected = name_of(other);
            assert_eq!(self.cluster.read(host, lh, 0, expected.len()), expected.as_bytes());
            assert_eq!(self.state(host, other), NodeState::Alive);
        }
        for host in 0..count {
            let lh = self.cluster.map(host, "wide");
            for chunk in 0..count {
                let expected = format!("chunk {chunk}");
                let seen = self.cluster.read(host, lh, chunk as u64 * CHUNK_BYTES, expected.len());
                assert_eq!(seen, expected.as_bytes(), "host {host}");
            }
            assert_eq!(self.cluster.memory(host), self.memory[host], "host {host}");
        }
        for name in (0..count).map(name_of).chain(["wide".to_owned()]) {
            let lh = self.cluster.map_for(0, &name, ALL);
            assert_eq!(
                self.cluster.command(0, Command::RegionCommand(lh, RegionCommand::Free)),
                Ok(Outcome::Done),
                "{name}"
            );
        }
        (0..count).for_each(|host| assert_eq!(self.cluster.memory(host), (0, 0), "host {host}"));
    }
}

fn is_down(outcome: &Result<Outcome, CommandError>, node: u32) -> bool {
    *outcome == Err(ErrorReply::PeerDown(NodeId(node)).into())
}

#[test]
fn only_new_names_need_the_directory() {
    let mut world = World::of(4);
    world.part(&[0], &[1, 2, 3]);
    world.sleep(3);
    assert_eq!(world.state(1, 0), NodeState::Unreachable);
    assert!(world.is_paired(1, 2) && world.is_paired(2, 3) && world.is_paired(1, 3));
    assert!(is_down(&world.cluster.command(1, common::allocation(Some("new"), 8, Placement::Local)), 0));
    let unnamed = world.cluster.command(1, common::allocation(None, 8, Placement::On(NodeId(3))));
    assert!(unnamed.is_ok(), "{unnamed:?}");
    world.cluster.command(1, Command::Unmap(common::slot(unnamed))).unwrap();
    world.heal();
    world.check_nothing_is_lost();
}

#[test]
fn isolated_nodes_keep_their_data() {
    let mut world = World::of(3);
    world.part(&[0, 1], &[2]);
    world.sleep(3);
    assert_eq!((world.state(0, 2), world.state(0, 1)), (NodeState::Unreachable, NodeState::Alive));
    let map = Command::Map { name: name_of(2), wanted: RIGHTS };
    assert!(is_down(&world.cluster.command(1, map), 2), "the name is kept");
    world.heal();
    world.check_nothing_is_lost();
}

#[test]
fn lost_pairs_pair_again() {
    for (one, other) in [(0, 1), (1, 2)] {
        let mut world = World::of(3);
        world.part(&[one], &[other]);
        world.sleep(3);
        assert!(!world.is_paired(one, other) && world.is_paired(0, 2 - one));
        world.heal();
        world.check_nothing_is_lost();
    }
}

#[test]
fn split_clusters_heal() {
    let mut world = World::of(5);
    world.part(&[0, 1], &[2, 3, 4]);
    world.sleep(5);
    assert!(world.is_paired(2, 4) && world.is_paired(0, 1));
    world.heal();
    world.check_nothing_is_lost();
}

#[test]
fn nodes_may_be_reached_by_the_directory_alone() {
    let mut world = World::of(4);
    world.part(&[3], &[1, 2]);
    world.sleep(3);
    assert!(world.is_paired(0, 3));
    let lh = world.cluster.map(0, &name_of(3));
    assert_eq!(world.cluster.read(0, lh, 0, 4), b"of 3");
    world.heal();
    world.check_nothing_is_lost();
}

/// Even if a node was alone, or the directory, and for any duration.
#[test]
fn partitions_heal_within_two_leases() {
    for (side, leases) in (1..8).zip([2, 3, 5, 2, 3, 5, 2]) {
        let mut world = World::of(4);
        let (these, those): (Vec<usize>, Vec<usize>) = (0..4).partition(|host| side >> host & 1 == 1);
        world.part(&these, &those);
        world.sleep(leases);
        assert!(!world.is_paired(these[0], those[0]));
        world.cluster.cut.clear();
        world.cluster.sleep(2 * LEASE_NS);
        for (one, other) in (0..4).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert!(
                world.is_paired(one, other),
                "{one} and {other}, after {these:?} and {those:?} were apart"
            );
        }
        world.check_nothing_is_lost();
    }
}

#[test]
fn one_way_links_count_as_broken() {
    for way in [(1, 2), (2, 1)] {
        let mut world = World::of(3);
        world.cluster.cut.insert(way);
        world.sleep(4);
        assert!(!world.is_paired(1, 2), "{way:?}");
        world.heal();
        world.check_nothing_is_lost();
    }
}

#[test]
fn overlapping_partitions_heal_in_turn() {
    let mut world = World::of(4);
    world.part(&[0, 1], &[2, 3]);
    world.sleep(2);
    world.part(&[1], &[0]);
    world.part(&[2], &[3]);
    world.sleep(2);
    for (one, other) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        world.cluster.cut.remove(&(one, other));
        world.cluster.cut.remove(&(other, one));
    }
    world.sleep(2);
    assert!(world.is_paired(0, 2) && world.is_paired(1, 3) && !world.is_paired(0, 1));
    world.heal();
    world.check_nothing_is_lost();
}

#[test]
fn short_outages_end_no_pairing() {
    let mut world = World::of(3);
    world.part(&[0], &[1]);
    world.cluster.sleep(LEASE_NS / 2);
    world.cluster.cut.clear();
    world.sleep(3);
    assert!(world.cluster.hosts.iter().all(|host| host.news.iter().all(|news| !news.is_trouble())));
    world.check_nothing_is_lost();
}

/// Node 1 is home of a region on nodes 1 and 2 that node 3 maps; nodes 1 and 3 are not connected.
fn home_and_mapper_apart() -> (Cluster, SlotRef, SlotRef) {
    let mut cluster = Cluster::of(4);
    cluster.adapters = true;
    let nodes = vec![NodeId(1), NodeId(2)];
    let home = cluster.alloc(1, "salt", 2 * CHUNK_BYTES, Placement::Spread(nodes));
    let mapped = cluster.map(3, "salt");
    cluster.part(&[1], &[3]);
    (cluster, home, mapped)
}

fn can_write(cluster: &Cluster, host: usize, slot: SlotRef, offset: u64) -> bool {
    let host = &cluster.hosts[host];
    host.path.write(host.session, slot, offset, b"!").is_ok()
}

#[test]
fn commands_reach_mappers_through_owners() {
    let revoke = RegionCommand::Revoke { who: Grantee::Everyone, permissions: Permissions::WRITE };
    for order in [RegionCommand::Free, RegionCommand::Seal, revoke, RegionCommand::Move { to: NodeId(0) }] {
        let (mut cluster, home, mapped) = home_and_mapper_apart();
        let given = cluster.submit(1, Command::RegionCommand(home, order.clone()));
        cluster.sleep(LEASE_NS / 2);
        assert!(!cluster.has_ended(1, given), "{order:?}: not acknowledged yet");
        assert!(can_write(&cluster, 3, mapped, CHUNK_BYTES), "{order:?}: it may write until told");
        cluster.sleep(2 * LEASE_NS);
        assert_eq!(cluster.outcome(1, given), Some(Ok(Outcome::Done)), "{order:?}");
        assert!(
            !can_write(&cluster, 3, mapped, 0) && !can_write(&cluster, 3, mapped, CHUNK_BYTES),
            "{order:?}"
        );
        assert!(
            cluster.hosts[2].engine.is_connected_to(NodeId(3)),
            "{order:?}: other pairings are not affected"
        );
    }
}

#[test]
fn owners_cut_off_unresponsive_mappers() {
    let (mut cluster, home, mapped) = home_and_mapper_apart();
    let given = cluster.submit(1, Command::RegionCommand(home, RegionCommand::Seal));
    cluster.sleep(LEASE_NS);
    // The mapper hears the owner, and its heartbeats arrive; but a thread there is in the middle of a write.
    let path = cluster.hosts[3].path.clone();
    let pin = path.pins().pin();
    cluster.sleep(LEASE_NS);
    assert!(!cluster.has_ended(1, given), "not cut off yet");
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(cluster.outcome(1, given), Some(Ok(Outcome::Done)));
    assert!(!cluster.hosts[2].engine.is_reached_by(cluster.hosts[3].incarnation), "cut off");
    drop(pin);
    assert!(!can_write(&cluster, 3, mapped, CHUNK_BYTES));
}

#[test]
fn silent_peers_delay_only_their_regions() {
    let mut world = World::of(4);
    world.cluster.alloc(1, "salt", 8, Placement::On(NodeId(2)));
    let lh = world.cluster.map_for(1, "salt", ALL);
    world.part(&[3], &[0, 1, 2]);
    assert_eq!(
        world.cluster.command(1, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) })),
        Ok(Outcome::Done)
    );
    assert_eq!(world.cluster.command(1, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
}

#[test]
fn restarts_within_a_lease_wait_for_its_end() {
    let mut world = World::of(3);
    // No node sees its end: its host has lost power.
    world.cluster.hosts[2].running = false;
    world.cluster.wires.retain(|(from, to), _| *from != 2 && *to != 2);
    let again = world.cluster.add(2, ARENA_BYTES);
    let incarnation = world.cluster.hosts[again].incarnation;
    assert_ne!(
        world.cluster.hosts[0].engine.incarnation_of(NodeId(2)),
        Some(incarnation),
        "the number is in use"
    );
    assert!(world.cluster.hosts[again].engine.is_meeting());
    world.sleep(2);
    for host in [0, 1] {
        assert_eq!(
            world.cluster.hosts[host].engine.incarnation_of(NodeId(2)),
            Some(incarnation),
            "host {host}"
        );
    }
    let map = Command::Map { name: name_of(2), wanted: RIGHTS };
    let lost = world.cluster.command(1, map);
    assert!(
        matches!(lost, Err(CommandError::Refused(ErrorReply::Lost { .. }))),
        "its regions are lost: {lost:?}"
    );
}

#[test]
fn restarts_during_a_partition_keep_names_unique() {
    let mut world = World::of(4);
    world.part(&[0, 1, 3], &[2]);
    world.sleep(2);
    world.cluster.kill(0);
    world.sleep(1);
    let directory = world.cluster.add_late(0, ARENA_BYTES);
    world.part(&[directory], &[2]);
    world.cluster.wires.retain(|(from, to), _| *from != 2 && *to != 2);
    world.sleep(4);
    // The new directory does not know the region of node 2 yet.
    let other = world.cluster.alloc(1, &name_of(2), CHUNK_BYTES, Placement::Local);
    world.cluster.write(1, other, 0, b"other");
    world.cluster.cut.clear();
    world.sleep(6);
    let found = world.cluster.map(3, &name_of(2));
    assert_eq!(world.cluster.read(3, found, 0, 5), b"other");
    let renamed = world.cluster.map(3, "of 2@2");
    assert_eq!(world.cluster.read(3, renamed, 0, 4), b"of 2");
}

/// Acknowledgements were ignored once the region was renamed, and the command waited forever.
#[test]
fn commands_end_though_the_region_is_renamed() {
    let mut cluster = Cluster::of(3);
    cluster.adapters = true;
    let lh = cluster.alloc(1, "salt", CHUNK_BYTES, Placement::Local);
    cluster.part(&[0, 2], &[1]);
    cluster.sleep(2 * LEASE_NS);
    cluster.kill(0);
    cluster.sleep(LEASE_NS);
    let directory = cluster.add_late(0, ARENA_BYTES);
    cluster.part(&[directory], &[1]);
    cluster.wires.retain(|(from, to), _| *from != 1 && *to != 1);
    cluster.sleep(4 * LEASE_NS);
    cluster.alloc(2, "salt", CHUNK_BYTES, Placement::Local);
    // A thread at the home is in the middle of a write, and the command waits for that.
    let pin = cluster.hosts[1].path.clone();
    let pin = pin.pins().pin();
    let given = cluster.submit(1, Command::RegionCommand(lh, RegionCommand::Seal));
    cluster.run();
    cluster.cut.clear();
    cluster.sleep(6 * LEASE_NS);
    cluster.map_for(2, "salt@1", Permissions::READ);
    assert!(!cluster.has_ended(1, given));
    drop(pin);
    cluster.sleep(LEASE_NS);
    assert_eq!(cluster.outcome(1, given), Some(Ok(Outcome::Done)));
}

#[test]
fn forgotten_nodes_are_dead_for_all() {
    let mut world = World::of(3);
    world.part(&[2], &[0, 1]);
    world.sleep(2);
    let held = world.cluster.memory(1);
    assert_eq!(world.cluster.command(1, Command::ForgetNode(NodeId(2))), Ok(Outcome::Done));
    world.cluster.run();
    assert_eq!(world.cluster.memory(1).0, held.0 - CHUNK_BYTES, "its chunk is free");
    world.heal();
    assert!(!world.is_paired(0, 2) && !world.is_paired(1, 2), "not a member any more");
}

#[test]
fn reports_alone_end_no_connected_home() {
    let mut world = World::of(4);
    // It is home of the region of which all hold a chunk.
    let (lost, now_ns) = (PeerId(3 + 1), world.cluster.now_ns);
    world.cluster.hosts[2].engine.handle_disconnected(now_ns, lost);
    world.cluster.hosts[2].engine.handle_cut_off(now_ns, lost, true);
    world.cluster.run();
    assert!(world.is_paired(1, 3) && world.is_paired(0, 3), "the home is connected");
    let lh = world.cluster.map(1, &name_of(3));
    assert_eq!(world.cluster.read(1, lh, 0, 4), b"of 3");
}

#[test]
fn pairing_waits_for_accesses_of_the_last() {
    let mut world = World::of(3);
    let path = world.cluster.hosts[2].path.clone();
    let pin = path.pins().pin();
    world.part(&[1], &[2]);
    world.sleep(3);
    world.heal();
    assert!(!world.is_paired(1, 2), "a thread at host 2 is writing");
    drop(pin);
    world.sleep(4);
    world.check_nothing_is_lost();
}

/// A home drops the mappings of a newly paired node, which must have no accesses in flight, even to a region that it
/// dropped before the two lost contact.
#[test]
fn pairing_waits_for_accesses_to_dropped_regions() {
    let mut cluster = Cluster::of(3);
    cluster.adapters = true;
    let salt = cluster.alloc(1, "salt", CHUNK_BYTES, Placement::On(NodeId(0)));
    cluster.map(2, "salt");
    let memory = (0..3).map(|host| cluster.memory(host)).collect();
    let mut world = World { cluster, memory };
    let path = world.cluster.hosts[2].path.clone();
    let pin = path.pins().pin();
    let freed = world.cluster.submit(1, Command::RegionCommand(salt, RegionCommand::Free));
    world.cluster.run();
    world.part(&[0], &[2]);
    world.sleep(3);
    world.heal();
    assert!(!world.is_paired(0, 2), "a thread at host 2 is writing");
    drop(pin);
    world.sleep(4);
    assert!(world.is_paired(0, 2));
    assert!(world.cluster.outcome(1, freed).is_some(), "the command has ended");
}

#[test]
fn waits_of_earlier_commands_do_not_count() {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    let lh = cluster.alloc(0, "salt", CHUNK_BYTES, Placement::Local);
    cluster.map(2, "salt");
    cluster.stop(2);
    let given = cluster.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    while !cluster.has_ended(0, given) {
        cluster.sleep(LEASE_NS / 1000);
    }
    let refused = cluster.outcome(0, given).expect("the command has ended");
    assert!(is_down(&refused, 2), "{refused:?}: the mapper could still write to the old place");
    cluster.kill(2);
    // A thread at the home is in the middle of a write, and the command waits for that.
    let pin = cluster.hosts[0].path.clone();
    let pin = pin.pins().pin();
    let given = cluster.submit(0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(1) }));
    cluster.run();
    cluster.sleep(LEASE_NS / 2);
    drop(pin);
    cluster.sleep(LEASE_NS / 2);
    assert_eq!(cluster.outcome(0, given), Some(Ok(Outcome::Done)));
}

/// An owner's report about a node, requested by another.
fn reach(cluster: &mut Cluster, host: usize, node: u32, owner: u32) -> Reach {
    match cluster.command(host, Command::Reach { node: NodeId(node), owner: NodeId(owner) }) {
        Ok(Outcome::Reach(reach)) => reach,
        other => panic!("{other:?}"),
    }
}

#[test]
fn owners_report_cut_offs_of_their_own_memory() {
    let mut world = World::of(3);
    let incarnation = world.cluster.hosts[2].incarnation.id.0;
    let paired = Reach { incarnation, pairing: 1, is_cut_off: false };
    assert_eq!([0, 1].map(|owner| reach(&mut world.cluster, 0, 2, owner)), [paired; 2]);
    assert!(!reach(&mut world.cluster, 0, 2, 2).is_cut_off, "a node touches its own memory");
    world.part(&[1], &[2]);
    world.cluster.sleep(LEASE_NS / 2);
    assert_eq!(reach(&mut world.cluster, 0, 2, 1), paired, "silence is no cut-off");
    world.sleep(3);
    assert_eq!(reach(&mut world.cluster, 0, 2, 1), Reach { is_cut_off: true, ..paired });
    assert_eq!(reach(&mut world.cluster, 0, 2, 0), paired, "nodes speak for their own memory");
    world.heal();
    // The higher number shows a caller that missed the change that nothing posted earlier can land.
    assert_eq!(reach(&mut world.cluster, 0, 2, 1), Reach { pairing: 2, ..paired });
    let again = "paired again with node 2 (process 2), pairing 2";
    assert!(world.cluster.hosts[1].news.iter().any(|news| news.to_string() == again && !news.is_trouble()));
    let unknown = world.cluster.command(0, Command::Reach { node: NodeId(77), owner: NodeId(1) });
    assert_eq!(unknown, Err(ErrorReply::UnknownNode(NodeId(77)).into()));
    world.part(&[0], &[1]);
    world.sleep(3);
    let without_command = world.cluster.command(0, Command::Reach { node: NodeId(2), owner: NodeId(1) });
    assert!(is_down(&without_command, 1));
}

impl World {
    /// A host loses power: only `witnesses` see that its process has ended.
    fn end_seen_by(&mut self, host: usize, witnesses: &[usize]) {
        self.cluster.hosts[host].running = false;
        self.cluster.wires.retain(|(from, to), _| *from != host && *to != host);
        let (peer, now_ns) = (PeerId(host as u32 + 1), self.cluster.now_ns);
        for witness in witnesses {
            let engine = &mut self.cluster.hosts[*witness].engine;
            engine.handle_disconnected(now_ns, peer);
            engine.handle_cut_off(now_ns, peer, true);
        }
    }

    /// Node 0 restarts, and joins by way of one host.
    fn join_by_way_of(&mut self, host: usize) -> usize {
        let others: Vec<usize> = (0..self.count()).filter(|other| *other != host).collect();
        let were_running: Vec<bool> = others.iter().map(|other| self.cluster.hosts[*other].running).collect();
        others.iter().for_each(|other| self.cluster.hosts[*other].running = false);
        let directory = self.cluster.add_late(0, ARENA_BYTES);
        for (other, was_running) in others.into_iter().zip(were_running) {
            self.cluster.hosts[other].running = was_running;
        }
        directory
    }

    /// Checks that all survivors know of the death of the wide region's home, and hold nothing for it.
    fn check_end_is_known(&mut self, host: usize, survivors: &[usize]) {
        for survivor in survivors {
            assert_eq!(self.state(*survivor, host), NodeState::Dead, "host {survivor}");
            let held = self.memory[*survivor].0 - self.cluster.memory(*survivor).0;
            assert_eq!(held, CHUNK_BYTES, "host {survivor} holds no chunk for it");
        }
    }
}

/// Chunks held for it stayed held until restarts.
#[test]
fn ends_seen_by_one_node_are_known_to_all() {
    for witness in [0, 2] {
        let mut world = World::of(4);
        world.end_seen_by(3, &[witness]);
        world.sleep(3);
        world.check_end_is_known(3, &[0, 1, 2]);
    }
}

#[test]
fn ends_are_reported_to_a_returning_directory() {
    let mut world = World::of(4);
    world.part(&[0], &[1, 2]);
    world.end_seen_by(3, &[2]);
    world.sleep(3);
    assert_eq!(world.state(1, 3), NodeState::Unreachable, "host 1 was not told");
    world.cluster.cut.clear();
    world.sleep(3);
    world.check_end_is_known(3, &[0, 1, 2]);
}

/// The directory knew no such node, and chunks held for it stayed held.
#[test]
fn restarted_directories_learn_dead_nodes() {
    let mut world = World::of(4);
    world.end_seen_by(3, &[]);
    world.sleep(2);
    world.cluster.kill(0);
    world.sleep(1);
    let directory = world.cluster.add_late(0, ARENA_BYTES);
    world.sleep(2);
    assert_eq!(world.state(directory, 3), NodeState::Unreachable);
    assert_eq!(world.cluster.command(1, Command::ForgetNode(NodeId(3))), Ok(Outcome::Done));
    world.sleep(1);
    for host in [1, 2] {
        assert_eq!(world.memory[host].0 - world.cluster.memory(host).0, CHUNK_BYTES, "host {host}");
    }
}

#[test]
fn forgotten_nodes_stay_refused() {
    let mut world = World::of(3);
    world.part(&[2], &[0, 1]);
    world.sleep(2);
    assert_eq!(world.cluster.command(1, Command::ForgetNode(NodeId(2))), Ok(Outcome::Done));
    for command in 0..100 {
        let ephemeral = world.cluster.add(NodeId::EPHEMERAL_MIN.0 + command, 0);
        world.cluster.kill(ephemeral);
    }
    world.heal();
    assert!(!world.is_paired(0, 2) && !world.is_paired(1, 2));
}

#[test]
fn lists_show_unreachable_homes() {
    let mut world = World::of(3);
    world.part(&[2], &[0, 1]);
    world.sleep(2);
    for host in [0, 1] {
        let Ok(Outcome::List { regions, unreachable, .. }) = world.cluster.command(host, Command::List)
        else {
            panic!("no list")
        };
        let names: Vec<_> = regions.iter().filter_map(|region| region.name.as_deref()).collect();
        assert_eq!(names, ["of 0", "of 1"]);
        assert_eq!(unreachable, [(name_of(2), NodeId(2)), ("wide".to_owned(), NodeId(2))]);
    }
    world.heal();
    world.check_nothing_is_lost();
}

/// A third node executed a command for a node whose pairing had ended, in a region that its home took to be quiet.
#[test]
fn pairing_waits_for_commands_at_a_third_node() {
    let mut world = World::of(3);
    let fill = world.begin_a_slow_fill();
    assert_eq!(world.cluster.copies_under_way(), 1, "host 1 executes it");
    world.part(&[0], &[2]);
    world.sleep(3);
    world.heal();
    assert!(!world.is_paired(0, 2));
    world.cluster.slow_to_copy = false;
    world.cluster.finish_copies();
    world.sleep(4);
    assert!(world.cluster.has_ended(2, fill) && world.is_paired(0, 2));
}

/// The home did not know of the command, and assumed that no node changed the sealed region.
#[test]
fn seals_wait_for_commands_with_lost_replies() {
    let mut world = World::of(3);
    let sealed = world.cluster.map_for(0, "wide", ALL);
    let fill = world.begin_a_slow_fill();
    world.part(&[1], &[2]);
    while !world.cluster.has_ended(2, fill) {
        world.cluster.sleep(LEASE_NS / 8);
    }
    let seal = world.cluster.submit(0, Command::RegionCommand(sealed, RegionCommand::Seal));
    world.cluster.sleep(LEASE_NS);
    assert_eq!(world.cluster.copies_under_way(), 1, "host 1 executes it");
    assert!(!world.cluster.has_ended(0, seal), "host 2 knows that it may be running");
    world.cluster.slow_to_copy = false;
    world.cluster.finish_copies();
    world.sleep(1);
    assert_eq!(world.cluster.outcome(0, seal), Some(Ok(Outcome::Done)));
    world.heal();
    assert!(world.is_paired(1, 2));
}

/// The command had failed for its requester, which issued others since, and was still being executed.
#[test]
fn pairing_waits_for_commands_of_the_peer() {
    let mut world = World::of(3);
    let fill = world.begin_a_slow_fill();
    world.part(&[1], &[2]);
    world.sleep(3);
    assert!(world.cluster.has_ended(2, fill), "the fill has failed");
    world.heal();
    assert!(!world.is_paired(1, 2));
    world.cluster.slow_to_copy = false;
    world.cluster.finish_copies();
    world.sleep(4);
    assert!(world.is_paired(1, 2));
}

/// No node mapped it, none could, and its bytes were never freed.
#[test]
fn regions_of_lost_requesters_are_freed() {
    let mut world = World::of(3);
    world.cluster.slow_to_populate = true;
    let Command::Alloc { len, chunk_bytes, everyone, .. } = common::allocation(None, 8, Placement::Local)
    else {
        unreachable!("an allocation")
    };
    let placement = Placement::On(NodeId(1));
    let made = Command::Alloc { name: None, len, chunk_bytes, placement, everyone, populate: true };
    let given = world.cluster.submit(2, made);
    world.cluster.run();
    world.part(&[1], &[2]);
    world.sleep(3);
    assert!(is_down(&world.cluster.outcome(2, given).expect("the command has failed"), 1));
    world.heal();
    assert!(world.is_paired(1, 2));
    world.cluster.slow_to_populate = false;
    world.cluster.populate();
    world.sleep(2);
    world.check_nothing_is_lost();
}

/// The owner did not learn of the release of chunks that it had just reported, and held them until it ended.
#[test]
fn chunks_freed_during_a_held_report_are_returned() {
    const REGIONS: u64 = 1500;
    let mut cluster = Cluster::of(0);
    cluster.adapters = true;
    for node in 0..2 {
        cluster.add(node, 4 * REGIONS * CHUNK_BYTES);
    }
    let on_both = Placement::Spread(vec![NodeId(0), NodeId(1)]);
    for region in 0..REGIONS {
        cluster.alloc(0, &region.to_string(), 2 * CHUNK_BYTES, on_both.clone());
    }
    cluster.part(&[0], &[1]);
    cluster.sleep(2 * LEASE_NS);
    cluster.cut.clear();
    // Chunks made first are reported first.
    let mut left: Vec<u64> = (0..REGIONS).rev().collect();
    let (mut mapped, mut freed) = (Vec::new(), Vec::new());
    while freed.len() < REGIONS as usize {
        cluster.pass(LEASE_NS / 4);
        while cluster.step() {
            if !cluster.hosts[0].engine.is_connected_to(NodeId(1)) {
                continue;
            }
            if let Some(slot) = mapped.pop().and_then(|op| cluster.outcome(0, op)).map(common::slot) {
                freed.push(cluster.submit(0, Command::RegionCommand(slot, RegionCommand::Free)));
            }
            if let Some(region) = left.pop() {
                mapped.push(cluster.submit(0, Command::Map { name: region.to_string(), wanted: ALL }));
            }
        }
    }
    for op in freed {
        assert_eq!(cluster.outcome(0, op), Some(Ok(Outcome::Done)));
    }
    assert_eq!([0, 1].map(|host| cluster.memory(host)), [(0, 0); 2]);
}

/// The next home had adopted it, and never learned that its last mapper had unmapped it.
#[test]
fn unmaps_during_a_handover_with_a_broken_link_free() {
    for step in 0.. {
        let mut cluster = Cluster::of(3);
        cluster.adapters = true;
        let allocated = cluster.command(2, common::allocation(None, 8, Placement::On(NodeId(1))));
        let mapped = common::slot(allocated);
        let moved = cluster.submit(2, Command::RegionCommand(mapped, RegionCommand::Move { to: NodeId(0) }));
        for _ in 0..step {
            cluster.step();
        }
        if cluster.has_ended(2, moved) {
            assert!(step > 10, "cut at every step");
            break;
        }
        let given_up = cluster.submit(2, Command::Unmap(mapped));
        for _ in 0..3 {
            cluster.step();
        }
        cluster.part(&[0], &[1]);
        cluster.sleep(3 * LEASE_NS);
        assert!(cluster.has_ended(2, given_up) && cluster.has_ended(2, moved));
        cluster.cut.clear();
        cluster.sleep(4 * LEASE_NS);
        assert_eq!([0, 1, 2].map(|host| cluster.memory(host)), [(0, 0); 3], "cut after {step} steps");
    }
}

/// It granted names whose regions' homes had yet to dial it.
#[test]
fn restarted_directories_wait_for_reported_nodes() {
    let mut world = World::of(4);
    world.cluster.kill(0);
    world.sleep(1);
    // It joins by way of host 1; the others dial it at their next attempt.
    world.part(&[4], &[2, 3]);
    let directory = world.join_by_way_of(1);
    world.cluster.run();
    let taken = |name: &str| common::allocation(Some(name), CHUNK_BYTES, Placement::Local);
    let asked = world.cluster.submit(directory, taken(&name_of(2)));
    world.cluster.run();
    assert!(!world.cluster.has_ended(directory, asked), "host 2 may have the name");
    world.cluster.cut.clear();
    world.sleep(2);
    assert_eq!(world.cluster.outcome(directory, asked), Some(Err(ErrorReply::NameTaken.into())));
}

#[test]
fn restarted_directories_wait_at_most_a_lease() {
    let mut world = World::of(3);
    world.cluster.kill(0);
    world.sleep(1);
    world.part(&[3], &[2]);
    let directory = world.join_by_way_of(1);
    world.cluster.run();
    let new = common::allocation(Some("new"), CHUNK_BYTES, Placement::Local);
    let asked = world.cluster.submit(directory, new);
    world.cluster.run();
    assert!(!world.cluster.has_ended(directory, asked));
    world.sleep(2);
    assert!(matches!(world.cluster.outcome(directory, asked), Some(Ok(Outcome::Mapped { .. }))));
}

/// Two sessions held one lock: its home and the node by which the directory joined had lost contact.
#[test]
fn restarted_directories_wait_for_unreachable_nodes_too() {
    // Host 3 would tell host 2 at once where the directory is.
    let mut world = World::of(4);
    world.part(&[1], &[2]);
    world.sleep(2);
    assert!(!world.is_paired(1, 2));
    world.cluster.kill(0);
    world.cluster.kill(3);
    world.sleep(1);
    let directory = world.join_by_way_of(1);
    world.cluster.run();
    let taken = common::allocation(Some(&name_of(2)), CHUNK_BYTES, Placement::Local);
    let asked = world.cluster.submit(directory, taken);
    world.cluster.run();
    assert!(!world.cluster.has_ended(directory, asked), "host 2 may have the name");
    world.cluster.connect(2, directory);
    world.cluster.run();
    assert_eq!(world.cluster.outcome(directory, asked), Some(Err(ErrorReply::NameTaken.into())));
}
