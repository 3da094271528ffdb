//! Keeps the queue on the way short: more while packets take less time than they should, less when they take more.
//!
//! After Swift (Kumar et al., SIGCOMM 2020): a target with more for small windows, one packet more in each round trip below it, a cut in
//! proportion above it, once in a round trip, and windows below one packet.  What differs is for networks that nobody has set up, and hosts
//! that share their processors:
//!
//! - The time without any queue is the least that was measured lately; a flow yields now and then to see it.
//! - What counts is the least time in each round trip, which is the queue that stands: those whose processor comes late send in
//!   bursts, and each of these waits behind itself.
//! - A loss alone says nothing unless there are many, and again, since single packets and whole trains are lost by chance, too.
//! - What packets and their answers wait for processors is none of the network's ([`Heard::network_ns`]); Swift's window for
//!   endpoints is the peer's grant here.
//!
//! ```text
//!   time in the network   │ least ............ │ allowance + for small windows, more │
//!                         0                  base                                 target
//! ```

use super::{Controller, Heard, WINDOW_FIRST, WINDOW_MAX, was_full};

/// The queue that is allowed, besides a fifth of the least time.
const ALLOWANCE_NS: f64 = 40_000.0;
const ALLOWANCE_OF_BASE: f64 = 0.2;
/// How much more of that a window of one packet may have than a large one: so flows with less get more, though they may know another least time.
const SMALL_WINDOW_EXTRA: f64 = 3.0;
/// How much of what is too long is taken off the window, and at most.
const DECREASE: f64 = 0.8;
const DECREASE_MAX: f64 = 0.5;
/// For how long the least time counts, once or twice.
const BASE_NS: u64 = 5_000_000_000;
/// Losses are counted over at least so many packets, and heeded where they are more than one of so many: by chance at 5 %, once in 60 rounds.
const COUNTED_MIN: u32 = 64;
const LOST_ONE_OF: u32 = 8;
const DECREASE_FOR_LOSS: f64 = 0.3;
/// After so many round trips below the target the step grows by a packet, and at most to such a part of the window.
const ROUNDS_OF_STEP: u32 = 4;
const STEP_MAX: f64 = 0.25;
/// How often a flow yields, and to which part of its window.
const YIELD_EVERY_NS: u64 = 10_000_000;
const YIELD_EVERY_TRIPS: u64 = 25;
const YIELD_ONE_OF: f64 = 8.0;
const YIELD_PACKETS_MIN: f64 = 0.25;
const WINDOW_MIN: f64 = 1.0 / 64.0;

#[derive(Debug)]
pub(super) struct Delay {
    window: f64,
    is_starting: bool,
    /// The least time now, and in the time before.
    bases_ns: [u64; 2],
    base_until_ns: u64,
    trip_ns: u64,
    /// The least time in this round trip, and when that is over.
    standing_ns: u64,
    round_until_ns: u64,
    /// Consecutive round trips below the target.
    rounds_below: u32,
    /// No less than this before that.
    decreased_until_ns: u64,
    arrived: u32,
    lost: u32,
    counted_until_ns: u64,
    /// Of those that were counted last.
    are_many_lost: bool,
    /// The window before a silence, until it is known what has become of that.
    silenced: Option<f64>,
    /// The window to go back to, and when, while the queue is left to others.
    yields: Option<(f64, u64)>,
    yields_at_ns: u64,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay {
            window: WINDOW_FIRST,
            is_starting: true,
            bases_ns: [u64::MAX; 2],
            base_until_ns: 0,
            trip_ns: 0,
            standing_ns: u64::MAX,
            round_until_ns: 0,
            rounds_below: 0,
            decreased_until_ns: 0,
            arrived: 0,
            lost: 0,
            counted_until_ns: 0,
            are_many_lost: false,
            silenced: None,
            yields: None,
            yields_at_ns: 0,
        }
    }
}

impl Delay {
    fn note_network(&mut self, now_ns: u64, network_ns: u64) {
        if now_ns >= self.base_until_ns {
            self.bases_ns = [u64::MAX, self.bases_ns[0]];
            self.base_until_ns = now_ns + BASE_NS;
        }
        self.bases_ns[0] = self.bases_ns[0].min(network_ns);
    }

