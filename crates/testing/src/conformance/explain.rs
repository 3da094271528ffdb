//! Explanations: which way bytes take, and why.

use halite::{
    AccessPath, Atomics, Function, NodeId, NodeState, Permissions, Placement, RegionCause, ServeOptions,
};

use super::calls::PATIENCE;
use super::cluster::{CHUNK, Cluster, Harness, eventually, everyone, shared};
use super::refused;

/// Every byte is accounted for, by the node that holds it, and what is alike is said once.
pub fn an_explanation_accounts_for_every_byte(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let session = cluster.session(1);
    let nodes = vec![NodeId(0), NodeId(1), NodeId(2)];
    let lh = session.alloc(Some("spread"), 6 * CHUNK + 1, Placement::Spread(nodes), everyone()).unwrap();
    let told = session.explain(lh).unwrap();
    let shares: Vec<(u32, u64, u64)> =
        told.pieces.iter().map(|piece| (piece.node, piece.bytes, piece.pieces)).collect();
    assert_eq!(shares, [(0, 2 * CHUNK + 1, 3), (1, 2 * CHUNK, 2), (2, 2 * CHUNK, 2)]);
    assert_eq!((told.len, told.home, told.epoch), (6 * CHUNK + 1, 0, Some(0)));
    assert_eq!(told.name.as_deref(), Some("spread"));
    assert_eq!(told.pieces[1].path, AccessPath::Local);
    assert!([AccessPath::Direct, AccessPath::Posted].contains(&told.pieces[0].path));
    assert_eq!(told.pieces[0].path, told.pieces[2].path);
    let text = told.to_string();
    assert!(text.contains("\"spread\"") && text.contains("node 2: 131072 bytes in 2 pieces"), "{text}");
}

/// What a handle may not be used for has no verb.
pub fn an_explanation_tells_what_a_handle_lacks(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let owner = cluster.session(0);
    let near = shared(&owner, "notes", CHUNK);
    let session = cluster.session(1);
    let lh = session.map("notes", Permissions::READ | Permissions::WRITE).unwrap();
    let verbs = session.explain(lh).unwrap().pieces[0].verbs;
    assert_eq!(verbs.atomic, "not permitted");
    assert_ne!(verbs.write, "not permitted");
    owner.seal(near).unwrap();
    let told = session.explain(lh).unwrap();
    assert!(told.sealed);
    assert_eq!(told.pieces[0].verbs.write, "sealed");
    assert_ne!(told.pieces[0].verbs.read, "sealed");
}

/// A handle explains nothing where it means nothing.
pub fn only_handles_that_lead_somewhere_are_explained(h: &dyn Harness) {
    let cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = shared(&session, "notes", CHUNK);
    refused!(cluster.session(0).explain(lh), RegionCause::ForeignHandle);
    session.free(lh).unwrap();
    refused!(session.explain(lh), RegionCause::Stale);
}

/// Bytes of a node that has gone are told to be down, although nobody is left to be asked.
pub fn bytes_that_are_gone_are_explained(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 2);
    let session = cluster.session(0);
    let lh = session.alloc(None, CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    cluster.leave(1);
    let told = eventually("the bytes are known to be gone", || {
        let told = session.explain(lh).map_err(|error| error.to_string())?;
        if told.pieces[0].path == AccessPath::Down { Ok(told) } else { Err(told.to_string()) }
    });
    assert_eq!((told.epoch, told.home, told.len), (None, 1, CHUNK));
    assert_eq!(told.pieces[0].verbs.read, "fails");
}

/// Calls that hang are seen by their caller, and answers that nobody fetches by who keeps them.
pub fn calls_under_way_are_explained(h: &dyn Harness) {
    const FUNCTION: Function = Function(7);
    let cluster = Cluster::new(h, 2);
    let (here, there) = (cluster.session(0), cluster.session(1));
    let server = there.serve(FUNCTION, ServeOptions::default()).unwrap();
    let under_way = || {
        let (from, to) = (here.explain_peer(NodeId(1)).unwrap(), there.explain_peer(NodeId(0)).unwrap());
        [from.calls_under_way, from.answers_kept, to.calls_under_way, to.answers_kept]
    };
    let given_up = here.post_call(NodeId(1), FUNCTION, b"given up", 64, PATIENCE).unwrap();
    let long = here.post_call(NodeId(1), FUNCTION, b"long", 1 << 30, PATIENCE).unwrap();
    let (_unanswered, call) = (server.recv().unwrap(), server.recv().unwrap());
    assert_eq!(under_way(), [2, 0, 0, 0]);
    assert_eq!(here.explain_peer(NodeId(0)).unwrap().calls_under_way, 0, "they go to the other node");
    call.reply(&[7; 1 << 20]).unwrap();
    assert_eq!(under_way(), [2, 0, 0, 1], "too long for any slot, it waits to be fetched");
    assert_eq!(long.answer().unwrap(), [7; 1 << 20]);
    drop(given_up);
    eventually("nothing is under way", || match under_way() {
        [0, 0, 0, 0] => Ok(()),
        others => Err(format!("{others:?}")),
    });
}

/// Of every node it is told whether it is reached, and how.
pub fn a_peer_is_explained(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let session = cluster.session(0);
    let peer = session.explain_peer(NodeId(1)).unwrap();
    assert!(peer.connected && peer.state == NodeState::Alive && peer.pid == cluster.pid(1), "{peer}");
    assert!(peer.cut_off_at.is_empty(), "{peer}");
    assert!(peer.silent_ms.is_some() && peer.bytes_quarantined_there == Some(0), "{peer}");
    assert_eq!((peer.calls_under_way, peer.answers_kept), (0, 0));
    let capabilities = peer.capabilities.expect("it is connected");
    assert!(!capabilities.provider.is_empty() && capabilities.send_bytes_max > 0, "{peer}");
    let by_call = capabilities.atomics != Atomics::Processor;
    assert_eq!(peer.to_string().contains("travel as calls"), by_call, "{peer}");
    let far = session.alloc(None, CHUNK, Placement::On(NodeId(1)), everyone()).unwrap();
    let verb = session.explain(far).unwrap().pieces[0].verbs.atomic;
    assert_eq!(verb == "call to the owner", by_call, "{verb}");
    let myself = session.explain_peer(NodeId(0)).unwrap();
    assert!(!myself.connected && myself.capabilities.is_none(), "{myself}");
    assert!(myself.reason.contains("the node that was asked"), "{myself}");
    refused!(session.explain_peer(NodeId(77)), RegionCause::UnknownNode(NodeId(77)));
    cluster.leave(2);
    let gone = eventually("the node is known to have left", || {
        let peer = session.explain_peer(NodeId(2)).unwrap();
        if peer.state == NodeState::Left { Ok(peer) } else { Err(peer.to_string()) }
    });
    assert!(
        !gone.connected && gone.silent_ms.is_none() && gone.reason.contains("left the cluster"),
        "{gone}"
    );
    let gone = eventually("it is cut off from all memory", || {
        let peer = session.explain_peer(NodeId(2)).unwrap();
        if peer.cut_off_at == [0, 1] { Ok(peer) } else { Err(peer.to_string()) }
    });
    assert!(gone.to_string().contains("cut off from the memory of: node 0, node 1\n"), "{gone}");
}
