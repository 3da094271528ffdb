//! Clusters of processes: a directory, and the processes that a story starts, talks to, stops and kills.
//!
//! They never outlive their story: they are killed on drop, and by the kernel when the story's thread dies.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use halite::blocking::Session;
use halite::{Config, Fence, Node, NodeId, NodeState, NodeStatus, Permissions};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Turns a hang into a failure; no story is meant to come anywhere near.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What everybody may do to the stories' regions.
pub const ANYBODY: Permissions = Permissions::READ.union(Permissions::WRITE);
/// Precedes what a process answers, to tell it from what the test harness prints.
pub const ANSWER: &str = "> ";
/// Precedes what a process says unasked.
pub const NEWS: &str = "! ";
/// The variable that tells a process whose child it is.
pub const PARENT: &str = "HALITE_SCENARIO_PARENT";

/// A cluster directory that goes away with the story.
pub struct Cluster {
    dir: PathBuf,
    /// What the nodes have in common.
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

    /// A node in the story's own process.
    pub fn join(&self, node: u32) -> Node {
        let config = Config { node: Some(NodeId(node)), ..self.config.clone() };
        Node::embedded(config).expect("the node joins")
    }

    /// A process that is a node.
    pub fn start(&self, node: u32) -> Process {
        let mut process = Process::start(&format!("node {node}"));
        process.order(&self.join_line(&node.to_string()));
        process
    }

    /// What makes a process join; `node` is a number, or `any`.
    pub fn join_line(&self, node: &str) -> String {
        let Config { arena_bytes, segment_bytes, chunk_bytes, .. } = self.config;
        let lease_ms = self.config.lease.as_millis();
        let fence = if self.config.fence == Fence::Never { "never" } else { "kill" };
        let dir = self.dir.display();
        format!("join {node} {arena_bytes} {segment_bytes} {chunk_bytes} {lease_ms} {fence} {dir}")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A process that does what it is told; see [`super::role`] for what it understands.
pub struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    news: Receiver<String>,
}

impl Process {
    /// Starts one that has not joined yet.
    pub fn start(name: &str) -> Process {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            // With one thread, the harness would write the test's name into the line of the first answer.
            .args(["--exact", "scenarios::node_process", "--ignored", "--nocapture", "--test-threads=2"])
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let ((to_answers, answers), (to_news, news)) = (channel(), channel());
        std::thread::spawn(move || listen(output, &to_answers, &to_news));
        Process { name: name.to_owned(), child, input, answers, news }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says something without waiting for the answer.
    pub fn say(&mut self, line: &str) {
        let said = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        said.unwrap_or_else(|error| panic!("{} does not listen to {line:?}: {error}", self.name));
    }

    /// The next answer.
    pub fn hear(&mut self) -> String {
        let answer = self.answers.recv_timeout(PATIENCE);
        answer.unwrap_or_else(|error| panic!("{} does not answer: {error}", self.name))
    }

    /// Says something and waits for the answer.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// Says something that must be done well.
    #[track_caller]
    pub fn order(&mut self, line: &str) {
        let answer = self.ask(line);
        assert_eq!(answer, "ok", "{}: {line}", self.name);
    }

    /// What it says next without being asked.
    pub fn news(&mut self) -> String {
        let news = self.news.recv_timeout(PATIENCE);
        news.unwrap_or_else(|error| panic!("{} says nothing: {error}", self.name))
    }

    /// Kills it and waits until nothing is left of it.
    pub fn kill(&mut self) {
        self.begin_kill();
        self.child.wait().expect("it can be waited for");
    }

    /// Kills it without waiting.
    pub fn begin_kill(&mut self) {
        self.child.kill().expect("it was not waited for");
    }

    /// Stops it (SIGSTOP); when this returns, none of its threads runs.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED)
            .expect("it can be waited for")
            .expect("waiting blocks");
        assert!(status.stopped(), "{} ended instead of being stopped: {status:?}", self.name);
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it was not waited for");
    }

    /// How it ended, if it has.
    pub fn ending(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it can be waited for")
    }

    /// Lets it leave in peace, and waits for that.
    pub fn leave(mut self) {
        self.say("quit");
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.ending() {
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
        // Both fail only if it has ended and been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(output: ChildStdout, answers: &Sender<String>, news: &Sender<String>) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // Nobody may want to hear any more; then the process ends soon.
        if let Some(answer) = line.strip_prefix(ANSWER) {
            let _ = answers.send(answer.to_owned());
        } else if let Some(text) = line.strip_prefix(NEWS) {
            let _ = news.send(text.to_owned());
        }
    }
}

/// Whether it was killed by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Asks for the status of the cluster until `found` finds what it looks for.
#[track_caller]
pub fn await_status<T>(session: &Session, mut found: impl FnMut(&[NodeStatus]) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let nodes = session.status().expect("the status can be had");
        if let Some(found) = found(&nodes) {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came to this: {nodes:#?}");
    }
}

/// Waits until a node is in that state.
#[track_caller]
pub fn await_state(session: &Session, node: u32, state: NodeState) {
    await_status(session, |nodes| {
        nodes.iter().any(|status| status.node == NodeId(node) && status.state == state).then_some(())
    });
}

/// What `status` says of one node.
#[track_caller]
pub fn status_of(session: &Session, node: u32) -> NodeStatus {
    let nodes = session.status().expect("the status can be had");
    let found = nodes.into_iter().find(|status| status.node == NodeId(node));
    found.unwrap_or_else(|| panic!("node {node} is not in the status"))
}
