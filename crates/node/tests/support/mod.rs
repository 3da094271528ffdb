//! What the tests of the program share: directories, clusters, and processes that never outlive their test.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

/// What a cluster directory always holds.
pub const MARKER: &str = "halite-cluster";

/// A directory that is removed with its test, and in which nothing runs any more then.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // Only tells apart the tests of one process: nothing is ordered by it.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("halite-cli-{}-{count}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// The cluster directory; not there until somebody makes it.
    pub fn cluster(&self) -> PathBuf {
        self.0.join("cluster")
    }

    /// A file beside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with these bytes beside it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.file(name), bytes).unwrap();
        self.file(name)
    }

    /// A command on this cluster.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.arg("--dir").arg(self.cluster()).args(line.split_whitespace());
        // What a killed command leaves among the temporary files goes with the test.
        command.env("TMPDIR", &self.0).env_remove("HALITE_DIR").stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a command that must succeed; returns what it printed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        check_ok(line, &self.run(line))
    }

    /// Runs a command that must fail with `status`; returns what it complained of.
    #[track_caller]
    pub fn fails(&self, line: &str, status: i32) -> String {
        let output = self.run(line);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{line}: {complaint}");
        assert!(!complaint.contains("panicked"), "{line}: {complaint}");
        complaint
    }

    /// Runs a command that prints JSON, an object per line.
    #[track_caller]
    pub fn json(&self, line: &str) -> Vec<Value> {
        let text = self.ok(line);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
            .collect()
    }

    /// Starts a cluster that lives in the foreground, under a process that dies with this test.
    #[track_caller]
    pub fn up(&self, nodes: u32) -> Running {
        let mut up =
            Running::start(self, &format!("up --nodes {nodes} --arena 256M --parent {}", std::process::id()));
        while !up.line().contains("ctrl-C") {}
        up
    }

    /// What `status` tells of the nodes, which exits with 3 if one of them is not well, or if nobody could be asked.
    #[track_caller]
    pub fn nodes(&self) -> Vec<Value> {
        let output = self.run("status --json");
        let text = String::from_utf8(output.stdout).unwrap();
        let nodes: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let was_told = !String::from_utf8_lossy(&output.stderr).contains("showing what the lock files tell");
        let is_well = was_told && nodes.iter().all(|row| row["state"] == "alive" || row["state"] == "left");
        assert_eq!(output.status.code(), Some(if is_well { 0 } else { 3 }), "{text}");
        nodes
    }

    /// The pid of a node, as `status` tells.
    #[track_caller]
    pub fn pid(&self, node: u64) -> u32 {
        let nodes = self.nodes();
        let row = nodes.iter().find(|row| row["node"] == node).expect("the node is listed");
        row["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// The states of all nodes, in order.
    #[track_caller]
    pub fn states(&self) -> Vec<String> {
        self.nodes().iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    }

    /// Ends what `down` could not: every process of the program that was told this directory, whatever its files say.
    fn kill_rest(&self) {
        let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_halite")).unwrap();
        let is_ours = |pid: u32| {
            let of = |name: &str| Path::new("/proc").join(pid.to_string()).join(name);
            let words = std::fs::read(of("cmdline")).unwrap_or_default();
            let dir = self.cluster();
            std::fs::read_link(of("exe")).is_ok_and(|exe| exe == program)
                && words.split(|byte| *byte == 0).any(|word| word == dir.as_os_str().as_encoded_bytes())
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            // Held before it is looked at, so that no other process is meant.
            if is_ours(pid)
                && let Some(process) = Process::find(pid)
                && is_ours(pid)
            {
                let _ = pidfd_send_signal(&process.0, Signal::KILL);
                process.await_end();
            }
        }
    }

    /// What is in the cluster directory.
    pub fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.cluster()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.cluster().is_dir() {
            let _ = self.run("down");
        }
        self.kill_rest();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
pub fn check_ok(line: &str, output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}: {complaint}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A command that has not ended yet.  Killed when dropped.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(scratch: &Scratch, line: &str) -> Running {
        Running::of(scratch.command(line))
    }

    pub fn of(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Running { child, stdout }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it ended early: {:?}", self.child.wait());
        line
    }

    /// Waits until it has printed something.
    pub fn byte(&mut self) {
        self.stdout.read_exact(&mut [0]).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Ends it, whatever it does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Somebody else's process, held by a pidfd so that no other can be meant.
pub struct Process(OwnedFd);

impl Process {
    pub fn open(pid: u32) -> Process {
        Process::find(pid).unwrap()
    }

    /// `None` if it is gone.
    fn find(pid: u32) -> Option<Process> {
        let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Process)
    }

    pub fn kill(&self) {
        pidfd_send_signal(&self.0, Signal::KILL).unwrap();
        self.await_end();
    }

    pub fn lives(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)), Ok(0))
    }

    /// Returns when it has ended.
    pub fn await_end(&self) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        while !matches!(poll(&mut fds, None), Ok(1)) {}
    }
}

/// Waits for what can only be asked for; fails when it has not come for half a minute.
#[track_caller]
pub fn eventually(is_so: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed().as_secs() < 30, "it has not come");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The same command in a process to which this line of a shell has been done first.
pub fn after(line: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("{line} && exec \"$0\" \"$@\""))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null());
    shell
}

/// Bytes without a period that a copy in pieces could hide.
pub fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// The children of a process, as the kernel lists them.
pub fn children(pid: u32) -> Vec<u32> {
    let list =
        std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{pid}/children"))).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
