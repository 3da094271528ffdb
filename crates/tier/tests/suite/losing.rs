//! Scenarios of losses, and how they are reported.

use crate::common;

use common::{CHUNK_BYTES, Cluster, LEASE_NS};
use halite_fabric::PeerId;
use halite_tier::effect::{Command, CommandError, Outcome, Placement};
use halite_tier::ids::{NodeId, NodeIncarnation};
use halite_tier::message::{ErrorReply, Loss, LossCause, LostName, NodeState, NodeStatus, RegionCommand};
use halite_tier::permissions::Permissions;

const LEN: u64 = 3 * CHUNK_BYTES;

/// The refusal for a name that cannot be mapped.
fn refusal(cluster: &mut Cluster, host: usize, name: &str) -> ErrorReply {
    let by_map = cluster.command(host, Command::Map { name: name.into(), wanted: Permissions::READ });
    let by_stat = cluster.command(host, Command::Stat(name.into()));
    assert_eq!(by_map, by_stat, "all commands agree");
    match by_map {
        Err(CommandError::Refused(refusal)) => refusal,
        other => panic!("{name:?} is found: {other:?}"),
    }
}

fn loss(cluster: &mut Cluster, host: usize, name: &str) -> (NodeIncarnation, Loss) {
    match refusal(cluster, host, name) {
        ErrorReply::Lost { home, loss } => (home, loss),
        other => panic!("{name:?}: {other}"),
    }
}

fn lost_names(cluster: &mut Cluster, host: usize) -> Vec<LostName> {
    match cluster.command(host, Command::ListLost) {
        Ok(Outcome::Lost(names)) => names,
        other => panic!("{other:?}"),
    }
}

fn status(cluster: &mut Cluster, host: usize) -> Vec<NodeStatus> {
    match cluster.command(host, Command::Status) {
        Ok(Outcome::Status(nodes)) => nodes,
        other => panic!("{other:?}"),
    }
}

fn news(cluster: &mut Cluster, host: usize) -> Vec<String> {
    cluster.hosts[host].news.drain(..).map(|news| news.to_string()).collect()
}

#[test]
fn queued_commands_of_dead_requesters_are_dropped() {
    let mut cluster = Cluster::of(3);
    let lh = cluster.alloc(0, "salt", LEN, Placement::On(NodeId(0)));
    let theirs = cluster.map_for(1, "salt", Permissions::all());
    // The first command waits for an acknowledgement of the second node, which does not arrive.
    cluster.held = vec![(1, 0)];
    let seal = cluster.submit(0, Command::RegionCommand(lh, RegionCommand::Seal));
    cluster.run();
    assert!(!cluster.has_ended(0, seal));
    let other = cluster.map_for(2, "salt", Permissions::READ | Permissions::MASTER);
    let free = cluster.submit(2, Command::RegionCommand(other, RegionCommand::Free));
    cluster.run();
    assert!(!cluster.has_ended(2, free), "queued behind the first");
    cluster.kill(2);
    cluster.run();
    cluster.held.clear();
    cluster.run();
    assert_eq!(cluster.outcome(0, seal), Some(Ok(Outcome::Done)));
    assert!(
        matches!(cluster.command(1, Command::StatHandle(theirs)), Ok(Outcome::Info(_))),
        "the region exists"
    );
}

