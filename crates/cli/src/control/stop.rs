//! Stops node processes: by a signal, in order, and within bounded time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use halite::cluster_dir::{ClusterDir, ClusterDirError, Listening, Presence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Maximum time for a node to leave after a signal.
pub const GRACE: Duration = Duration::from_secs(5);

/// Maximum time for the kernel to end a killed process and free its memory, which may be hundreds of gigabytes.
const KILL_GRACE: Duration = Duration::from_secs(30);

/// Time after which a running node that does not listen counts as hidden. A node that is leaving may stop listening for
/// this long.
const HIDDEN_AFTER: Duration = GRACE;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A process to stop.
#[derive(Debug)]
pub struct Target {
    pub node: u32,
    pub pid: u32,
    // A pidfd always refers to this process, whereas a pid may be reused.
    pidfd: OwnedFd,
}

/// Outcome of stopping a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The process left after the signal.
    Left,
    /// The process did not leave and was killed.
    Killed,
}

/// The reason why a process could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The system refused a signal.
    #[error("cannot stop node {node} (process {pid}): {source}")]
    Refused {
        /// Number of the node.
        node: u32,
        /// Pid of the process.
        pid: u32,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The process survived SIGKILL.
    #[error("node {node} (process {pid}) was killed and has not ended yet: it hangs in the kernel")]
    Hangs {
        /// Number of the node.
        node: u32,
        /// Pid of the process.
        pid: u32,
    },
}

impl Target {
    /// Opens a child process; returns `None` if it does not exist. The caller must not have waited for the child, so
    /// that its pid cannot have been reused.
    pub fn of_child(node: u32, pid: u32) -> Result<Option<Target>, StopError> {
        Target::of_pid(node, pid)
    }

    /// Opens the process that currently has this pid; returns `None` if there is none.
    pub(super) fn of_pid(node: u32, pid: u32) -> Result<Option<Target>, StopError> {
        let refused = |source: Errno| StopError::Refused { node, pid, source: source.into() };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(refused(Errno::INVAL))?;
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Some(Target { node, pid, pidfd })),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(refused(error)),
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), StopError> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(StopError::Refused { node: self.node, pid: self.pid, source: error.into() }),
        }
    }
}

/// The running nodes of a cluster directory.
#[derive(Debug, Default)]
pub struct Found {
    pub targets: Vec<Target>,
    /// Running nodes whose processes are unknown.
    pub hidden: Vec<Hidden>,
}

/// A running node whose process is unknown.
#[derive(Debug)]
pub struct Hidden {
    pub presence: Presence,
    /// Error of the node's socket; `None` if the node does not listen.
    pub reason: Option<io::Error>,
}

impl Hidden {
    /// Returns true if the process is in another pid namespace, which signals from here do not reach.
    pub fn is_in_other_pid_namespace(&self) -> bool {
        self.reason.as_ref().is_some_and(|reason| reason.kind() == io::ErrorKind::NotFound)
    }
}

/// Finds the processes of the nodes in `dir` for whose numbers `wanted` returns true.
pub fn find(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> Result<Found, ClusterDirError> {
    let deadline = Instant::now() + HIDDEN_AFTER;
    loop {
        let found = find_once(dir, &wanted)?;
        // A joining node does not listen yet, a leaving one no longer. The locks have no deadline, so they are polled.
        let may_appear =
            found.targets.is_empty() && found.hidden.iter().any(|node| !node.is_in_other_pid_namespace());
        if !may_appear || Instant::now() >= deadline {
            return Ok(found);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn find_once(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> Result<Found, ClusterDirError> {
    let mut found = Found::default();
    for presence in dir.nodes()?.into_iter().filter(|presence| presence.alive && wanted(presence.node.0)) {
        match dir.process_of(presence.node) {
            Ok(Some(Listening { pid, pidfd })) => {
                found.targets.push(Target { node: presence.node.0, pid: pid.unsigned_abs(), pidfd });
            }
            // The process may have ended since; the caller tries again.
            Ok(None) => found.hidden.push(Hidden { presence, reason: None }),
            Err(ClusterDirError::Unreachable { source, .. }) => {
                found.hidden.push(Hidden { presence, reason: Some(source) });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Stops all `targets`, node 0 last, because the other nodes need node 0 when they leave. Kills the processes that
/// have not ended after `grace`.
pub fn stop(targets: Vec<Target>, grace: Duration) -> Result<Vec<(Target, Outcome)>, StopError> {
    let (first, others): (Vec<Target>, Vec<Target>) =
        targets.into_iter().partition(|target| target.node == 0);
    let mut stopped = stop_together(others, grace)?;
    stopped.extend(stop_together(first, grace)?);
    stopped.sort_by_key(|(target, _)| target.node);
    Ok(stopped)
}

fn stop_together(targets: Vec<Target>, grace: Duration) -> Result<Vec<(Target, Outcome)>, StopError> {
    for target in &targets {
        // SIGTERM would drain the nodes, which is useless because all of them end.
        target.signal(Signal::INT)?;
    }
    let (left, staying) = wait_for_exits(targets, grace)?;
    for target in &staying {
        target.signal(Signal::KILL)?;
    }
    let (killed, hanging) = wait_for_exits(staying, KILL_GRACE)?;
    if let Some(target) = hanging.first() {
        return Err(StopError::Hangs { node: target.node, pid: target.pid });
    }
    let left = left.into_iter().map(|target| (target, Outcome::Left));
    Ok(left.chain(killed.into_iter().map(|target| (target, Outcome::Killed))).collect())
}

/// Waits until all targets have ended or `grace` is over; returns the ended and the remaining ones.
pub(super) fn wait_for_exits(
    targets: Vec<Target>,
    grace: Duration,
) -> Result<(Vec<Target>, Vec<Target>), StopError> {
    let deadline = Instant::now() + grace;
    let mut ended = Vec::new();
    let mut staying = targets;
    while !staying.is_empty() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).expect("a few seconds are a valid timeout");
        let mut fds: Vec<PollFd<'_>> =
            staying.iter().map(|target| PollFd::new(&target.pidfd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => {
                let Target { node, pid, .. } = staying[0];
                return Err(StopError::Refused { node, pid, source: error.into() });
            }
        }
        let has_ended: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut flags = has_ended.into_iter();
        let (gone, rest) = staying.into_iter().partition(|_| flags.next().unwrap_or(false));
        ended.extend::<Vec<Target>>(gone);
        staying = rest;
    }
    Ok((ended, staying))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn process_that_ignores_the_signal_is_killed() {
        // `read` returns when the pipe closes, so the process does not outlive this test.
        let mut stubborn = Command::new("sh");
        stubborn.args(["-c", "trap '' INT; echo up; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut stubborn = stubborn.spawn().unwrap();
        stubborn.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        let target = Target::of_child(1, stubborn.id()).unwrap().unwrap();
        let stopped = stop(vec![target], Duration::ZERO).unwrap();
        stubborn.wait().unwrap();
        assert_eq!((stopped[0].0.node, stopped[0].1), (1, Outcome::Killed));
    }
}
