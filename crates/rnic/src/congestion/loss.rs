//! A minimal loss-based congestion controller: the window grows until the queue at the bottleneck overflows.

use super::{Controller, Feedback, WINDOW_FIRST, WINDOW_MAX, is_window_full};

#[derive(Debug)]
pub(super) struct Loss {
    window: f64,
    is_starting: bool,
    trip_ns: u64,
    /// Time before which a further loss belongs to the same loss event and causes no cut.
    decrease_at_ns: u64,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss { window: WINDOW_FIRST, is_starting: true, trip_ns: 0, decrease_at_ns: 0 }
    }
}

impl Controller for Loss {
    fn window_packets(&self) -> f64 {
        self.window
    }

    fn handle_feedback(&mut self, now_ns: u64, feedback: Feedback) {
        self.trip_ns = feedback.trip_ns.unwrap_or(self.trip_ns);
        if feedback.lost > 0 {
            if now_ns >= self.decrease_at_ns {
                self.window = (self.window / 2.0).max(1.0);
                self.decrease_at_ns = now_ns + self.trip_ns;
            }
            self.is_starting = false;
        } else if is_window_full(self.window, feedback.in_flight) {
            let arrived = f64::from(feedback.arrived);
            self.window += if self.is_starting { arrived } else { arrived / self.window };
            self.window = self.window.min(WINDOW_MAX);
        }
    }

    fn handle_silence(&mut self) {
        *self = Loss { window: 1.0, ..Loss::default() };
    }
}
