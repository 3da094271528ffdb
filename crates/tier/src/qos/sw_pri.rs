//! The shaper of [`Policy::SwPri`](super::Policy::SwPri): limits the rate of low priority in favour of high priority.
//!
//! ```text
//!   load of high    limit of low                    round trips of high     limit of low
//!   below 1/16      none                            usual                   rises by 1/32 a window, to 7/8
//!   h               1 - 2h, at least 1/32           a quarter longer        halved, at least 1/32
//!                                                                 (loads and limits as fractions of the link's rate)
//! ```
//!
//! An operation of high priority counts as 256 bytes more than its length, so that many short ones are a load, too.
//! So high priority always finds room for twice its load. If its load grows into that room, the limit falls further; if
//! not, low priority uses the rest. The smaller of the two limits applies.
//!
//! Unless it is configured, the link's rate is the highest rate of the last 10 s that lasted for two windows: a single
//! window may show a burst, because a late thread observes many completions at once. A limit hides the full rate, so low
//! priority runs without a limit for two windows every 4 s. Operations of low priority hide the usual round trip, so low
//! priority has only its least rate for one window every 5 s. Round trips count as longer if they also exceed those of
//! such windows by four standard deviations, because processors delay them as well.

use super::{Priority, SECOND_NS, Shaper};

/// Length of a window (one measurement), in nanoseconds: the time of 150 operations of 8 KiB over 1 Gbit/s, and four
/// times the maximum delay of an acknowledgement over UDP.
const WINDOW_NS: u64 = 10_000_000;
/// Number of consecutive windows without a limit, which show the rate of the link, and interval between them, in
/// nanoseconds. They take a 200th of the time, so they do not affect the 99th percentile of round trips.
const PROBE_WINDOWS: u32 = 2;
const PROBE_INTERVAL_NS: u64 = 4_000_000_000;
/// Length of a generation, in nanoseconds. Rates and round trips of the current and the previous generation are kept.
const GENERATION_NS: u64 = 5_000_000_000;
/// Low priority has no limit while high priority uses less than one part in `LOW_LOAD_PARTS` of the link's rate.
const LOW_LOAD_PARTS: u64 = 16;
/// Load of an operation of high priority in addition to its length, in bytes.
const OPERATION_BYTES: u64 = 256;
/// Low priority always has one part in `FLOOR_PARTS` of the link's rate, and at least `FLOOR_BYTES_MIN` bytes per
/// second: a slice of 64 KiB per second.
const FLOOR_PARTS: u64 = 32;
const FLOOR_BYTES_MIN: u64 = 64 << 10;
/// Standard deviations by which the mean round trip of a window exceeds the usual one if low priority is the cause.
const DEVIATIONS: u64 = 4;

/// The highest rate of one generation, and the round trip up to which low priority is not limited.
#[derive(Clone, Copy, Debug)]
struct Seen {
    rate: u64,
    round_trip_max_ns: u64,
}

impl Seen {
    const NOTHING: Seen = Seen { rate: 0, round_trip_max_ns: u64::MAX };
}

/// Round trips of operations of high priority.
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrips {
    count: u64,
    sum_ns: u64,
    /// Sum of the squares, in square microseconds.
    squares_us: u64,
}

impl RoundTrips {
    fn add(&mut self, ns: u64) {
        let us = ns / 1_000;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.squares_us = self.squares_us.saturating_add(us.saturating_mul(us));
    }

    fn mean_ns(&self) -> u64 {
        self.sum_ns / self.count.max(1)
    }

    fn deviation_ns(&self) -> u64 {
        let mean_us = self.mean_ns() / 1_000;
        let variance = (self.squares_us / self.count.max(1)).saturating_sub(mean_us.saturating_mul(mean_us));
        variance.isqrt() * 1_000
    }
}

#[derive(Debug)]
pub(super) struct SwPri {
    /// Configured rate of the link, in bytes per second.
    rate: Option<u64>,
    window_begin_ns: u64,
    /// Bytes of each priority that completed in this window.
    high_bytes: u64,
    low_bytes: u64,
    /// Number of operations of high priority that completed in this window.
    high_operations: u64,
    /// Round trips in this window.
    round_trips: RoundTrips,
    /// True if an operation of low priority was delayed in this window.
    has_delayed: bool,
    /// Load of high priority, in bytes per second. It falls by at most a quarter per window, because completions come
    /// in bursts, and a busy processor delays them by some windows.
    load: u64,
    limit_by_load: Option<u64>,
    limit_by_delay: Option<u64>,
    /// Time from which round trips show the effect of the last change of the limit.
    settled_ns: u64,
    /// Rate of both priorities in the previous window, in bytes per second.
    previous_rate: u64,
    /// Number of windows, with this one, in which low priority has no limit.
    probe_windows: u32,
    next_probe_ns: u64,
    /// True in a window in which low priority has its least rate, so that round trips show the idle path.
    is_baseline: bool,
    next_baseline_ns: u64,
    /// The measurements of the current and the previous generation.
    seen: [Seen; 2],
    generation_end_ns: u64,
}

impl SwPri {
    pub(super) fn new(now_ns: u64, rate: Option<u64>) -> SwPri {
        SwPri {
            rate,
            window_begin_ns: now_ns,
            high_bytes: 0,
            low_bytes: 0,
            high_operations: 0,
            round_trips: RoundTrips::default(),
            has_delayed: false,
            load: 0,
            limit_by_load: None,
            limit_by_delay: None,
            settled_ns: 0,
            previous_rate: 0,
            probe_windows: 0,
            next_probe_ns: now_ns,
            is_baseline: false,
            next_baseline_ns: now_ns,
            seen: [Seen::NOTHING; 2],
            generation_end_ns: now_ns.saturating_add(GENERATION_NS),
        }
    }

