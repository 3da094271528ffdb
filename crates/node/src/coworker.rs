//! A process of this program that does as it is told by lines of JSON, and ends with this one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{self, GRACE, Target};
use crate::output;

/// Such a process.  Dropping it ends it.
pub struct Coworker {
    what: &'static str,
    child: Child,
    /// Until it is to end.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Coworker {
    /// Starts a command of this program on the cluster in `dir`.  The command ends with the process that `--parent` names,
    /// which is this one.  Errors speak of `what` it is.
    pub fn start(
        what: &'static str,
        dir: &Path,
        command: &str,
        flags: &[String],
    ) -> anyhow::Result<Coworker> {
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
        let mut child = started.spawn().with_context(|| format!("cannot start {what}"))?;
        let stdin = child.stdin.take().expect("standard input is piped");
        let stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Ok(Coworker { what, child, stdin: Some(stdin), stdout })
    }

    /// Tells it something.
    pub fn send(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        writeln!(stdin, "{}", output::json_line(line)).with_context(|| format!("{} has ended", self.what))
    }

    /// Waits for the next thing that it says.
    pub fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let what = self.what;
        let mut line = String::new();
        self.stdout.read_line(&mut line).with_context(|| format!("cannot hear {what}"))?;
        if line.is_empty() {
            bail!("{what} has ended");
        }
        serde_json::from_str(&line).with_context(|| format!("{what} says {line:?}"))
    }

    /// Its standard output, if nothing of that has been read and not heard.
    pub fn unheard(&self) -> Option<BorrowedFd<'_>> {
        self.stdout.buffer().is_empty().then(|| self.stdout.get_ref().as_fd())
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) -> anyhow::Result<()> {
        control::stop(Target::of_child(0, self.child.id())?.into_iter().collect(), GRACE)?;
        self.child.wait().with_context(|| format!("cannot see how {} ended", self.what))?;
        Ok(())
    }

    /// Closes its standard input, upon which it ends by itself, and waits until it has.  Workers do not take longer than their own grace.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.stdin = None;
        // It closes its standard output by ending.
        self.stdout.read_to_end(&mut Vec::new()).with_context(|| format!("cannot hear {}", self.what))?;
        let status = self.child.wait().with_context(|| format!("cannot see how {} ended", self.what))?;
        if !status.success() {
            bail!("{} ended with {status}", self.what);
        }
        Ok(())
    }
}

impl Drop for Coworker {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
