//! Halite over emulated networks between real sockets: all is done, once and in order, whatever the network does.
//!
//! Each test makes networks of its own, which takes root. `halite-bench links` measures how fast they are.

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
/// Who controls how much is under way.
const ALL: [Congestion; 3] = [Congestion::Grant, Congestion::Delay, Congestion::Loss];

fn clear() -> Link {
    Link::new(400_000_000, Duration::from_micros(500), 100_000)
}

fn both(link: &Link) -> [Link; 2] {
    [link.clone(), link.clone()]
}

/// All is done over such a link with each way of controlling what is under way; `saw` says of how many packets that was so.
fn all_is_done_over(link: &Link, saw: impl Fn(&Fates) -> u64) {
    for (seed, congestion) in ALL.into_iter().enumerate() {
        let Some(network) = Network::for_test(MTU, both(link), seed as u64) else { return };
        let ends = Ends::connect(&network, controlled_by(congestion)).unwrap();
        let done = ends.transfer(&network, SLICES);
        let (fates, counters) = (network.fates(), ends.counters());
        println!("{congestion:?}: {fates:?}; {counters:?}; {:?}", ends.dropped());
        done.unwrap();
        assert!(saw(&fates[0]) > 0, "else nothing is shown");
    }
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn all_is_done_where_single_packets_are_lost() {
    all_is_done_over(&Link { lost: 50_000, ..clear() }, |fates| fates.lost);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn all_is_done_where_whole_trains_are_lost() {
    all_is_done_over(&clear().losing_trains(50_000), |fates| fates.lost);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn all_is_done_once_where_packets_come_twice() {
    all_is_done_over(&Link { twice: 100_000, ..clear() }, |fates| fates.twice);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn all_is_done_in_order_where_packets_overtake_each_other() {
    let held_back = Duration::from_micros(300);
    let link = Link { overtaken: 50_000, held_back, jitter: Duration::from_micros(200), ..clear() };
    all_is_done_over(&link, |fates| fates.overtaken);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn nothing_that_was_damaged_on_the_way_is_seen() {
    // Neither IP nor UDP shows it.
    all_is_done_over(&Link { damaged: 20_000, ..clear() }, |fates| fates.damaged);
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn all_is_done_where_everything_goes_wrong_at_once() {
    let link = Link {
        lost: 10_000,
        twice: 10_000,
        damaged: 10_000,
        overtaken: 10_000,
        held_back: Duration::from_micros(300),
        jitter: Duration::from_micros(100),
        ..clear()
    };
    all_is_done_over(&link.losing_trains(10_000), |fates| fates.lost.min(fates.damaged));
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn all_is_done_through_a_queue_that_overflows() {
    // Eight packets, of the many that a grant allows; answers are short.
    let link = Link { queue_bytes: 8 * 1100, ..Link::new(100_000_000, Duration::from_micros(100), 0) };
    for congestion in ALL {
        let Some(network) = Network::for_test(MTU, both(&link), 1) else { return };
        let ends = Ends::connect(&network, controlled_by(congestion)).unwrap();
        ends.transfer(&network, SLICES).unwrap();
        println!("{congestion:?}: {:?}; {:?}", network.fates(), ends.counters());
        assert!(
            network.fates()[0].overflowed > 0 || congestion == Congestion::Delay,
            "else nothing is shown"
        );
    }
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn a_path_that_begins_to_swallow_long_packets_is_used_in_parts_until_it_has_healed() {
    let Some(network) = Network::for_test(MTU, both(&clear()), 1) else { return };
    let ends = Ends::connect(&network, |config| config).unwrap();
    ends.transfer(&network, SLICES).unwrap();
    network.set(both(&Link { bytes_max: 700, ..clear() }));
    ends.transfer(&network, SLICES).unwrap();
    let fates = network.fates()[0];
    assert!(fates.too_long > 0, "else nothing is shown");
    assert!(
        fates.too_long * 4 < u64::from(SLICES) * 32,
        "it is found out, and not by each packet: {fates:?}"
    );
    network.set(both(&clear()));
    ends.transfer(&network, SLICES).unwrap();
}

#[test]
#[ignore = "needs root: .ci/deep slow"]
fn nobody_hears_of_a_link_that_was_down_for_less_than_the_lease() {
    let Some(network) = Network::for_test(MTU, both(&clear()), 1) else { return };
    let configure = |config| RoceConfig { lease: Duration::from_secs(600), ..config };
    let ends = Ends::connect(&network, configure).unwrap();
    ends.transfer(&network, SLICES).unwrap();
    network.set(both(&Link { is_down: true, ..clear() }));
    std::thread::scope(|scope| {
        let transfer = scope.spawn(|| ends.transfer(&network, SLICES));
        // Both ends have said something in vain.
        while network.fates().iter().map(|fates| fates.cut).sum::<u64>() < 5 {
            assert!(!transfer.is_finished(), "it does nothing while the link is down");
            std::thread::yield_now();
        }
        network.set(both(&clear()));
        transfer.join().unwrap().unwrap();
    });
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn a_transfer_over_a_lossy_link_goes_on_at_a_fraction_of_a_clear_ones_pace() {
    // `halite-bench links` measures the fraction on a quiet machine; this checks only that goodput does not collapse.
    let (warm_up, time) = (Duration::from_millis(100), Duration::from_millis(400));
    let load = Load { has_bulk: true, has_pings: true, warm_up, time };
    let goodput = |link: Link| {
        let network = Network::for_test(MTU, both(&link), 1)?;
        let ends = Ends::connect(&network, |config| config).unwrap();
        let outcome = ends.run(&network, load).unwrap();
        assert!(outcome.percentile(50).is_some(), "pings come back beside bulk");
        Some(outcome.goodput_mbps)
    };
    let slow = Link::new(50_000_000, Duration::from_micros(500), 50_000);
    let Some(of_clear) = goodput(slow.clone()) else { return };
    for link in [Link { lost: 50_000, ..slow.clone() }, slow.losing_trains(50_000)] {
        // Another process may have had our processor for most of one figure.
        let mut figures = (0..3).map(|_| goodput(link.clone()).unwrap());
        assert!(figures.any(|of_lossy| of_lossy * 10.0 >= of_clear), "of {of_clear} Mb/s over {link:?}");
    }
}
