//! Halite over emulated networks between real sockets: all slices arrive once and in order, whatever the network does.
//!
//! Each test creates its own networks, which needs root. `halite-bench links` measures the speed.

mod commands;

use std::time::Duration;

use halite_bench::links::halite::{Ends, Load};
use halite_bench::links::link::{Fates, Link};
use halite_bench::links::network::Network;
use halite_bench::links::transports::controlled_by;
use halite_providers::RoceConfig;
use halite_providers::roce::Congestion;

const MTU: u16 = 1500;
/// More than two thousand packets of 1 KiB.
const SLICES: u32 = 70;
/// The algorithms of congestion control.
const ALL: [Congestion; 3] = [Congestion::Grant, Congestion::Delay, Congestion::Loss];

fn clear_link() -> Link {
    Link::new(400_000_000, Duration::from_micros(500), 100_000)
}

fn both(link: &Link) -> [Link; 2] {
    [link.clone(), link.clone()]
}

/// Transfers slices over the link with each congestion control; `affected` selects the count of packets that met the
/// fault.
fn expect_whole_transfers_over(link: &Link, affected: impl Fn(&Fates) -> u64) {
    for (seed, congestion) in ALL.into_iter().enumerate() {
        let Some(network) = Network::for_test(MTU, both(link), seed as u64) else { return };
        let ends = Ends::connect(&network, controlled_by(congestion)).unwrap();
        let result = ends.transfer(&network, SLICES);
        let (fates, counters) = (network.fates(), ends.counters());
        println!("{congestion:?}: {fates:?}; {counters:?}; {:?}", ends.dropped());
        result.unwrap();
        assert!(affected(&fates[0]) > 0, "no packet met the fault");
    }
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn transfers_survive_lost_packets() {
    expect_whole_transfers_over(&Link { lost: 50_000, ..clear_link() }, |fates| fates.lost);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn transfers_survive_lost_trains() {
    expect_whole_transfers_over(&clear_link().losing_trains(50_000), |fates| fates.lost);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn duplicated_packets_take_effect_once() {
    expect_whole_transfers_over(&Link { duplicated: 100_000, ..clear_link() }, |fates| fates.duplicated);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn transfers_survive_reordering() {
    let reorder_delay = Duration::from_micros(300);
    let link = Link { reordered: 50_000, reorder_delay, jitter: Duration::from_micros(200), ..clear_link() };
    expect_whole_transfers_over(&link, |fates| fates.reordered);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn damaged_packets_have_no_effect() {
    // The checksums of IP and UDP do not detect the damage.
    expect_whole_transfers_over(&Link { damaged: 20_000, ..clear_link() }, |fates| fates.damaged);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn transfers_survive_all_faults_at_once() {
    let link = Link {
        lost: 10_000,
        duplicated: 10_000,
        damaged: 10_000,
        reordered: 10_000,
        reorder_delay: Duration::from_micros(300),
        jitter: Duration::from_micros(100),
        ..clear_link()
    };
    expect_whole_transfers_over(&link.losing_trains(10_000), |fates| fates.lost.min(fates.damaged));
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn transfers_survive_an_overflowing_queue() {
    // The queue holds eight packets, fewer than a grant allows. Answers are short.
    let link = Link { queue_bytes: 8 * 1100, ..Link::new(100_000_000, Duration::from_micros(100), 0) };
    for congestion in ALL {
        let Some(network) = Network::for_test(MTU, both(&link), 1) else { return };
        let ends = Ends::connect(&network, controlled_by(congestion)).unwrap();
        ends.transfer(&network, SLICES).unwrap();
        println!("{congestion:?}: {:?}; {:?}", network.fates(), ends.counters());
        assert!(
            network.fates()[0].overflowed > 0 || congestion == Congestion::Delay,
            "no packet overflowed the queue"
        );
    }
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn packets_are_split_while_the_path_drops_long_ones() {
    let Some(network) = Network::for_test(MTU, both(&clear_link()), 1) else { return };
    let ends = Ends::connect(&network, |config| config).unwrap();
    ends.transfer(&network, SLICES).unwrap();
    network.set(both(&Link { bytes_max: 700, ..clear_link() }));
    ends.transfer(&network, SLICES).unwrap();
    let fates = network.fates()[0];
    assert!(fates.too_long > 0, "no packet was too long");
    assert!(
        fates.too_long * 4 < u64::from(SLICES) * 32,
        "the shorter MTU was found only by many losses: {fates:?}"
    );
    network.set(both(&clear_link()));
    ends.transfer(&network, SLICES).unwrap();
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn an_outage_shorter_than_the_lease_is_not_reported() {
    let Some(network) = Network::for_test(MTU, both(&clear_link()), 1) else { return };
    let configure = |config| RoceConfig { lease: Duration::from_secs(600), ..config };
    let ends = Ends::connect(&network, configure).unwrap();
    ends.transfer(&network, SLICES).unwrap();
    network.set(both(&Link { is_down: true, ..clear_link() }));
    std::thread::scope(|scope| {
        let transfer = scope.spawn(|| ends.transfer(&network, SLICES));
        // Both ends have lost packets by then.
        while network.fates().iter().map(|fates| fates.cut).sum::<u64>() < 5 {
            assert!(!transfer.is_finished(), "the transfer ended while the link was down");
            std::thread::yield_now();
        }
        network.set(both(&clear_link()));
        transfer.join().unwrap().unwrap();
    });
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn loss_reduces_goodput_to_no_less_than_a_tenth() {
    // `halite-bench links` measures the fraction on a quiet machine; this checks only that goodput does not collapse.
    let (warm_up, time) = (Duration::from_millis(100), Duration::from_millis(400));
    let load = Load { has_bulk: true, has_pings: true, warm_up, time };
    let goodput = |link: Link| {
        let network = Network::for_test(MTU, both(&link), 1)?;
        let ends = Ends::connect(&network, |config| config).unwrap();
        let outcome = ends.run(&network, load).unwrap();
        assert!(outcome.percentile(50).is_some(), "pings return beside bulk");
        Some(outcome.goodput_mbps)
    };
    let slow = Link::new(50_000_000, Duration::from_micros(500), 50_000);
    let Some(of_clear) = goodput(slow.clone()) else { return };
    for link in [Link { lost: 50_000, ..slow.clone() }, slow.losing_trains(50_000)] {
        // Another process may have occupied the core during one measurement.
        let mut figures = (0..3).map(|_| goodput(link.clone()).unwrap());
        assert!(
            figures.any(|of_lossy| of_lossy * 10.0 >= of_clear),
            "{link:?}: goodput is less than a tenth of {of_clear} Mb/s"
        );
    }
}
