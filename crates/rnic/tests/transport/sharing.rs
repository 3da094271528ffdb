//! Goodput, latency and fairness over lossy, slow and shared links.  All figures are in virtual time, in which processing takes
//! none.

use std::fmt::Write;

use halite_rnic::{Config, Congestion};

use crate::emulator::*;

/// Small writes, so that few bytes are in flight and uncounted at the end.
const SMALL: [Work; 2] = [Work::Writes(4096), Work::Nothing];
const BULK: [Work; 2] = [Work::Writes(16384), Work::Nothing];

/// Goodput of one flow of writes in steady state, in Mb/s.
fn goodput_over(link: &Link, config: &Config) -> f64 {
    let back = Link { queue_bytes: 1 << 30, ..link.clone() };
    let mut net = Net::new(&[link.clone(), back], 1);
    let end = net.connect(config, [0, 1], 256, BULK);
    let trip_ns = 2 * link.delay_ns;
    net.run_for((40 * trip_ns).max(50 * MS));
    net.goodput(&[end], (30 * trip_ns).max(150 * MS))[0]
}

/// A link of 400 Mb/s with a queue of a millisecond, or of a round trip if that is longer.
fn line(trip_ns: u64) -> Link {
    Link::new(400_000_000, trip_ns / 2, 50 * trip_ns.max(MS) / 1000)
}

/// Adds losses of trains of 16 packets: `of_million` packets per million.
fn with_lost_trains(link: Link, of_million: u64) -> Link {
    Link { train_lost: of_million / 16, train_ns: 16 * 23 * US, ..link }
}

fn go_back_n() -> Config {
    Config { selective: false, congestion: Congestion::Grant, ..ends(Congestion::Grant) }
}

#[test]
fn goodput_matches_the_table() {
    let mut table = String::from(
        "Goodput in Mb/s of one flow of writes over 400 Mb/s, both ways lossy; 1 KiB packets, a grant of 256.\n\n",
    );
    table.push_str("| repeats, by | round trip | no loss | 0.1 % | 1 % | 5 % | 1 % in trains | 5 % in trains |\n|---|---|---|---|---|---|---|---|\n");
    let mut of_delay = Vec::new();
    for (name, config, trip_us) in [
        ("all behind, grant", go_back_n(), 1_000),
        ("single, grant", ends(Congestion::Grant), 1_000),
        ("single, delay", ends(Congestion::Delay), 100),
        ("single, delay", ends(Congestion::Delay), 1_000),
        ("single, delay", ends(Congestion::Delay), 10_000),
        ("single, loss", ends(Congestion::Loss), 1_000),
    ] {
        let line = line(trip_us * US);
        let single = [0, 1_000, 10_000, 50_000].map(|lost| Link { lost, ..line.clone() });
        let trains = [10_000, 50_000].map(|lost| with_lost_trains(line.clone(), lost));
        let row: Vec<f64> = single.iter().chain(&trains).map(|link| goodput_over(link, &config)).collect();
        write!(table, "| {name} | {trip_us} us |").unwrap();
        row.iter().for_each(|goodput| write!(table, " {goodput:.0} |").unwrap());
        table.push('\n');
        if config.congestion == Congestion::Delay {
            of_delay.push((trip_us, row));
        }
    }
    for (trip_us, row) in of_delay {
        assert!(
            row.iter().all(|goodput| goodput * 2.0 >= row[0]),
            "losses take more than half of the goodput over {trip_us} us: {row:?}"
        );
    }
    assert_eq!(table, include_str!("goodput.md"), "crates/rnic/tests/transport/goodput.md holds:\n{table}");
}

#[test]
fn goodput_stays_above_half_under_each_fault() {
    let clear = line(MS);
    let without = goodput_over(&clear, &ends(Congestion::Delay));
    for (name, link) in [
        ("jitter", Link { jitter_ns: 100 * US, ..clear.clone() }),
        ("duplicated", Link { duplicated: 50_000, ..clear.clone() }),
        ("damaged", Link { damaged: 20_000, ..clear.clone() }),
        ("overtaken", Link { overtaken: 50_000, overtaken_ns: 200 * US, ..clear.clone() }),
        (
            "all of it",
            Link {
                jitter_ns: 50 * US,
                lost: 5_000,
                duplicated: 5_000,
                damaged: 5_000,
                overtaken: 5_000,
                overtaken_ns: 100 * US,
                ..clear.clone()
            },
        ),
    ] {
        let goodput = goodput_over(&link, &ends(Congestion::Delay));
        assert!(goodput * 2.0 >= without, "{name}: {goodput} of {without}");
    }
}

