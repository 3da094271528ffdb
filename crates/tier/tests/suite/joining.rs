//! Stories of nodes that join where members have just lost power, or answer late: nobody waits for a member but who needs it.

use crate::common;

use common::{ARENA_BYTES, CHUNK_BYTES, Cluster, LEASE_NS, allocation, slot};
use halite_tier::access::SlotRef;
use halite_tier::effect::{Command, CommandError, OpId, Outcome, Placement};
use halite_tier::ids::NodeId;
use halite_tier::message::{ErrorReply, NodeState, NodeStatus, RegionCommand};
use halite_tier::permissions::Permissions;

const RIGHTS: Permissions = Permissions::READ;
/// The number of a node that passes by.
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

/// A node joins, and meets these; others are being dialled.
fn join(cluster: &mut Cluster, node: u32, bytes_total: u64, met: &[usize]) -> usize {
    cluster.slow_to_dial = true;
    let joined = cluster.add_unmet(node, bytes_total);
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
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1]);
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
    let Some(Ok(Outcome::List { regions, unreachable, .. })) = cluster.outcome(joined, list) else {
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
    assert_eq!(alive.collect::<Vec<_>>(), [0, 1, EPHEMERAL]);
    assert_eq!(all.len(), 6, "the others have rows, too");
    let unmet = |status: &&NodeStatus| [2, 3, 4].contains(&status.node.0);
    assert!(
        all.iter().filter(unmet).all(|status| status.state == NodeState::Silent && status.loss.is_none()),
        "the directory hears them still: {all:?}"
    );
    let known =
        |node| cluster.hosts[joined].engine.known_peer(cluster.now_ns, NodeId(node)).expect("it is a member");
    assert!([2, 3, 4].iter().all(|node| known(*node).state == NodeState::Silent), "nobody waits for them");
}

