//! Cases about connecting.

use std::collections::BTreeSet;

use super::Harness;
use super::node::Node;
use crate::{ConnectFailure, ConnectTrouble, Event};

/// Expects that each end receives the hello of the other end, and that the posts of both ends arrive.
pub fn both_ends_receive_each_others_hello(harness: &dyn Harness) {
    let (mut one, mut two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    let address = harness.address("two");
    one.fabric.connect(&address, b"I am one");
    let Event::Connected { peer: to_two, hello, dialled } = one.event() else {
        panic!("expected a connection")
    };
    assert_eq!((&hello[..], dialled), (&b"two"[..], Some(address)));
    let Event::Connected { peer: to_one, hello, dialled: None } = two.event() else {
        panic!("expected a connection")
    };
    assert_eq!(hello, b"I am one");
    one.send(to_two, b"from one", 1);
    two.send(to_one, b"from two", 2);
    assert_eq!(two.received(), (b"from one".to_vec(), 1));
    assert_eq!(one.received(), (b"from two".to_vec(), 2));
}

/// Dials, and expects that the attempt fails.
fn failure(node: &mut Node<'_>, name: &str, hello: &[u8]) -> ConnectFailure {
    let address = node.harness.address(name);
    node.fabric.connect(&address, hello);
    match node.event() {
        Event::ConnectFailed(failure) => {
            assert_eq!(failure.address, address);
            failure
        }
        event => panic!("expected no connection, got {event:?}"),
    }
}

/// Expects that a closed fabric reports a failure when it dials, and refuses the dials of other fabrics.
pub fn a_closed_fabric_neither_dials_nor_answers(harness: &dyn Harness) {
    let (mut one, mut two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    two.fabric.close();
    assert_eq!(failure(&mut two, "one", b"").reason, "this fabric is closed");
    assert_eq!(failure(&mut one, "two", b"").trouble, ConnectTrouble::Theirs);
    one.expect_nothing();
}

/// Expects one or two connections if both ends dial at the same time. The tier above closes the second connection.
pub fn simultaneous_dials_connect(harness: &dyn Harness) {
    let mut nodes = [Node::open(harness, "one"), Node::open(harness, "two")];
    nodes[0].fabric.connect(&harness.address("two"), b"");
    nodes[1].fabric.connect(&harness.address("one"), b"");
    let mut peers = [Vec::new(), Vec::new()];
    for (node, peers) in nodes.iter_mut().zip(&mut peers) {
        let mut is_answered = false;
        while !is_answered || peers.is_empty() {
            match node.event() {
                Event::Connected { peer, dialled, .. } => {
                    peers.push(peer);
                    is_answered |= dialled.is_some();
                }
                Event::ConnectFailed(_) => is_answered = true,
                event => panic!("expected connections only, got {event:?}"),
            }
        }
    }
    for (node, peers) in nodes.iter_mut().zip(&mut peers) {
        for event in node.rest() {
            let Event::Connected { peer, .. } = event else { panic!("unexpected {event:?}") };
            peers.push(peer);
        }
    }
    let [one, two] = &mut nodes;
    for peer in &peers[0] {
        one.send(*peer, b"from one", peer.0);
    }
    let received: BTreeSet<u32> = peers[0].iter().map(|_| two.received().1).collect();
    assert_eq!(received, peers[0].iter().map(|peer| peer.0).collect());
}
