//! A process of this program that does as it is told by lines of JSON, and ends with this one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{self, GRACE, Target};
use crate::output;

/// Those of this process that run, by their pids.
static RUNNING: Mutex<BTreeMap<u32, Target>> = Mutex::new(BTreeMap::new());

fn running() -> MutexGuard<'static, BTreeMap<u32, Target>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all coworkers, for a thread that ends this process.  It keeps the lock: who starts or drops one from here on waits for the end.
pub fn kill_all() {
    let mut running = running();
    // What cannot be killed ends with us.
    let _ = control::stop(std::mem::take(&mut *running).into_values().collect(), Duration::ZERO);
    std::mem::forget(running);
}

/// Such a process.  Dropping it ends it.
pub struct Coworker {
    what: String,
    child: Child,
    /// Until it is to end.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Coworker {
    /// Starts a command of this program on the cluster in `dir`.  The command ends with the process that `--parent` names,
    /// which is this one.  Errors speak of `what` it is.
    pub fn start(
        what: impl Into<String>,
        dir: &Path,
        command: &str,
        flags: &[String],
    ) -> anyhow::Result<Coworker> {
        let what = what.into();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut started = Command::new(program);
        started
            .arg("--dir")
            .arg(dir)
            .arg(command)
            .args(["--parent", &std::process::id().to_string()])
            .args(flags);
        // A group of its own: ctrl-C is for us.
        started.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut running = running();
        let mut child = started.spawn().with_context(|| format!("cannot start {what}"))?;
        running.extend(Target::of_child(0, child.id())?.map(|target| (child.id(), target)));
        drop(running);
        let stdin = child.stdin.take().expect("standard input is piped");
        let stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Ok(Coworker { what, child, stdin: Some(stdin), stdout })
    }

    /// Errors speak of this from here on.
    pub fn call(&mut self, what: String) {
        self.what = what;
    }

    /// Tells it something.
    pub fn send(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        // It reads until it ends.
        writeln!(stdin, "{}", output::json_line(line)).map_err(|_| self.how_ended())
    }

    /// Waits for the next thing that it says.
    pub fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).with_context(|| format!("cannot read from {}", self.what))?;
        if line.is_empty() {
            return Err(self.how_ended());
        }
        serde_json::from_str(&line).with_context(|| format!("invalid answer from {}: {line:?}", self.what))
    }

    /// Its standard output, if nothing of that has been read and not heard.
    pub fn unheard(&self) -> Option<BorrowedFd<'_>> {
        self.stdout.buffer().is_empty().then(|| self.stdout.get_ref().as_fd())
    }

    /// Its standard output, of which the kernel says when it has ended.
    pub fn output(&self) -> BorrowedFd<'_> {
        self.stdout.get_ref().as_fd()
    }

    /// Whether it has ended by itself, or is about to: it says nothing more.
    pub fn has_ended(&self) -> bool {
        self.look(PollFlags::empty()).contains(PollFlags::HUP)
    }

    /// Whether it has said something that was not heard.
    pub fn has_said(&self) -> bool {
        !self.stdout.buffer().is_empty() || self.look(PollFlags::IN).contains(PollFlags::IN)
    }

    /// What is the case of its standard output.
    fn look(&self, wanted: PollFlags) -> PollFlags {
        let mut fds = [PollFd::new(self.stdout.get_ref(), wanted)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&at_once)) {
            Ok(_) => fds[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// How it has ended, once it has.
    pub fn how_ended(&mut self) -> anyhow::Error {
        match self.child.wait() {
            Ok(status) => anyhow!("{} has ended: {status}", self.what),
            Err(error) => {
                anyhow::Error::from(error).context(format!("cannot get the exit status of {}", self.what))
            }
        }
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) -> anyhow::Result<()> {
        control::stop(Target::of_child(0, self.child.id())?.into_iter().collect(), GRACE)?;
        self.child.wait().with_context(|| format!("cannot get the exit status of {}", self.what))?;
        Ok(())
    }

    /// Closes its standard input, upon which it ends by itself, and waits until it has; what it has said meanwhile.  Workers do not take
    /// longer than their own grace.
    pub fn end(mut self) -> anyhow::Result<String> {
        self.stdin = None;
        let mut said = String::new();
        // It closes its standard output by ending.
        self.stdout.read_to_string(&mut said).with_context(|| format!("cannot read from {}", self.what))?;
        let status =
            self.child.wait().with_context(|| format!("cannot get the exit status of {}", self.what))?;
        if !status.success() {
            bail!("{} has ended: {status}", self.what);
        }
        Ok(said)
    }
}

impl Drop for Coworker {
    fn drop(&mut self) {
        running().remove(&self.child.id());
        // Both fail only if it has ended and been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