    /// Returns the link's rate in bytes per second; 0 if it is unknown.
    fn link_rate(&self) -> u64 {
        self.rate.unwrap_or(self.seen[0].rate.max(self.seen[1].rate))
    }

    /// Ends the current window, and sets the limits for the next one.
    fn end_window(&mut self, now_ns: u64, elapsed_ns: u64) {
        if now_ns >= self.generation_end_ns {
            self.seen = [Seen::NOTHING, self.seen[0]];
            self.generation_end_ns = now_ns.saturating_add(GENERATION_NS);
        }
        let per_second = |bytes: u64| {
            let rate = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(elapsed_ns);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let (high, low) = (per_second(self.high_bytes), per_second(self.low_bytes));
        let rate = high.saturating_add(low);
        self.seen[0].rate = self.seen[0].rate.max(rate.min(self.previous_rate));
        self.previous_rate = rate;
        // An idle node does not call this method, so the elapsed time may cover many windows.
        let faded = (0..(elapsed_ns / WINDOW_NS).min(64)).fold(self.load, |load, _| load / 4 * 3);
        let operations = per_second(self.high_operations.saturating_mul(OPERATION_BYTES));
        self.load = high.saturating_add(operations).max(faded);
        let link = self.link_rate();
        let before = self.limit(Priority::Low);
        self.limit_by_load = (link > 0 && self.load >= link / LOW_LOAD_PARTS)
            .then(|| link.saturating_sub(self.load.saturating_mul(2)).max(floor(link)));
        let was_baseline = std::mem::take(&mut self.is_baseline);
        if was_baseline || low == 0 {
            self.learn_usual();
        } else {
            self.limit_by_delay = self.next_limit_by_delay(now_ns, link, before.unwrap_or(low));
        }
        self.probe_windows = self.probe_windows.saturating_sub(1);
        if self.rate.is_none() && self.has_delayed && now_ns >= self.next_probe_ns {
            self.probe_windows = PROBE_WINDOWS;
            self.next_probe_ns = now_ns.saturating_add(PROBE_INTERVAL_NS);
        } else if self.probe_windows == 0
            && self.round_trips.count > 0
            && low > 0
            && now_ns >= self.next_baseline_ns
        {
            self.is_baseline = true;
            self.next_baseline_ns = now_ns.saturating_add(GENERATION_NS);
        }
        (self.high_bytes, self.low_bytes, self.high_operations, self.has_delayed) = (0, 0, 0, false);
        self.round_trips = RoundTrips::default();
        self.window_begin_ns = now_ns;
    }

    /// Learns from a window in which low priority had its least rate at most.
    fn learn_usual(&mut self) {
        if self.round_trips.count > 0 {
            let (mean_ns, deviation_ns) = (self.round_trips.mean_ns(), self.round_trips.deviation_ns());
            let max_ns = mean_ns.saturating_add(mean_ns / 4).saturating_add(DEVIATIONS * deviation_ns);
            self.seen[0].round_trip_max_ns = self.seen[0].round_trip_max_ns.min(max_ns);
        }
    }

    /// Returns the limit of low priority that follows from round trips. `current` is the rate of low priority.
    fn next_limit_by_delay(&mut self, now_ns: u64, link: u64, current: u64) -> Option<u64> {
        if self.round_trips.count == 0 {
            // No short operation of high priority has completed, so the limit doubles until it is lifted.
            return self.limit_by_delay.map(|limit| limit.saturating_mul(2)).filter(|limit| *limit < link);
        }
        let mean_ns = self.round_trips.mean_ns();
        let max_ns = self.seen[0].round_trip_max_ns.min(self.seen[1].round_trip_max_ns);
        if mean_ns > max_ns && now_ns >= self.settled_ns {
            self.settled_ns = now_ns.saturating_add(mean_ns);
            return Some((current / 2).max(floor(link)));
        }
        self.limit_by_delay
            .map(|limit| limit.saturating_add(link / FLOOR_PARTS).min(link - link / 8).max(floor(link)))
    }
}

/// Returns the rate that low priority always has.
fn floor(link: u64) -> u64 {
    (link / FLOOR_PARTS).max(FLOOR_BYTES_MIN)
}

impl Shaper for SwPri {
    fn advance(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.window_begin_ns);
        if elapsed_ns >= WINDOW_NS {
            self.end_window(now_ns, elapsed_ns);
        }
    }

    fn limit(&self, priority: Priority) -> Option<u64> {
        if priority == Priority::High || self.probe_windows > 0 {
            return None;
        }
        let least = self.is_baseline.then(|| floor(self.link_rate()));
        [self.limit_by_load, self.limit_by_delay, least].into_iter().flatten().min()
    }

    fn on_delay(&mut self) {
        self.has_delayed = true;
    }

    fn on_done(&mut self, priority: Priority, bytes: u64) {
        match priority {
            Priority::High => {
                self.high_bytes = self.high_bytes.saturating_add(bytes);
                self.high_operations += 1;
            }
            Priority::Low => self.low_bytes = self.low_bytes.saturating_add(bytes),
        }
    }

    fn on_round_trip(&mut self, round_trip_ns: u64) {
        self.round_trips.add(round_trip_ns);
    }
}
