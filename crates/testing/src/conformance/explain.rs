//! Explanations of the path to a region's bytes, and of connections.

use halite::{
    AccessPath, Atomics, Function, NodeId, NodeState, Permissions, Placement, RegionCause, RegionExplained,
    ServeOptions,
};

use super::calls::PATIENCE;
use super::cluster::{CHUNK, Cluster, Harness, await_value, everyone, shared};
use super::refused;

/// Expects that an explanation assigns every byte to the node that holds it. It has one entry for all pieces of a node
/// that are reached in the same way.
pub fn an_explanation_covers_every_byte(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(1);
    let nodes = vec![NodeId(0), NodeId(1), NodeId(2)];
    let lh = session.alloc(Some("spread"), 6 * CHUNK + 1, Placement::Spread(nodes), everyone()).unwrap();
    let explained = session.explain(lh).unwrap();
    let shares: Vec<(u32, u64, u64)> =
        explained.pieces.iter().map(|piece| (piece.node, piece.bytes, piece.pieces)).collect();
    assert_eq!(shares, [(0, 2 * CHUNK + 1, 3), (1, 2 * CHUNK, 2), (2, 2 * CHUNK, 2)]);
    assert_eq!((explained.len, explained.home, explained.epoch), (6 * CHUNK + 1, 0, Some(0)));
    assert_eq!(explained.name.as_deref(), Some("spread"));
    assert_eq!(explained.pieces[1].path, AccessPath::Local);
    assert!([AccessPath::Direct, AccessPath::Posted].contains(&explained.pieces[0].path));
    assert_eq!(explained.pieces[0].path, explained.pieces[2].path);
    let text = explained.to_string();
    assert!(text.contains("\"spread\"") && text.contains("node 2: 131072 bytes in 2 pieces"), "{text}");
}

/// Expects that an explanation shows, for each access that is not permitted, the reason instead of a verb.
pub fn an_explanation_shows_missing_permissions(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(0);
    let near = shared(&owner, "notes", CHUNK);
    let session = cluster.session(1);
    let lh = session.map("notes", Permissions::READ | Permissions::WRITE).unwrap();
    let verbs = session.explain(lh).unwrap().pieces[0].verbs;
    assert_eq!(verbs.atomic, "not permitted");
    assert_ne!(verbs.write, "not permitted");
    owner.seal(near).unwrap();
    let explained = session.explain(lh).unwrap();
    assert!(explained.sealed);
    assert_eq!(explained.pieces[0].verbs.write, "sealed");
    assert_ne!(explained.pieces[0].verbs.read, "sealed");
}

/// Expects that the explanation of a handle fails if the handle is invalid in this session.
pub fn only_valid_handles_are_explained(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "notes", CHUNK);
    refused!(cluster.session(0).explain(lh), RegionCause::ForeignHandle);
    session.free(lh).unwrap();
    refused!(session.explain(lh), RegionCause::Stale);
}

/// Expects that the bytes of a node that has left are listed as down. The epoch is unknown, because the home has left.
pub fn lost_bytes_are_explained(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = session.alloc(None, CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    cluster.leave(1);
    let is_down = |explained: &RegionExplained| explained.pieces[0].path == AccessPath::Down;
    let explained = await_value("the loss of the bytes is known", || session.explain(lh).unwrap(), is_down);
    assert_eq!((explained.epoch, explained.home, explained.len), (None, 1, CHUNK));
    assert_eq!(explained.pieces[0].verbs.read, "fails");
}

/// Expects that the caller's node counts its pending calls, and that the server's node counts the long answers that
/// have not been fetched yet.
pub fn calls_in_flight_are_explained(h: &dyn Harness) {
    const FUNCTION: Function = Function(7);
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let server = there.serve(FUNCTION, ServeOptions::default()).unwrap();
    let in_flight = || {
        let (from, to) = (here.explain_peer(NodeId(1)).unwrap(), there.explain_peer(NodeId(0)).unwrap());
        [from.calls_under_way, from.answers_kept, to.calls_under_way, to.answers_kept]
    };
    let abandoned = here.post_call(NodeId(1), FUNCTION, b"abandoned", 64, PATIENCE).unwrap();
    let long = here.post_call(NodeId(1), FUNCTION, b"long", 1 << 30, PATIENCE).unwrap();
    let (_unanswered, call) = (server.recv().unwrap(), server.recv().unwrap());
    assert_eq!(in_flight(), [2, 0, 0, 0]);
    assert_eq!(here.explain_peer(NodeId(0)).unwrap().calls_under_way, 0, "the calls go to the other node");
    call.reply(&[7; 1 << 20]).unwrap();
    assert_eq!(in_flight(), [2, 0, 0, 1], "the server keeps an answer that is too long for a slot");
    assert_eq!(long.answer().unwrap(), [7; 1 << 20]);
    drop(abandoned);
    await_value("no call is in flight", in_flight, |counts| *counts == [0; 4]);
}

/// Expects that the explanation of a node shows the properties of its connection, or the reason why the node is not
/// connected.
pub fn a_peer_is_explained(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let peer = session.explain_peer(NodeId(1)).unwrap();
    assert!(peer.connected && peer.state == NodeState::Alive && peer.pid == cluster.pid(1), "{peer}");
    assert!(peer.cut_off_at.is_empty(), "{peer}");
    assert!(peer.silent_ms.is_some() && peer.bytes_quarantined_there == Some(0), "{peer}");
    assert_eq!((peer.calls_under_way, peer.answers_kept), (0, 0));
    let capabilities = peer.capabilities.expect("the peer is connected");
    assert!(!capabilities.provider.is_empty() && capabilities.send_bytes_max > 0, "{peer}");
    let by_call = capabilities.atomics != Atomics::Processor;
    assert_eq!(peer.to_string().contains("travel as calls"), by_call, "{peer}");
    let far = session.alloc(None, CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    let verb = session.explain(far).unwrap().pieces[0].verbs.atomic;
    assert_eq!(verb == "call to the owner", by_call, "{verb}");
    let myself = session.explain_peer(NodeId(0)).unwrap();
    assert!(!myself.connected && myself.capabilities.is_none(), "{myself}");
    assert!(myself.reason.contains("the session's own node"), "{myself}");
    refused!(session.explain_peer(NodeId(77)), RegionCause::UnknownNode(NodeId(77)));
    cluster.leave(2);
    let peer = || session.explain_peer(NodeId(2)).unwrap();
    let gone = await_value("the node is known to have left", peer, |peer| peer.state == NodeState::Left);
    assert!(
        !gone.connected && gone.silent_ms.is_none() && gone.reason.contains("left the cluster"),
        "{gone}"
    );
    let gone = await_value("the node is cut off from all memory", peer, |peer| peer.cut_off_at == [0, 1]);
    assert!(gone.to_string().contains("cut off from the memory of: node 0, node 1\n"), "{gone}");
}
