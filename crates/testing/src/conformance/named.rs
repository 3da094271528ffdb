//! Servers that are found by name.

use halite::{NamedCallCause, NodeId, ServeCause, ServeOptions};

use super::calls::PATIENCE;
use super::cluster::{Cluster, Harness, await_value};
use super::refused;
use super::session::{Server, Session};
use super::turns::scope;

/// Returns options of a server that shares its name with other servers.
fn shared_name() -> ServeOptions {
    ServeOptions { shared: true, ..ServeOptions::default() }
}

/// Answers calls with the number of the server's node, until the server is closed.
fn serve(server: &Server, node: u8) {
    while let Ok(call) = server.recv() {
        call.reply(&[node]).expect("the caller waits");
    }
}

/// Calls a server by name, and returns the node of the server that answers.
fn answering_node(session: &Session) -> NodeId {
    let answer = session.call_named("post", b"?", PATIENCE).unwrap();
    NodeId(answer[0].into())
}

fn await_no_server(session: &Session) {
    await_value("no server is listed", || serving_nodes(session), Vec::is_empty);
}

fn serving_nodes(session: &Session) -> Vec<NodeId> {
    session.servers(None).unwrap().iter().map(|server| server.node).collect()
}

/// Expects that calls find the server of a name on any node, and fail once the server has ended.
pub fn calls_find_the_server_of_a_name(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    refused!(cluster.session(0).call_named("post", b"", PATIENCE), NamedCallCause::NoServer);
    let caller = cluster.session(0);
    for node in [1, 2, 0] {
        let server = cluster.session(node).serve_named("post", ServeOptions::default()).unwrap();
        scope(|scope| {
            scope.spawn(|| serve(&server, node as u8));
            for index in 0..3 {
                assert_eq!(answering_node(&cluster.session(index)), NodeId(node as u32));
            }
            // This session has cached the previous server, which has ended.
            assert_eq!(answering_node(&caller), NodeId(node as u32));
            let listed = caller.servers(Some("post")).unwrap();
            assert_eq!((listed.len(), listed[0].node, listed[0].is_shared), (1, NodeId(node as u32), false));
            server.close();
        });
        await_no_server(&caller);
        refused!(caller.call_named("post", b"", PATIENCE), NamedCallCause::NoServer);
    }
    assert!(caller.list().unwrap().is_empty(), "a server's name is listed as a region");
}

/// Expects that a second server of a name is refused, on any node, unless both servers share the name.
pub fn a_name_has_one_server_unless_shared(h: &dyn Harness) {
    let cluster = Cluster::new(h, 3);
    let only = cluster.session(1).serve_named("post", ServeOptions::default()).unwrap();
    refused!(cluster.session(1).serve_named("post", shared_name()), ServeCause::Taken { .. });
    refused!(cluster.session(2).serve_named("post", ServeOptions::default()), ServeCause::NameTaken);
    refused!(cluster.session(0).serve_named("post", shared_name()), ServeCause::NameTaken);
    let other = cluster.session(2).serve_named("pos", ServeOptions::default()).unwrap();
    let longer = cluster.session(0).serve_named("post office", shared_name()).unwrap();
    assert_eq!(serving_nodes(&cluster.session(2)), [NodeId(2), NodeId(1), NodeId(0)]);
    drop((only, other, longer));
    await_no_server(&cluster.session(1));
    let first = cluster.session(1).serve_named("post", shared_name()).unwrap();
    refused!(cluster.session(0).serve_named("post", ServeOptions::default()), ServeCause::NameTaken);
    drop(first);
    await_no_server(&cluster.session(0));
    cluster.session(0).serve_named("post", ServeOptions::default()).unwrap();
}

/// Expects that calls alternate between the servers that share a name, and reach the remaining server when one has
/// ended.
pub fn calls_alternate_between_servers_that_share(h: &dyn Harness) {
    let mut cluster = Cluster::new(h, 3);
    let caller = cluster.session(0);
    let one = cluster.session(1).serve_named("post", shared_name()).unwrap();
    let two = cluster.session(2).serve_named("post", shared_name()).unwrap();
    scope(|scope| {
        scope.spawn(|| serve(&one, 1));
        scope.spawn(|| serve(&two, 2));
        let nodes: Vec<u32> = (0..4).map(|_| answering_node(&caller).0).collect();
        assert!(nodes == [1, 2, 1, 2], "{nodes:?}");
        one.close();
        (0..4).for_each(|_| assert_eq!(answering_node(&caller), NodeId(2)));
        two.close();
    });
    let last = cluster.session(1).serve_named("post", shared_name()).unwrap();
    cluster.leave(1);
    drop(last);
    await_no_server(&caller);
    refused!(cluster.session(0).call_named("post", b"", PATIENCE), NamedCallCause::NoServer);
}

/// Expects that invalid names of servers are refused, to servers and to callers.
pub fn invalid_server_names_are_refused(h: &dyn Harness) {
    let cluster = Cluster::new(h, 1);
    let session = cluster.session(0);
    for name in ["", "\0s", "a\0b", &"x".repeat(1 << 16)] {
        refused!(session.serve_named(name, ServeOptions::default()), ServeCause::Name(_));
        refused!(session.call_named(name, b"", PATIENCE), NamedCallCause::Name(_));
        assert!(session.servers(Some(name)).is_err());
    }
}
