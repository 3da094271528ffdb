//! Policies on a modelled link of 1 Gbit/s, which sends in order and delays each operation by another 50 us.

use std::collections::BTreeMap;

use halite_tier::qos::{BadQos, Policy, Priority, Qos, RATE_MAX, RATE_MIN, Turns};

const LINK: u64 = 125_000_000;
const DELAY_NS: u64 = 50_000;
const MS: u64 = 1_000_000;
const SMALL: u64 = 64;

/// Operations of one session, of which at most `window` are outstanding together.
#[derive(Clone, Copy)]
struct Flow {
    session: u32,
    priority: Priority,
    bytes: u64,
    window: u64,
    /// Interval at which operations become ready; 0 if as soon as the window allows.
    every_ns: u64,
}

const HIGH: Flow = Flow { session: 1, priority: Priority::High, bytes: 8 << 10, window: 32, every_ns: 0 };
const LOW: Flow = Flow { session: 2, priority: Priority::Low, bytes: 8 << 10, window: 96, every_ns: 0 };
const SMALL_HIGH: Flow = Flow { session: 3, bytes: SMALL, window: 1, ..HIGH };

struct Link {
    turns: Option<Turns>,
    now_ns: u64,
    free_ns: u64,
    /// Operations under way, with their start, by completion and a unique number.
    under_way: BTreeMap<(u64, u64), (Flow, u64)>,
    count: u64,
    /// Time at which the next operation of a flow with an interval is ready.
    ready_ns: u64,
}

/// Share of the link that each priority and each session got, and the 99th percentile of the round trips of
/// short operations.
struct Got {
    high: f64,
    low: f64,
    sessions: [f64; 8],
    small_p99_ns: u64,
}

impl Link {
    fn new(policy: Policy, rate: Option<u64>) -> Link {
        let turns = Qos { policy, rate }.turns(0).expect("the settings are valid");
        Link { turns, now_ns: 0, free_ns: 0, under_way: BTreeMap::new(), count: 0, ready_ns: 0 }
    }