#[test]
fn lost_names_report_node_and_time() {
    let mut cluster = Cluster::of(3);
    cluster.alloc(0, "salt", LEN, Placement::On(NodeId(2)));
    cluster.alloc(0, "pepper", LEN, Placement::On(NodeId(2)));
    cluster.alloc(0, "sugar", LEN, Placement::On(NodeId(1)));
    let dead = cluster.hosts[2].incarnation;
    cluster.kill(2);
    cluster.sleep(LEASE_NS);
    for host in [0, 1] {
        let reported = loss(&mut cluster, host, "salt");
        assert_eq!(reported, (dead, Loss { cause: LossCause::Exited, age_ns: LEASE_NS }));
    }
    let names: Vec<_> = lost_names(&mut cluster, 1).into_iter().map(|lost| (lost.name, lost.home)).collect();
    assert_eq!(names, [("pepper".to_owned(), dead), ("salt".to_owned(), dead)]);
    assert_eq!(refusal(&mut cluster, 1, "vinegar"), ErrorReply::NotFound);

    // Until the name is claimed again or forgotten.
    let again = cluster.alloc(1, "salt", LEN, Placement::Local);
    cluster.map(0, "salt");
    cluster.command(1, Command::RegionCommand(again, RegionCommand::Free)).unwrap();
    assert_eq!(refusal(&mut cluster, 0, "salt"), ErrorReply::NotFound);
    assert_eq!(cluster.command(1, Command::ForgetName("pepper".into())), Ok(Outcome::Done));
    assert_eq!(refusal(&mut cluster, 0, "pepper"), ErrorReply::NotFound);
    let twice = cluster.command(1, Command::ForgetName("pepper".into()));
    assert_eq!(twice, Err(ErrorReply::NotFound.into()));
    let living = cluster.command(1, Command::ForgetName("sugar".into()));
    assert_eq!(living, Err(ErrorReply::NotFound.into()), "existing regions are not forgotten");
    cluster.map(1, "sugar");
}

#[test]
fn long_lists_of_lost_names_are_complete() {
    let mut cluster = Cluster::of(2);
    for index in 0..1500 {
        cluster.alloc(1, &format!("{index:04}"), 64, Placement::Local);
    }
    cluster.kill(1);
    cluster.run();
    let names = lost_names(&mut cluster, 0);
    assert!(names.iter().enumerate().all(|(index, lost)| lost.name == format!("{index:04}")));
    assert_eq!(names.len(), 1500);
}

#[test]
fn losses_with_leaving_nodes_say_so() {
    let mut cluster = Cluster::of(2);
    cluster.alloc(1, "salt", LEN, Placement::Local);
    let now_ns = cluster.now_ns;
    cluster.hosts[1].engine.leave(now_ns);
    cluster.run();
    assert_eq!(loss(&mut cluster, 0, "salt").1.cause, LossCause::Left);
    assert_eq!(status(&mut cluster, 0)[1].loss.map(|loss| loss.cause), Some(LossCause::Left));
}

#[test]
fn silent_nodes_are_unreachable_until_their_exit() {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    cluster.alloc(2, "salt", LEN, Placement::Local);
    let heard_ns = cluster.now_ns;
    cluster.stop(2);
    cluster.sleep(2 * LEASE_NS);
    let age_ns = cluster.now_ns - heard_ns;
    let unreachable = Loss { cause: LossCause::Unreachable, age_ns };
    assert_eq!(
        refusal(&mut cluster, 1, "salt"),
        ErrorReply::PeerDown(NodeId(2)),
        "names of silent nodes are kept"
    );
    let row = status(&mut cluster, 1)[2].clone();
    assert_eq!((row.state, row.loss), (NodeState::Unreachable, Some(unreachable)));

    cluster.kill(2);
    cluster.sleep(LEASE_NS);
    let exited = Loss { cause: LossCause::Exited, age_ns: LEASE_NS };
    assert_eq!(loss(&mut cluster, 1, "salt").1, exited, "the process was not killed");
    assert_eq!(status(&mut cluster, 0)[2].loss, Some(exited));
}

#[test]
fn losses_are_dated_by_the_loss_not_the_restart() {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    cluster.adapters = true;
    cluster.alloc(2, "salt", LEN, Placement::Local);
    let dead = cluster.hosts[2].incarnation;
    // Its host loses power: no node sees how its process ends.
    cluster.part(&[2], &[0, 1]);
    let heard_ns = cluster.now_ns;
    cluster.hosts[2].running = false;
    cluster.sleep(10 * LEASE_NS);
    cluster.add(2, common::ARENA_BYTES);
    for host in [0, 1] {
        let age_ns = cluster.now_ns - heard_ns;
        let unreachable = Loss { cause: LossCause::Unreachable, age_ns };
        assert_eq!(loss(&mut cluster, host, "salt"), (dead, unreachable), "at host {host}");
    }
}

