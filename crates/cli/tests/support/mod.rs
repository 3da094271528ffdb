//! Helpers for the tests of the program: directories, clusters, and processes that never outlive their test.

// Each test program uses its own part of this.
#![allow(dead_code)]

pub mod etcd;
mod process;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub use process::*;
use serde_json::Value;

use halite::{Config, Node, Permissions};

pub const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);

/// Name of the marker file that each cluster directory has.
pub const MARKER: &str = "halite-cluster";

/// A directory for one test. Dropping it kills the processes that use the directory, and removes the directory.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        // Relaxed: the counter only makes the names of one process distinct.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("halite-cli-{}-{count}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// Returns the path of the cluster directory, which exists only after a test has created it.
    pub fn cluster(&self) -> PathBuf {
        self.0.join("cluster")
    }

    /// Returns the path of a file beside the cluster directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file with `bytes` beside the cluster directory; returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.file(name), bytes).unwrap();
        self.file(name)
    }

    /// Returns a command that uses this cluster.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halite"));
        command.arg("--dir").arg(self.cluster()).args(line.split_whitespace());
        // Temporary files of a killed command are removed with the test.
        command.env("TMPDIR", &self.0).stdin(Stdio::null());
        // Removes variables of the environment that configure tests or nodes.
        let names = std::env::vars_os().map(|(name, _)| name);
        names.filter(|name| name.to_string_lossy().starts_with("HALITE_")).for_each(|name| {
            command.env_remove(name);
        });
        command
    }

    /// Runs a command until it ends.
    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a command that must succeed; returns its standard output.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        check_ok(line, &self.run(line))
    }

    /// Runs a command that must fail with `status`; returns its error message.
    #[track_caller]
    pub fn fails(&self, line: &str, status: i32) -> String {
        let output = self.run(line);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{line}: {complaint}");
        assert!(!complaint.contains("panicked"), "{line}: {complaint}");
        complaint
    }

    /// Runs a command that must fail with `status` and an error message that contains `text`.
    #[track_caller]
    pub fn fails_with(&self, line: &str, status: i32, text: &str) {
        let complaint = self.fails(line, status);
        assert!(complaint.contains(text), "{line}: {complaint}");
    }

    /// Runs a command that prints one JSON object per line.
    #[track_caller]
    pub fn json(&self, line: &str) -> Vec<Value> {
        let text = self.ok(line);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
            .collect()
    }

    /// Starts a cluster in the foreground, under a process that dies with this test.
    #[track_caller]
    pub fn up(&self, nodes: u32) -> Running {
        self.up_with(&format!("--nodes {nodes} --arena 256M"))
    }

    /// Starts a cluster with these flags as [`Scratch::up`] does.
    #[track_caller]
    pub fn up_with(&self, flags: &str) -> Running {
        let mut up = Running::start(self, &format!("up {flags} --parent {}", std::process::id()));
        while !up.line().contains("ctrl-C") {}
        up
    }

    /// Returns the nodes that `halite status` reports. Checks that the exit status is 3 if a node is dead or silent or
    /// no node answers, and 0 otherwise.
    #[track_caller]
    pub fn nodes(&self) -> Vec<Value> {
        let output = self.run("status --json");
        let text = String::from_utf8(output.stdout).unwrap();
        let nodes: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let has_answers =
            !String::from_utf8_lossy(&output.stderr).contains("showing the state from the lock files");
        let is_well =
            has_answers && nodes.iter().all(|row| row["state"] == "alive" || row["state"] == "left");
        assert_eq!(output.status.code(), Some(if is_well { 0 } else { 3 }), "{text}");
        nodes
    }

    /// Returns the pid of a node, as `halite status` reports it.
    #[track_caller]
    pub fn pid(&self, node: u64) -> u32 {
        let nodes = self.nodes();
        let row = nodes.iter().find(|row| row["node"] == node).expect("the node is listed");
        row["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// Returns the states of all nodes, in order.
    #[track_caller]
    pub fn states(&self) -> Vec<String> {
        self.nodes().iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect()
    }

    /// Kills all processes of the program whose command line names this directory, because `down` may not have ended
    /// all of them.
    fn kill_remaining(&self) {
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
            // Opens a pidfd before it reads the process's files, so that it does not kill another process with a
            // reused pid.
            if is_ours(pid)
                && let Some(process) = Process::find(pid)
                && is_ours(pid)
            {
                process.end();
            }
        }
    }

    /// Returns the names of the files in the cluster directory.
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
        self.kill_remaining();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Running {
    pub fn start(scratch: &Scratch, line: &str) -> Running {
        Running::of(scratch.command(line))
    }
}

#[track_caller]
pub fn check_ok(line: &str, output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {}: {complaint}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Joins the cluster in `dir` as an application does: as a node without memory.
pub fn join(dir: &Path) -> Node {
    Node::embedded(Config { dir: dir.to_owned(), arena_bytes: 0, ..Config::default() }).unwrap()
}

/// Returns a command that runs `line` and then `command` in a shell.
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

/// Returns the path of each file below `root`, with the type or contents of the file.
pub fn inventory(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for path in std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        let content = match kind.is_file() {
            true => String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned(),
            false => format!("{kind:?}"),
        };
        if kind.is_dir() {
            found.extend(inventory(&path));
        }
        found.insert(path, content);
    }
    found
}

/// Returns bytes without a period: a copy in pieces cannot hide an error.
pub fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}
