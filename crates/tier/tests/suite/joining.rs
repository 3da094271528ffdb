//! Scenarios of nodes that join while members answer late, and of regions that move to a member to which a mapper is
//! not connected.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, RegionCommand};
use halite_tier::permissions::Permissions;

const RIGHTS: Permissions = Permissions::READ;
/// The number of an ephemeral node.
const EPHEMERAL: u32 = 1 << 31;

fn name_of(node: u32) -> String {
    format!("of {node}")
}

/// Five nodes with a region each.
fn five_nodes() -> Cluster {
    let mut cluster = Cluster::of(5);
    for node in 0..5 {
        let lh = cluster.alloc(0, &name_of(node), CHUNK_BYTES, Placement::On(NodeId(node)));
        cluster.write(0, lh, 0, name_of(node).as_bytes());
    }
    cluster
}

/// Joins a node that connects to the hosts `met`, and dials the others.
fn join(cluster: &mut Cluster, node: u32, bytes_total: u64, met: &[usize]) -> usize {
    cluster.slow_to_dial = true;
    let joined = cluster.add_unmet(node, bytes_total);
    cluster.connect(joined, 0);
    cluster.run();
    met.iter().for_each(|other| cluster.finish_dials(joined, *other, true));
    assert!(matches!(cluster.command(joined, Command::Greet), Ok(Outcome::Status(_))), "it has joined");
    joined
}

/// Starts a command that has to wait for a node.
fn begin(cluster: &mut Cluster, host: usize, command: Command) -> OpId {
    let op = cluster.submit(host, command);
    cluster.run();
    assert!(!cluster.has_ended(host, op));
    op
}

fn move_to(lh: SlotRef, node: u32) -> Command {
    Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(node) })
}

fn is_mapped(cluster: &Cluster, host: usize, lh: SlotRef) -> bool {
    cluster.hosts[host].engine.known_region(cluster.hosts[host].session, lh).is_some()
}

#[test]
fn moves_drop_mappers_that_cannot_connect() {
    let mut cluster = five_nodes();
    let lh = cluster.map_for(0, &name_of(3), RIGHTS | Permissions::MASTER);
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let theirs = cluster.map_for(joined, &name_of(3), RIGHTS);
    let moving = begin(&mut cluster, 0, move_to(lh, 4));
    cluster.finish_dials(joined, 4, false);
    assert_eq!(cluster.outcome(0, moving), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.read(0, lh, 0, 4), b"of 3");
    let (host, mut byte) = (&cluster.hosts[joined], [0]);
    assert!(host.path.read(host.session, theirs, 0, &mut byte).is_err());
}

#[test]
fn unanswered_dials_are_retried_for_a_lease() {
    for answers in [true, false] {
        let mut cluster = five_nodes();
        let joined = join(&mut cluster, EPHEMERAL, 0, &[]);
        let allocation = allocation(None, CHUNK_BYTES, Placement::On(NodeId(4)));
        let asked = begin(&mut cluster, joined, allocation);
        for _ in 0..2 {
            cluster.lose_dials(joined, 4);
            cluster.sleep(LEASE_NS / 4);
            assert!(!cluster.has_ended(joined, asked), "the lease is not over, and node 4 is dialled again");
        }
        if answers {
            cluster.finish_dials(joined, 4, true);
            assert!(matches!(cluster.outcome(joined, asked), Some(Ok(Outcome::Mapped { .. }))));
        } else {
            cluster.sleep(LEASE_NS);
            let not_met = Err(ErrorReply::NotMet(NodeId(4)).into());
            assert_eq!(cluster.outcome(joined, asked), Some(not_met), "node 4 may be alive");
        }
    }
}

#[test]
fn started_handshakes_get_another_lease() {
    let mut cluster = five_nodes();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[]);
    let asked = begin(&mut cluster, joined, allocation(None, CHUNK_BYTES, Placement::On(NodeId(4))));
    cluster.lose_dials(joined, 4);
    cluster.sleep(LEASE_NS / 2);
    cluster.held = vec![(4, joined)];
    cluster.finish_dials(joined, 4, true);
    cluster.sleep(3 * LEASE_NS / 4);
    assert!(!cluster.has_ended(joined, asked), "the nodes are connected, and a message is late");
    cluster.held.clear();
    cluster.run();
    assert!(matches!(cluster.outcome(joined, asked), Some(Ok(Outcome::Mapped { .. }))));
}

#[test]
fn status_awaits_distant_members_that_answer() {
    let mut cluster = five_nodes();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let asked = begin(&mut cluster, joined, Command::Status);
    for _ in 0..80 {
        let then_ns = cluster.now_ns + LEASE_NS / 100;
        cluster.hosts[joined].engine.handle_dials(then_ns, || true);
        cluster.pass(LEASE_NS / 100);
        cluster.run();
        assert!(!cluster.has_ended(joined, asked), "node 4 answers, but its connection is not complete");
    }
    cluster.finish_dials(joined, 4, true);
    let Some(Ok(Outcome::Status(nodes))) = cluster.outcome(joined, asked) else {
        panic!("all have answered")
    };
    assert!(nodes.iter().all(|status| status.state == NodeState::Alive), "{nodes:?}");
}

#[test]
fn waits_for_an_incarnation_end_when_the_next_joins() {
    let mut cluster = five_nodes();
    let lh = cluster.map_for(2, &name_of(2), RIGHTS | Permissions::MASTER);
    cluster.map_for(1, &name_of(2), RIGHTS);
    cluster.held.push((0, 1));
    let joined = join(&mut cluster, 7, ARENA_BYTES, &[]);
    for member in [2, 3, 4] {
        cluster.connect(joined, member);
    }
    cluster.run();
    // The mapper acknowledges no freeze before it has met the node that receives the bytes.
    let moving = begin(&mut cluster, 2, move_to(lh, 7));
    let next = cluster.add_unmet(7, ARENA_BYTES);
    cluster.connect(next, 1);
    cluster.run();
    assert_eq!(cluster.outcome(2, moving), Some(Ok(Outcome::Done)));
}

#[test]
fn commands_after_an_early_handover_wait_for_mappers() {
    let orders = [RegionCommand::Free, RegionCommand::Move { to: NodeId(2) }, RegionCommand::Seal];
    for order in orders {
        let mut cluster = five_nodes();
        let lh = cluster.map_for(0, &name_of(3), RIGHTS | Permissions::MASTER);
        let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
        let theirs = cluster.map_for(joined, &name_of(3), RIGHTS | Permissions::WRITE);
        let moving = begin(&mut cluster, 0, move_to(lh, 4));
        cluster.held.push((joined, 4));
        cluster.finish_dials(joined, 4, true);
        assert_eq!(cluster.outcome(0, moving), Some(Ok(Outcome::Done)));
        let ordered = begin(&mut cluster, 0, Command::RegionCommand(lh, order));
        assert!(is_mapped(&cluster, joined, theirs));
        cluster.held.clear();
        cluster.run();
        assert_eq!(cluster.outcome(0, ordered), Some(Ok(Outcome::Done)));
        let (host, at) = (&cluster.hosts[joined], cluster.hosts[joined].session);
        match is_mapped(&cluster, 0, lh) {
            false => assert!(!is_mapped(&cluster, joined, theirs), "freed and unreachable"),
            true => {
                assert_eq!(cluster.read(joined, theirs, 0, 4), b"of 3");
                let is_sealed = host.path.write(at, theirs, 0, b"!").is_err();
                assert_eq!(is_sealed, cluster.extents(0, lh)[0].owner.node == NodeId(4));
            }
        }
    }
}
