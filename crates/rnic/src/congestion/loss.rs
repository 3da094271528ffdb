//! A minimal loss-based congestion controller: the window grows until the queue at the bottleneck overflows.

use super::{Controller, Feedback, WINDOW_FIRST, WINDOW_MAX, is_window_used};

#[derive(Debug)]
pub(super) struct Loss {
    /// Congestion window in packets.
    window: f64,
    /// Window below which each arrival adds a packet (slow start). At or above it, each round trip adds a packet.
    threshold: f64,
    trip_ns: u64,
    /// Time before which a further loss belongs to the same loss event and causes no cut.
    decrease_allowed_ns: u64,
    /// True until a response ends the silence. The losses that this response reports cause no second cut.
    is_silent: bool,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss {
            window: WINDOW_FIRST,
            threshold: WINDOW_MAX,
            trip_ns: 0,
            decrease_allowed_ns: 0,
            is_silent: false,
        }
    }
}

impl Controller for Loss {
    fn window_packets(&self) -> f64 {
        self.window
    }

    fn handle_feedback(&mut self, now_ns: u64, feedback: Feedback) {
        self.trip_ns = feedback.trip_ns.unwrap_or(self.trip_ns);
        if feedback.arrived + feedback.lost > 0 && std::mem::take(&mut self.is_silent) {
            self.decrease_allowed_ns = now_ns + self.trip_ns;
        }
        if feedback.lost > 0 {
            if now_ns >= self.decrease_allowed_ns {
                self.window = (self.window / 2.0).max(1.0);
                self.threshold = self.window;
                self.decrease_allowed_ns = now_ns + self.trip_ns;
            }
        } else if is_window_used(self.window, feedback.in_flight) {
            let arrived = f64::from(feedback.arrived);
            let is_starting = self.window < self.threshold;
            self.window += if is_starting { arrived } else { arrived / self.window };
            self.window = self.window.min(WINDOW_MAX);
        }
    }

    fn handle_silence(&mut self) {
        // A second silence before the window has recovered does not lower the threshold.
        if self.window >= self.threshold {
            self.threshold = self.window / 2.0;
        }
        (self.window, self.is_silent) = (1.0, true);
    }
}