    fn run(&mut self, ms: u64, flows: &[Flow]) -> Got {
        let (begin_ns, end_ns) = (self.now_ns, self.now_ns + ms * MS);
        let (mut done, mut by_session, mut small) = ([0; 2], [0; 8], Vec::new());
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
                by_session[flow.session as usize] += flow.bytes;
                if let Some(turns) = &mut self.turns {
                    turns.on_done(self.now_ns, flow.priority, flow.bytes);
                }
                if flow.bytes == SMALL {
                    small.push(round_trip_ns);
                    // A node observes the end of an operation at once only if its client waits for it alone.
                    if let Some(turns) = self.turns.as_mut().filter(|_| flow.window == 1) {
                        turns.on_round_trip(self.now_ns, round_trip_ns);
                    }
                }
            }
        }
        small.sort();
        let share = |bytes: u64| bytes as f64 * 1e9 / (end_ns - begin_ns) as f64 / LINK as f64;
        let small_p99_ns = small.get(small.len() * 99 / 100).copied().unwrap_or(0);
        Got { high: share(done[0]), low: share(done[1]), sessions: by_session.map(share), small_p99_ns }
    }

    /// Starts operations of a flow while its window and the policy allow it. Returns when to try again.
    fn start(&mut self, flow: Flow) -> u64 {
        let is_its = |(other, _): &&(Flow, u64)| other.session == flow.session;
        let under_way = self.under_way.values().filter(is_its).count() as u64;
        for _ in under_way..flow.window {
            if flow.every_ns > 0 && self.ready_ns > self.now_ns {
                return self.ready_ns;
            }
            if let Some(turns) = &mut self.turns {
                let turn_ns = turns.turn(self.now_ns, flow.priority, flow.session, flow.bytes);
                if turn_ns > self.now_ns {
                    return turn_ns;
                }
                turns.on_start(self.now_ns, flow.priority, flow.session, flow.bytes);
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
    let mut turns = Qos { policy: Policy::SwPri, rate: None }.turns(0).unwrap().expect("a policy");
    let mut unobserved_ms = 0;
    for ms in 1..3_000 {
        unobserved_ms += 1;
        // The thread is late by 15 ms in each 100 ms.
        if ms % 100 >= 15 {
            let bytes = unobserved_ms * LINK / 1_000;
            turns.on_done(ms * MS, Priority::High, bytes / 4);
            turns.on_done(ms * MS, Priority::Low, bytes / 4 * 3);
            unobserved_ms = 0;
        }
    }
    let limit = turns.limit(Priority::Low).expect("high priority has a load");
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
fn sessions_of_one_priority_share_its_limit_evenly() {
    let greedy = Flow { bytes: 12 << 10, ..LOW };
    let others = [4, 5, 6].map(|session| Flow { session, window: 2, ..LOW });
    let mut link = Link::new(Policy::HwSep, Some(LINK));
    link.run(100, &[greedy]);
    let got = link.run(2000, &[greedy, others[0], others[1], others[2]]);
    for session in [greedy.session, 4, 5, 6] {
        let share = got.sessions[session as usize];
        assert!((0.055..0.07).contains(&share), "session {session} got {share} of the link, not a sixteenth");
    }
}

#[test]
fn a_short_operation_waits_for_one_long_one_of_its_priority() {
    let greedy = Flow { bytes: 64 << 10, ..LOW };
    let short = Flow { priority: Priority::Low, ..SMALL_HIGH };
    let mut link = Link::new(Policy::HwSep, Some(LINK));
    let got = link.run(2000, &[greedy, short]);
    // A long operation takes 2.1 ms at a quarter of the link.
    let count = got.sessions[short.session as usize] * LINK as f64 * 2.0 / SMALL as f64;
    assert!(count > 800.0, "{count} short operations in 2 s");
}

/// A waiting operation may end without having started, because its caller gives up.
#[test]
fn sessions_that_do_not_return_for_their_turn_delay_no_others() {
    let mut link = Link::new(Policy::HwSep, Some(LINK));
    link.run(100, &[LOW]);
    let turns = link.turns.as_mut().expect("a policy");
    for session in 10..100 {
        turns.turn(link.now_ns, Priority::Low, session, SMALL);
    }
    let got = link.run(100, &[LOW]);
    assert!(got.low > 0.2, "{}", got.low);
}

/// Regression: a session whose threads were late lost its turns to others, without an end.
#[test]
fn late_sessions_keep_their_turn() {
    let mut turns = Qos { policy: Policy::HwSep, rate: Some(LINK) }.turns(0).unwrap().expect("a policy");
    let mut random = fastrand::Rng::with_seed(1);
    // The time at which each of 20 sessions asks, and since when its operation waits.
    let mut asks: BTreeMap<(u64, u32), u64> = (0..20).map(|session| ((0, session), 0)).collect();
    let (mut longest_ns, mut bytes, mut now_ns) = (0, 0, 0);
    while now_ns < 2_000 * MS {
        let ((at_ns, session), since_ns) = asks.pop_first().expect("each session asks again");
        now_ns = at_ns;
        let turn_ns = turns.turn(now_ns, LOW.priority, session, LOW.bytes);
        if turn_ns > now_ns {
            asks.insert((turn_ns + random.u64(0..5 * MS), session), since_ns);
            continue;
        }
        turns.on_start(now_ns, LOW.priority, session, LOW.bytes);
        longest_ns = longest_ns.max(now_ns - since_ns);
        bytes += LOW.bytes;
        // The limit is half as many. Without it, the time would stand.
        assert!(bytes < LINK, "{bytes} bytes by {now_ns} ns");
        asks.insert((now_ns, session), now_ns);
    }
    assert!(bytes > LINK / 4 * 2 * 95 / 100, "{bytes} bytes in 2 s");
    // 19 operations of others take 5 ms, and a session is late once or twice.
    assert!(longest_ns < 20 * MS, "{longest_ns} ns");
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
        let mut turns = Qos { policy, rate }.turns(7).expect("the settings are valid").expect("it delays");
        for now_ns in [7, 7, 3, u64::MAX, 0] {
            for priority in [Priority::High, Priority::Low] {
                turns.on_start(now_ns, priority, 1, u64::MAX);
                turns.on_done(now_ns, priority, u64::MAX);
                turns.on_round_trip(now_ns, u64::MAX);
                let turn_ns = turns.turn(now_ns, priority, 1, u64::MAX);
                assert!(turn_ns >= now_ns && turn_ns - now_ns <= 100_000_000, "asks again soon");
            }
        }
    }
}
