//! Shared by the tests of both fabrics: a cluster directory, a fabric that the test polls, and processes with a role.
#![allow(dead_code, missing_docs)]

pub mod pair;
pub mod pcap;
pub mod roce;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use halite_fabric::{
    Completion, CompletionKind, ConnectFailure, Event, Fabric, Key, Lane, Local, Operation, PeerId,
    PostError, RemoteAddress, Sleeper, Status, WorkId, WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::private_dir::PrivateDir;
use halite_providers::{ShmConfig, ShmFabric, listeners};

/// Time limit that turns a hang into a failure; no test should come near it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster directory. Dropping it removes the directory.
pub struct Cluster(pub PathBuf);

impl Cluster {
    pub fn new() -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("halite-shm-{}-{number}", std::process::id());
        Cluster(std::env::temp_dir().join(name))
    }

    pub fn config(&self, name: &str) -> ShmConfig {
        ShmConfig::new(&self.0, name)
    }

    pub fn open(&self, name: &str) -> Node {
        Node::open(self.config(name))
    }

    /// Returns the names of the fabrics that accept connections.
    pub fn listeners(&self) -> Vec<String> {
        listeners(&PrivateDir::open(&self.0).unwrap()).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A fabric, and its events that a test has not taken yet.
pub struct Node {
    pub fabric: Arc<dyn Fabric>,
    completions: VecDeque<Completion>,
    events: VecDeque<Event>,
}

impl Node {
    pub fn open(config: ShmConfig) -> Node {
        Node::of(ShmFabric::open(config).unwrap())
    }

    pub fn of(fabric: Arc<dyn Fabric>) -> Node {
        Node { fabric, completions: VecDeque::new(), events: VecDeque::new() }
    }

    /// Sleeps on the doorbell until `find` returns a value.
    fn wait_for<T>(&mut self, mut find: impl FnMut(&mut Node) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.fabric.arm(Some(Sleeper::Progress));
            let seen = self.fabric.doorbell();
            if let Some(found) = find(self) {
                self.fabric.arm(None);
                return found;
            }
            assert!(Instant::now() < deadline, "timed out: a wake-up or an event is missing");
            let timeout = self.fabric.poll_timeout().unwrap_or(TIMEOUT).min(TIMEOUT);
            self.fabric.wait(Sleeper::Progress, seen, Some(timeout));
        }
    }

    /// Sleeps until the doorbell rings, or the fabric's next timer expires.
    pub fn sleep(&mut self) {
        self.fabric.arm(Some(Sleeper::Progress));
        let seen = self.fabric.doorbell();
        let before = (self.completions.len(), self.events.len());
        self.poll();
        if before == (self.completions.len(), self.events.len()) {
            let timeout = self.fabric.poll_timeout().unwrap_or(TIMEOUT).min(TIMEOUT);
            let begin = Instant::now();
            self.fabric.wait(Sleeper::Progress, seen, Some(timeout));
            assert!(begin.elapsed() < TIMEOUT, "timed out: a wake-up or an event is missing");
        }
        self.fabric.arm(None);
    }

    pub fn event(&mut self) -> Event {
        self.wait_for(|node| node.try_event())
    }

    pub fn completion(&mut self) -> Completion {
        self.wait_for(|node| node.try_completion())
    }

    pub fn try_completion(&mut self) -> Option<Completion> {
        if self.completions.is_empty() {
            self.poll();
        }
        self.completions.pop_front()
    }

    /// Returns the next event that is not a completion.
    pub fn try_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.poll();
        }
        self.events.pop_front()
    }

    fn poll(&mut self) {
        let mut polled = Vec::new();
        self.fabric.poll(&mut polled);
        for event in polled {
            match event.into_completion() {
                Ok(completion) => self.completions.push_back(completion),
                Err(event) => self.events.push_back(event),
            }
        }
    }

    /// Connects to `address`, and returns the reason why the connection fails.
    pub fn failure(&mut self, address: &str, hello: &[u8]) -> ConnectFailure {
        self.fabric.connect(address, hello);
        match self.event() {
            Event::ConnectFailed(failure) => failure,
            event => panic!("expected no connection, got {event:?}"),
        }
    }

    /// Expects a connection, and returns the peer.
    pub fn connected(&mut self) -> PeerId {
        match self.event() {
            Event::Connected { peer, .. } => peer,
            event => panic!("expected a connection, got {event:?}"),
        }
    }

    pub fn register(&self, len: u64) -> (Key, Window) {
        let segment = Segment::create("test", len, PagePolicy::Normal).unwrap();
        let window = segment.window(0, len).unwrap();
        (self.fabric.register(segment).unwrap(), window)
    }

    pub fn post(&self, peer: PeerId, operation: Operation<'_>) -> Result<(), PostError> {
        let request = WorkRequest { id: WorkId(7), operation, signalled: true, solicited: true };
        self.fabric.post(peer, Lane::FIRST, &[request])
    }

    /// Posts one request, and returns its status and kind.
    pub fn run(&mut self, peer: PeerId, operation: Operation<'_>) -> (Status, CompletionKind) {
        self.post(peer, operation).unwrap();
        let completion = self.completion();
        assert_eq!(completion.peer, peer);
        (completion.status, completion.kind)
    }

    pub fn send(&self, peer: PeerId, bytes: &[u8], imm: u32) -> Result<(), PostError> {
        let request = WorkRequest {
            id: WorkId(7),
            operation: Operation::Send { bytes, imm },
            signalled: false,
            solicited: true,
        };
        self.fabric.post(peer, Lane::FIRST, &[request])
    }

    pub fn received(&mut self) -> (Vec<u8>, u32) {
        match self.completion().kind {
            CompletionKind::Received { bytes, imm } => (bytes, imm),
            kind => panic!("expected a message, got {kind:?}"),
        }
    }
}

