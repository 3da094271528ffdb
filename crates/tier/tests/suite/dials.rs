//! Dials that a node refuses, and the intervals of its dials. Concurrent dials between two nodes are in
//! `crates/trials/src/dials.rs`.

use std::collections::BTreeSet;

use crate::common;

use common::{Cluster, LEASE_NS};
use halite_fabric::PeerId;
use halite_tier::effect::Effect;
use halite_tier::engine::{Connection, Engine};
use halite_tier::hello::{BadHello, Hello};
use halite_tier::ids::{Incarnation, NodeId, NodeIncarnation};
use halite_tier::link;
use halite_tier::message::{self, Member, Message, Notice};
use halite_tier::news::News;

fn incarnation(node: u32) -> NodeIncarnation {
    NodeIncarnation { node: NodeId(node), id: Incarnation(7) }
}

fn hello(node: u32, address: &str) -> Vec<u8> {
    Hello { incarnation: incarnation(node), pid: 1, bytes_total: 0, address: address.to_owned() }.encode()
}

fn connection(peer: u32, dialled: bool) -> Connection {
    Connection { peer: PeerId(peer), dialled, send_bytes_max: 1 << 16 }
}

#[test]
fn dialers_with_bad_hellos_are_dropped() {
    let ours = hello(0, "");
    let mut other = hello(1, "");
    other[0] += 1;
    for (hello, why) in [
        (ours, BadHello::OurNumber(NodeId(0))),
        (other.clone(), BadHello::Version(u16::from(other[0]))),
        (b"".to_vec(), BadHello::Malformed),
    ] {
        let mut cluster = Cluster::of(0);
        cluster.add_unmet(0, 0);
        let engine = &mut cluster.hosts[0].engine;
        engine.handle_connected(0, connection(7, false), &hello);
        let mut effects = Vec::from_iter(std::iter::from_fn(|| engine.poll_effect()));
        if matches!(why, BadHello::Version(_)) {
            // A conforming peer reads this node's version, and disconnects by itself.
            assert!(matches!(effects[..], [Effect::News(_)]), "{effects:?}");
            while let Some(due_ns) = engine.poll_timeout().filter(|due_ns| *due_ns <= 2 * LEASE_NS) {
                engine.handle_timeout(due_ns);
                effects.extend(std::iter::from_fn(|| engine.poll_effect()));
            }
        }
        assert!(
            matches!(effects[..], [Effect::News(News::Refused(refusal)), Effect::Disconnect(PeerId(7))] if refusal == why),
            "{effects:?}"
        );
    }
}

fn deliver(engine: &mut Engine, notice: Notice) {
    for frame in link::frames(&message::encode(&Message::Notice(notice)), 1 << 16) {
        engine.handle_message(0, PeerId(7), &frame);
    }
}

/// Returns the quarters of a lease, out of the first 80, in which a node dials an unreachable node that node 0 has
/// reported.
fn dials_to_unreachable(cluster: &mut Cluster) -> Vec<u64> {
    let host = cluster.add_unmet(5, 0);
    let engine = &mut cluster.hosts[host].engine;
    engine.handle_connected(0, connection(7, true), &hello(0, "zero"));
    deliver(engine, Notice::Welcome { pairing: 1 });
    let unreachable = vec![(Member::unseen(incarnation(1)), "one".to_owned())];
    deliver(engine, Notice::Known { living: Vec::new(), unreachable, ended: Vec::new() });
    let mut dials = Vec::new();
    for quarter in 0..80 {
        engine.handle_timeout(quarter * LEASE_NS / 4);
        while let Some(effect) = engine.poll_effect() {
            if let Effect::Dial { address } = effect {
                dials.extend((address == "one").then_some(quarter));
                engine.handle_dial_failed(&address);
            }
        }
    }
    dials
}

#[test]
fn dials_back_off_at_random() {
    let mut cluster = Cluster::of(0);
    let nodes: BTreeSet<Vec<u64>> = (0..20).map(|_| dials_to_unreachable(&mut cluster)).collect();
    assert!(nodes.len() > 1, "not all at once: {nodes:?}");
    for dials in nodes {
        assert_eq!(dials[..3], [0, 1, 2], "a short loss is repaired at once");
        let gaps: BTreeSet<u64> = dials.windows(2).skip(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps, BTreeSet::from([2, 3]), "two leases suffice to reconnect");
    }
}
