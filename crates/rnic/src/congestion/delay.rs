//! A delay-based congestion controller, which keeps the queue at the bottleneck short.
//!
//! The controller follows Swift (Kumar et al., SIGCOMM 2020). It compares the measured delay with a target, which is
//! larger for small windows. While the delay is below the target, the window grows by one packet per round trip. While
//! the delay is above the target, the controller cuts the window in proportion to the excess, once per round trip.
//! Windows may be below one packet. For unmanaged networks and shared processors, the controller differs from Swift:
//!
//! - The base delay is the smallest delay measured recently. To measure the base delay, a flow shrinks its window at
//!   intervals, so that its own queue drains.
//! - The sample is the smallest delay in each round trip, which shows the standing queue. Other delays of the round
//!   trip are larger if a process was descheduled and then sends a burst, whose packets queue behind each other.
//! - On a path that reorders packets, the target includes the delay of the packets that others have overtaken.
//! - Only persistent losses count, because a path also loses single packets and whole trains at random.
//! - The sample excludes scheduling delays at both ends ([`Feedback::network_ns`]). The peer's grant replaces Swift's
//!   endpoint window.
//!
//! ```text
//!   time in the network   │ base ............. │ allowance, more for small windows   │
//!                         0                  base                                 target
//! ```

use super::{Controller, Feedback, WINDOW_FIRST, WINDOW_MAX, is_window_full, is_window_used};

/// Queueing delay allowed at the target, in ns, plus a fraction of the base delay.
const ALLOWANCE_NS: f64 = 40_000.0;
const ALLOWANCE_OF_BASE: f64 = 0.2;
/// For a window of one packet, this multiple of the allowance is added to the target: flows with small windows then
/// grow faster than others, even if their base delays differ.
const SMALL_WINDOW_EXTRA: f64 = 3.0;
/// Maximum delay beyond the base delay, in ns, that counts as reordering instead of a queue.
const REORDERING_NS_MAX: f64 = 10_000_000.0;
/// Cut of the window in proportion to the excess delay, and its maximum.
const DECREASE: f64 = 0.8;
const DECREASE_MAX: f64 = 0.5;
/// A base delay expires after one to two of these intervals, in ns.
const BASE_NS: u64 = 5_000_000_000;
/// If the delay has been above the target for this time, in ns, and the window is below one packet, the base delay
/// expires at once: this flow has no queue left, so the path has become longer, or other flows hold the queue.
const ABOVE_NS_MAX: u64 = 200_000_000;
/// Losses are counted over at least `COUNTED_MIN` packets. More than one in `LOSS_DIVISOR` counts as congestion; random
/// losses of 5 % exceed that in one of 60 rounds.
const COUNTED_MIN: u32 = 64;
const LOSS_DIVISOR: u32 = 8;
const DECREASE_FOR_LOSS: f64 = 0.3;
/// The increase per round trip grows by one packet after this many round trips below the target, up to a fraction of
/// the window.
const ROUNDS_OF_STEP: u32 = 4;
const STEP_MAX: f64 = 0.25;
/// Interval between yields, in ns and in round trips (the longer one), and the divisor of the window meanwhile.
const YIELD_EVERY_NS: u64 = 10_000_000;
const YIELD_EVERY_TRIPS: u64 = 25;
const YIELD_DIVISOR: f64 = 8.0;
const YIELD_PACKETS_MIN: f64 = 0.25;
const WINDOW_MIN: f64 = 1.0 / 64.0;

