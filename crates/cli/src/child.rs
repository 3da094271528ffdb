//! A child process of this program. It executes commands that arrive as lines of JSON, and is killed if this process
//! ends.

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

use crate::client;
use crate::control::{self, GRACE, Target};
use crate::output;
use crate::threads::Refused;
use crate::transport;

/// The running child processes of this process, by pid.
static RUNNING: Mutex<BTreeMap<u32, Target>> = Mutex::new(BTreeMap::new());

fn running() -> MutexGuard<'static, BTreeMap<u32, Target>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all child processes. Only for a thread that then ends this process: the list of child processes stays locked,
/// so that no other thread can start or drop one.
pub fn kill_all() {
    let mut running = running();
    // A child that survives this ends with the process anyway.
    let _ = control::stop(std::mem::take(&mut *running).into_values().collect(), Duration::ZERO);
    std::mem::forget(running);
}

/// A child process with pipes. Dropping it kills the process.
pub struct ChildProcess {
    name: String,
    child: Child,
    /// Standard input of the process; dropped to end it.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts a command of this program on the cluster in `dir`. Passes `--parent`, so that the command ends with this
    /// process. `name` is the name of the process in errors.
    pub fn start(
        name: impl Into<String>,
        dir: &Path,
        command: &str,
        flags: &[String],
    ) -> anyhow::Result<ChildProcess> {
        let name = name.into();
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut started = Command::new(program);
        started
            .arg("--dir")
            .arg(dir)
            .arg(command)
            .args(["--parent", &std::process::id().to_string()])
            .args(transport::flags())
            .args(client::priority_flags())
            .args(flags);
        // Ctrl-C reaches only this process, since the child has its own process group.
        started.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut running = running();
        let mut child = started.spawn().map_err(|source| Refused::new(name.clone(), source))?;
        running.extend(Target::of_child(0, child.id())?.map(|target| (child.id(), target)));
        drop(running);
        let stdin = child.stdin.take().expect("standard input is piped");
        let stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Ok(ChildProcess { name, child, stdin: Some(stdin), stdout })
    }

    /// Changes the name of the process in errors.
    pub fn rename(&mut self, name: String) {
        self.name = name;
    }

    /// Sends a line.
    pub fn send(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        // A process that still runs reads its input, so a failure means that it has ended.
        writeln!(stdin, "{}", output::json_line(line)).map_err(|_| self.exit_error())
    }

    /// Waits for the next line.
    pub fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).with_context(|| format!("cannot read from {}", self.name))?;
        if line.is_empty() {
            return Err(self.exit_error());
        }
        serde_json::from_str(&line).with_context(|| format!("invalid answer from {}: {line:?}", self.name))
    }

    /// Returns the process's standard output for polling; `None` if output is already buffered.
    pub fn unbuffered_output(&self) -> Option<BorrowedFd<'_>> {
        self.stdout.buffer().is_empty().then(|| self.stdout.get_ref().as_fd())
    }

    /// Returns the process's standard output, which reports a hangup when the process has ended.
    pub fn output(&self) -> BorrowedFd<'_> {
        self.stdout.get_ref().as_fd()
    }

    /// Returns true if the process has ended, or closed its standard output.
    pub fn has_ended(&self) -> bool {
        self.poll_output(PollFlags::empty()).contains(PollFlags::HUP)
    }

    /// Returns true if a line is ready.
    pub fn has_output(&self) -> bool {
        !self.stdout.buffer().is_empty() || self.poll_output(PollFlags::IN).contains(PollFlags::IN)
    }

    fn poll_output(&self, wanted: PollFlags) -> PollFlags {
        let mut fds = [PollFd::new(self.stdout.get_ref(), wanted)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&at_once)) {
            Ok(_) => fds[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Waits for the end of the process. Returns an error that describes its exit status.
    pub fn exit_error(&mut self) -> anyhow::Error {
        match self.child.wait() {
            Ok(status) => anyhow!("{} has ended: {status}", self.name),
            Err(error) => {
                anyhow::Error::from(error).context(format!("cannot get the exit status of {}", self.name))
            }
        }
    }

    /// Stops the process by a signal, and waits for its end. Kills the process if it does not end in time.
    pub fn stop(mut self) -> anyhow::Result<()> {
        control::stop(Target::of_child(0, self.child.id())?.into_iter().collect(), GRACE)?;
        self.child.wait().with_context(|| format!("cannot get the exit status of {}", self.name))?;
        Ok(())
    }

    /// Closes the standard input of the process, which ends it, and waits for the end. Returns the output that the
    /// process printed meanwhile. Has no timeout: workers end within their own time limit.
    pub fn close_and_wait(mut self) -> anyhow::Result<String> {
        self.stdin = None;
        let mut output = String::new();
        // Returns when the process closes its standard output, at its end.
        self.stdout.read_to_string(&mut output).with_context(|| format!("cannot read from {}", self.name))?;
        let status =
            self.child.wait().with_context(|| format!("cannot get the exit status of {}", self.name))?;
        if !status.success() {
            bail!("{} has ended: {status}", self.name);
        }
        Ok(output)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        running().remove(&self.child.id());
        // Both calls fail only if the process has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
