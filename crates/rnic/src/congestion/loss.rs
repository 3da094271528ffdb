//! Fills the queue on the way until something is lost: as simple as a controller can be.

use super::{Controller, Heard, WINDOW_FIRST, WINDOW_MAX, was_full};

#[derive(Debug)]
pub(super) struct Loss {
    window: f64,
    is_starting: bool,
    trip_ns: u64,
    /// Losses before that belong to the last one.
    until_ns: u64,
}

impl Default for Loss {
    fn default() -> Loss {
        Loss { window: WINDOW_FIRST, is_starting: true, trip_ns: 0, until_ns: 0 }
    }
}

impl Controller for Loss {
    fn window_packets(&self) -> f64 {
        self.window
    }

    fn handle_heard(&mut self, now_ns: u64, heard: Heard) {
        self.trip_ns = heard.trip_ns.unwrap_or(self.trip_ns);
        if heard.lost > 0 {
            if now_ns >= self.until_ns {
                self.window = (self.window / 2.0).max(1.0);
                self.until_ns = now_ns + self.trip_ns;
            }
            self.is_starting = false;
        } else if was_full(self.window, heard.under_way) {
            let arrived = f64::from(heard.arrived);
            self.window += if self.is_starting { arrived } else { arrived / self.window };
            self.window = self.window.min(WINDOW_MAX);
        }
    }

    fn handle_silence(&mut self) {
        *self = Loss { window: 1.0, ..Loss::default() };
    }
}