#[test]
fn a_living_member_that_is_slow_to_connect_is_waited_for() {
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
fn a_region_is_mapped_once_all_owners_of_its_bytes_are_met_as_it_is_then() {
    let mut cluster = five();
    let spread = Placement::Spread([1, 4].map(NodeId).to_vec());
    let lh = cluster.alloc(1, "spread", 2 * CHUNK_BYTES, spread);
    cluster.write(1, lh, 0, &[7; 2 * CHUNK_BYTES as usize]);
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
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
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
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
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
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
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
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

// Regions that move to a member which a mapper has yet to meet.

fn move_to(lh: SlotRef, node: u32) -> Command {
    Command::RegionCommand(lh, RegionCommand::Move { to: NodeId(node) })
}

fn free(lh: SlotRef) -> Command {
    Command::RegionCommand(lh, RegionCommand::Free)
}

/// A session of `host` makes a region without a name on node 3: it ends with its last mapping.
fn nameless(cluster: &mut Cluster, host: usize) -> SlotRef {
    let lh = slot(cluster.command(host, allocation(None, CHUNK_BYTES, Placement::On(NodeId(3)))));
    cluster.write(host, lh, 0, b"salt");
    lh
}

fn is_mapped(cluster: &Cluster, host: usize, lh: SlotRef) -> bool {
    cluster.hosts[host].engine.known_region(cluster.hosts[host].session, lh).is_some()
}

#[test]
fn a_region_moves_to_a_member_once_its_mapper_has_met_that_and_is_not_lost() {
    let mut cluster = five();
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let lh = nameless(&mut cluster, joined);
    let moving = begin(&mut cluster, joined, move_to(lh, 4));
    cluster.finish_dials(joined, 4, true);
    assert_eq!(cluster.outcome(joined, moving), Some(Ok(Outcome::Done)));
    assert_eq!(cluster.extents(joined, lh)[0].owner.node, NodeId(4));
    assert_eq!(cluster.read(joined, lh, 0, 4), b"salt");
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(cluster.read(joined, lh, 0, 4), b"salt");
}

#[test]
fn a_region_moves_to_a_member_that_its_mapper_cannot_meet_and_is_lost_to_that_alone() {
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
fn a_region_moves_to_a_newcomer_that_its_mapper_has_not_heard_of_yet() {
    let mut cluster = five();
    let lh = nameless(&mut cluster, 1);
    // The directory's word of the newcomer is late; so nobody dials it but who has heard it.
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
fn a_mapper_that_meets_the_next_incarnation_of_a_newcomer_waits_for_the_former_no_longer() {
    let mut cluster = five();
    let lh = cluster.map_for(2, &name_of(2), RIGHTS | Permissions::MASTER);
    cluster.map_for(1, &name_of(2), RIGHTS);
    cluster.held.push((0, 1));
    let joined = join(&mut cluster, 7, ARENA_BYTES, &[]);
    for member in [2, 3, 4] {
        cluster.connect(joined, member);
    }
    cluster.run();
    // The mapper acknowledges no freeze before it has met the node that the bytes go to.
    let moving = begin(&mut cluster, 2, move_to(lh, 7));
    let next = cluster.add_unmet(7, ARENA_BYTES);
    cluster.connect(next, 1);
    cluster.run();
    assert_eq!(cluster.outcome(2, moving), Some(Ok(Outcome::Done)));
}

/// A mapper is paired with the node to which its region moves before that node has heard so.
fn moved_ahead(of_unheard: bool) -> (Cluster, usize, SlotRef) {
    let mut cluster = five();
    if of_unheard {
        cluster.held.push((0, 4));
    }
    let joined = join(&mut cluster, EPHEMERAL, 0, &[1, 2, 3]);
    let lh = nameless(&mut cluster, joined);
    let moving = begin(&mut cluster, joined, move_to(lh, 4));
    cluster.held.push((joined, 4));
    cluster.finish_dials(joined, 4, true);
    assert!(cluster.hosts[joined].engine.is_connected_to(NodeId(4)));
    assert!(!cluster.hosts[4].engine.is_connected_to(NodeId(EPHEMERAL)));
    assert_eq!(cluster.outcome(joined, moving), Some(Ok(Outcome::Done)), "it is handed over");
    (cluster, joined, lh)
}

#[test]
fn a_region_that_is_handed_over_ahead_of_a_meeting_is_kept_by_both_ends_of_that() {
    for of_unheard in [false, true] {
        let (mut cluster, joined, lh) = moved_ahead(of_unheard);
        cluster.held.clear();
        cluster.run();
        assert!(cluster.hosts[4].engine.is_connected_to(NodeId(EPHEMERAL)));
        assert_eq!(cluster.read(joined, lh, 0, 4), b"salt");
        // Its home lists the mapper: the region ends with it, and not before.
        assert_eq!(cluster.memory(4).0, 2 * CHUNK_BYTES);
        assert_eq!(cluster.command(joined, Command::Unmap(lh)), Ok(Outcome::Done));
        assert_eq!(cluster.memory(4).0, CHUNK_BYTES);
    }
}

#[test]
fn an_order_on_a_region_that_was_handed_over_ahead_of_a_meeting_waits_for_its_mapper() {
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
            false => assert!(!is_mapped(&cluster, joined, theirs), "it is free, and nobody reaches it"),
            true => {
                assert_eq!(cluster.read(joined, theirs, 0, 4), b"of 3");
                let is_sealed = host.path.write(at, theirs, 0, b"!").is_err();
                assert_eq!(is_sealed, cluster.extents(0, lh)[0].owner.node == NodeId(4));
            }
        }
    }
}

// Numbers that nobody has named yet.

#[test]
fn who_needs_a_newcomer_that_it_has_not_heard_of_asks_the_directory_first() {
    let mut cluster = five();
    cluster.held.push((0, 1));
    join(&mut cluster, 7, ARENA_BYTES, &[2, 3, 4]);
    let on_it = begin(&mut cluster, 1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(7))));
    cluster.held.clear();
    cluster.run();
    assert!(!cluster.has_ended(1, on_it), "it is being met");
    cluster.finish_dials(5, 1, true);
    slot(cluster.outcome(1, on_it).expect("the two have met"));
}

#[test]
fn an_order_to_move_a_region_to_a_newcomer_waits_for_the_word_of_the_directory() {
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
fn a_number_that_the_directory_does_not_know_is_refused_at_once() {
    let mut cluster = five();
    let unknown = Err(ErrorReply::UnknownNode(NodeId(9)).into());
    assert_eq!(cluster.command(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9)))), unknown);
    let lh = cluster.map_for(0, &name_of(1), RIGHTS | Permissions::MASTER);
    assert_eq!(cluster.command(0, move_to(lh, 9)), unknown);
    // Nobody answers for the directory: nothing more can be known.
    cluster.kill(0);
    assert_eq!(cluster.command(1, allocation(None, CHUNK_BYTES, Placement::On(NodeId(9)))), unknown);
}

/// What a node that passes by has said to node 0 when it has joined beside so many members that are dead, and how many dials are under way then.
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

/// A command is a node that joins and leaves.  It dials the dead as it does the living, for one may be out of sight of node 0 alone, and waits for
/// nobody's answer but node 0's, which it asks the same questions.
#[test]
fn who_joins_asks_as_often_and_waits_for_no_dial_whatever_the_number_of_dead_members() {
    let [(none, one), (few, six), (many, twenty_one)] = [0, 5, 20].map(joined_beside);
    assert_eq!((one, six, twenty_one), (1, 6, 21), "under way, and in nobody's way");
    assert!(!none.is_empty());
    assert_eq!((few.len(), many.len()), (none.len(), none.len()));
}