#[test]
fn flow_resumes_after_a_link_outage() {
    let link = Link { down_ns: 60 * MS..160 * MS, ..line(MS) };
    let mut net = Net::new(&[link.clone(), link], 1);
    let end = net.connect(&ends(Congestion::Delay), [0, 1], 256, BULK);
    net.run_for(50 * MS);
    let before = net.goodput(&[end], 10 * MS)[0];
    let sent = net.counters(end).sent;
    net.run_for(95 * MS);
    assert!(net.counters(end).sent - sent < 300, "packet storm while the link is down");
    net.run_for(200 * MS);
    let after = net.goodput(&[end], 50 * MS)[0];
    assert!(after * 1.25 >= before, "{before} before, {after} after");
}

#[test]
fn flow_continues_in_parts_where_long_packets_are_dropped() {
    let link = Link { bytes_max: 700, ..line(MS) };
    let mut net = Net::new(&[link.clone(), link], 1);
    let end = net.connect(&Config { finds_path: true, ..ends(Congestion::Delay) }, [0, 1], 256, BULK);
    net.run_for(50 * MS);
    let goodput = net.goodput(&[end], 100 * MS)[0];
    assert!(goodput > 100.0, "{goodput}");
}

fn extremes(each: &[f64]) -> (f64, f64) {
    each.iter().fold((f64::MAX, 0f64), |(least, most), each| (least.min(*each), most.max(*each)))
}

#[test]
fn eight_flows_share_a_link_within_a_fifth() {
    for (mbps, begins_every_ns) in [(500, 0), (500, MS), (500, 20 * MS), (1000, 0), (1000, 20 * MS)] {
        let link = Link::new(mbps * 1_000_000, MS / 2, 1 << 20);
        let mut net = Net::new(&[link.clone(), link], 1);
        let mut flows = Vec::new();
        for _ in 0..8 {
            flows.push(net.connect(&ends(Congestion::Delay), [0, 1], 256, BULK));
            net.run_for(begins_every_ns);
        }
        net.run_for(1000 * MS);
        let each = net.goodput(&flows, 500 * MS);
        let (least, most) = extremes(&each);
        assert!(most <= 1.2 * least, "{mbps} Mb/s, one every {begins_every_ns} ns: {each:?}");
        assert!(each.iter().sum::<f64>() > 0.88 * mbps as f64, "{each:?}");
    }
}

/// Scheduling delays: with (n, ns), one wake-up in n is late by up to this many ns.
const DELAYS: [(u64, u64); 2] = [(10, 4 * MS), (2, 4 * MS)];

/// Goodputs of eight flows with scheduling delays over 500 Mb/s and a millisecond.
fn eight_delayed_flows(config: &Config, (late_one_of, late_ns): (u64, u64)) -> Vec<f64> {
    let link = Link::new(500_000_000, MS / 2, 250_000);
    let mut net = Net::new(&[link.clone(), link], 1);
    let flows: Vec<usize> = (0..8).map(|_| net.connect(config, [0, 1], 256, BULK)).collect();
    net.delay_wakeups(late_one_of, late_ns);
    net.run_for(500 * MS);
    net.goodput(&flows, 1000 * MS)
}

#[test]
fn eight_flows_with_scheduling_delays_share_most_of_a_link_within_a_half() {
    for delays in DELAYS {
        let each = eight_delayed_flows(&ends(Congestion::Delay), delays);
        let (least, most) = extremes(&each);
        assert!(most <= 1.5 * least, "{delays:?}: {each:?}");
        assert!(each.iter().sum::<f64>() > 300.0, "{delays:?}: {each:?}");
    }
}

#[test]
fn reported_waits_keep_scheduling_delays_from_counting_as_queues() {
    let unreported = Config { tells_waits: false, ..ends(Congestion::Delay) };
    let [reported, unreported] = [ends(Congestion::Delay), unreported]
        .map(|config| eight_delayed_flows(&config, DELAYS[1]).iter().sum::<f64>());
    assert!(reported >= 2.0 * unreported, "{reported} with reported waits, {unreported} without");
}

