//! Policies on a modelled link of 1 Gbit/s, which sends in order and delays each operation by another 50 us.

use std::collections::BTreeMap;

use halite_tier::qos::{BadQos, Policy, Priority, Qos, RATE_MAX, RATE_MIN, Shaper};

const LINK: u64 = 125_000_000;
const DELAY_NS: u64 = 50_000;
const MS: u64 = 1_000_000;
const SMALL: u64 = 64;

/// Operations of one priority, of which at most `window` are outstanding together.
#[derive(Clone, Copy)]
struct Flow {
    priority: Priority,
    bytes: u64,
    window: u64,
    /// Interval at which operations become ready; 0 if as soon as the window allows.
    every_ns: u64,
}

const HIGH: Flow = Flow { priority: Priority::High, bytes: 8 << 10, window: 32, every_ns: 0 };
const LOW: Flow = Flow { priority: Priority::Low, bytes: 8 << 10, window: 96, every_ns: 0 };
const SMALL_HIGH: Flow = Flow { bytes: SMALL, window: 1, ..HIGH };

struct Link {
    shaper: Option<Box<dyn Shaper>>,
    now_ns: u64,
    free_ns: u64,
    /// Operations under way, with their start, by completion and a unique number.
    under_way: BTreeMap<(u64, u64), (Flow, u64)>,
    count: u64,
    /// Time at which the next operation of a flow with an interval is ready.
    ready_ns: u64,
}

/// Share of the link that each priority got, and the 99th percentile of the round trips of short operations.
struct Got {
    high: f64,
    low: f64,
    small_p99_ns: u64,
}

impl Link {
    fn new(policy: Policy, rate: Option<u64>) -> Link {
        let shaper = Qos { policy, rate }.shaper(0).expect("the settings are valid");
        Link { shaper, now_ns: 0, free_ns: 0, under_way: BTreeMap::new(), count: 0, ready_ns: 0 }
    }

    fn run(&mut self, ms: u64, flows: &[Flow]) -> Got {
        let (begin_ns, end_ns) = (self.now_ns, self.now_ns + ms * MS);
        let (mut done, mut small) = ([0, 0], Vec::new());
        while self.now_ns < end_ns {
            let mut next_ns = end_ns;
            for flow in flows {
                next_ns = next_ns.min(self.start(*flow));
            }
            next_ns = next_ns.min(self.under_way.keys().next().map_or(end_ns, |(at_ns, _)| *at_ns));
            self.now_ns = next_ns.max(self.now_ns);
            while let Some(first) = self.under_way.first_entry().filter(|first| first.key().0 <= self.now_ns)
            {
                let (flow, started_ns) = first.remove();
                let round_trip_ns = self.now_ns - started_ns;
                done[flow.priority as usize] += flow.bytes;
                if let Some(shaper) = &mut self.shaper {
                    shaper.on_done(self.now_ns, flow.priority, flow.bytes);
                }
                if flow.bytes == SMALL {
                    small.push(round_trip_ns);
                    // A node observes the end of an operation at once only if its client waits for it alone.
                    if let Some(shaper) = self.shaper.as_mut().filter(|_| flow.window == 1) {
                        shaper.on_round_trip(self.now_ns, round_trip_ns);
                    }
                }
            }
        }
        small.sort();
        let share = |bytes: u64| bytes as f64 * 1e9 / (end_ns - begin_ns) as f64 / LINK as f64;
        let small_p99_ns = small.get(small.len() * 99 / 100).copied().unwrap_or(0);
        Got { high: share(done[0]), low: share(done[1]), small_p99_ns }
    }

    /// Starts operations of a flow while its window and the policy allow it. Returns when to try again.
    fn start(&mut self, flow: Flow) -> u64 {
        let is_its = |(other, _): &&(Flow, u64)| other.priority == flow.priority && other.bytes == flow.bytes;
        let under_way = self.under_way.values().filter(is_its).count() as u64;
        for _ in under_way..flow.window {
            if flow.every_ns > 0 && self.ready_ns > self.now_ns {
                return self.ready_ns;
            }
            if let Some(shaper) = &mut self.shaper {
                let turn_ns = shaper.turn(self.now_ns, flow.priority);
                if turn_ns > self.now_ns {
                    return turn_ns;
                }
                shaper.on_start(self.now_ns, flow.priority, flow.bytes);
            }
            self.free_ns = self.free_ns.max(self.now_ns) + flow.bytes * 1_000_000_000 / LINK;
            self.count += 1;
            self.ready_ns =
                self.ready_ns.max(self.now_ns - self.now_ns % flow.every_ns.max(1)) + flow.every_ns;
            self.under_way.insert((self.free_ns + DELAY_NS, self.count), (flow, self.now_ns));
        }
        u64::MAX
    }
}

#[test]
fn low_priority_gives_way_to_a_high_load() {
    let mut link = Link::new(Policy::SwPri, None);
    assert!(link.run(500, &[HIGH]).high > 0.95);
    let both = link.run(2000, &[HIGH, LOW]);
    assert!(both.high > 0.9 && both.low > 0.02, "{} and {}", both.high, both.low);
    let alone = link.run(2000, &[LOW]);
    assert!(alone.low > 0.95, "{}", alone.low);
    let again = link.run(2000, &[LOW, HIGH]);
    assert!(again.high > 0.9, "{}", again.high);
    // Without a policy, the flow with more outstanding operations wins.
    let equal = Link::new(Policy::None, None).run(500, &[HIGH, LOW]);
    assert!(equal.high < 0.3 && equal.low > 0.7, "{} and {}", equal.high, equal.low);
}

