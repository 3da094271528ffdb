//! Nodes that join and leave.

use halite::{AccessCause, JoinError, LossCause, NodeId, NodeState, Permissions, Placement, RegionCause};

use super::cluster::{ARENA, CHUNK, Cluster, Harness, await_value, contents, eventually, everyone, shared};
use super::{eventually_refused, node_lost, refused};

/// Expects that the status lists all nodes with their memory, and is equal on every node.
pub fn the_status_lists_every_node(h: &dyn Harness) {
    let cluster = Cluster::with(h, &[("ada", ARENA), ("ada", 2 * ARENA), ("ada", 0)]);
    // The session stays open, because its mapping would end with it.
    let session = cluster.session(1);
    shared(&session, "held", 3 * CHUNK);
    for index in 0..3 {
        let all = cluster.session(index).status().unwrap();
        let ids: Vec<NodeId> = all.iter().map(|status| status.node).collect();
        assert_eq!(ids, [NodeId(0), NodeId(1), NodeId(2)], "from node {index}");
        let totals: Vec<u64> = all.iter().map(|status| status.bytes_total).collect();
        assert_eq!(totals, [ARENA, 2 * ARENA, 0]);
        assert!(all.iter().all(|status| matches!(status.state, NodeState::Alive)), "{all:?}");
        assert!((0..3).all(|node| all[node].pid == cluster.pid(node)), "{all:?}");
        assert!(all.iter().all(|status| !status.provider.is_empty()), "{all:?}");
        assert_eq!((all[1].bytes_used, all[1].regions, all[1].mappings), (3 * CHUNK, 1, 1));
        assert_eq!((all[0].bytes_used, all[0].regions, all[0].mappings), (0, 0, 0));
    }
}

/// Expects that a node with the number of a living node cannot join, because other nodes could confuse the two.
pub fn a_number_is_taken_while_its_node_lives(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let second = cluster.start(1, "ada", ARENA);
    match second.err() {
        Some(JoinError::AlreadyRunning { node: NodeId(1), .. }) => {}
        other => panic!("expected an error because node 1 runs: {other:?}"),
    }
    cluster.session(1).list().unwrap();
}

/// Expects that the status no longer lists a node that left as alive, and that the other nodes continue.
pub fn other_nodes_continue_when_a_node_leaves(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(1);
    let lh = shared(&session, "here", CHUNK);
    cluster.leave(2);
    let state = || {
        let all = cluster.session(0).status().unwrap();
        all.into_iter().find(|status| status.node == NodeId(2)).map(|status| status.state)
    };
    await_value("node 2 is known to have left", state, |state| matches!(state, Some(NodeState::Left) | None));
    session.write(lh, 0, b"on").unwrap();
    let other = cluster.session(0);
    let far = other.map("here", Permissions::READ).unwrap();
    assert_eq!(&contents(&other, far)[..2], b"on");
}

/// Expects that accesses to the regions of a node that has left fail with the cause: they neither hang nor return
/// wrong bytes.
pub fn regions_end_with_their_node(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let owner = cluster.session(2);
    let near = shared(&owner, "doomed", CHUNK);
    owner.write(near, 0, b"last words").unwrap();
    let session = cluster.session(1);
    let lh = session.map("doomed", everyone()).unwrap();
    cluster.leave(2);
    eventually_refused!(session.write(lh, 0, b"x"), node_lost!(NodeId(2)));
    eventually_refused!(
        session.map("doomed", Permissions::READ),
        RegionCause::NotMet(NodeId(2)) | RegionCause::Lost(_)
    );
    match owner.write(near, 0, b"x") {
        Err(error) => assert!(matches!(error.cause(), AccessCause::NodeClosed(NodeId(2))), "{error}"),
        Ok(()) => panic!("a node that left has written"),
    }
}

/// Expects that names of a node that left are reported as lost, together with the node, until a session removes them.
pub fn names_of_a_node_that_left_are_lost(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let owner = cluster.session(2);
    let incarnation = cluster.status(2).incarnation;
    for name in ["again", "noted", "forgotten"] {
        shared(&owner, name, CHUNK);
    }
    let session = cluster.session(1);
    refused!(session.forget_name("noted"), RegionCause::NotFound);
    refused!(session.forget_node(NodeId(2)), RegionCause::NodeLives(NodeId(2)));
    refused!(session.forget_node(NodeId(77)), RegionCause::UnknownNode(NodeId(77)));
    cluster.leave(2);
    eventually_refused!(session.stat("noted"), RegionCause::Lost(_));
    let lost = session.list_lost().unwrap();
    assert_eq!(
        lost.iter().map(|lost| lost.name.as_str()).collect::<Vec<_>>(),
        ["again", "forgotten", "noted"]
    );
    for loss in lost.iter().map(|lost| lost.lost) {
        assert_eq!((loss.node, loss.incarnation, loss.cause), (NodeId(2), incarnation, LossCause::Left));
    }
    shared(&session, "again", CHUNK);
    session.forget_name("noted").unwrap();
    refused!(session.map("noted", Permissions::READ), RegionCause::NotFound);
    session.forget_node(NodeId(2)).unwrap();
    assert_eq!(session.list_lost().unwrap(), []);
    assert_eq!(cluster.session(0).status().unwrap().len(), 2);
}

/// Expects that a node that returns holds nothing, and that references to its former incarnation stay invalid.
pub fn a_returned_node_is_a_new_one(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = session.alloc(Some("before"), CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    let first = cluster.status(1).incarnation;
    cluster.leave(1);
    eventually("the number is free", || cluster.start(1, "ada", ARENA));
    await_value(
        "the node is alive again",
        || cluster.status(1),
        |status| status.incarnation != first && status.state == NodeState::Alive && status.bytes_used == 0,
    );
    eventually_refused!(session.read(lh, 0, &mut [0]), node_lost!(NodeId(1)));
    let new = cluster.session(1).alloc(Some("after"), 64, Placement::Local, everyone()).unwrap();
    let far = session.map("after", everyone()).unwrap();
    session.write(far, 0, b"new").unwrap();
    assert_ne!(new, far);
}

/// Expects that a node that joins later sees all regions.
pub fn a_node_that_joins_later_sees_all_regions(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 2);
    let session = cluster.session(1);
    let lh = shared(&session, "early", 100);
    session.write(lh, 0, b"bird").unwrap();
    cluster.start(7, "ada", ARENA).expect("a third node joins");
    let other = cluster.session(7);
    let far = other.map("early", everyone()).unwrap();
    assert_eq!(&contents(&other, far)[..4], b"bird");
    other.alloc(Some("late"), 100, Placement::On(NodeId(1)), everyone()).unwrap();
    session.map("late", Permissions::READ).unwrap();
    cluster.leave(7);
}
