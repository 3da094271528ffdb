//! Scenarios of nodes that join where members have just lost power, or answer late: only operations that need a member
//! wait for it.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation, slot};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, NodeStatus, RegionCommand};
use halite_tier::permissions::Permissions;

const RIGHTS: Permissions = Permissions::READ;
/// The number of an ephemeral node.
const EPHEMERAL: u32 = 1 << 31;

fn name_of(node: u32) -> String {
    format!("of {node}")
}

/// Five nodes with a region each.
fn five() -> Cluster {
    let mut cluster = Cluster::of(5);
    for node in 0..5 {
        let lh = cluster.alloc(0, &name_of(node), CHUNK_BYTES, Placement::On(NodeId(node)));
        cluster.write(0, lh, 0, name_of(node).as_bytes());
    }
    cluster
}

/// Joins a node that meets the hosts `met`, and dials the others.
fn join(cluster: &mut Cluster, node: u32, bytes_total: u64, met: &[usize]) -> usize {
    cluster.slow_to_dial = true;
    let joined = cluster.add_unmet(node, bytes_total);
    cluster.connect(joined, 0);
    cluster.run();
    met.iter().for_each(|other| cluster.finish_dials(joined, *other, true));
    assert!(matches!(cluster.command(joined, Command::Greet), Ok(Outcome::Status(_))), "it has joined");
    joined
}

/// Three of five members have just lost power, unnoticed.
fn joined_beside_the_dead() -> (Cluster, usize) {
    let mut cluster = five();
    (2..5).for_each(|host| cluster.stop(host));
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1]);
    (cluster, joined)
}

fn map(name: &str) -> Command {
    Command::Map { name: name.to_owned(), wanted: RIGHTS }
}

fn down(node: u32) -> Result<Outcome, CommandError> {
    Err(ErrorReply::PeerDown(NodeId(node)).into())
}

/// Starts a command that has to wait for a node.
fn begin(cluster: &mut Cluster, host: usize, command: Command) -> OpId {
    let op = cluster.submit(host, command);
    cluster.run();
    assert!(!cluster.has_ended(host, op));
    op
}

#[test]
fn joins_do_not_wait_for_dead_members() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let before_ns = cluster.now_ns;
    for name in [name_of(0), name_of(1)] {
        let lh = cluster.map_for(joined, &name, RIGHTS);
        assert_eq!(cluster.read(joined, lh, 0, name.len()), name.as_bytes());
    }
    assert_eq!(cluster.command(joined, Command::ListLost), Ok(Outcome::Lost(Vec::new())));
    assert!(matches!(cluster.command(joined, Command::TakeNumber), Ok(Outcome::Number(_))));
    cluster.alloc(joined, "anywhere", CHUNK_BYTES, Placement::Anywhere);
    assert_eq!(cluster.now_ns, before_ns, "no time passed");
}

#[test]
fn operations_wait_for_dials_to_needed_members() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let stat = begin(&mut cluster, joined, Command::Stat(name_of(2)));
    let list = begin(&mut cluster, joined, Command::List);
    cluster.finish_dials(joined, 2, false);
    assert_eq!(cluster.outcome(joined, stat), Some(down(2)));
    assert!(!cluster.has_ended(joined, list), "the list needs the other nodes");
    cluster.finish_dials(joined, 3, false);
    cluster.finish_dials(joined, 4, false);
    let Some(Ok(Outcome::List { regions, unreachable, .. })) = cluster.outcome(joined, list) else {
        panic!("a list")
    };
    assert_eq!(regions.len(), 2);
    assert_eq!(unreachable, [2, 3, 4].map(|node| (name_of(node), NodeId(node))));
    // From here on it is known to be unreachable, even while it is dialled again.
    assert_eq!(cluster.command(joined, map(&name_of(2))), down(2));
    cluster.sleep(LEASE_NS / 4);
    assert_eq!(cluster.command(joined, map(&name_of(2))), down(2));
}

#[test]
fn first_meetings_time_out_after_a_lease() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let stat = begin(&mut cluster, joined, Command::Stat(name_of(2)));
    let status = begin(&mut cluster, joined, Command::Status);
    // The directory sends nothing meanwhile.
    cluster.sleep(3 * LEASE_NS / 4);
    assert!(!cluster.has_ended(joined, stat));
    cluster.sleep(LEASE_NS / 4);
    assert_eq!(cluster.outcome(joined, stat), Some(down(2)));
    let Some(Ok(Outcome::Status(all))) = cluster.outcome(joined, status) else { panic!("a status") };
    let alive = all.iter().filter(|status| status.state == NodeState::Alive).map(|status| status.node.0);
    assert_eq!(alive.collect::<Vec<_>>(), [0, 1, EPHEMERAL]);
    assert_eq!(all.len(), 6, "dead members are listed");
    let unmet = |status: &&NodeStatus| [2, 3, 4].contains(&status.node.0);
    assert!(
        all.iter().filter(unmet).all(|status| status.state == NodeState::Silent && status.loss.is_none()),
        "the directory still hears them: {all:?}"
    );
    let known =
        |node| cluster.hosts[joined].engine.known_peer(cluster.now_ns, NodeId(node)).expect("a member");
    assert!([2, 3, 4].iter().all(|node| known(*node).state == NodeState::Silent), "not awaited");
}

