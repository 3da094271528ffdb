//! What the supervisor of this process (systemd) is told: that the node is ready, that it gets on, and that it ends.
//!
//! By datagrams to the socket that `NOTIFY_SOCKET` names; without it, nobody is told anything.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use halite::Node;
use sd_notify::NotifyState;

/// Tells that the node is ready, and for as long as `during` lasts that it is well, as often as the supervisor asks for; then that
/// it ends.
pub fn supervised<R>(node: &Node, status: &str, during: impl FnOnce() -> R) -> R {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    let (end, ended) = channel::<()>();
    let result = std::thread::scope(|scope| {
        if let Some(interval) = interval(sd_notify::watchdog_enabled()) {
            scope.spawn(move || {
                while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    // A supervisor that is told nothing for long enough ends this process, and starts another.
                    if node.is_well() {
                        tell(&[NotifyState::Watchdog]);
                    }
                }
            });
        }
        let result = during();
        drop(end);
        result
    });
    tell(&[NotifyState::Stopping]);
    result
}

/// Twice in the time after which the supervisor takes this process for hung.
fn interval(patience: Option<Duration>) -> Option<Duration> {
    patience.filter(|patience| !patience.is_zero()).map(|patience| patience / 2)
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the supervisor: {error}");
    }
}
