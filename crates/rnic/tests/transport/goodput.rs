//! Goodput and fairness over slow, lossy and shared links. All figures are in virtual time, in which processing is
//! free.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

use halite_rnic::{Config, Congestion, Event, Local, Mtu, Operation, Source, Status};

use crate::pair::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Overhead of a frame: headers of Ethernet, IP and UDP, preamble and inter-frame gap.
const FRAME_BYTES: u64 = 66;
const BYTES: u32 = 16384;

/// One direction of a network path, which several flows may share.
#[derive(Clone)]
struct Link {
    bits_per_second: u64,
    delay_ns: u64,
    queue_bytes: u64,
    /// Single packets lost, per million.
    lost: u64,
    /// Packets per million from which on all packets are lost for `train_ns`.
    train_lost: u64,
    train_ns: u64,
    /// Packets per million that take half the delay.
    early: u64,
    /// Time at which the last queued packet has left.
    free_ns: u64,
    /// End of the current loss of a train.
    train_until_ns: u64,
    random: Random,
    /// Number of packets lost because the queue was full.
    overflowed: u64,
}

impl Link {
    /// Returns a link that loses packets only if its queue is full.
    fn new(bits_per_second: u64, delay_ns: u64, queue_bytes: u64) -> Link {
        Link {
            bits_per_second,
            delay_ns,
            queue_bytes,
            lost: 0,
            train_lost: 0,
            train_ns: 0,
            early: 0,
            free_ns: 0,
            train_until_ns: 0,
            random: Random(1),
            overflowed: 0,
        }
    }

    /// Puts a packet into the queue, and returns its fate.
    fn fate(&mut self, sent: &Sent) -> Fate {
        let frame_ns = |bytes: u64| bytes * 8 * 1_000_000_000 / self.bits_per_second;
        if self.free_ns.saturating_sub(sent.at_ns) > frame_ns(self.queue_bytes) {
            self.overflowed += 1;
            return Fate::Lost;
        }
        self.free_ns = self.free_ns.max(sent.at_ns) + frame_ns(sent.bytes as u64 + FRAME_BYTES);
        let mut occurs = |of_million: u64| of_million > 0 && self.random.below(1_000_000) < of_million;
        if occurs(self.train_lost) {
            self.train_until_ns = self.free_ns + self.train_ns;
        }
        if occurs(self.lost) || self.free_ns < self.train_until_ns {
            return Fate::Lost;
        }
        let delay_ns = if occurs(self.early) { self.delay_ns / 2 } else { self.delay_ns };
        Fate::Delayed(self.free_ns + delay_ns - ONE_WAY_NS - sent.at_ns)
    }
}

fn config(congestion: Congestion) -> Config {
    Config {
        mtu: Mtu::Bytes1024,
        selective: true,
        congestion,
        tells_waits: true,
        write_packets_max: 1,
        reads_max: 8192,
        answers_max: 8192,
        room_packets: 256,
        fills_path: true,
        ..Config::default()
    }
}

/// Returns a flow from A to B over these links that begins now.
fn flow(config: &Config, links: &[Rc<RefCell<Link>>; 2], now_ns: u64) -> Pair {
    let mut pair = Pair::minimal(config.clone(), [1, 2]);
    pair.now_ns = now_ns;
    for side in [A, B] {
        pair.end(side).qp.add_receives(u32::MAX);
        pair.end(side).qp.set_grant(now_ns, 256);
        pair.end(side).qp.find_path(now_ns);
    }
    let links = links.clone();
    pair.set_filter(move |sent| links[sent.from as usize].borrow_mut().fate(sent));
    pair
}

/// Runs flows side by side for `ns`, each of which repeats the operation. Returns the goodput of each in Mb/s.
fn goodput(flows: &mut [Pair], operation: fn() -> Operation, ns: u64) -> Vec<f64> {
    let end_ns = flows[0].now_ns + ns;
    let mut bytes = vec![0; flows.len()];
    flows.iter_mut().for_each(|pair| post_all(pair, operation));
    loop {
        let next_ns = |index: &usize| flows[*index].next_ns().unwrap_or(u64::MAX);
        let index = (0..flows.len()).min_by_key(next_ns).expect("there is a flow");
        let now_ns = next_ns(&index).min(end_ns);
        flows[index].run_until(now_ns);
        for event in flows[index].a().events.drain(..) {
            assert!(matches!(event, Event::Completed { status: Status::Success, .. }), "{event:?}");
            bytes[index] += u64::from(BYTES);
        }
        post_all(&mut flows[index], operation);
        if now_ns == end_ns {
            break;
        }
    }
    flows.iter_mut().for_each(|pair| pair.now_ns = end_ns);
    bytes.into_iter().map(|bytes| bytes as f64 * 8_000.0 / ns as f64).collect()
}