#[test]
fn low_priority_uses_the_rest_of_a_moderate_load() {
    // A fifth of the link.
    let moderate = Flow { every_ns: 5 * (8 << 10) * 1_000_000_000 / LINK, ..HIGH };
    let mut link = Link::new(Policy::SwPri, None);
    let alone = link.run(500, &[moderate]).high;
    // The node has never seen the link full, and must not take this load for the whole link.
    let both = link.run(4000, &[moderate, LOW]);
    assert!(both.low > 0.5, "{} and {}", both.high, both.low);
    assert!(both.high > alone * 0.9, "{alone} alone, {} beside", both.high);
}

#[test]
fn low_priority_gives_way_when_round_trips_grow() {
    let mut link = Link::new(Policy::SwPri, None);
    link.run(200, &[LOW]);
    let idle = link.run(500, &[SMALL_HIGH]).small_p99_ns;
    let beside = link.run(4000, &[SMALL_HIGH, LOW]);
    assert!(beside.small_p99_ns < 4 * idle, "{idle} ns alone, {} ns beside", beside.small_p99_ns);
    assert!(beside.low > 0.15, "{}", beside.low);
    let equal = Link::new(Policy::None, None).run(500, &[SMALL_HIGH, LOW]);
    assert!(equal.small_p99_ns > 50 * idle, "{}", equal.small_p99_ns);
}

/// Regression: a thread that was late observed many completions at once, and the limits followed that rate.
#[test]
fn a_burst_of_completions_is_not_the_rate_of_the_link() {
    let mut shaper = Qos { policy: Policy::SwPri, rate: None }.shaper(0).unwrap().expect("a policy");
    let mut unobserved_ms = 0;
    for ms in 1..3_000 {
        unobserved_ms += 1;
        // The thread is late by 15 ms in each 100 ms.
        if ms % 100 >= 15 {
            let bytes = unobserved_ms * LINK / 1_000;
            shaper.on_done(ms * MS, Priority::High, bytes / 4);
            shaper.on_done(ms * MS, Priority::Low, bytes / 4 * 3);
            unobserved_ms = 0;
        }
    }
    let limit = shaper.limit(Priority::Low).expect("high priority has a load");
    assert!(limit < LINK / 10 * 6, "{limit}: twice a quarter of the link is for high priority");
}

/// Many short operations are a load, although they have few bytes.
#[test]
fn low_priority_gives_way_to_many_short_operations() {
    let many = Flow { window: 32, ..SMALL_HIGH };
    let mut link = Link::new(Policy::SwPri, None);
    link.run(100, &[LOW]);
    let alone = link.run(100, &[many]);
    link.run(300, &[many, LOW]);
    let beside = link.run(300, &[many, LOW]);
    assert!(beside.high > 0.8 * alone.high, "{} alone, {} beside", alone.high, beside.high);
    assert!(beside.low > 0.02, "{}", beside.low);
}

/// Regression: if low priority was first, all round trips were long, and these counted as usual.
#[test]
fn round_trips_recover_if_low_priority_started_first() {
    let mut link = Link::new(Policy::SwPri, None);
    link.run(500, &[LOW]);
    link.run(500, &[SMALL_HIGH, LOW]);
    let beside = link.run(12_000, &[SMALL_HIGH, LOW]);
    assert!(beside.small_p99_ns < 4 * DELAY_NS, "{} ns", beside.small_p99_ns);
    assert!(beside.low > 0.15, "{}", beside.low);
}

#[test]
fn fixed_shares_hold_and_stay_unused() {
    let mut link = Link::new(Policy::HwSep, Some(LINK));
    for flows in [[HIGH, LOW].as_slice(), &[HIGH], &[LOW]] {
        let got = link.run(1000, flows);
        let expected =
            |priority, share| if flows.iter().any(|flow| flow.priority == priority) { share } else { 0.0 };
        let (high, low) = (expected(Priority::High, 0.75), expected(Priority::Low, 0.25));
        assert!(
            (got.high - high).abs() < 0.02 && (got.low - low).abs() < 0.02,
            "{} and {}",
            got.high,
            got.low
        );
    }
}

#[test]
fn bad_rates_fail_and_stopped_clocks_are_safe() {
    for rate in [0, RATE_MIN - 1, RATE_MAX + 1, u64::MAX] {
        let qos = Qos { policy: Policy::SwPri, rate: Some(rate) };
        assert_eq!(qos.check(), Err(BadQos::Rate { rate }));
    }
    assert_eq!(Qos { policy: Policy::HwSep, rate: None }.check(), Err(BadQos::RateNeeded));
    for (policy, rate) in
        [(Policy::SwPri, None), (Policy::HwSep, Some(RATE_MIN)), (Policy::SwPri, Some(RATE_MAX))]
    {
        let mut shaper = Qos { policy, rate }.shaper(7).expect("the settings are valid").expect("it delays");
        for now_ns in [7, 7, 3, u64::MAX, 0] {
            for priority in [Priority::High, Priority::Low] {
                shaper.on_start(now_ns, priority, u64::MAX);
                shaper.on_done(now_ns, priority, u64::MAX);
                shaper.on_round_trip(now_ns, u64::MAX);
                let turn_ns = shaper.turn(now_ns, priority);
                assert!(turn_ns >= now_ns && turn_ns - now_ns <= 10_000_000, "asks again within a window");
            }
        }
    }
}
