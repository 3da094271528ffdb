//! Limits the surplus, the packets in flight beyond the bandwidth-delay product, so that they do not delay other flows.
//!
//! The surplus waits in the queue before the slowest link. It keeps the link busy while a process at either end is
//! late, but delays all other flows through this queue. So a requester starts with its whole grant as surplus. It
//! shrinks the surplus while the mean network delay exceeds the smallest one by more than half, and by more than
//! [`QUEUE_NS_MIN`].
//!
//! Not all delay is queueing: a path may delay packets by itself. Then a smaller surplus lowers the rate, not the
//! delay. So the surplus grows again while the rate is well below the best one, or if the path reorders packets.

use super::bdp::WindowedMin;

/// Minimum length of an epoch, the time over which delay and rate are averaged, in ns and in round trips. A change of
/// the surplus takes effect after one epoch.
const EPOCH_NS_MIN: u64 = 50_000_000;
const EPOCH_TRIPS: u64 = 3;
/// Queueing delay that is always allowed, in ns.
const QUEUE_NS_MIN: u64 = 50_000;
/// Minimum surplus, in packets.
const PACKETS_MIN: u32 = 2;
/// Number of epochs of growth after which each further epoch doubles the growth, and the maximum number of epochs
/// counted.
const EPOCHS_STEADY: u32 = 2;
const EPOCHS_MAX: u32 = 5;

/// The surplus, and the measurements of the current epoch.
#[derive(Debug)]
pub(super) struct Surplus {
    packets: u32,
    delays: WindowedMin,
    begin_ns: u64,
    arrived: u32,
    delay_sum_ns: u64,
    samples: u32,
    /// True if the window has held packets back in this epoch.
    was_limited: bool,
    /// The best rate, in packets per second. It is reset while the surplus is the whole grant.
    best_rate: u64,
    /// Number of epochs of growth since the last decrease, at most [`EPOCHS_MAX`].
    growth_epochs: u32,
}

impl Default for Surplus {
    fn default() -> Surplus {
        Surplus {
            packets: u32::MAX,
            delays: WindowedMin::default(),
            begin_ns: 0,
            arrived: 0,
            delay_sum_ns: 0,
            samples: 0,
            was_limited: false,
            best_rate: 0,
            growth_epochs: 0,
        }
    }
}

impl Surplus {
    /// Returns the maximum number of packets in flight beyond the product; `u32::MAX` if only the grant limits them.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Records that the window holds packets back.
    pub fn on_limited(&mut self) {
        self.was_limited = true;
    }

    /// Records that `arrived` further packets have arrived. `network_ns` is a sample of the network delay; `None` if
    /// there is none, or if the path reorders packets. `granted` is the peer's grant, in packets.
    pub fn on_arrived(&mut self, now_ns: u64, arrived: u32, network_ns: Option<u64>, granted: u32) {
        self.delays.add(now_ns, network_ns);
        let Some(smallest_ns) = self.delays.min_ns() else { return };
        self.arrived = self.arrived.saturating_add(arrived);
        self.delay_sum_ns = self.delay_sum_ns.saturating_add(network_ns.unwrap_or(0));
        self.samples += u32::from(network_ns.is_some());
        let elapsed_ns = now_ns.saturating_sub(self.begin_ns);
        let mean_ns = self.delay_sum_ns / u64::from(self.samples.max(1));
        if elapsed_ns < EPOCH_NS_MIN.max(EPOCH_TRIPS.saturating_mul(mean_ns)) {
            return;
        }
        if self.was_limited {
            let queue_ns = mean_ns.saturating_sub(smallest_ns);
            self.adapt(elapsed_ns, queue_ns.saturating_sub(QUEUE_NS_MIN.max(smallest_ns / 2)), granted);
        }
        (self.begin_ns, self.arrived, self.delay_sum_ns, self.samples, self.was_limited) =
            (now_ns, 0, 0, 0, false);
    }

    /// Adapts the surplus at the end of an epoch. `excess_ns` is the queueing delay beyond the allowed one.
    fn adapt(&mut self, elapsed_ns: u64, excess_ns: u64, granted: u32) {
        let within = |ns: u64| (u128::from(self.arrived) * u128::from(ns) / u128::from(elapsed_ns)) as u64;
        let (rate, excess) = (within(1_000_000_000), within(excess_ns) as u32);
        let packets = self.packets.min(granted);
        if packets == granted {
            self.best_rate -= self.best_rate / 8;
        }
        self.best_rate = self.best_rate.max(rate);
        if rate < self.best_rate / 4 {
            // A smaller surplus does not lower the rate that much, so the path has changed.
            (self.packets, self.growth_epochs) = (granted, 0);
        } else if excess == 0 || rate < self.best_rate / 16 * 13 {
            let more = (packets / 8).max(1) << self.growth_epochs.saturating_sub(EPOCHS_STEADY);
            self.packets = packets.saturating_add(more).min(granted);
            self.growth_epochs = (self.growth_epochs + 1).min(EPOCHS_MAX);
        } else if rate >= self.best_rate / 16 * 14 {
            let less = (excess / 4 * 3).clamp(1, packets / 2 + 1);
            self.packets = packets.saturating_sub(less).max(PACKETS_MIN);
            self.growth_epochs = 0;
        }
    }
}