fn write() -> Operation {
    let source = Source::Registered { local: Local { key: KEY, address: 0 }, len: BYTES };
    Operation::Write { source, remote: at(0), imm: None }
}

fn read() -> Operation {
    crate::pair::read(0, 0, BYTES)
}

/// Fills the send queue of A with this operation.
fn post_all(pair: &mut Pair, operation: fn() -> Operation) {
    while pair.a().qp.posted() < 256 {
        pair.a().post(operation());
    }
    let now_ns = pair.now_ns;
    pair.run_until(now_ns);
}

/// Returns the goodput of one flow in steady state, in Mb/s.
fn goodput_over(link: &Link, config: &Config, operation: fn() -> Operation) -> f64 {
    let back = Link { queue_bytes: 1 << 30, random: Random(1 ^ 1 << 32), ..link.clone() };
    let links = [link.clone(), back].map(|link| Rc::new(RefCell::new(link)));
    let mut flows = [flow(config, &links, 0)];
    let trip_ns = 2 * link.delay_ns;
    goodput(&mut flows, operation, (40 * trip_ns).max(50 * MS));
    goodput(&mut flows, operation, (30 * trip_ns).max(150 * MS))[0]
}

#[test]
fn goodput_matches_the_table() {
    let mut table = String::from(
        "Goodput in Mb/s of one flow over 400 Mb/s, both ways lossy; 1 KiB packets, a grant of 256.\n\n",
    );
    table.push_str("| repeats, operation, limit | round trip | no loss | 0.1 % | 1 % | 5 % | 1 % in trains | 5 % in trains |\n|---|---|---|---|---|---|---|---|\n");
    for (name, config, operation, trip_us) in [
        (
            "all behind, writes, grant",
            Config { selective: false, ..config(Congestion::Grant) },
            write as fn() -> _,
            1_000,
        ),
        ("single, writes, grant", config(Congestion::Grant), write, 1_000),
        ("single, writes, grant", config(Congestion::Grant), write, 20_000),
        ("single, writes, delay", config(Congestion::Delay), write, 100),
        ("single, writes, delay", config(Congestion::Delay), write, 1_000),
        ("single, writes, delay", config(Congestion::Delay), write, 10_000),
        ("single, writes, loss", config(Congestion::Loss), write, 1_000),
        ("single, reads, grant", config(Congestion::Grant), read, 1_000),
        ("single, reads, grant", config(Congestion::Grant), read, 20_000),
        ("single, reads, delay", config(Congestion::Delay), read, 100),
        ("single, reads, delay", config(Congestion::Delay), read, 1_000),
        ("single, reads, delay", config(Congestion::Delay), read, 10_000),
    ] {
        // The queue holds a millisecond, or a round trip if that is longer.
        let line = Link::new(400_000_000, trip_us * US / 2, 50 * trip_us.max(1_000));
        let single = [0, 1_000, 10_000, 50_000].map(|lost| Link { lost, ..line.clone() });
        // Trains of 16 packets.
        let train_ns = 16 * 23 * US;
        let trains = [10_000, 50_000].map(|lost| Link { train_lost: lost / 16, train_ns, ..line.clone() });
        let row: Vec<f64> =
            single.iter().chain(&trains).map(|link| goodput_over(link, &config, operation)).collect();
        write!(table, "| {name} | {trip_us} us |").unwrap();
        row.iter().for_each(|goodput| write!(table, " {goodput:.0} |").unwrap());
        table.push('\n');
        let keeps_half = row.iter().all(|goodput| goodput * 2.0 >= row[0]);
        assert!(!name.ends_with("writes, delay") || keeps_half, "{trip_us} us: {row:?}");
    }
    assert_eq!(
        table,
        include_str!("goodput.md"),
        "crates/rnic/tests/transport/goodput.md must contain:\n{table}"
    );
}

