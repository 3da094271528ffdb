//! Packets get lost on the wire, in one direction: single ones, and trains as a whole.

use halite_providers::RoceConfig;
use halite_providers::roce::Congestion;

use crate::checks;
use crate::common::Cluster;
use crate::common::pcap::{Datagram, datagrams};
use crate::outside::Listening;
use crate::traffic::Traffic;
use crate::world::{DEVICES, Network};

/// How many requests each end makes.
const REQUESTS: usize = 400;

/// What arrives at a side, and what of that gets lost there.
const DROPS: [&str; 2] = ["udp length > 8 counter", "udp length > 8 numgen random mod 12 == 0 counter drop"];

fn all_is_done_though_packets_get_lost(at: usize, singly: bool) {
    let Some(network) = Network::new() else { return };
    if singly {
        network.cut_trains();
    }
    let cluster = Cluster::new();
    // Between these two, each way of deciding how much is under way has its turn.
    let congestion = if singly { Congestion::Delay } else { Congestion::Grant };
    let mut pair =
        network.connect([0, 1].map(|side| RoceConfig { congestion, ..network.config(&cluster, side) }));
    network.on_arrival(at, &DROPS);
    let listening = singly.then(|| Listening::start(&network, 0));
    let mut traffic = Traffic::new(&pair, 1 + at as u64);
    traffic.run(&mut pair, REQUESTS);
    let [arrived, lost] = network.counted(at)[..] else { panic!("two counters") };
    let [from, to] = [&pair.ends[1 - at], &pair.ends[at]].map(|end| end.counters());
    if let Some(listening) = listening {
        let file = cluster.0.join("wire.pcap");
        listening.end(&file);
        let ends = pair.ends.each_ref().map(|end| end.fabric.local_address());
        let is_theirs =
            |datagram: &Datagram| [datagram.source, datagram.target].iter().all(|end| ends.contains(end));
        let wire: Vec<Datagram> = datagrams(&file).into_iter().filter(is_theirs).collect();
        let (findings, count) = checks::about_losses(&wire);
        assert!(findings.is_empty() && count > 10, "{count} say what is missing: {findings:?}");
    }
    println!("{lost} of {arrived} lost; who sends: {from:?}; who receives: {to:?}");
    assert!(lost > 10, "{lost} of {arrived}");
    assert!(from.repeated > 0, "requests that got lost were sent again");
    assert!(to.repeated > 0, "so were those whose answers got lost");
    assert!(from.duplicates > 0, "which had been carried out");
    if singly {
        // But for what the two said of their path when they met.
        assert!(arrived + 8 >= from.sent && arrived <= from.sent, "each packet is seen by itself");
    } else {
        assert!(arrived < from.sent, "some are seen together");
    }
    assert_eq!(pair.ends.each_ref().map(|end| end.fabric.dropped().refused), [0, 0]);
}

#[test]
fn all_is_done_though_single_packets_to_the_first_get_lost() {
    all_is_done_though_packets_get_lost(0, true);
}

#[test]
fn all_is_done_though_single_packets_to_the_second_get_lost() {
    all_is_done_though_packets_get_lost(1, true);
}

#[test]
fn all_is_done_though_trains_to_the_first_get_lost() {
    all_is_done_though_packets_get_lost(0, false);
}

#[test]
fn all_is_done_though_trains_to_the_second_get_lost() {
    all_is_done_though_packets_get_lost(1, false);
}

#[test]
fn all_is_done_over_a_slow_link_whose_queue_overflows() {
    let Some(network) = Network::new() else { return };
    for (side, device) in DEVICES.into_iter().enumerate() {
        network.must(side, &format!("tc qdisc add dev {device} root tbf rate 200mbit burst 16k limit 24k"));
    }
    let cluster = Cluster::new();
    let mut pair = network.connect([0, 1].map(|side| network.config(&cluster, side)));
    let overflows = |side: usize| {
        let said = network.must(side, &format!("tc -s qdisc show dev {}", DEVICES[side]));
        // "Sent 1 bytes 1 pkt (dropped 12, overlimits 0 requeues 0)".
        let dropped = said.split("(dropped ").nth(1).and_then(|rest| rest.split(',').next());
        dropped.and_then(|count| count.parse::<u64>().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    // Who is slow, as with a sanitizer on a machine that others use, seldom fills the queue.
    for round in 0..30 {
        Traffic::new(&pair, 3 + round).run(&mut pair, REQUESTS);
        if (0..2).all(|side| overflows(side) > 0 && pair.ends[side].counters().repeated > 0) {
            return;
        }
    }
    panic!("{:?} were dropped: {:?}", [0, 1].map(overflows), pair.ends.each_ref().map(|end| end.counters()));
}

#[test]
fn all_is_done_where_all_behind_a_lost_packet_is_sent_again() {
    let Some(network) = Network::new() else { return };
    let cluster = Cluster::new();
    // The second would repeat single packets, and the first does not.
    let configs = [0, 1].map(|side| RoceConfig { selective: side == 1, ..network.config(&cluster, side) });
    let mut pair = network.connect(configs);
    network.on_arrival(0, &DROPS);
    network.on_arrival(1, &DROPS);
    Traffic::new(&pair, 5).run(&mut pair, REQUESTS);
    let counted = pair.ends.each_ref().map(|end| end.counters());
    assert!(counted.iter().all(|counted| counted.repeated > 0 && counted.kept == 0), "{counted:?}");
}