#[derive(Debug)]
pub(super) struct Delay {
    /// Congestion window in packets.
    window: f64,
    /// True while each arrival adds a packet to the window (slow start).
    is_starting: bool,
    /// Window up to which, after a silence, arrivals without a measured delay enlarge the window, because retransmitted
    /// packets give no measurement.
    start_max: f64,
    /// The smallest delays in the current and the previous interval.
    base_delays_ns: [u64; 2],
    /// End of the current interval.
    base_interval_end_ns: u64,
    trip_ns: u64,
    /// The smallest delay in this round trip.
    round_min_ns: u64,
    /// End of this round trip.
    round_end_ns: u64,
    /// Consecutive round trips below the target.
    rounds_below_target: u32,
    /// Time since which the delay of each round trip has exceeded the target; `None` if that of the last one did not.
    above_target_since_ns: Option<u64>,
    /// Time before which the window is not cut again.
    decrease_allowed_ns: u64,
    /// Arrivals and losses of the current count, and its earliest end.
    arrived: u32,
    lost: u32,
    count_end_ns: u64,
    /// True if the last complete count exceeded the tolerated share of losses.
    is_lossy: bool,
    /// The window before a silence; `None` once responses have shown the losses.
    window_before_silence: Option<f64>,
    /// While yielding: the window to restore, and the time to restore it.
    yielding: Option<(f64, u64)>,
    /// Time of the next yield.
    yield_at_ns: u64,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay {
            window: WINDOW_FIRST,
            is_starting: true,
            start_max: 0.0,
            base_delays_ns: [u64::MAX; 2],
            base_interval_end_ns: 0,
            trip_ns: 0,
            round_min_ns: u64::MAX,
            round_end_ns: 0,
            rounds_below_target: 0,
            above_target_since_ns: None,
            decrease_allowed_ns: 0,
            arrived: 0,
            lost: 0,
            count_end_ns: 0,
            is_lossy: false,
            window_before_silence: None,
            yielding: None,
            yield_at_ns: 0,
        }
    }
}

impl Delay {
    /// Adds a sample to the current interval of the base delay.
    fn update_base(&mut self, now_ns: u64, network_ns: u64) {
        if now_ns >= self.base_interval_end_ns {
            self.base_delays_ns = [u64::MAX, self.base_delays_ns[0]];
            self.base_interval_end_ns = now_ns + BASE_NS;
        }
        self.base_delays_ns[0] = self.base_delays_ns[0].min(network_ns);
    }

    /// At intervals, shrinks the window for two round trips, to measure the base delay without the flow's own queue.
    fn yield_queue(&mut self, now_ns: u64, is_full: bool) {
        match self.yielding {
            Some((window, until_ns)) if now_ns >= until_ns => {
                self.yielding = None;
                self.window = window;
                self.yield_at_ns = now_ns + YIELD_EVERY_NS.max(YIELD_EVERY_TRIPS * self.trip_ns);
            }
            None if now_ns >= self.yield_at_ns && !self.is_starting && is_full => {
                self.yielding = Some((self.window, now_ns + 2 * self.trip_ns));
                self.window = (self.window / YIELD_DIVISOR).max(YIELD_PACKETS_MIN);
            }
            _ => {}
        }
    }

    /// Starts again with the delay of this round trip as the base delay.
    fn restart(&mut self, now_ns: u64) {
        self.base_delays_ns = [self.round_min_ns, u64::MAX];
        self.base_interval_end_ns = now_ns + BASE_NS;
        (self.is_starting, self.above_target_since_ns) = (true, None);
    }

    /// Returns the target delay in ns. `overtaken_ns` is [`Feedback::overtaken_ns`].
    fn target_ns(&self, overtaken_ns: u64) -> f64 {
        let base = self.base_delays_ns[0].min(self.base_delays_ns[1]) as f64;
        let allowance = ALLOWANCE_NS + ALLOWANCE_OF_BASE * base;
        let target = base + allowance * (1.0 + SMALL_WINDOW_EXTRA / self.window.sqrt());
        target.max((overtaken_ns as f64).min(base + REORDERING_NS_MAX))
    }

    /// Enlarges the window after `arrived` arrivals.
    fn increase(&mut self, arrived: f64) {
        if self.is_starting {
            self.window += arrived;
        } else {
            self.window += self.step() * arrived / self.window.max(1.0);
        }
        self.window = self.window.min(WINDOW_MAX);
    }

    /// Returns the number of packets added per round trip: more after many round trips below the target, as in TIMELY.
    /// So a flow soon recovers from an unjustified cut and uses bandwidth that other flows release. Flows on one link
    /// take equal steps.
    fn step(&self) -> f64 {
        let step = f64::from(1 + self.rounds_below_target / ROUNDS_OF_STEP);
        step.min(self.window * STEP_MAX).max(1.0)
    }