#[test]
fn slow_members_are_awaited() {
    let mut cluster = five();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    assert!(cluster.hosts[joined].engine.is_connecting(NodeId(4)));
    let mapping = begin(&mut cluster, joined, map(&name_of(4)));
    let status = begin(&mut cluster, joined, Command::Status);
    cluster.finish_dials(joined, 4, true);
    assert!(!cluster.hosts[joined].engine.is_connecting(NodeId(4)));
    let lh = slot(cluster.outcome(joined, mapping).expect("its home is met"));
    assert_eq!(cluster.read(joined, lh, 0, 4), b"of 4");
    let Some(Ok(Outcome::Status(all))) = cluster.outcome(joined, status) else { panic!("a status") };
    assert!(all.iter().all(|status| status.state == NodeState::Alive), "{all:?}");
}

#[test]
fn maps_wait_for_all_owners_and_see_the_latest_state() {
    let mut cluster = five();
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    let lh = cluster.alloc(1, "spread", 2 * CHUNK_BYTES, spread);
    cluster.write(1, lh, 0, &[7; 2 * CHUNK_BYTES as usize]);
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let mapping = begin(&mut cluster, joined, map("spread"));
    // It moves meanwhile, without waiting for a node that does not map it yet.
    let order = RegionCommand::Move { to: NodeId(2) };
    assert_eq!(cluster.command(1, Command::RegionCommand(lh, order)), Ok(Outcome::Done));
    assert!(!cluster.has_ended(joined, mapping));
    cluster.finish_dials(joined, 4, true);
    let mapped = slot(cluster.outcome(joined, mapping).expect("its owners are met"));
    let owners = cluster.extents(joined, mapped).into_iter().map(|extent| extent.owner.node.0);
    assert!(owners.into_iter().all(|owner| owner == 2), "mapped at its new place");
    assert_eq!(cluster.read(joined, mapped, 0, 2 * CHUNK_BYTES as usize), [7; 2 * CHUNK_BYTES as usize]);
    assert_eq!(cluster.command(1, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
    assert!(cluster.hosts[joined].engine.known_region(cluster.hosts[joined].session, mapped).is_none());
}

#[test]
fn maps_succeed_without_unreachable_owners() {
    let mut cluster = five();
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    let lh = cluster.alloc(1, "spread", 2 * CHUNK_BYTES, spread);
    cluster.write(1, lh, 0, b"here");
    cluster.stop(4);
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let mapping = begin(&mut cluster, joined, map("spread"));
    cluster.finish_dials(joined, 4, false);
    let mapped = slot(cluster.outcome(joined, mapping).expect("its owner is known to be unreachable"));
    assert_eq!(cluster.read(joined, mapped, 0, 4), b"here");
    let (host, mut byte) = (&cluster.hosts[joined], [0]);
    assert!(host.path.read(host.session, mapped, CHUNK_BYTES, &mut byte).is_err());
}

#[test]
fn allocations_wait_for_members_being_met() {
    let mut cluster = five();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    // Made at node 1, which has met all; its maker has to meet node 4 to map it.
    let named = begin(&mut cluster, joined, allocation(Some("named"), 2 * CHUNK_BYTES, spread.clone()));
    let unnamed = begin(&mut cluster, joined, allocation(None, 2 * CHUNK_BYTES, spread));
    let on_one = begin(&mut cluster, joined, allocation(None, CHUNK_BYTES, Placement::On(NodeId(4))));
    cluster.finish_dials(joined, 4, true);
    for op in [named, unnamed, on_one] {
        let lh = slot(cluster.outcome(joined, op).expect("the region exists"));
        cluster.write(joined, lh, 0, b"salt");
        let order = Command::RegionCommand(lh, RegionCommand::Free);
        assert_eq!(cluster.command(joined, order), Ok(Outcome::Done), "its maker is its master");
    }
}

/// The directory announces the joining node to the members, which wait as patiently.
#[test]
fn members_wait_for_announced_newcomers() {
    let mut cluster = five();
    let lh = cluster.map_for(0, &name_of(1), RIGHTS | Permissions::MASTER);
    let joined = join(&mut cluster, 7, ARENA_BYTES, &[2, 3, 4]);
    let moving = begin(&mut cluster, 0, Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(7) }));
    let on_it = begin(&mut cluster, 1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(7))));
    cluster.finish_dials(joined, 1, true);
    assert_eq!(cluster.outcome(0, moving), Some(Ok(Outcome::Done)));
    slot(cluster.outcome(1, on_it).expect("the two have met"));
    assert_eq!(cluster.read(0, lh, 0, 4), b"of 1");
}

