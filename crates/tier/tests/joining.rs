//! Stories of nodes that join where members have just lost power, or answer late: nobody waits for a member but who needs it.

mod common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation, slot};
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, RegionCommand};
use halite_tier::permissions::Permissions;

const RIGHTS: Permissions = Permissions::READ;
/// The number of a node that passes by.
const PASSING: u32 = 1 << 31;

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

/// A node joins, and meets these; others are being dialled.
fn join(cluster: &mut Cluster, node: u32, bytes_total: u64, met: &[usize]) -> usize {
    cluster.slow_to_dial = true;
    let joined = cluster.add_alone(node, bytes_total);
    cluster.connect(joined, 0);
    cluster.run();
    met.iter().for_each(|other| cluster.finish_dials(joined, *other, true));
    assert!(matches!(cluster.command(joined, Command::Greet), Ok(Outcome::Status(_))), "it has joined");
    joined
}

/// Three of five members have just lost power, and nobody knows.
fn joined_beside_the_dead() -> (Cluster, usize) {
    let mut cluster = five();
    (2..5).for_each(|host| cluster.stop(host));
    let joined = join(&mut cluster, PASSING, 0, &[1]);
    (cluster, joined)
}

fn map(name: &str) -> Command {
    Command::Map { name: name.to_owned(), wanted: RIGHTS }
}

fn down(node: u32) -> Result<Outcome, CommandError> {
    Err(ErrorReply::PeerDown(NodeId(node)).into())
}

/// Begins a command that has to wait for a node.
fn begin(cluster: &mut Cluster, host: usize, command: Command) -> OpId {
    let op = cluster.submit(host, command);
    cluster.run();
    assert!(!cluster.has_ended(host, op));
    op
}

#[test]
fn who_joins_where_others_have_just_lost_power_waits_for_none_of_them() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let before_ns = cluster.now_ns;
    for name in [name_of(0), name_of(1)] {
        let lh = cluster.map_for(joined, &name, RIGHTS);
        assert_eq!(cluster.read(joined, lh, 0, name.len()), name.as_bytes());
    }
    assert_eq!(cluster.command(joined, Command::ListLost), Ok(Outcome::Lost(Vec::new())));
    assert!(matches!(cluster.command(joined, Command::TakeNumber), Ok(Outcome::Number(_))));
    cluster.alloc(joined, "anywhere", CHUNK_BYTES, Placement::Anywhere);
    assert_eq!(cluster.now_ns, before_ns, "nothing took time");
}

#[test]
fn an_operation_that_needs_a_member_waits_until_its_dial_has_failed() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let stat = begin(&mut cluster, joined, Command::Stat(name_of(2)));
    let list = begin(&mut cluster, joined, Command::List);
    cluster.finish_dials(joined, 2, false);
    assert_eq!(cluster.outcome(joined, stat), Some(down(2)));
    assert!(!cluster.has_ended(joined, list), "it needs the others, too");
    cluster.finish_dials(joined, 3, false);
    cluster.finish_dials(joined, 4, false);
    let Some(Ok(Outcome::List { regions, unreachable })) = cluster.outcome(joined, list) else {
        panic!("a list")
    };
    assert_eq!(regions.len(), 2);
    assert_eq!(unreachable, [2, 3, 4].map(|node| (name_of(node), NodeId(node))));
    // From here on it is known to be out of reach, also while it is dialled anew.
    assert_eq!(cluster.command(joined, map(&name_of(2))), down(2));
    cluster.sleep(LEASE_NS / 4);
    assert_eq!(cluster.command(joined, map(&name_of(2))), down(2));
}

#[test]
fn nobody_waits_for_a_first_meeting_for_longer_than_a_lease() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let stat = begin(&mut cluster, joined, Command::Stat(name_of(2)));
    let status = begin(&mut cluster, joined, Command::Status);
    // The directory says no word meanwhile.
    cluster.sleep(3 * LEASE_NS / 4);
    assert!(!cluster.has_ended(joined, stat));
    cluster.sleep(LEASE_NS / 4);
    assert_eq!(cluster.outcome(joined, stat), Some(down(2)));
    let Some(Ok(Outcome::Status(all))) = cluster.outcome(joined, status) else { panic!("a status") };
    let alive = all.iter().filter(|status| status.state == NodeState::Alive).map(|status| status.node.0);
    assert_eq!(alive.collect::<Vec<_>>(), [0, 1, PASSING]);
    assert_eq!(all.len(), 6, "the others have rows, too");
}

#[test]
fn a_living_member_that_is_slow_to_connect_is_waited_for() {
    let mut cluster = five();
    let joined = join(&mut cluster, PASSING, 0, &[1, 2, 3]);
    assert!(cluster.hosts[joined].engine.is_awaited(NodeId(4)));
    let mapping = begin(&mut cluster, joined, map(&name_of(4)));
    let status = begin(&mut cluster, joined, Command::Status);
    cluster.finish_dials(joined, 4, true);
    assert!(!cluster.hosts[joined].engine.is_awaited(NodeId(4)));
    let lh = slot(cluster.outcome(joined, mapping).expect("its home is met"));
    assert_eq!(cluster.read(joined, lh, 0, 4), b"of 4");
    let Some(Ok(Outcome::Status(all))) = cluster.outcome(joined, status) else { panic!("a status") };
    assert!(all.iter().all(|status| status.state == NodeState::Alive), "{all:?}");
}