#[test]
fn rates_of_eight_flows_on_a_link_differ_by_at_most_a_fifth() {
    for (mbps, start_interval_ns) in [(500, 0), (500, MS), (500, 20 * MS), (1000, 0), (1000, 20 * MS)] {
        let link = Link::new(mbps * 1_000_000, MS / 2, 1 << 20);
        let links = [link.clone(), link].map(|link| Rc::new(RefCell::new(link)));
        let mut flows = Vec::new();
        for number in 0..8 {
            flows.push(flow(&config(Congestion::Delay), &links, number * start_interval_ns));
            goodput(&mut flows, write, start_interval_ns);
        }
        goodput(&mut flows, write, 1000 * MS);
        let each = goodput(&mut flows, write, 1000 * MS);
        let lowest = each.iter().copied().fold(f64::MAX, f64::min);
        let highest = each.iter().copied().fold(0.0, f64::max);
        assert!(highest <= 1.2 * lowest, "{mbps} Mb/s, one flow every {start_interval_ns} ns: {each:?}");
        assert!(each.iter().sum::<f64>() > 0.88 * mbps as f64, "{each:?}");
    }
}

/// Returns two links, one for each direction, and a flow over them.
fn new_flow(
    congestion: Congestion,
    mbps: u64,
    delay_ns: u64,
    queue_bytes: u64,
) -> ([Rc<RefCell<Link>>; 2], Vec<Pair>) {
    let link = Link::new(mbps * 1_000_000, delay_ns, queue_bytes);
    let links = [link.clone(), link].map(|link| Rc::new(RefCell::new(link)));
    let flow = flow(&config(congestion), &links, 0);
    (links, vec![flow])
}

#[test]
fn window_follows_a_path_whose_delay_grows_and_shrinks() {
    for operation in [write, read] {
        // The path holds 125 packets, then 1,250: five times the grant.
        let (links, mut flows) = new_flow(Congestion::Grant, 100, 5 * MS, 1 << 20);
        goodput(&mut flows, operation, 1000 * MS);
        for delay_ns in [50 * MS, 5 * MS] {
            links.iter().for_each(|link| link.borrow_mut().delay_ns = delay_ns);
            // The old smallest round trip expires after ten seconds.
            goodput(&mut flows, operation, 12_000 * MS);
            let each = goodput(&mut flows, operation, 1000 * MS);
            assert!(each[0] > 80.0, "{} ms: {each:?}", delay_ns / MS);
        }
    }
}

#[test]
fn single_early_packets_do_not_shorten_the_path() {
    for operation in [write, read] {
        let (links, mut flows) = new_flow(Congestion::Grant, 400, 20 * MS, 1 << 20);
        links.iter().for_each(|link| link.borrow_mut().early = 300);
        goodput(&mut flows, operation, 2000 * MS);
        let each = goodput(&mut flows, operation, 2000 * MS);
        assert!(each[0] > 300.0, "{each:?}");
    }
}

#[test]
fn a_path_that_becomes_longer_causes_few_retransmissions() {
    for (congestion, trips) in [(Congestion::Grant, 10), (Congestion::Delay, 25), (Congestion::Loss, 10)] {
        for operation in [write, read] {
            let (links, mut flows) = new_flow(congestion, 400, MS / 5, 1 << 20);
            goodput(&mut flows, operation, 300 * MS);
            // A grant of 256 packets over 40 ms is 52 Mb/s. When the path becomes shorter, the next packets overtake a
            // window.
            for (delay_ns, goodput_min, repeated_max) in [(20 * MS, 40.0, 8), (MS / 5, 250.0, 300)] {
                links.iter().for_each(|link| link.borrow_mut().delay_ns = delay_ns);
                let before = flows[0].a().qp.counters();
                goodput(&mut flows, operation, trips * 40 * MS);
                let each = goodput(&mut flows, operation, 400 * MS);
                let after = flows[0].a().qp.counters();
                let (repeated, timeouts) =
                    (after.repeated - before.repeated, after.timeouts - before.timeouts);
                let summary = format!(
                    "{congestion:?}, {delay_ns} ns: {each:?}, {repeated} repeated, {timeouts} timeouts"
                );
                assert!(each[0] > goodput_min && repeated <= repeated_max && timeouts <= 5, "{summary}");
            }
        }
    }
}

#[test]
fn single_requests_adapt_their_timeout_to_a_longer_path() {
    for operation in [|| crate::pair::write(0, &[1; 8], None), || crate::pair::read(0, 0, 8)] {
        let (links, mut flows) = new_flow(Congestion::Grant, 400, MS / 5, 1 << 20);
        // The last change of the path reaches one direction a request earlier than the other.
        for delays_ns in
            [[MS / 5; 2], [20 * MS; 2], [200 * MS; 2], [MS / 5; 2], [MS / 5, 20 * MS], [20 * MS; 2]]
        {
            let requests = if delays_ns[0] == delays_ns[1] { 30 } else { 1 };
            links.iter().zip(delays_ns).for_each(|(link, delay_ns)| link.borrow_mut().delay_ns = delay_ns);
            let before = flows[0].a().qp.counters().timeouts;
            for _ in 0..requests {
                flows[0].a().post(operation());
                flows[0].run();
            }
            // Until the first response arrives, the timeouts double.
            let timeouts = flows[0].a().qp.counters().timeouts - before;
            assert!(timeouts <= 5, "{delays_ns:?} ns: {timeouts} timeouts");
        }
    }
}