#[test]
fn abandoned_requests_are_not_sent_after_a_meeting() {
    let mut cluster = five();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let mapping = begin(&mut cluster, joined, map(&name_of(4)));
    let session = cluster.hosts[joined].session;
    let now_ns = cluster.now_ns;
    cluster.hosts[joined].engine.close_session(now_ns, session);
    cluster.finish_dials(joined, 4, true);
    assert!(matches!(cluster.outcome(joined, mapping), Some(Err(_))), "its session has ended");
    // Its home awaits no acknowledgement from it.
    let lh = cluster.map_for(0, &name_of(4), RIGHTS | Permissions::MASTER);
    assert_eq!(cluster.command(0, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
}

#[test]
fn waits_end_when_a_member_is_known_gone() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let stat = begin(&mut cluster, joined, Command::Stat(name_of(2)));
    cluster.kill(2);
    cluster.run();
    let ended = cluster.outcome(joined, stat);
    assert!(matches!(ended, Some(Err(CommandError::Refused(_)))), "{ended:?}");
}

// Regions that move to a member which a mapper has not met yet.

fn move_to(lh: SlotRef, node: u32) -> Command {
    Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(node) })
}

fn free(lh: SlotRef) -> Command {
    Command::RegionCommand(lh, RegionCommand::Free)
}

/// A session of `host` makes an unnamed region on node 3: it ends with its last mapping.
fn unnamed(cluster: &mut Cluster, host: usize) -> SlotRef {
    let lh = slot(cluster.command(host, allocation(None, CHUNK_BYTES, Placement::On(NodeId(3)))));
    cluster.write(host, lh, 0, b"salt");
    lh
}

fn is_mapped(cluster: &Cluster, host: usize, lh: SlotRef) -> bool {
    cluster.hosts[host].engine.known_region(cluster.hosts[host].session, lh).is_some()
}

#[test]
fn moves_wait_for_mappers_to_meet_the_target() {
    let mut cluster = five();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let lh = unnamed(&mut cluster, joined);
    let moving = begin(&mut cluster, joined, move_to(lh, 4));
    cluster.finish_dials(joined, 4, true);
    assert_eq!(cluster.outcome(joined, moving), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.extents(joined, lh)[0].owner.node, NodeId(4));
    assert_eq!(cluster.read(joined, lh, 0, 4), b"salt");
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(cluster.read(joined, lh, 0, 4), b"salt");
}

