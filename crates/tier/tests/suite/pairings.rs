//! Nodes that lose contact, connected by adapters: links fail, nodes live, and nothing is lost.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS};
use halite_tier::access::{RegionOffset, SlotRef};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, Reach, RegionCommand};
use halite_tier::news::News;
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
    fn begin_slow_fill(&mut self) -> OpId {
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

/// Holds for partitions of any duration, even if they isolate one node or the directory.
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
        assert!(
            can_write(&cluster, 3, mapped, CHUNK_BYTES),
            "{order:?}: it may write until it learns of the command"
        );
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

#[test]
fn forgotten_nodes_end_when_they_return() {
    let mut world = World::of(3);
    world.part(&[2], &[0, 1]);
    world.sleep(2);
    assert_eq!(world.cluster.command(1, Command::ForgetNode(NodeId(2))), Ok(Outcome::Done));
    world.heal();
    assert!(!world.cluster.hosts[2].running && !world.is_paired(0, 2) && !world.is_paired(1, 2));
    assert!(world.cluster.hosts[2].news.iter().any(|news| matches!(news, News::Over(_))));
}

#[test]
fn reports_do_not_end_connected_homes() {
    let mut world = World::of(4);
    // Node 3 is the home of the region of which each node holds a chunk.
    world.cluster.lose(2, 3, true);
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

/// A home forgets the mappings of a newly paired node. So that node must have no accesses in flight, even to a region
/// that it dropped before the two lost contact.
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

/// Returns an owner's report about a node, requested by `host`.
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
    // The higher number shows a caller that missed the cut-off that no operation posted earlier can arrive.
    assert_eq!(reach(&mut world.cluster, 0, 2, 1), Reach { pairing: 2, ..paired });
    let again = "paired again with node 2 (process 2), pairing 2";
    assert!(world.cluster.hosts[1].news.iter().any(|news| news.to_string() == again && !news.is_trouble()));
    let unknown = world.cluster.command(0, Command::Reach { node: NodeId(77), owner: NodeId(1) });
    assert_eq!(unknown, Err(ErrorReply::UnknownNode(NodeId(77)).into()));
    world.part(&[0], &[1]);
    world.sleep(3);
    let not_connected = world.cluster.command(0, Command::Reach { node: NodeId(2), owner: NodeId(1) });
    assert_eq!(not_connected, Err(ErrorReply::NotMet(NodeId(1)).into()), "nothing was sent");
}

impl World {
    /// Node 0 restarts, and joins through one host.
    fn join_through(&mut self, host: usize) -> usize {
        let others: Vec<usize> = (0..self.count()).filter(|other| *other != host).collect();
        let were_running: Vec<bool> = others.iter().map(|other| self.cluster.hosts[*other].running).collect();
        others.iter().for_each(|other| self.cluster.hosts[*other].running = false);
        let directory = self.cluster.add_late(0, ARENA_BYTES);
        for (other, was_running) in others.into_iter().zip(were_running) {
            self.cluster.hosts[other].running = was_running;
        }
        directory
    }
}

/// Past bug: the home did not know of a fill whose reply was lost, and reported the region as sealed while it changed.
#[test]
fn seals_wait_for_commands_with_lost_replies() {
    let mut world = World::of(3);
    let sealed = world.cluster.map_for(0, "wide", ALL);
    let fill = world.begin_slow_fill();
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

/// Past bug: two sessions held one lock, because its home and the node through which the directory joined had lost
/// contact.
#[test]
fn restarted_directory_waits_for_unreachable_nodes() {
    // Host 3 would tell host 2 at once where the directory is.
    let mut world = World::of(4);
    world.part(&[1], &[2]);
    world.sleep(2);
    assert!(!world.is_paired(1, 2));
    world.cluster.kill(0);
    world.cluster.kill(3);
    world.sleep(1);
    let directory = world.join_through(1);
    world.cluster.run();
    let taken = common::allocation(Some(&name_of(2)), CHUNK_BYTES, Placement::Local);
    let asked = world.cluster.submit(directory, taken);
    world.cluster.run();
    assert!(!world.cluster.has_ended(directory, asked), "host 2 may have the name");
    world.cluster.connect(2, directory);
    world.cluster.run();
    assert_eq!(world.cluster.outcome(directory, asked), Some(Err(ErrorReply::NameTaken.into())));
}