#[test]
fn rare_requests_measure_the_current_round_trip() {
    let (links, mut flows) = new_flow(Congestion::Grant, 400, MS / 5, 1 << 20);
    for delay_ns in [MS / 5, 20 * MS, 200 * MS, MS / 5] {
        links.iter().for_each(|link| link.borrow_mut().delay_ns = delay_ns);
        for _ in 0..6 {
            // A call waits for its reply, not for the acknowledgement.
            flows[0].a().post_as(crate::pair::write(0, &[1; 8], None), false);
            let until_ns = flows[0].now_ns + 700 * MS;
            flows[0].run_until(until_ns);
        }
        let round_trip_ns = flows[0].a().qp.round_trip_ns().expect("there is a sample");
        assert!((2 * delay_ns..4 * delay_ns).contains(&round_trip_ns), "{delay_ns} ns: {round_trip_ns} ns");
    }
}

#[test]
fn expected_round_trip_delays_the_first_timeout() {
    let (_, mut flows) = new_flow(Congestion::Grant, 400, 20 * MS, 1 << 20);
    flows[0].a().qp.expect_round_trip(40 * MS);
    goodput(&mut flows, write, 200 * MS);
    assert_eq!(flows[0].a().qp.counters().timeouts, 0);
}

/// Mb/s, delay in ns, and length of the queue in bytes of a path whose queue has room for a grant and a burst, and
/// which itself holds four grants.
const LONG_PATH: (u64, u64, u64) = (400, 10 * MS, 320 * (1024 + 32 + FRAME_BYTES));

#[test]
fn transfers_over_a_long_path_do_not_overflow_its_queue() {
    let (mbps, delay_ns, queue_bytes) = LONG_PATH;
    for operation in [write, read] {
        let (links, mut flows) = new_flow(Congestion::Grant, mbps, delay_ns, queue_bytes);
        // Every 5 s, the window shrinks so that the queue drains, and then grows at once.
        let each = goodput(&mut flows, operation, 7_000 * MS);
        assert!(each[0] > 0.85 * mbps as f64, "{each:?}");
        links.iter().for_each(|link| assert_eq!(link.borrow().overflowed, 0));
    }
}

#[test]
fn reads_start_as_fast_as_writes_over_a_long_path() {
    let (mbps, delay_ns, queue_bytes) = LONG_PATH;
    let [writes, reads] = [write, read].map(|operation| {
        let (_, mut flows) = new_flow(Congestion::Grant, mbps, delay_ns, queue_bytes);
        let trip = |_| goodput(&mut flows, operation, 2 * delay_ns)[0];
        (0..12).map(trip).collect::<Vec<_>>()
    });
    let totals = [&writes, &reads].map(|trips| trips.iter().sum::<f64>());
    assert!(totals[1] > 0.95 * totals[0], "{writes:?} {reads:?}");
    assert!(totals[1] > 0.5 * 12.0 * mbps as f64, "{reads:?}");
}

/// Runs a transfer of 20 MB over a round trip of 20 ms. If `has_outage` is true, both directions lose all packets for 2
/// s in the middle of the transfer. Returns the duration of the transfer or, with an outage, of its part after the
/// outage, in ns.
fn transfer_ns(congestion: Congestion, operation: fn() -> Operation, has_outage: bool) -> u64 {
    let (links, mut flows) = new_flow(congestion, 400, 10 * MS, 1 << 20);
    let (mut megabits, mut begin_ns) = (160.0, 0);
    while megabits > 0.0 {
        megabits -= goodput(&mut flows, operation, MS)[0] / 1000.0;
        if has_outage && begin_ns == 0 && megabits < 80.0 {
            links.iter().for_each(|link| link.borrow_mut().lost = 1_000_000);
            goodput(&mut flows, operation, 2_000 * MS);
            links.iter().for_each(|link| link.borrow_mut().lost = 0);
            begin_ns = flows[0].now_ns;
        }
    }
    flows[0].now_ns - begin_ns
}