#[test]
fn nodes_killed_for_silence_say_so() {
    let mut cluster = Cluster::of(2);
    cluster.alloc(1, "salt", LEN, Placement::Local);
    assert_eq!(news(&mut cluster, 0), ["node 1 (process 1) has joined"]);
    cluster.stop(1);
    cluster.sleep(2 * LEASE_NS);
    assert_eq!(loss(&mut cluster, 0, "salt").1.cause, LossCause::Killed);
    let silence = format!("{}.{} s", 5 * LEASE_NS / 4 / 1_000_000_000, 5 * LEASE_NS / 4 / 100_000_000 % 10);
    assert_eq!(
        news(&mut cluster, 0),
        [
            format!(
                "node 1 (process 1) is unreachable for this node: silent for {silence}, longer than its lease"
            ),
            "node 1 (process 1) is killed, since it could wake in the middle of a write (Config::fence)"
                .into(),
            "names lost with node 1: 1".into(),
            "node 1 (process 1) has exited, killed".into(),
        ]
    );
}

/// A cluster in which host 1 has not heard host 2 for longer than its lease, and host 0, the directory, for not so
/// long.
fn silent_to_one_only() -> (Cluster, NodeIncarnation) {
    let mut cluster = Cluster::of(3);
    cluster.kills = false;
    cluster.alloc(0, "salt", LEN, Placement::On(NodeId(2)));
    let incarnation = cluster.hosts[2].incarnation;
    cluster.held.push((2, 1));
    cluster.sleep(LEASE_NS / 2);
    cluster.stop(2);
    cluster.sleep(3 * LEASE_NS / 4);
    assert!(
        news(&mut cluster, 1).iter().any(|news| news.starts_with("node 2 (process 2) is unreachable for"))
    );
    assert!(cluster.hosts[0].engine.is_connected_to(NodeId(2)));
    news(&mut cluster, 0);
    (cluster, incarnation)
}

const KILLED_BY_ONE: &str = "node 2 is killed by node 1, to which it was silent for longer than its lease";

#[test]
fn kills_by_other_nodes_are_reported() {
    // The notice of the kill may arrive before the death is seen, or afterwards.
    for notice_is_late in [false, true] {
        let (mut cluster, incarnation) = silent_to_one_only();
        let now_ns = cluster.now_ns;
        cluster.hosts[1].engine.handle_kill(now_ns, PeerId(3));
        if notice_is_late {
            cluster.kill(2);
            cluster.run();
            assert!(news(&mut cluster, 0).contains(&KILLED_BY_ONE.into()), "late notice");
        } else {
            cluster.run();
            assert_eq!(news(&mut cluster, 0), [KILLED_BY_ONE]);
            assert!(cluster.hosts[0].engine.is_connected_to(NodeId(2)), "a notice proves no death");
            cluster.kill(2);
            cluster.run();
        }
        for host in [0, 1] {
            let killed = Loss { cause: LossCause::Killed, age_ns: 0 };
            assert_eq!(loss(&mut cluster, host, "salt"), (incarnation, killed), "late: {notice_is_late}");
            assert_eq!(status(&mut cluster, host)[2].loss, Some(killed), "late: {notice_is_late}");
        }
        // A repeated notice is not reported again.
        cluster.hosts[1].engine.handle_kill(now_ns, PeerId(3));
        cluster.run();
        assert!(!news(&mut cluster, 0).contains(&KILLED_BY_ONE.into()));
    }
}

#[test]
fn quarantine_is_reported_at_begin_and_end() {
    let mut cluster = Cluster::of(4);
    cluster.kills = false;
    let nodes = vec![NodeId(3), NodeId(1)];
    cluster.alloc(0, "salt", 2 * LEN, Placement::Spread(nodes));
    cluster.map(2, "salt");
    cluster.stop(2);
    cluster.sleep(2 * LEASE_NS);
    cluster.kill(3);
    cluster.run();
    let bytes = LEN.next_multiple_of(64);
    let begun = format!("quarantine: {bytes} bytes are kept back, since a dead node could reach them");
    assert!(news(&mut cluster, 1).contains(&begun));
    cluster.kill(2);
    cluster.run();
    assert!(news(&mut cluster, 1).contains(&"quarantine is over: no bytes are kept back any more".into()));
}

