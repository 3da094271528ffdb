//! A private directory that exists for the length of a run, even if a signal ends the run.

use std::fs::{DirBuilder, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use halite::cluster_dir;
use rustix::process::{Pid, getpid, test_kill_process};

use crate::child;
use crate::signals::{SignalWaiter, Wake};
use crate::threads;

/// Prefix of the directories' names; a pid and a random number follow.
const PREFIX: &str = "halite-perf-";
/// Maximum number of attempts to remove a directory, while new files appear in it.
const REMOVE_ATTEMPTS_MAX: u32 = 100;

/// A directory that only this user can enter. Dropping it removes the directory.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory. Also starts a thread that waits for a signal to end this process; the thread then kills the
    /// child processes, removes the directory and ends the process.
    pub fn create() -> anyhow::Result<Scratch> {
        let scratch = Scratch::create_without_signal_handler()?;
        let mut signals = SignalWaiter::listen().context("cannot listen for signals")?;
        let path = scratch.0.clone();
        threads::spawn("halite-scratch", move || {
            let signal = loop {
                if let Wake::Signal(signal) = signals.wait() {
                    break signal;
                }
            };
            // Child processes that are joining would create the directory again.
            child::kill_all();
            remove(&path);
            std::process::exit(128 + signal.as_raw());
        })?;
        Ok(scratch)
    }

    /// Creates a directory, for a command that handles signals itself.
    pub fn create_without_signal_handler() -> anyhow::Result<Scratch> {
        remove_stale();
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(io::Error::from)
            .context("cannot draw a random number")?;
        let name = format!("{PREFIX}{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
        let path = std::env::temp_dir().join(name);
        let failed = || format!("cannot create the directory {}", path.display());
        // Fails if the directory exists, since another user could have prepared it.
        DirBuilder::new().mode(0o700).create(&path).with_context(failed)?;
        Ok(Scratch(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a directory, even while a node of this process is joining there.
fn remove(path: &Path) {
    // A leftover among the temporary files must not fail a measurement.
    let _ = (0..REMOVE_ATTEMPTS_MAX).find(|_| match std::fs::remove_dir_all(path) {
        Err(error) => error.kind() != ErrorKind::DirectoryNotEmpty,
        Ok(()) => true,
    });
}

/// Removes the directories of this process before it exits.
pub fn remove_own() {
    for (entry, _) in directories().filter(|(_, pid)| *pid == getpid()) {
        remove(&entry.path());
    }
}

/// Returns the directories of all runs, each with the pid of its process.
fn directories() -> impl Iterator<Item = (DirEntry, Pid)> {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str().and_then(owner_pid)?;
        Some((entry, pid))
    })
}

/// Removes the directories of runs that were killed.
fn remove_stale() {
    for (entry, pid) in directories() {
        let is_dead = !exists(pid);
        // The pid may be from another pid namespace, but a held lock shows that the owner lives.
        let is_used =
            || cluster_dir::nodes(&entry.path()).is_ok_and(|nodes| nodes.iter().any(|node| node.alive));
        if is_dead && !is_used() {
            // Fails for other users' directories.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the pid in the name of a directory.
fn owner_pid(name: &str) -> Option<Pid> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
}

fn exists(pid: Pid) -> bool {
    test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
