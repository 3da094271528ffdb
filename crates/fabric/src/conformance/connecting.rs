//! How fabrics meet.

use std::collections::BTreeSet;

use super::Harness;
use super::node::{Node, Pair, connect};
use crate::{ConnectFailure, ConnectTrouble, Event, HELLO_BYTES_MAX};

/// Each is shown what the other says of itself, and both can post.
pub fn both_ends_hear_who_the_other_is(harness: &dyn Harness) {
    let (mut one, mut two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    let address = harness.address("two");
    one.fabric.connect(&address, b"I am one");
    let Event::Connected { peer: to_two, hello, dialled } = one.event() else { panic!("no connection") };
    assert_eq!((&hello[..], dialled), (&b"two"[..], Some(address)));
    let Event::Connected { peer: to_one, hello, dialled: None } = two.event() else {
        panic!("no connection")
    };
    assert_eq!(hello, b"I am one");
    one.send(to_two, b"well met", 1);
    two.send(to_one, b"likewise", 2);
    assert_eq!(two.received(), (b"well met".to_vec(), 1));
    assert_eq!(one.received(), (b"likewise".to_vec(), 2));
}

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

/// The longest hello arrives whole; a longer one is an answer by event, as all that goes wrong.
pub fn a_hello_has_1024_bytes_at_most(harness: &dyn Harness) {
    let long = vec![7; HELLO_BYTES_MAX + 1];
    let mut one = Node::open(harness, "one");
    let mut two = Node::showing(harness, "two", &long[1..]);
    let failed = failure(&mut one, "two", &long);
    assert_eq!(failed.reason, "hello of 1025 bytes is longer than 1024");
    one.fabric.connect(&harness.address("two"), &long[1..]);
    let Event::Connected { hello, .. } = one.event() else { panic!("no connection") };
    assert_eq!(hello, long[1..]);
    let Event::Connected { hello, .. } = two.event() else { panic!("no connection") };
    assert_eq!(hello, long[1..]);
}

/// It is nobody's shortage, either.
pub fn an_address_of_nobody_is_told_as_such(harness: &dyn Harness) {
    let mut one = Node::open(harness, "one");
    assert_eq!(failure(&mut one, "nobody", b"").trouble, ConnectTrouble::Theirs);
    one.expect_nothing();
}

/// A closed fabric says so to itself, and refuses others.
pub fn who_has_closed_reaches_nobody_and_is_not_reached(harness: &dyn Harness) {
    let (mut one, mut two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    two.fabric.close();
    assert_eq!(failure(&mut two, "one", b"").reason, "this fabric is closed");
    assert_eq!(failure(&mut one, "two", b"").trouble, ConnectTrouble::Theirs);
    one.expect_nothing();
}

/// Each dial has one answer.
pub fn a_dial_is_answered_even_if_who_dialled_closes(harness: &dyn Harness) {
    let (mut one, _two) = (Node::open(harness, "one"), Node::open(harness, "two"));
    one.fabric.connect(&harness.address("two"), b"");
    one.fabric.close();
    match one.event() {
        Event::ConnectFailed(failure) => assert_eq!(failure.address, harness.address("two")),
        Event::Connected { peer, .. } => one.gone(peer),
        event => panic!("{event:?} is no answer"),
    }
    one.expect_nothing();
}

/// Over one connection or two: who sees to it that one remains stands above.
pub fn two_that_dial_each_other_at_once_can_talk(harness: &dyn Harness) {
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
        one.send(*peer, b"well met", peer.0);
    }
    let heard: BTreeSet<u32> = peers[0].iter().map(|_| two.received().1).collect();
    assert_eq!(heard, peers[0].iter().map(|peer| peer.0).collect());
}

/// A peer that was dropped may connect again, and has another number.
pub fn who_comes_back_is_somebody_new(harness: &dyn Harness) {
    let Pair { mut one, mut two, to_two, to_one, .. } = Pair::new(harness);
    one.fabric.disconnect(to_two);
    one.gone(to_two);
    two.gone(to_one);
    let (again, known_as) = connect(&mut one, &mut two, "two");
    assert!(again != to_two && known_as != to_one);
    one.send(again, b"hello again", 0);
    assert_eq!(two.received().0, b"hello again");
}

/// And what is said of a peer stays so.
pub fn a_provider_is_one_of_those_that_the_fabric_has(harness: &dyn Harness) {
    let pair = Pair::new(harness);
    for (node, peer) in [(&pair.one, pair.to_two), (&pair.two, pair.to_one)] {
        let capabilities = node.fabric.capabilities(peer);
        assert!(node.fabric.providers().contains(&capabilities.provider), "{capabilities:?}");
        assert!(capabilities.send_bytes_max >= 4096 / 4 && capabilities.inline_bytes_max >= 8);
        node.register(4096);
        harness.settle();
        assert_eq!(node.fabric.capabilities(peer), capabilities);
    }
}

/// Each answer goes to who asked.
pub fn many_peers_are_told_apart(harness: &dyn Harness) {
    let mut hub = Node::open(harness, "hub");
    let mut others: Vec<_> = (0..20)
        .map(|number| {
            let mut other = Node::open(harness, &format!("other-{number}"));
            let (to_hub, to_other) = connect(&mut other, &mut hub, "hub");
            (other, to_hub, to_other)
        })
        .collect();
    assert_eq!(others.iter().map(|(.., peer)| peer).collect::<BTreeSet<_>>().len(), 20);
    for (imm, (other, to_hub, _)) in (0..).zip(&others) {
        other.send(*to_hub, b"who am I?", imm);
    }
    for _ in 0..20 {
        let completion = hub.completion();
        let crate::CompletionKind::Received { imm, .. } = completion.kind else { panic!("{completion:?}") };
        assert_eq!(others[imm as usize].2, completion.peer);
        hub.send(completion.peer, &imm.to_le_bytes(), imm);
    }
    for (imm, (other, ..)) in (0u32..).zip(&mut others) {
        assert_eq!(other.received(), (imm.to_le_bytes().to_vec(), imm));
    }
}
