//! Child processes: pinned to a core, limited in time, and killed when this program ends.
//!
//! A child must end when this program ends, even if this program is killed. The kernel kills a child on the death of
//! its parent only if the child has requested this. So each program is started through the subcommand `tethered`, which
//! makes the request and then executes the program.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

use super::cores::pin;

/// Time limit for a server's start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Cause of a failed program.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program could not be started or monitored.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Name of the program.
        program: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The program failed.
    #[error("{command} failed with {status}:\n{stderr}")]
    Failed {
        /// Name and arguments of the program.
        command: String,
        /// Exit status.
        status: ExitStatus,
        /// Content of standard error.
        stderr: String,
    },
    /// The program was killed because it did not end within the time limit.
    #[error("{command} did not end within {limit_s} s")]
    TooLong {
        /// Name and arguments of the program.
        command: String,
        /// The limit in seconds.
        limit_s: u64,
    },
    /// The server accepted no connection within the time limit.
    #[error("{command} accepted no connection within {limit_s} s of its start")]
    NotReady {
        /// Name and arguments of the program.
        command: String,
        /// The limit in seconds.
        limit_s: u64,
    },
    /// The parent died before the program was executed.
    #[error("the parent process has ended")]
    Orphaned,
}

/// Time limit for a program that prints its version.
const QUERY_LIMIT: Duration = Duration::from_secs(10);

/// Runs `program` with one argument, such as `--version`, and returns its output; `None` if the program fails.
pub fn query(program: &Path, argument: &str) -> Option<String> {
    Tethered::start(program, &[argument.to_owned()], None, &[]).ok()?.output(QUERY_LIMIT).ok()
}

/// A running program. Dropping this value kills the program.
pub struct Tethered {
    child: Child,
    command: String,
}

impl Tethered {
    /// Starts `program`, on `core` if given. [`Tethered::output`] returns its output.
    pub fn start(
        program: &Path,
        arguments: &[String],
        core: Option<usize>,
        environment: &[(&str, &str)],
    ) -> Result<Tethered, ChildError> {
        let name = program.display().to_string();
        let failed = |source| ChildError::Run { program: name.clone(), source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["tethered", "--parent", &std::process::id().to_string()]);
        command.args(core.iter().flat_map(|core| ["--core".to_owned(), core.to_string()]));
        command.arg("--").arg(program).args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(failed)?;
        Ok(Tethered { child, command: format!("{name} {}", arguments.join(" ")) })
    }

    /// Waits until the program ends, and returns its standard output. Kills the program and fails after `limit`.
    pub fn output(mut self, limit: Duration) -> Result<String, ChildError> {
        // Each pipe has a thread that reads it: a child that fills a pipe would block.
        let stdout = collect(self.child.stdout.take());
        let stderr = collect(self.child.stderr.take());
        let Some(status) = self.wait(limit)? else {
            return Err(ChildError::TooLong { command: self.command.clone(), limit_s: limit.as_secs() });
        };
        let stderr = stderr.join().unwrap_or_default();
        if !status.success() {
            return Err(ChildError::Failed { command: self.command.clone(), status, stderr });
        }
        Ok(stdout.join().unwrap_or_default())
    }

    /// Waits until `is_ready` returns true. Fails if the program ends first or exceeds the time limit.
    pub fn await_ready(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<(), ChildError> {
        let deadline = Instant::now() + START_LIMIT;
        while !is_ready() {
            if let Ok(Some(status)) = self.child.try_wait() {
                let stderr = collect(self.child.stderr.take()).join().unwrap_or_default();
                return Err(ChildError::Failed { command: self.command.clone(), status, stderr });
            }
            if Instant::now() > deadline {
                let limit_s = START_LIMIT.as_secs();
                return Err(ChildError::NotReady { command: self.command.clone(), limit_s });
            }
            thread::park_timeout(Duration::from_millis(2));
        }
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, ChildError> {
        let failed = |source| ChildError::Run { program: self.command.clone(), source };
        let pid = Pid::from_child(&self.child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        self.child.wait().map(Some).map_err(failed)
    }
}

impl Drop for Tethered {
    fn drop(&mut self) {
        // Both fail only if the program has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks the kernel to kill this process when `parent` dies, moves to `core`, and executes `program`. Returns only on
/// failure.
pub fn become_tethered(parent: u32, core: Option<usize>, program: &[OsString]) -> ChildError {
    let name = program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let failed = |source| ChildError::Run { program: name.clone(), source };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(error.into());
    }
    // The kernel sends the signal only for a later death, so check whether the parent is still alive.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() as u32 != parent) {
        return ChildError::Orphaned;
    }
    if let Err(source) = core.map_or(Ok(()), pin) {
        return failed(source);
    }
    failed(Command::new(&name).args(&program[1..]).exec())
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // If reading fails, the bytes read before are still useful.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