#[test]
fn transfers_recover_from_an_outage() {
    for congestion in Congestion::ALL {
        for operation in [write, read] {
            let [whole_ns, after_ns] =
                [false, true].map(|has_outage| transfer_ns(congestion, operation, has_outage));
            let summary = format!(
                "{congestion:?}: {} ms without an outage, {} ms after one",
                whole_ns / MS,
                after_ns / MS
            );
            // The time after the outage includes the remaining half, the last timeout of 200 ms, and slow start.
            assert!(after_ns <= whole_ns, "{summary}");
        }
    }
}

#[test]
fn windows_grow_again_after_a_temporary_delay() {
    for operation in [write, read] {
        let (links, mut flows) = new_flow(Congestion::Delay, 400, 10 * MS, 1 << 20);
        goodput(&mut flows, operation, 1000 * MS);
        for delay_ns in [20 * MS, 10 * MS] {
            links.iter().for_each(|link| link.borrow_mut().delay_ns = delay_ns);
            goodput(&mut flows, operation, 300 * MS);
        }
        goodput(&mut flows, operation, 2000 * MS);
        let each = goodput(&mut flows, operation, 500 * MS);
        assert!(each[0] > 200.0, "{each:?}");
    }
}

#[test]
fn two_flows_share_a_short_queue() {
    let (links, mut flows) = new_flow(Congestion::Delay, 200, 5 * MS, 50_000);
    flows.push(flow(&config(Congestion::Delay), &links, 0));
    goodput(&mut flows, write, 1000 * MS);
    let each = goodput(&mut flows, write, 1000 * MS);
    assert!(each.iter().all(|goodput| *goodput > 30.0), "{each:?}");
    assert!(each.iter().sum::<f64>() > 120.0, "{each:?}");
}

/// Runs a flow of single writes of 8 bytes for `ns`, beside a bulk flow if there is one. Returns the goodput of the
/// bulk flow in Mb/s, and the 99th percentile of the durations of the single writes, in ns.
fn run_small_beside_bulk(
    bulk: Option<&mut Pair>,
    operation: fn() -> Operation,
    small: &mut Pair,
    ns: u64,
) -> (f64, u64) {
    let (mut begin_ns, end_ns) = (small.now_ns, small.now_ns + ns);
    let (mut trips, mut bytes, mut bulk) = (Vec::new(), 0, bulk);
    let post_single = |small: &mut Pair, now_ns: u64| {
        small.a().write(0, &[1; 8]);
        small.run_until(now_ns);
    };
    post_single(small, begin_ns);
    loop {
        if let Some(bulk) = &mut bulk {
            post_all(bulk, operation);
        }
        let next_ns = |flow: &Pair| flow.next_ns().unwrap_or(u64::MAX).min(end_ns);
        let bulk_ns = bulk.as_ref().map_or(end_ns, |bulk| next_ns(bulk));
        let now_ns = bulk_ns.min(next_ns(small));
        if let Some(bulk) = bulk.as_mut().filter(|_| bulk_ns == now_ns) {
            bulk.run_until(now_ns);
            bytes += bulk.a().events.drain(..).count() as u64 * u64::from(BYTES);
        } else {
            small.run_until(now_ns);
            if small.a().events.drain(..).count() > 0 {
                trips.push(now_ns - begin_ns);
                begin_ns = now_ns;
                post_single(small, now_ns);
            }
        }
        if now_ns == end_ns {
            break;
        }
    }
    small.now_ns = end_ns;
    trips.sort_unstable();
    (bytes as f64 * 8_000.0 / ns as f64, trips[trips.len() * 99 / 100])
}

#[test]
fn small_flow_waits_little_behind_a_bulk_flow() {
    for (mbps, trip_us) in [(800, 100), (160, 200), (400, 2_000)] {
        for operation in [write, read] {
            let link = Link::new(mbps * 1_000_000, trip_us * US / 2, 1 << 20);
            let links = [link.clone(), link].map(|link| Rc::new(RefCell::new(link)));
            let [mut small, mut bulk] = [0, 0].map(|now_ns| flow(&config(Congestion::Grant), &links, now_ns));
            let (_, alone_ns) = run_small_beside_bulk(None, operation, &mut small, 100 * MS);
            bulk.now_ns = small.now_ns;
            run_small_beside_bulk(Some(&mut bulk), operation, &mut small, 1_000 * MS);
            let (goodput, beside_ns) =
                run_small_beside_bulk(Some(&mut bulk), operation, &mut small, 1_000 * MS);
            let summary = format!(
                "{mbps} Mb/s, {trip_us} us: {alone_ns} ns alone, {beside_ns} ns beside {goodput} Mb/s"
            );
            assert!(beside_ns <= 3 * alone_ns && goodput >= 0.8 * mbps as f64, "{summary}");
        }
    }
}