#[test]
fn flow_with_scheduling_delays_nearly_matches_an_uncontrolled_one() {
    // The last case has delays that exceed the timeout, repeatedly.
    for (trip_ns, delays) in [(MS, DELAYS[0]), (MS, DELAYS[1]), (10 * MS, DELAYS[1]), (MS, (20, 60 * MS))] {
        let goodput = |congestion: Congestion| {
            let link = Link::new(200_000_000, trip_ns / 2, 25 * trip_ns / 1000);
            let mut net = Net::new(&[link.clone(), link], 1);
            let flow = net.connect(&ends(congestion), [0, 1], 256, BULK);
            net.delay_wakeups(delays.0, delays.1);
            net.run_for(200 * MS);
            net.goodput(&[flow], 500 * MS)[0]
        };
        let [delay, grant] = [Congestion::Delay, Congestion::Grant].map(goodput);
        assert!(delay >= 0.7 * grant, "{delay} by delay, {grant} by grant over {trip_ns} ns, {delays:?}");
    }
}

#[test]
fn ping_beside_writes_takes_at_most_three_times_as_long() {
    for (bits_per_second, trip_ns) in
        [(1_000_000_000, 100 * US), (10_000_000_000, 50 * US), (1_000_000_000, MS)]
    {
        let link = Link::new(bits_per_second, trip_ns / 2, 1 << 20);
        let mut net = Net::new(&[link.clone(), link], 1);
        let config = ends(Congestion::Delay);
        let ping = net.connect(&config, [0, 1], 256, [Work::Pings(64), Work::Pongs(64)]);
        net.run_for(200 * MS);
        let idle_ns = net.ping_p99_ns(ping);
        let bulk = net.connect(&config, [0, 1], 256, BULK);
        let goodput = net.goodput(&[bulk], 200 * MS)[0];
        let beside_ns = net.ping_p99_ns(ping);
        assert!(beside_ns <= 3 * idle_ns, "{beside_ns} ns beside bulk, {idle_ns} alone");
        assert!(goodput * 1_000_000.0 > 0.8 * bits_per_second as f64, "{goodput}");
    }
}

#[test]
fn ping_beside_reads_takes_at_most_three_times_as_long() {
    let link = Link::new(1_000_000_000, 50 * US, 1 << 20);
    let mut net = Net::new(&[link.clone(), link], 1);
    let config = ends(Congestion::Delay);
    let ping = net.connect(&config, [0, 1], 256, [Work::Pings(64), Work::Pongs(64)]);
    net.run_for(200 * MS);
    let idle_ns = net.ping_p99_ns(ping);
    let bulk = net.connect(&config, [0, 1], 256, [Work::Reads(16384), Work::Nothing]);
    let goodput = net.goodput(&[bulk], 200 * MS)[0];
    let beside_ns = net.ping_p99_ns(ping);
    assert!(beside_ns <= 3 * idle_ns && goodput > 700.0, "{beside_ns} ns, {idle_ns} alone; {goodput}");
}

#[test]
fn ping_takes_much_longer_without_a_controller() {
    let link = Link::new(1_000_000_000, 50 * US, 1 << 20);
    let mut net = Net::new(&[link.clone(), link], 1);
    let config = ends(Congestion::Grant);
    let ping = net.connect(&config, [0, 1], 256, [Work::Pings(64), Work::Pongs(64)]);
    net.run_for(100 * MS);
    let idle_ns = net.ping_p99_ns(ping);
    net.connect(&config, [0, 1], 256, BULK);
    net.run_for(400 * MS);
    assert!(net.ping_p99_ns(ping) > 10 * idle_ns, "the other ping tests would prove nothing");
}

#[test]
fn sixty_four_senders_match_the_goodput_of_one() {
    let link = Link::new(1_000_000_000, 25 * US, 256 << 10);
    let back = Link { queue_bytes: 1 << 20, ..link.clone() };
    let config = ends(Congestion::Delay);
    let mut net = Net::new(&[link.clone(), back.clone()], 1);
    let alone = net.connect(&config, [0, 1], 256, SMALL);
    net.run_for(50 * MS);
    let one = net.goodput(&[alone], 100 * MS)[0];
    let mut net = Net::new(&[link, back], 1);
    let senders: Vec<usize> = (0..64).map(|_| net.connect(&config, [0, 1], 256, SMALL)).collect();
    // The start, when all senders begin at once, is measured separately.
    for ms in [50, 100] {
        let all: f64 = net.goodput(&senders, ms * MS).iter().sum();
        assert!(all >= 0.9 * one, "{all} of 64, {one} of one");
    }
}
