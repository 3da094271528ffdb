//! Stopping node processes: politely, in the right order, and within a bounded time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use halite::cluster_dir::{ClusterDir, ClusterDirError, Listening, Presence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a node may take to leave after it was asked to.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long the kernel may take to end a killed process and free its memory, which may be hundreds of gigabytes.
const KILL_GRACE: Duration = Duration::from_secs(30);

/// How long a node that lives may not listen before it is said to be hidden: leaving takes as long.
const HIDDEN_PATIENCE: Duration = GRACE;

/// How long until the next look.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A process that is to end.
#[derive(Debug)]
pub struct Target {
    /// The node that it runs.
    pub node: u32,
    /// Its pid.
    pub pid: u32,
    // A pid may name another process a moment later; a pidfd never does.
    pidfd: OwnedFd,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It left when asked.
    Left,
    /// It had to be killed.
    Killed,
}

/// Why a process could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The operating system does not let us.
    #[error("cannot stop node {node} (process {pid}): {source}")]
    Refused {
        /// Which node.
        node: u32,
        /// Its process.
        pid: u32,
        /// What it said.
        source: io::Error,
    },
    /// It is still there although it was killed.
    #[error("node {node} (process {pid}) was killed and has not ended yet: it hangs in the kernel")]
    Hangs {
        /// Which node.
        node: u32,
        /// Its process.
        pid: u32,
    },
}

impl Target {
    /// Takes hold of a child that was not waited for; `None` if it was.  No other process can have its number.
    pub fn of_child(node: u32, pid: u32) -> Result<Option<Target>, StopError> {
        Target::of_pid(node, pid)
    }

    /// Takes hold of whatever process has that number now; `None` if none has.
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

/// The nodes of a cluster directory that live.
#[derive(Debug, Default)]
pub struct Found {
    /// Those whose processes listen at their sockets.
    pub targets: Vec<Target>,
    /// Those that live, and whose processes cannot be told.
    pub hidden: Vec<Hidden>,
}

/// A node that lives, and whose process cannot be told.
#[derive(Debug)]
pub struct Hidden {
    /// What its files say.
    pub presence: Presence,
    /// What is wrong with its socket; `None` if none listens.
    pub reason: Option<io::Error>,
}

impl Hidden {
    /// Whether its process is in another pid namespace, where no signal from here arrives.
    pub fn is_elsewhere(&self) -> bool {
        self.reason.as_ref().is_some_and(|reason| reason.kind() == io::ErrorKind::NotFound)
    }
}

/// Finds the processes of those nodes in `dir` whose numbers are `wanted`.
pub fn find(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> Result<Found, ClusterDirError> {
    let deadline = Instant::now() + HIDDEN_PATIENCE;
    loop {
        let found = look(dir, &wanted)?;
        // Who is joining does not listen yet, and who is leaving not any more.  There is nothing to wait on: locks
        // have no deadline.
        let is_worth_waiting =
            found.targets.is_empty() && found.hidden.iter().any(|node| !node.is_elsewhere());
        if !is_worth_waiting || Instant::now() >= deadline {
            return Ok(found);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn look(dir: &ClusterDir, wanted: impl Fn(u32) -> bool) -> Result<Found, ClusterDirError> {
    let mut found = Found::default();
    for presence in dir.nodes()?.into_iter().filter(|presence| presence.alive && wanted(presence.node.0)) {
        match dir.process_of(presence.node) {
            Ok(Some(Listening { pid, pidfd })) => {
                found.targets.push(Target { node: presence.node.0, pid: pid.unsigned_abs(), pidfd });
            }
            // It may have ended since; the caller looks again.
            Ok(None) => found.hidden.push(Hidden { presence, reason: None }),
            Err(ClusterDirError::Unreachable { source, .. }) => {
                found.hidden.push(Hidden { presence, reason: Some(source) });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Ends all `targets`: first every node but the first, which they need in order to leave well, then that one.
/// Who has not left after `grace` is killed.
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
        // Not the one by which a node brings what it has to others: those end, too.
        target.signal(Signal::INT)?;
    }
    let (left, staying) = await_ends(targets, grace)?;
    for target in &staying {
        target.signal(Signal::KILL)?;
    }
    let (killed, hanging) = await_ends(staying, KILL_GRACE)?;
    if let Some(target) = hanging.first() {
        return Err(StopError::Hangs { node: target.node, pid: target.pid });
    }
    let left = left.into_iter().map(|target| (target, Outcome::Left));
    Ok(left.chain(killed.into_iter().map(|target| (target, Outcome::Killed))).collect())
}

/// Waits until all have ended or `grace` is over; returns who has ended and who has not.
pub(super) fn await_ends(
    targets: Vec<Target>,
    grace: Duration,
) -> Result<(Vec<Target>, Vec<Target>), StopError> {
    let deadline = Instant::now() + grace;
    let mut ended = Vec::new();
    let mut staying = targets;
    while !staying.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("a few seconds are a valid timeout");
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
        let mut verdicts = has_ended.into_iter();
        let (gone, rest) = staying.into_iter().partition(|_| verdicts.next().unwrap_or(false));
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
    fn a_process_that_does_not_leave_in_time_is_killed() {
        // Its `read` ends with its pipe, so that it does not outlive this test.
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
