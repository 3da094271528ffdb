//! Starts `halite node` processes.

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
use crate::threads::Refused;
use crate::transport;

/// Maximum time for a node to become ready; longer than all time limits of joining.
pub const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Prefix of the reason that a node prints if it cannot join a cluster and `halite up` started it.
pub const FAILED: &str = "failed: ";

/// Separator of the ready line and the metrics address.
pub const METRICS_AT: &str = ", metrics at http://";

/// Maximum length in bytes of the first line that a node prints. A pipe delivers this many bytes in one piece.
const LINE_BYTES_MAX: usize = 4 << 10;

/// Maximum number of bytes of a reason that are shown; a path alone has up to 4096.
const REASON_BYTES_MAX: u64 = 16 << 10;

/// Lifetime of a node process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// The node is killed with the process that started it.
    OfParent,
    /// The node runs until `halite down`, and logs to a file in the cluster directory.
    Detached,
}

/// Settings that the nodes of a cluster share.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The cluster directory.
    pub dir: ClusterDir,
    /// Memory of each node, in bytes.
    pub arena_bytes: u64,
    /// Flags that set the networks of the nodes.
    pub networks: Vec<String>,
    /// The etcd that holds the names, if any.
    pub directory: Option<EtcdAddress>,
    /// Flags for attached sessions.
    pub sessions: Vec<String>,
    /// Metrics address of node 0; each next node uses the next port.
    pub metrics: MetricsAt,
    /// Lifetime of the nodes.
    pub lifetime: Lifetime,
    /// Log filter of the nodes; `None` for the default.
    pub log: Option<String>,
}

/// A node process that this process started.
#[derive(Debug)]
pub struct NodeProcess {
    pub id: u32,
    /// Metrics address of the node, once the node is ready.
    pub metrics: Option<String>,
    child: Child,
    stdout: ChildStdout,
    log: Option<File>,
}

/// The reason why a node is not running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Too few port numbers remain for metrics.
    #[error(
        "cannot start node {id}: too few port numbers remain above that of --metrics; choose a lower port"
    )]
    NoPort {
        /// Number of the node.
        id: u32,
    },
    /// The process could not be created.
    #[error("cannot start node {id}")]
    Spawn {
        /// Number of the node.
        id: u32,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The log file could not be created.
    #[error("cannot start node {id}")]
    Log {
        /// Number of the node.
        id: u32,
        /// Error of the log file.
        source: ClusterDirError,
    },
    /// The node could not start, and its process reported the reason.
    #[error("node {id} did not start: {reason}")]
    Failed {
        /// Number of the node.
        id: u32,
        /// The reported reason.
        reason: String,
    },
    /// The process ended before it was ready, without reporting a reason.
    #[error("node {id} did not start ({status}){log}")]
    Ended {
        /// Number of the node.
        id: u32,
        /// Exit status of the process.
        status: ExitStatus,
        /// Text of the node's log file; empty if the node has no log file.
        log: String,
    },
    /// The process runs, but was not ready in time.
    #[error("node {id} is not ready after {} s", READY_TIMEOUT.as_secs())]
    NotReady {
        /// Number of the node.
        id: u32,
    },
}

impl NodeProcess {
    /// Starts node `id`; [`NodeProcess::await_ready`] returns the outcome.
    pub fn start(spec: &ClusterSpec, id: u32) -> Result<NodeProcess, StartError> {
        let failed = |source| StartError::Spawn { id, source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("--dir").arg(std::path::absolute(spec.dir.path()).map_err(failed)?).args([
            "node",
            "--id",
            &id.to_string(),
        ]);
        command
            .args(["--arena", &spec.arena_bytes.to_string()])
            .args(&spec.sessions)
            .args(&spec.networks)
            .args(transport::flags());
        // The address may hold a password, and command lines are public: pass it in the environment.
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
                // Ctrl-C reaches the node's group only through this process, which stops the nodes in order.
                command.args(["--parent", &std::process::id().to_string()]).process_group(0);
            }
            Lifetime::Detached => {
                let file =
                    spec.dir.create_log(NodeId(id)).map_err(|source| StartError::Log { id, source })?;
                command.arg("--detached").stderr(file.try_clone().map_err(failed)?);
                log = Some(file);
            }
        }
        let started = command.spawn().map_err(|source| Refused::new("its process", source).into());
        let mut child = started.map_err(failed)?;
        let stdout = child.stdout.take().expect("standard output is piped");
        Ok(NodeProcess { id, metrics: None, child, stdout, log })
    }

    /// Returns the pid of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until other nodes can connect.
    pub fn await_ready(&mut self) -> Result<(), StartError> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(remaining).expect("a minute is a valid timeout");
            match poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Err(StartError::NotReady { id: self.id }),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(StartError::Spawn { id: self.id, source: error.into() }),
            }
        }
        // Both possible lines are short enough to arrive in one piece.
        let mut first = vec![0; LINE_BYTES_MAX];
        match self.stdout.read(&mut first) {
            Ok(0) => Err(self.exit_error()),
            Ok(len) if first.starts_with(FAILED.as_bytes()) => {
                Err(self.read_reason(&first[FAILED.len()..len]))
            }
            Ok(len) => {
                let line = String::from_utf8_lossy(&first[..len]);
                let metrics = line.trim_end().split_once(METRICS_AT);
                self.metrics = metrics.map(|(_, at)| format!("http://{at}"));
                Ok(())
            }
            Err(source) => Err(StartError::Spawn { id: self.id, source }),
        }
    }

    /// Reads the rest of the reason, which begins with `first`. The node ends after it.
    fn read_reason(&mut self, first: &[u8]) -> StartError {
        let mut reason = first.to_vec();
        match self.stdout.by_ref().take(REASON_BYTES_MAX).read_to_end(&mut reason) {
            Ok(_) => StartError::Failed {
                id: self.id,
                reason: String::from_utf8_lossy(&reason).trim_end().to_owned(),
            },
            Err(source) => StartError::Spawn { id: self.id, source },
        }
    }

    /// Returns the exit status of the process if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        // Fails only for a child that was waited for, and only this type waits for it.
        self.child.try_wait().ok().flatten()
    }

    /// Waits for a process that has ended.
    pub fn reap(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    fn exit_error(&mut self) -> StartError {
        let id = self.id;
        match self.child.wait() {
            Ok(status) => StartError::Ended { id, status, log: self.read_log() },
            Err(source) => StartError::Spawn { id, source },
        }
    }

    fn read_log(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        let mut text = vec![0; REASON_BYTES_MAX as usize];
        match log.read_at(&mut text, 0) {
            Ok(len) if len > 0 => format!(": {}", String::from_utf8_lossy(&text[..len]).trim_end()),
            _ => String::new(),
        }
    }
}