    /// Cuts the window by the fraction `by`, at most once per round trip, because the effect of a cut shows only after
    /// a round trip.
    fn decrease(&mut self, now_ns: u64, by: f64) {
        if now_ns >= self.decrease_allowed_ns {
            (self.is_starting, self.start_max) = (false, 0.0);
            self.window = (self.window * (1.0 - by)).max(WINDOW_MIN);
            self.decrease_allowed_ns = now_ns + self.trip_ns;
        }
    }

    /// Ends a silence. If nearly all packets in flight arrived, the peer was only descheduled, so the previous window
    /// is restored. Otherwise, the window starts again from one packet, and the method returns true: the caller does
    /// not count the losses of the silence again.
    fn end_silence(&mut self, now_ns: u64, feedback: Feedback) -> bool {
        if feedback.arrived + feedback.lost == 0 {
            return false;
        }
        let Some(window) = self.window_before_silence.take() else { return false };
        let is_lossy = feedback.lost * LOSS_DIVISOR > feedback.arrived + feedback.lost;
        if is_lossy {
            (self.is_starting, self.start_max) = (true, self.start_max.max(window / 2.0));
            (self.arrived, self.lost, self.is_lossy) = (0, 0, false);
            self.count_end_ns = now_ns + self.trip_ns;
        } else {
            self.window = window;
        }
        is_lossy
    }

    /// Counts losses. Returns true if two counts in a row exceed the tolerated share, so that the losses are hardly
    /// random.
    fn count_losses(&mut self, now_ns: u64, feedback: Feedback) -> bool {
        self.arrived += feedback.arrived;
        self.lost += feedback.lost;
        let counted = self.arrived + self.lost;
        if counted < COUNTED_MIN || now_ns < self.count_end_ns {
            return false;
        }
        // A single lost train also counts as many losses, but two lost trains in a row are rare.
        let was_lossy = self.is_lossy;
        self.is_lossy = self.lost * LOSS_DIVISOR > counted;
        let is_persistent = was_lossy && self.is_lossy;
        (self.arrived, self.lost) = (0, 0);
        self.count_end_ns = now_ns + self.trip_ns;
        is_persistent
    }
}

impl Controller for Delay {
    fn window_packets(&self) -> f64 {
        self.window
    }

    fn handle_feedback(&mut self, now_ns: u64, feedback: Feedback) {
        if !self.end_silence(now_ns, feedback) && self.count_losses(now_ns, feedback) {
            self.decrease(now_ns, DECREASE_FOR_LOSS);
        }
        self.trip_ns = feedback.trip_ns.unwrap_or(self.trip_ns);
        let is_half_full = f64::from(2 * feedback.in_flight) >= self.window;
        let Some(network_ns) = feedback.network_ns else {
            if self.is_starting && is_half_full && self.window < self.start_max {
                self.increase(f64::from(feedback.arrived));
            }
            return;
        };
        self.update_base(now_ns, network_ns);
        let is_full = is_window_full(self.window, feedback.in_flight);
        self.yield_queue(now_ns, is_full);
        if self.yielding.is_some() {
            return;
        }
        self.round_min_ns = self.round_min_ns.min(network_ns);
        let (trip, target) = (self.round_min_ns as f64, self.target_ns(feedback.overtaken_ns));
        // In slow start, half of the window suffices, as in Linux's TCP, because the window may have doubled since.
        let is_used = is_window_used(self.window, feedback.in_flight) || self.is_starting && is_half_full;
        if trip <= target && is_used {
            self.increase(f64::from(feedback.arrived));
        }
        if now_ns >= self.round_end_ns {
            let is_above = trip > target;
            self.rounds_below_target = if is_above { 0 } else { self.rounds_below_target + 1 };
            self.above_target_since_ns = is_above.then(|| self.above_target_since_ns.unwrap_or(now_ns));
            if is_above {
                self.decrease(now_ns, (DECREASE * (trip - target) / trip).min(DECREASE_MAX));
            }
            if self.window < 1.0
                && self
                    .above_target_since_ns
                    .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= ABOVE_NS_MAX)
            {
                self.restart(now_ns);
            }
            self.round_end_ns = now_ns + self.trip_ns;
            self.round_min_ns = u64::MAX;
        }
    }

    fn handle_silence(&mut self) {
        self.window_before_silence.get_or_insert(self.window);
        self.yielding = None;
        self.window = self.window.min(1.0);
    }
}
