//! The order in which a node asks the endpoints of etcd.
//!
//! A node stays with the endpoint that answered last. An endpoint that failed is chosen last for a while: a member of
//! etcd that hangs would cost each request its whole time limit.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which an endpoint is chosen last after a failure. Each further failure doubles it, up to the maximum.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(160);

/// The endpoints of an etcd by number, with their recent failures. The gateways of a node share it.
#[derive(Debug)]
pub(super) struct Endpoints(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// Number of the endpoint that answered last.
    at: usize,
    /// Pause of each endpoint; `None` if its last request succeeded.
    pauses: Vec<Option<Pause>>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    since: Instant,
    len: Duration,
}

impl Known {
    /// Returns the end of an endpoint's pause; `None` if the endpoint is good.
    fn pause_end(&self, endpoint: usize, now: Instant) -> Option<Instant> {
        self.pauses[endpoint].map(|pause| pause.since + pause.len).filter(|end| *end > now)
    }
}

impl Endpoints {
    pub(super) fn new(count: usize) -> Endpoints {
        Endpoints(Mutex::new(Known { at: 0, pauses: vec![None; count] }))
    }

    /// Returns the endpoint for a request that other endpoints, `tried`, have not answered: the one that answered last, or
    /// else the next one that is good. If none is good, returns the one whose pause ends first.
    pub(super) fn choose(&self, tried: &[usize]) -> usize {
        let (known, now) = (self.known(), Instant::now());
        let count = known.pauses.len();
        let in_order = (0..count).map(|step| (known.at + step) % count);
        let order = |endpoint: &usize| (tried.contains(endpoint), known.pause_end(*endpoint, now));
        in_order.min_by_key(order).expect("an address has an endpoint")
    }

    /// Returns true if an endpoint has not failed recently.
    pub(super) fn has_good(&self) -> bool {
        let (known, now) = (self.known(), Instant::now());
        (0..known.pauses.len()).any(|endpoint| known.pause_end(endpoint, now).is_none())
    }

    pub(super) fn note_answer(&self, endpoint: usize) {
        let mut known = self.known();
        known.at = endpoint;
        known.pauses[endpoint] = None;
    }

    /// Handles the failure of a request that began at `asked`.
    pub(super) fn note_failure(&self, endpoint: usize, asked: Instant) {
        let (mut known, since) = (self.known(), Instant::now());
        let len = match known.pauses[endpoint] {
            // Another request failed meanwhile, for the same reason.
            Some(pause) if pause.since > asked => return,
            Some(pause) => (2 * pause.len).min(PAUSE_MAX),
            None => PAUSE_MIN,
        };
        known.pauses[endpoint] = Some(Pause { since, len });
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