/// Waits until the condition holds.
#[track_caller]
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < TIMEOUT, "the condition does not hold in time");
        std::thread::yield_now();
    }
}

/// Connects `one` to `two`; returns the id of each peer as the other end knows it.
pub fn connect(one: &mut Node, two: &mut Node, address: &str) -> (PeerId, PeerId) {
    one.fabric.connect(address, b"");
    (one.connected(), two.connected())
}

pub fn remote(key: Key, offset: u64) -> RemoteAddress {
    RemoteAddress { key, offset }
}

pub fn inline(bytes: &[u8]) -> Local<'_> {
    Local::Inline(bytes)
}

pub fn bytes_of(window: &Window, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    window.read(offset, &mut bytes).unwrap();
    bytes
}

/// A child process that plays a role: it runs one ignored test of this program as its main function. Dropping this
/// value kills the process.
pub struct Role(pub Child);

/// Environment variable that makes a test play a role. Its value is the cluster directory.
const DIR_VARIABLE: &str = "HALITE_TEST_DIR";

impl Role {
    pub fn start(cluster: &Cluster, test: &str) -> Role {
        Role::start_with(cluster, test, &[])
    }

    pub fn start_with(cluster: &Cluster, test: &str, variables: &[(&str, String)]) -> Role {
        Role::start_by(&mut Command::new(std::env::current_exe().unwrap()), cluster, test, variables)
    }

    /// Starts the role as the first process of a new pid namespace; `None` if this process cannot create one.
    pub fn start_in_namespace(cluster: &Cluster, test: &str) -> Option<Role> {
        let wrapped = |program: &Path| {
            let mut command = Command::new("setpriv");
            // The kernel kills the role with the wrapper, and the wrapper with the test.
            command.args(["--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]).arg(program);
            command
        };
        let is_possible =
            wrapped(Path::new("true")).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        let mut command = wrapped(&std::env::current_exe().unwrap());
        is_possible.then(|| Role::start_by(&mut command, cluster, test, &[]))
    }

    fn start_by(command: &mut Command, cluster: &Cluster, test: &str, variables: &[(&str, String)]) -> Role {
        let child = command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(DIR_VARIABLE, &cluster.0)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .spawn();
        Role(child.unwrap())
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the cluster directory if this process plays a role. The kernel then kills the process with the test that
/// started it.
pub fn role_dir() -> Option<PathBuf> {
    let dir = std::env::var_os(DIR_VARIABLE)?;
    let signal = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(signal).unwrap();
    Some(Path::new(&dir).to_owned())
}
