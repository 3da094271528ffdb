//! Starting `halite node` processes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use halite::cluster_dir::{ClusterDir, ClusterDirError};
use halite::{EtcdAddress, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::metrics_at::MetricsAt;

/// How long a node may take until it is ready.  Joining has time limits of its own, all of them shorter.
pub const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// What a node that was started by us and cannot join says before the reason, on its standard output.
pub const FAILED: &str = "failed: ";

/// What stands between the line of a node that is ready and where its metrics are.
pub const METRICS_AT: &str = ", metrics at http://";

/// Most bytes that are read of the first line at once: what a pipe takes in one piece.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Most bytes of a reason that are shown; a path has up to 4096.
const REASON_BYTES_MAX: u64 = 16 << 10;

/// How long a node lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// Killed with the process that started it.
    OfParent,
    /// Until somebody stops it; what it says goes to a file in the cluster directory.
    Detached,
}

/// What the nodes of one cluster have in common.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The cluster directory.
    pub dir: ClusterDir,
    /// What each contributes.
    pub arena_bytes: u64,
    /// Their networks, as flags.
    pub networks: Vec<String>,
    /// Where etcd is, if that has the names.
    pub directory: Option<EtcdAddress>,
    /// Where the first serves metrics, and each next at the next port.
    pub metrics: MetricsAt,
    /// See [`Lifetime`].
    pub lifetime: Lifetime,
    /// Which events they tell of; `None` for the usual ones.
    pub log: Option<String>,
}

/// A node process that we started.
#[derive(Debug)]
pub struct NodeProcess {
    /// Its number.
    pub id: u32,
    /// Where it serves metrics, once it is ready.
    pub metrics: Option<String>,
    child: Child,
    stdout: ChildStdout,
    log: Option<File>,
}

/// Why a node is not running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There are not so many ports behind the one that is named for metrics.
    #[error(
        "cannot start node {id}: too few port numbers remain above that of --metrics; choose a lower port"
    )]
    NoPort {
        /// Which node.
        id: u32,
    },
    /// The process could not be made.
    #[error("cannot start node {id}")]
    Spawn {
        /// Which node.
        id: u32,
        /// What the operating system said.
        source: io::Error,
    },
    /// The process has nowhere to write to.
    #[error("cannot start node {id}")]
    Log {
        /// Which node.
        id: u32,
        /// What is wrong with its log file.
        source: ClusterDirError,
    },
    /// The process told why it cannot be that node.
    #[error("node {id} did not start: {reason}")]
    Failed {
        /// Which node.
        id: u32,
        /// What it said.
        reason: String,
    },
    /// The process ended before it was ready, and did not tell why.
    #[error("node {id} did not start ({status}){said}")]
    Ended {
        /// Which node.
        id: u32,
        /// How it ended.
        status: ExitStatus,
        /// What its log file says last, or nothing where it spoke to our own standard error.
        said: String,
    },
    /// It runs, but has not said that it is ready.
    #[error("node {id} is not ready after {} s", READY_TIMEOUT.as_secs())]
    NotReady {
        /// Which node.
        id: u32,
    },
}

impl NodeProcess {
    /// Starts node `id`; [`NodeProcess::await_ready`] tells what became of it.
    pub fn start(spec: &ClusterSpec, id: u32) -> Result<NodeProcess, StartError> {
        let failed = |source| StartError::Spawn { id, source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("--dir").arg(std::path::absolute(spec.dir.path()).map_err(failed)?).args([
            "node",
            "--id",
            &id.to_string(),
        ]);
        command.args(["--arena", &spec.arena_bytes.to_string()]).args(&spec.networks);
        // Not on the command line, which everybody sees: it may have a password.
        match &spec.directory {
            Some(directory) => command.env("HALITE_DIRECTORY", directory.to_string()),
            None => command.env_remove("HALITE_DIRECTORY"),
        };
        let metrics = spec.metrics.of_node(id).ok_or(StartError::NoPort { id })?;
        command.arg("--metrics").arg(metrics.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(log) = &spec.log {
            command.env("HALITE_LOG", log);
        }
        let mut log = None;
        match spec.lifetime {
            Lifetime::OfParent => {
                // A group of its own: ctrl-C reaches us, and we stop the nodes in the right order.
                command.args(["--parent", &std::process::id().to_string()]).process_group(0);
            }
            Lifetime::Detached => {
                let file =
                    spec.dir.create_log(NodeId(id)).map_err(|source| StartError::Log { id, source })?;
                command.arg("--detached").stderr(file.try_clone().map_err(failed)?);
                log = Some(file);
            }
        }
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("standard output is piped");
        Ok(NodeProcess { id, metrics: None, child, stdout, log })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the node has said that others can reach it.
    pub fn await_ready(&mut self) -> Result<(), StartError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a minute is a valid timeout");
            match poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(StartError::NotReady { id: self.id }),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(StartError::Spawn { id: self.id, source: error.into() }),
            }
        }
        // Either line is short enough for a pipe to take it in one piece.
        let mut first = vec![0; LINE_BYTES_MAX];
        match self.stdout.read(&mut first) {
            Ok(0) => Err(self.explain_end()),
            Ok(len) if first.starts_with(FAILED.as_bytes()) => Err(self.reason(&first[FAILED.len()..len])),
            Ok(len) => {
                let line = String::from_utf8_lossy(&first[..len]);
                let metrics = line.trim_end().split_once(METRICS_AT);
                self.metrics = metrics.map(|(_, at)| format!("http://{at}"));
                Ok(())
            }
            Err(source) => Err(StartError::Spawn { id: self.id, source }),
        }
    }

    /// The rest of what a node says that failed, after what it has said; it ends then.
    fn reason(&mut self, said: &[u8]) -> StartError {
        let mut reason = said.to_vec();
        match self.stdout.by_ref().take(REASON_BYTES_MAX).read_to_end(&mut reason) {
            Ok(_) => StartError::Failed {
                id: self.id,
                reason: String::from_utf8_lossy(&reason).trim_end().to_owned(),
            },
            Err(source) => StartError::Spawn { id: self.id, source },
        }
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        // The only failure is a child that somebody else has waited for, which nobody does.
        self.child.try_wait().ok().flatten()
    }

    /// Collects the exit status of a process that is known to have ended.
    pub fn reap(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    fn explain_end(&mut self) -> StartError {
        let id = self.id;
        match self.child.wait() {
            Ok(status) => StartError::Ended { id, status, said: self.last_words() },
            Err(source) => StartError::Spawn { id, source },
        }
    }

    fn last_words(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let mut said = vec![0; REASON_BYTES_MAX as usize];
        match log.read_at(&mut said, 0) {
            Ok(len) if len > 0 => format!(": {}", String::from_utf8_lossy(&said[..len]).trim_end()),
            _ => String::new(),
        }
    }
}
