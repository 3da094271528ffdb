//! The network loses packets and whole trains.

use halite_fabric::Fabric;
use halite_providers::RoceConfig;
use halite_providers::roce::ResponderMode;

use crate::common::Cluster;
use crate::traffic::Traffic;
use crate::world::Network;

/// Number of requests that each end makes.
const REQUESTS: usize = 400;

/// Count the packets that arrive at a side, and drop one in twelve.
const DROPS: [&str; 2] = ["udp length > 8 counter", "udp length > 8 numgen random mod 12 == 0 counter drop"];

#[test]
fn lost_trains_are_retransmitted() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let mut pair = network.connect([0, 1].map(|side| network.config(&cluster, side)));
    network.on_arrival(1, &DROPS);
    Traffic::new(&pair, 2).run(&mut pair, REQUESTS);
    let [arrived, lost] = network.counted(1)[..] else { panic!("two counters") };
    let [from, to] = pair.ends.each_ref().map(|end| end.counters());
    println!("{lost} of {arrived} lost; sender: {from:?}; receiver: {to:?}");
    assert!(lost > 10, "{lost} of {arrived}");
    assert!(from.repeated > 0 && to.repeated > 0, "the ends retransmitted lost requests and answers");
    assert!(from.duplicates > 0, "a retransmitted request had been executed before");
    assert_eq!(pair.ends.each_ref().map(|end| end.fabric.dropped().refused), [0, 0]);
}

#[test]
fn go_back_n_retransmits_lost_packets() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    // Only the second end supports selective repeat, so neither end uses it.
    let configs = [0, 1].map(|side| RoceConfig { selective: side == 1, ..network.config(&cluster, side) });
    let mut pair = network.connect(configs);
    network.on_arrival(0, &DROPS);
    network.on_arrival(1, &DROPS);
    Traffic::new(&pair, 5).run(&mut pair, REQUESTS);
    let counted = pair.ends.each_ref().map(|end| end.counters());
    assert!(counted.iter().all(|counted| counted.repeated > 0 && counted.kept == 0), "{counted:?}");
}

/// The responders keep no state for the peer, and yet execute each request once and in order.
#[test]
fn stateless_lanes_retransmit_lost_packets() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let configs = [0, 1].map(|side| {
        let responder = ResponderMode::Stateless;
        RoceConfig { responder, ..network.config(&cluster, side) }
    });
    let mut pair = network.connect(configs);
    for side in [0, 1] {
        network.on_arrival(side, &DROPS);
    }
    Traffic::new(&pair, 7).run(&mut pair, REQUESTS);
    let lost = [0, 1].map(|side| network.counted(side)[1]);
    let paths = pair.ends.each_ref().map(|end| end.fabric.path(end.peer).expect("the connection lives"));
    assert!(lost.iter().all(|lost| *lost > 10), "{lost:?}");
    assert!(paths.iter().all(|path| path.responder == "stateless" && path.repeated > 0), "{paths:?}");
}

/// A router may treat a train as one packet that is too long.
#[test]
fn packets_leave_one_by_one_if_a_router_drops_trains() {
    for responder in [ResponderMode::Stateful, ResponderMode::Stateless] {
        leave_one_by_one(responder);
    }
}

fn leave_one_by_one(responder: ResponderMode) {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    let config = |side| RoceConfig { responder, ..network.config(&cluster, side) };
    let mut pair = network.connect([0, 1].map(config));
    for side in [0, 1] {
        network.on_arrival(side, &["meta length > 5000 counter drop"]);
    }
    Traffic::new(&pair, 3).run(&mut pair, REQUESTS);
    let dropped = [0, 1].map(|side| network.counted(side)[0]);
    println!("{dropped:?} trains were dropped");
    // The number of trains before the fabric stops sending trains depends on timing.
    assert!(dropped.iter().all(|dropped| (1..500).contains(dropped)), "{dropped:?}");
    let refused = pair.ends.each_ref().map(|end| end.fabric.path(end.peer).map(|path| path.trains_refused));
    assert!(refused.iter().all(|refused| *refused > Some(0)), "{refused:?}");
}