#[test]
fn dead_nodes_are_listed_until_forgotten() {
    let mut cluster = Cluster::of(4);
    cluster.alloc(2, "salt", LEN, Placement::Local);
    cluster.alloc(3, "pepper", LEN, Placement::Local);
    let forget = |cluster: &mut Cluster, node: u32| cluster.command(1, Command::ForgetNode(NodeId(node)));
    for living in [0, 1, 2] {
        assert_eq!(forget(&mut cluster, living), Err(ErrorReply::NodeLives(NodeId(living)).into()));
    }
    assert_eq!(forget(&mut cluster, 77), Err(ErrorReply::UnknownNode(NodeId(77)).into()));
    cluster.kill(2);
    cluster.kill(3);
    cluster.run();
    assert_eq!(forget(&mut cluster, 2), Ok(Outcome::Done));
    for host in [0, 1] {
        let nodes: Vec<u32> = status(&mut cluster, host).iter().map(|status| status.node.0).collect();
        assert_eq!(nodes, [0, 1, 3], "at host {host}");
        assert_eq!(refusal(&mut cluster, host, "salt"), ErrorReply::NotFound);
        assert_eq!(loss(&mut cluster, host, "pepper").1.cause, LossCause::Exited);
    }
    assert_eq!(forget(&mut cluster, 2), Err(ErrorReply::UnknownNode(NodeId(2)).into()));
    // A later node learns the same.
    let late = cluster.add(5, 0);
    let nodes: Vec<_> =
        status(&mut cluster, late).iter().map(|status| (status.node.0, status.loss)).collect();
    let lost = Some(Loss { cause: LossCause::Exited, age_ns: 0 });
    assert_eq!(nodes, [(0, None), (1, None), (3, lost), (5, None)]);
}

#[test]
fn ephemeral_nodes_are_remembered_for_regions_only() {
    const CAME: u32 = 20;
    let mut cluster = Cluster::of(2);
    for number in 0..CAME {
        let ephemeral = cluster.add(1000 + number, 1 << 20);
        cluster.alloc(ephemeral, &format!("salt {number:02}"), CHUNK_BYTES, Placement::Local);
        cluster.kill(ephemeral);
        cluster.run();
    }
    // A node that knows 1020 knows that all lower ephemeral numbers were issued.
    let late = cluster.add(1000 + CAME, 0);
    for host in [0, 1, late] {
        let nodes: Vec<u32> = status(&mut cluster, host).iter().map(|status| status.node.0).collect();
        assert_eq!(nodes, [0, 1, 1000 + CAME], "at host {host}");
        let knows = |node: u32| cluster.hosts[host].engine.knows(NodeId(node));
        assert_eq!([1000, 1000 + CAME, 1001 + CAME, 77].map(knows), [true, true, false, false]);
    }
    assert_eq!(lost_names(&mut cluster, late).len(), CAME as usize);
    assert_eq!(cluster.command(late, Command::ForgetNode(NodeId(1003))), Ok(Outcome::Done));
    assert_eq!(refusal(&mut cluster, late, "salt 03"), ErrorReply::NotFound);
    assert_eq!(loss(&mut cluster, late, "salt 04").0.node, NodeId(1004));
}

#[test]
fn lost_locks_are_recreated() {
    let mut cluster = Cluster::of(2);
    let service = halite_tier::names::Service::Lock;
    let everyone = Permissions::all();
    let anchor = |index: u32| Command::Anchor { service, name: format!("till {index}"), everyone };
    for index in 0..16 {
        cluster.command(1, anchor(index)).unwrap();
    }
    cluster.kill(1);
    cluster.run();
    assert_eq!(lost_names(&mut cluster, 0), []);
    let remade = (0..16).filter(|index| cluster.command(0, anchor(*index)).is_ok()).count();
    assert!((1..16).contains(&remade), "{remade} of them were lost");
}