#[test]
fn moves_lose_mappers_that_cannot_meet_the_target() {
    let mut cluster = five();
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
fn moves_to_unannounced_newcomers_succeed() {
    let mut cluster = five();
    let lh = unnamed(&mut cluster, 1);
    // The announcement of the new node is late, so only nodes that received it dial it.
    cluster.held.push((0, 1));
    let joined = join(&mut cluster, 7, ARENA_BYTES, &[]);
    for member in [2, 3, 4] {
        cluster.connect(joined, member);
    }
    cluster.run();
    assert!(!cluster.hosts[1].engine.knows(NodeId(7)));
    let moving = cluster.submit(1, move_to(lh, 7));
    cluster.run();
    assert!(!cluster.has_ended(1, moving));
    cluster.held.clear();
    cluster.run();
    cluster.connect(joined, 1);
    cluster.run();
    assert_eq!(cluster.outcome(1, moving), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.extents(1, lh)[0].owner.node, NodeId(7));
    assert_eq!(cluster.read(1, lh, 0, 4), b"salt");
}

#[test]
fn waits_for_a_former_incarnation_end_with_the_next() {
    let mut cluster = five();
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

/// A mapper is paired with the node to which its region moves before that node knows of the pairing.
fn moved_ahead(of_unconfirmed: bool) -> (Cluster, usize, SlotRef) {
    let mut cluster = five();
    if of_unconfirmed {
        cluster.held.push((0, 4));
    }
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let lh = unnamed(&mut cluster, joined);
    let moving = begin(&mut cluster, joined, move_to(lh, 4));
    cluster.held.push((joined, 4));
    cluster.finish_dials(joined, 4, true);
    assert!(cluster.hosts[joined].engine.is_connected_to(NodeId(4)));
    assert!(!cluster.hosts[4].engine.is_connected_to(NodeId(EPHEMERAL)));
    assert_eq!(cluster.outcome(joined, moving), Some(Ok(Outcome::Done)), "handed over");
    (cluster, joined, lh)
}

#[test]
fn handovers_before_a_meeting_keep_mappings() {
    for of_unconfirmed in [false, true] {
        let (mut cluster, joined, lh) = moved_ahead(of_unconfirmed);
        cluster.held.clear();
        cluster.run();
        assert!(cluster.hosts[4].engine.is_connected_to(NodeId(EPHEMERAL)));
        assert_eq!(cluster.read(joined, lh, 0, 4), b"salt");
        // Its home lists the mapper: the region ends with the mapping, not before.
        assert_eq!(cluster.memory(4).0, 2 * CHUNK_BYTES);
        assert_eq!(cluster.command(joined, Command::Unmap(lh)), Ok(Outcome::Done));
        assert_eq!(cluster.memory(4).0, CHUNK_BYTES);
    }
}

#[test]
fn commands_after_an_early_handover_wait_for_mappers() {
    let orders: [fn(SlotRef) -> Command; 3] =
        [free, |lh| move_to(lh, 2), |lh| Command::RegionCommand(lh, RegionCommand::Seal)];
    for order in orders {
        let mut cluster = five();
        let lh = cluster.map_for(0, &name_of(3), RIGHTS | Permissions::MASTER);
        let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
        let theirs = cluster.map_for(joined, &name_of(3), RIGHTS | Permissions::WRITE);
        let moving = begin(&mut cluster, 0, move_to(lh, 4));
        cluster.held.push((joined, 4));
        cluster.finish_dials(joined, 4, true);
        assert_eq!(cluster.outcome(0, moving), Some(Ok(Outcome::Done)));
        let ordered = begin(&mut cluster, 0, order(lh));
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

// Numbers that are not announced yet.

#[test]
fn unannounced_numbers_are_inquired_about() {
    let mut cluster = five();
    cluster.held.push((0, 1));
    join(&mut cluster, 7, ARENA_BYTES, &[2, 3, 4]);
    let on_it = begin(&mut cluster, 1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(7))));
    cluster.held.clear();
    cluster.run();
    assert!(!cluster.has_ended(1, on_it), "the node is being dialled");
    cluster.finish_dials(5, 1, true);
    slot(cluster.outcome(1, on_it).expect("the two have met"));
}

#[test]
fn moves_to_newcomers_wait_for_the_inquiry() {
    let mut cluster = five();
    let lh = cluster.map_for(0, &name_of(1), RIGHTS | Permissions::MASTER);
    cluster.held.push((0, 1));
    let moving = cluster.submit(0, move_to(lh, 7));
    let joined = join(&mut cluster, 7, ARENA_BYTES, &[2, 3, 4]);
    assert!(!cluster.has_ended(0, moving));
    cluster.held.clear();
    cluster.run();
    cluster.finish_dials(joined, 1, true);
    assert_eq!(cluster.outcome(0, moving), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.read(0, lh, 0, 4), b"of 1");
}

#[test]
fn unknown_numbers_are_refused_at_once() {
    let mut cluster = five();
    let unknown = Err(ErrorReply::UnknownNode(NodeId(9)).into());
    assert_eq!(cluster.command(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9)))), unknown);
    let lh = cluster.map_for(0, &name_of(1), RIGHTS | Permissions::MASTER);
    assert_eq!(cluster.command(0, move_to(lh, 9)), unknown);
    // The directory is gone, so nothing more can be learned.
    cluster.kill(0);
    assert_eq!(cluster.command(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9)))), unknown);
}

/// The messages of an ephemeral node to node 0 after it joined beside `dead` dead members, and its dials in flight
/// then.
fn joined_beside(dead: usize) -> (Vec<Vec<u8>>, usize) {
    let mut cluster = Cluster::of(2 + dead);
    cluster.adapters = true;
    cluster.kills = false;
    (2..2 + dead).for_each(|host| cluster.stop(host));
    cluster.sleep(3 * LEASE_NS);
    cluster.slow_to_dial = true;
    let joined = cluster.add_unmet(EPHEMERAL, 0);
    cluster.record(joined, 0);
    cluster.connect(joined, 0);
    cluster.run();
    assert!(matches!(cluster.command(joined, Command::Greet), Ok(Outcome::Status(_))), "it has joined");
    let dials = cluster.dials_of(joined);
    (cluster.recorded(), dials)
}

/// A command is a node that joins and leaves.  It dials dead members like living ones, since one may be unreachable for
/// node 0 alone; it waits only for replies of node 0, to the same requests.
#[test]
fn join_costs_do_not_depend_on_dead_members() {
    let [(none, one), (few, six), (many, twenty_one)] = [0, 5, 20].map(joined_beside);
    assert_eq!((one, six, twenty_one), (1, 6, 21), "dials in flight delay nothing");
    assert!(!none.is_empty());
    assert_eq!((few.len(), many.len()), (none.len(), none.len()));
}
