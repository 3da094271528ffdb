//! Converts the arrival times of packets from the system's clock to the clock of the fabric.

use std::time::{Duration, SystemTime};

use quinn_udp::RecvMeta;

use super::port::Batch;

/// Maximum plausible time between the arrival and the receive of a packet; if it is longer, the system's clock was
/// probably set.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The time of one moment on the fabric's clock (ns) and on the system's clock; `None` if the system reports no arrival
/// times.
#[derive(Debug)]
pub(super) struct Clock(Option<(u64, Duration)>);

impl Clock {
    /// Reads both clocks, if the system has reported arrival times for the batch.
    pub(super) fn read(batch: &Batch, own_ns: impl FnOnce() -> u64) -> Clock {
        let since_1970 = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
        let both = batch.has_timestamps().then(|| Some((own_ns(), since_1970()?)));
        Clock(both.flatten())
    }

    pub(super) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the arrival time of a packet in ns on the clock of the fabric; `now_ns` if the arrival time is unknown.
    pub(super) fn arrived_ns(&self, meta: &RecvMeta, now_ns: u64) -> u64 {
        self.arrived_within(meta, now_ns, WAIT_MAX)
    }

    /// Returns the arrival time of a packet as [`Clock::arrived_ns`] does, if the packet waited for less than
    /// `wait_max`; otherwise `now_ns`.
    pub(super) fn arrived_within(&self, meta: &RecvMeta, now_ns: u64, wait_max: Duration) -> u64 {
        let Some(((own_ns, now), stamp)) = self.0.zip(meta.timestamp) else { return now_ns };
        let waited = now.checked_sub(stamp).filter(|waited| *waited < wait_max);
        waited.map_or(now_ns, |waited| own_ns.saturating_sub(waited.as_nanos() as u64))
    }
}
