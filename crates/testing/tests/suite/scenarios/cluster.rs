//! Clusters of processes: a cluster directory, and processes that a test starts, controls, stops and kills.
//!
//! A process never outlives its test: it is killed on drop, and by the kernel when the test's thread dies.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use halite::blocking::Session;
use halite::{Config, Fence, Node, NodeId, NodeState, NodeStatus, Permissions, Provider};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Time limit after which a hang becomes a failure. Tests take much less time.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Permissions of all principals on the tests' regions.
pub const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);
/// Prefix of a process's answers. It distinguishes them from the output of the test harness.
pub const ANSWER: &str = "> ";
/// Prefix of the events that a process reports by itself.
pub const EVENT: &str = "! ";
/// Environment variable with the pid of the process's parent.
pub const PARENT: &str = "HALITE_SCENARIO_PARENT";

/// A cluster directory. Dropping this value removes it.
pub struct Cluster {
    dir: PathBuf,
    /// Configuration of all nodes.
    pub config: Config,
}

impl Cluster {
    pub fn new() -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("halite-scenario-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        let config = Config {
            dir: dir.clone(),
            arena_bytes: 64 << 20,
            segment_bytes: 64 << 20,
            chunk_bytes: 64 << 10,
            ..Config::default()
        };
        Cluster { dir, config }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a node in the test's own process.
    pub fn join(&self, node: u32) -> Node {
        let config = Config { node: Some(NodeId(node)), ..self.config.clone() };
        Node::embedded(config).expect("the node joins")
    }

    /// Starts a process that joins the cluster as node `node`.
    pub fn start(&self, node: u32) -> Process {
        let mut process = Process::start(&format!("node {node}"));
        process.run(&self.join_line(&node.to_string()));
        process
    }

    /// Returns the command that makes a process join; `node` is a number, or `any`.
    pub fn join_line(&self, node: &str) -> String {
        let Config { arena_bytes, segment_bytes, chunk_bytes, .. } = self.config;
        let lease_ms = self.config.lease.as_millis();
        let fence = if self.config.fence == Fence::Never { "never" } else { "kill" };
        let provider = self.config.providers.first().unwrap_or(&Provider::Shm);
        let dir = self.dir.display();
        format!("join {node} {arena_bytes} {segment_bytes} {chunk_bytes} {lease_ms} {fence} {provider} {dir}")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A process that executes commands, which [`super::role`] defines.
pub struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    events: Receiver<String>,
}

impl Process {
    /// Starts a process that has not joined yet.
    pub fn start(name: &str) -> Process {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            // With a single thread, the test harness would write the test's name into the line of the first answer.
            .args(["--exact", "scenarios::node_process", "--ignored", "--nocapture", "--test-threads=2"])
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let ((to_answers, answers), (to_events, events)) = (channel(), channel());
        std::thread::spawn(move || forward_output(output, &to_answers, &to_events));
        Process { name: name.to_owned(), child, input, answers, events }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command without waiting for the answer.
    pub fn send(&mut self, line: &str) {
        let sent = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        sent.unwrap_or_else(|error| panic!("{} does not read {line:?}: {error}", self.name));
    }

    /// Waits for the next answer.
    pub fn answer(&mut self) -> String {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.unwrap_or_else(|error| panic!("{} does not answer: {error}", self.name))
    }

    /// Sends a command and returns the answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }

    /// Sends a command that must succeed.
    #[track_caller]
    pub fn run(&mut self, line: &str) {
        let answer = self.ask(line);
        assert_eq!(answer, "ok", "{}: {line}", self.name);
    }

    /// Stops the writer of the process (`halt`), and returns the number of its completed writes. Panics if a write
    /// failed.
    #[track_caller]
    pub fn halt(&mut self) -> u64 {
        let answer = self.ask("halt");
        let count = answer.strip_prefix("done ").and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("a write of {} failed: {answer}", self.name))
    }

    /// Waits for the next event.
    pub fn event(&mut self) -> String {
        let event = self.events.recv_timeout(PATIENCE);
        event.unwrap_or_else(|error| panic!("{} reports no event: {error}", self.name))
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&mut self) {
        self.begin_kill();
        self.child.wait().expect("the process can be waited for");
    }

    /// Kills the process without waiting.
    pub fn begin_kill(&mut self) {
        self.child.kill().expect("the process was not waited for");
    }

    /// Stops the process (SIGSTOP). None of its threads runs when this returns.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED)
            .expect("the process can be waited for")
            .expect("the wait blocks until the process stops");
        assert!(status.stopped(), "{} ended before it was stopped: {status:?}", self.name);
    }

    /// Resumes the process.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process was not waited for");
    }

    /// Returns the exit status, if the process has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the process can be waited for")
    }

    /// Makes the node of the process leave, and waits until the process has ended.
    pub fn leave(mut self) {
        self.send("quit");
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.exit_status() {
                break status;
            }
            assert!(Instant::now() < deadline, "{} does not leave", self.name);
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(status.success(), "{} ended with {status}", self.name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward_output(output: ChildStdout, answers: &Sender<String>, events: &Sender<String>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // The receiver may have been dropped; then the process ends soon.
        if let Some(answer) = line.strip_prefix(ANSWER) {
            let _ = answers.send(answer.to_owned());
        } else if let Some(text) = line.strip_prefix(EVENT) {
            let _ = events.send(text.to_owned());
        }
    }
}

/// Returns true if the process was killed by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Queries the status of the cluster until `found` returns a value, and returns that value.
#[track_caller]
pub fn await_status<T>(session: &Session, mut found: impl FnMut(&[NodeStatus]) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let nodes = session.status().expect("the directory answers");
        if let Some(found) = found(&nodes) {
            return found;
        }
        assert!(Instant::now() < deadline, "the expected status was not reached: {nodes:#?}");
    }
}

/// Waits until a node is in this state.
#[track_caller]
pub fn await_state(session: &Session, node: u32, state: NodeState) {
    await_status(session, |nodes| {
        nodes.iter().any(|status| status.node == NodeId(node) && status.state == state).then_some(())
    });
}

/// Returns the status of one node.
#[track_caller]
pub fn status_of(session: &Session, node: u32) -> NodeStatus {
    let nodes = session.status().expect("the directory answers");
    let found = nodes.into_iter().find(|status| status.node == NodeId(node));
    found.unwrap_or_else(|| panic!("node {node} is not in the status"))
}
