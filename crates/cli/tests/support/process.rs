//! Processes that never outlive their test, and references to other processes that survive pid reuse. Tests of other
//! crates include this file too.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A running command. Killed when dropped.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub fn of(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Running { child, stdout }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line that the command prints.
    #[track_caller]
    pub fn line(&mut self) -> String {
        self.line_if_any().unwrap_or_else(|| panic!("the process ended early: {:?}", self.child.wait()))
    }

    /// Returns the next line that the command prints; `None` if the command ends before.
    #[track_caller]
    pub fn line_if_any(&mut self) -> Option<String> {
        self.await_output();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        (!line.is_empty()).then_some(line)
    }

    /// Waits until the command has printed a byte.
    #[track_caller]
    pub fn byte(&mut self) {
        self.await_output();
        self.stdout.read_exact(&mut [0]).unwrap();
    }

    #[track_caller]
    fn await_output(&self) {
        if self.stdout.buffer().is_empty() {
            await_readable(self.stdout.get_ref(), "the process prints nothing");
        }
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the command; panics after a minute.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        if self.child.try_wait().unwrap().is_none() {
            Process::open(self.pid()).await_end();
        }
        self.child.wait().unwrap()
    }

    /// Kills the command.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that this one did not start, held by a pidfd so that pid reuse cannot redirect signals.
pub struct Process(OwnedFd);

impl Process {
    pub fn open(pid: u32) -> Process {
        Process::find(pid).unwrap()
    }

    /// Opens the process with this pid. Returns `None` if the process has ended.
    pub fn find(pid: u32) -> Option<Process> {
        let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Process)
    }

    /// Stops all threads of the process until `resume`. Returns when all threads have stopped.
    pub fn stop(&self) {
        pidfd_send_signal(&self.0, Signal::STOP).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd())).unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim();
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let stands = |thread: std::fs::DirEntry| match std::fs::read_to_string(thread.path().join("stat")) {
            Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')),
            // The process has just ended.
            Err(_) => true,
        };
        eventually(|| threads().all(stands));
    }

    pub fn resume(&self) {
        pidfd_send_signal(&self.0, Signal::CONT).unwrap();
    }

    pub fn kill(&self) {
        pidfd_send_signal(&self.0, Signal::KILL).unwrap();
        self.await_end();
    }

    /// Kills the process, unless it has ended already.
    pub fn end(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
        self.await_end();
    }

    pub fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)), Ok(0))
    }

    /// Waits for the end of the process; panics after a minute.
    #[track_caller]
    pub fn await_end(&self) {
        await_readable(&self.0, "the process has not ended");
    }
}

/// Waits until the descriptor is readable or closed; panics after a minute.
#[track_caller]
fn await_readable(fd: impl AsFd, complaint: &str) {
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&minute)));
    assert_eq!(ready, Ok(1), "{complaint}");
}

/// Polls until the condition holds; panics after a minute.
#[track_caller]
pub fn eventually(is_so: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed().as_secs() < 60, "the condition does not hold after a minute");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Returns the children of a process, as the kernel lists them.
pub fn children(pid: u32) -> Vec<u32> {
    let list =
        std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{pid}/children"))).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
