//! Notifies the supervisor of this process (systemd) that the node is ready, alive, or stopping.
//!
//! Sends datagrams to the socket that `NOTIFY_SOCKET` names; without it, sends nothing.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use halite::Node;
use sd_notify::NotifyState;

use crate::threads::{self, Refused};

/// Calls `during` and returns its result. Notifies the supervisor before the call that the node is ready, during the
/// call at the watchdog's interval that the node is alive, and after the call that the node is stopping. Fails before
/// the call if the system refuses a thread.
pub fn run_supervised<R>(node: &Node, status: &str, during: impl FnOnce() -> R) -> Result<R, Refused> {
    let (end, ended) = channel::<()>();
    let result = std::thread::scope(|scope| {
        if let Some(interval) = interval(sd_notify::watchdog_enabled()) {
            threads::spawn_in(scope, move || {
                while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    // If the node is not well, no message is sent, and the supervisor restarts this process.
                    if node.is_well() {
                        notify_all(&[NotifyState::Watchdog]);
                    }
                }
            })?;
        }
        notify_all(&[NotifyState::Ready, NotifyState::Status(status)]);
        let result = during();
        drop(end);
        Ok(result)
    });
    notify_all(&[NotifyState::Stopping]);
    result
}

/// Returns the interval of messages: half the watchdog's timeout.
fn interval(timeout: Option<Duration>) -> Option<Duration> {
    timeout.filter(|timeout| !timeout.is_zero()).map(|timeout| timeout / 2)
}

fn notify_all(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the supervisor: {error}");
    }
}