    /// Now and then a flow has next to nothing under way, for two round trips: so it sees the least time, though it fills the queue for the rest.
    fn yield_queue(&mut self, now_ns: u64, is_full: bool) {
        match self.yields {
            Some((window, until_ns)) if now_ns >= until_ns => {
                self.yields = None;
                self.window = window;
                self.yields_at_ns = now_ns + YIELD_EVERY_NS.max(YIELD_EVERY_TRIPS * self.trip_ns);
            }
            None if now_ns >= self.yields_at_ns && !self.is_starting && is_full => {
                self.yields = Some((self.window, now_ns + 2 * self.trip_ns));
                self.window = (self.window / YIELD_ONE_OF).max(YIELD_PACKETS_MIN);
            }
            _ => {}
        }
    }

    /// How long a packet may take.
    fn target_ns(&self) -> f64 {
        let base = self.bases_ns[0].min(self.bases_ns[1]) as f64;
        let allowance = ALLOWANCE_NS + ALLOWANCE_OF_BASE * base;
        base + allowance * (1.0 + SMALL_WINDOW_EXTRA / self.window.sqrt())
    }

    fn increase(&mut self, arrived: f64) {
        if self.is_starting {
            self.window += arrived;
        } else {
            self.window += self.step() * arrived / self.window.max(1.0);
        }
        self.window = self.window.min(WINDOW_MAX);
    }

    /// Packets that are added in a round trip: more where it has taken less time than it may for long, as TIMELY has it.  So who was misled by a
    /// late packet, or finds that others have left, comes back soon, and those who share a link take the same step.
    fn step(&self) -> f64 {
        let step = f64::from(1 + self.rounds_below / ROUNDS_OF_STEP);
        step.min(self.window * STEP_MAX).max(1.0)
    }

    /// Once in a round trip: what has left since shows only then what it meets.
    fn decrease(&mut self, now_ns: u64, by: f64) {
        if now_ns >= self.decreased_until_ns {
            self.is_starting = false;
            self.window = (self.window * (1.0 - by)).max(WINDOW_MIN);
            self.decreased_until_ns = now_ns + self.trip_ns;
        }
    }

    /// Something is heard after silence.  Where nearly all has arrived that was under way, the peer did not have its processor, and the network is as
    /// it was; else it is found out anew.
    fn break_silence(&mut self, heard: Heard) {
        if heard.arrived + heard.lost == 0 {
            return;
        }
        let Some(window) = self.silenced.take() else { return };
        if heard.lost * LOST_ONE_OF > heard.arrived + heard.lost {
            self.is_starting = true;
        } else {
            self.window = window;
        }
    }

    /// Whether so many are lost that it is not by chance.
    fn count(&mut self, now_ns: u64, heard: Heard) -> bool {
        self.arrived += heard.arrived;
        self.lost += heard.lost;
        let counted = self.arrived + self.lost;
        if counted < COUNTED_MIN || now_ns < self.counted_until_ns {
            return false;
        }
        // A train that is lost by chance is many, too, and seldom followed by another at once.
        let were_many = self.are_many_lost;
        self.are_many_lost = self.lost * LOST_ONE_OF > counted;
        let are_many = were_many && self.are_many_lost;
        (self.arrived, self.lost) = (0, 0);
        self.counted_until_ns = now_ns + self.trip_ns;
        are_many
    }
}

impl Controller for Delay {
    fn window_packets(&self) -> f64 {
        self.window
    }

    fn handle_heard(&mut self, now_ns: u64, heard: Heard) {
        self.break_silence(heard);
        if self.count(now_ns, heard) {
            self.decrease(now_ns, DECREASE_FOR_LOSS);
        }
        self.trip_ns = heard.trip_ns.unwrap_or(self.trip_ns);
        let Some(network_ns) = heard.network_ns else { return };
        self.note_network(now_ns, network_ns);
        let is_full = was_full(self.window, heard.under_way);
        self.yield_queue(now_ns, is_full);
        if self.yields.is_some() {
            return;
        }
        self.standing_ns = self.standing_ns.min(network_ns);
        let (trip, target) = (self.standing_ns as f64, self.target_ns());
        if trip <= target && is_full {
            self.increase(f64::from(heard.arrived));
        }
        if now_ns >= self.round_until_ns {
            self.rounds_below = if trip > target { 0 } else { self.rounds_below + 1 };
            if trip > target {
                self.decrease(now_ns, (DECREASE * (trip - target) / trip).min(DECREASE_MAX));
            }
            self.round_until_ns = now_ns + self.trip_ns;
            self.standing_ns = u64::MAX;
        }
    }

    fn handle_silence(&mut self) {
        self.silenced.get_or_insert(self.window);
        self.yields = None;
        self.window = self.window.min(1.0);
    }
}
