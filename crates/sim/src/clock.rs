//! Clocks of simulated hosts. Each clock has its own offset and rate. Futures resolve when a clock shows a given time.

use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use crate::shared::{Shared, TimerKey};

/// The clock of one host.
///
/// Clones show the same time. The clock keeps running while its host is paused or down.
#[derive(Clone)]
pub struct HostClock {
    shared: Arc<Shared>,
    state: Arc<ClockState>,
}

struct ClockState {
    /// Local minus true time, in ns; [`DRIFTS`] if this difference changes, so that readers must use `rate`.
    offset_ns: AtomicU64,
    rate: Mutex<Rate>,
}

const DRIFTS: u64 = u64::MAX;

/// The clock's relation to true time since its last change.
#[derive(Clone, Copy, Debug)]
struct Rate {
    true_ns: u64,
    local_ns: u64,
    drift_ppm: i64,
}

const MILLION: i128 = 1_000_000;

impl Rate {
    fn offset_ns(&self) -> u64 {
        if self.drift_ppm == 0 { self.local_ns.wrapping_sub(self.true_ns) } else { DRIFTS }
    }

    fn local_ns_at(&self, true_ns: u64) -> u64 {
        let passed = true_ns - self.true_ns;
        if self.drift_ppm == 0 {
            return self.local_ns + passed;
        }
        self.local_ns + (i128::from(passed) * (MILLION + i128::from(self.drift_ppm)) / MILLION) as u64
    }

    /// Returns the first true time at which the clock shows `local_ns` or later.
    fn true_ns_at(&self, local_ns: u64) -> u64 {
        let wanted = local_ns.saturating_sub(self.local_ns);
        let scaled = i128::from(wanted) * MILLION;
        let speed = MILLION + i128::from(self.drift_ppm);
        // Rounded up: a timer may fire late, never early.
        let passed = (scaled + speed - 1) / speed;
        self.true_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

impl ClockState {
    fn new(rate: Rate) -> ClockState {
        ClockState { offset_ns: AtomicU64::new(rate.offset_ns()), rate: Mutex::new(rate) }
    }
}

impl HostClock {
    pub(crate) fn new(shared: Arc<Shared>, offset_ns: u64) -> HostClock {
        let rate = Rate { true_ns: shared.now_ns(), local_ns: offset_ns, drift_ppm: 0 };
        HostClock { shared, state: Arc::new(ClockState::new(rate)) }
    }

    /// Creates a clock that shows true time.
    pub(crate) fn exact(shared: Arc<Shared>) -> HostClock {
        let rate = Rate { true_ns: 0, local_ns: 0, drift_ppm: 0 };
        HostClock { shared, state: Arc::new(ClockState::new(rate)) }
    }

    /// Returns the local time, in ns since an instant before the start of the world.
    pub fn now_ns(&self) -> u64 {
        // Relaxed: a world runs in one thread.
        match self.state.offset_ns.load(Relaxed) {
            DRIFTS => self.rate().local_ns_at(self.shared.now_ns()),
            offset_ns => self.shared.now_ns().wrapping_add(offset_ns),
        }
    }

    /// Returns a future that resolves once this clock shows `local_ns` or later.
    pub fn sleep_until(&self, local_ns: u64) -> Sleep {
        Sleep { clock: self.clone(), local_ns, timer: None }
    }

    /// Makes the clock run fast by `ppm` millionths from now on, or slow if negative.
    pub(crate) fn set_drift_ppm(&self, drift_ppm: i64) {
        assert!(
            (-900_000..=1_000_000).contains(&drift_ppm),
            "a drift of {drift_ppm} ppm is not from -900000 to 1000000"
        );
        let true_ns = self.shared.now_ns();
        let mut rate = self.state.rate.lock().expect(POISONED);
        *rate = Rate { true_ns, local_ns: rate.local_ns_at(true_ns), drift_ppm };
        self.state.offset_ns.store(rate.offset_ns(), Relaxed);
    }

    fn rate(&self) -> Rate {
        *self.state.rate.lock().expect(POISONED)
    }

    fn true_ns_at(&self, local_ns: u64) -> u64 {
        self.rate().true_ns_at(local_ns)
    }
}

const POISONED: &str = "a thread panicked while it held a clock's lock";

/// The future that [`HostClock::sleep_until`] returns.
pub struct Sleep {
    clock: HostClock,
    local_ns: u64,
    timer: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.clock.now_ns() >= self.local_ns {
            return Poll::Ready(());
        }
        // Sets the timer again at each poll, because the rate of the clock may have changed.
        let due_ns = self.clock.true_ns_at(self.local_ns);
        self.timer = Some(self.clock.shared.set_timer(due_ns, context.waker().clone()));
        Poll::Pending
    }
}

impl Sleep {
    fn cancel(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.clock.shared.cancel_timer(timer);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