#[test]
fn a_region_is_mapped_once_all_owners_of_its_bytes_are_met_as_it_is_then() {
    let mut cluster = five();
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    let lh = cluster.alloc(1, "spread", 2 * CHUNK_BYTES, spread);
    cluster.write(1, lh, 0, &[7; 2 * CHUNK_BYTES as usize]);
    let joined = join(&mut cluster, PASSING, 0, &[1, 2, 3]);
    let mapping = begin(&mut cluster, joined, map("spread"));
    // It changes meanwhile, and nobody waits for who does not map it yet.
    let order = RegionCommand::Move { to: NodeId(2) };
    assert_eq!(cluster.command(1, Command::RegionCommand(lh, order)), Ok(Outcome::Done));
    assert!(!cluster.has_ended(joined, mapping));
    cluster.finish_dials(joined, 4, true);
    let mapped = slot(cluster.outcome(joined, mapping).expect("its owners are met"));
    let owners = cluster.extents(joined, mapped).into_iter().map(|extent| extent.owner.node.0);
    assert!(owners.into_iter().all(|owner| owner == 2), "it is where it has moved");
    assert_eq!(cluster.read(joined, mapped, 0, 2 * CHUNK_BYTES as usize), [7; 2 * CHUNK_BYTES as usize]);
    assert_eq!(cluster.command(1, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
    assert!(cluster.hosts[joined].engine.known_region(cluster.hosts[joined].session, mapped).is_none());
}

#[test]
fn a_region_whose_owner_is_not_met_in_the_end_is_mapped_for_the_rest_of_it() {
    let mut cluster = five();
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    let lh = cluster.alloc(1, "spread", 2 * CHUNK_BYTES, spread);
    cluster.write(1, lh, 0, b"here");
    cluster.stop(4);
    let joined = join(&mut cluster, PASSING, 0, &[1, 2, 3]);
    let mapping = begin(&mut cluster, joined, map("spread"));
    cluster.finish_dials(joined, 4, false);
    let mapped = slot(cluster.outcome(joined, mapping).expect("it is known to be out of reach"));
    assert_eq!(cluster.read(joined, mapped, 0, 4), b"here");
    let (host, mut byte) = (&cluster.hosts[joined], [0]);
    assert!(host.path.read(host.session, mapped, CHUNK_BYTES, &mut byte).is_err());
}

#[test]
fn what_is_made_on_a_member_that_is_not_met_yet_is_there_when_it_is() {
    let mut cluster = five();
    let joined = join(&mut cluster, PASSING, 0, &[1, 2, 3]);
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    // Made at node 1, which has met all; its maker has to meet node 4 to map it.
    let named = begin(&mut cluster, joined, allocation(Some("named"), 2 * CHUNK_BYTES, spread.clone()));
    let unnamed = begin(&mut cluster, joined, allocation(None, 2 * CHUNK_BYTES, spread));
    let on_one = begin(&mut cluster, joined, allocation(None, CHUNK_BYTES, Placement::On(NodeId(4))));
    cluster.finish_dials(joined, 4, true);
    for op in [named, unnamed, on_one] {
        let lh = slot(cluster.outcome(joined, op).expect("it is there"));
        cluster.write(joined, lh, 0, b"salt");
        let order = Command::RegionCommand(lh, RegionCommand::Free);
        assert_eq!(cluster.command(joined, order), Ok(Outcome::Done), "its maker is its master");
    }
}

/// The directory tells members of who joins; they are as patient as it is.
#[test]
fn a_member_waits_for_a_newcomer_that_others_have_met_before_it() {
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
fn what_nobody_waits_for_any_more_is_not_asked_when_the_member_is_met() {
    let mut cluster = five();
    let joined = join(&mut cluster, PASSING, 0, &[1, 2, 3]);
    let mapping = begin(&mut cluster, joined, map(&name_of(4)));
    let session = cluster.hosts[joined].session;
    let now_ns = cluster.now_ns;
    cluster.hosts[joined].engine.close_session(now_ns, session);
    cluster.finish_dials(joined, 4, true);
    assert!(matches!(cluster.outcome(joined, mapping), Some(Err(_))), "its session has ended");
    // Its home waits for no word of it.
    let lh = cluster.map_for(0, &name_of(4), RIGHTS | Permissions::MASTER);
    assert_eq!(cluster.command(0, Command::RegionCommand(lh, RegionCommand::Free)), Ok(Outcome::Done));
}

#[test]
fn who_learns_that_a_member_is_gone_waits_for_it_no_longer() {
    let (mut cluster, joined) = joined_beside_the_dead();
    let stat = begin(&mut cluster, joined, Command::Stat(name_of(2)));
    cluster.kill(2);
    cluster.run();
    let ended = cluster.outcome(joined, stat);
    assert!(matches!(ended, Some(Err(CommandError::Refused(_)))), "{ended:?}");
}
