//! Applications that join the cluster of their host and know only the cluster directory. Each application is another
//! process of this test program.

use std::path::Path;
use std::time::Duration;

use halite::blocking::Session;
use halite::{Config, Function, LockCause, Node, NodeId, Permissions, Placement, ServeOptions};

use crate::soak::worker;
use crate::support::{Process, Running, children};
use crate::world::{CLOCK_OFFSET, Host};

/// Variable that holds the task of an application.
const TASK: &str = "HALITE_APPLICATION";
const SHOUT: Function = Function(7);
/// File whose creation stops an application that counts.
const STOP: &str = "/tmp/stop";
/// Runs a program in a new pid namespace.
pub const APART: &str = "unshare --pid --fork --kill-child";
const PATIENCE: Duration = Duration::from_secs(20);

/// An application that runs until the test ends it.
pub struct Application {
    running: Running,
    node: u32,
}

impl Application {
    #[track_caller]
    pub fn start(host: &Host, task: &str) -> Application {
        Application::start_by(host, &Application::line(task))
    }

    /// Starts an application in a new pid namespace. The host sees the processes of the application; other applications
    /// do not.
    #[track_caller]
    pub fn start_apart(host: &Host, task: &str) -> Application {
        Application::start_by(host, &Application::line(task).replace(" exec ", &format!(" exec {APART} ")))
    }

    #[track_caller]
    fn start_by(host: &Host, line: &str) -> Application {
        let mut running = Running::of(host.command(line));
        let text = loop {
            let line = running.line();
            if let Some((_, rest)) = line.split_once("ready as node ") {
                break rest.trim().to_owned();
            }
        };
        Application { running, node: text.parse().unwrap() }
    }

    /// Returns the node number that the application was assigned.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Returns the pid of the application itself if it was started in its own pid namespace.
    pub fn process(&self) -> u32 {
        children(self.running.pid())[0]
    }

    /// Kills the application.
    pub fn end(&mut self) {
        // On a host with its own pid namespace, the application is a child of the process that entered the namespace.
        children(self.running.pid()).into_iter().for_each(|pid| Process::open(pid).kill());
        self.running.kill();
    }

    /// Waits until the application has exited successfully.
    pub fn wait(&mut self) {
        assert!(self.running.wait().success());
    }

    /// Waits until an application that reads from another node fails; returns its error.
    #[track_caller]
    pub fn wait_for_error(mut self) -> String {
        self.running.line()
    }

    /// Stops an application that counts, and returns its output.
    #[track_caller]
    pub fn stop(mut self, host: &Host) -> String {
        host.write(STOP, b"");
        self.running.line()
    }

    /// Returns the shell command that starts an application.
    pub fn line(task: &str) -> String {
        let program = std::env::current_exe().unwrap();
        format!(
            "{TASK}='{task}' exec {} --exact application::application --ignored --nocapture",
            program.display()
        )
    }
}

/// Not a test: the program that [`Application::line`] runs.
#[test]
#[ignore = "other tests run it on their hosts"]
fn application() {
    let Ok(task) = std::env::var(TASK) else { return };
    let clock_offset_s = std::env::var(CLOCK_OFFSET).unwrap().parse().unwrap();
    let arena_bytes = if task == "hold" { 64 << 20 } else { 0 };
    let node = Node::embedded(Config { arena_bytes, clock_offset_s, ..Config::default() }).unwrap();
    let session = node.blocking_session();
    let is_ready = || println!("\nready as node {}", node.id());
    match task.split_whitespace().collect::<Vec<_>>()[..] {
        ["serve"] => {
            let server = session.serve(SHOUT, ServeOptions::default()).unwrap();
            is_ready();
            while let Ok(call) = server.recv() {
                let answer = call.input().to_ascii_uppercase();
                let _ = call.reply(&answer);
            }
        }
        ["call", number] => {
            let number = NodeId(number.parse().unwrap());
            let answer = session.call(number, SHOUT, b"salt", PATIENCE).unwrap();
            println!("{}", String::from_utf8(answer).unwrap());
        }
        ["lock"] => {
            let _guard = session.lock("till").unwrap();
            is_ready();
            loop {
                std::thread::park();
            }
        }
        ["hold"] => {
            let nodes = Placement::Spread(vec![node.id(), NodeId(0)]);
            let _held = session.alloc(Some("wide"), 8 << 20, nodes, Permissions::READ).unwrap();
            is_ready();
            loop {
                std::thread::park();
            }
        }
        ["try-lock"] => match session.try_lock("till") {
            Err(error) if error.cause == LockCause::Held => println!("it is held"),
            other => panic!("{other:?}"),
        },
        ["lock-once"] => {
            let guard = session.lock_within("till", PATIENCE).unwrap();
            println!("it is ours, by token {}", guard.token());
            guard.unlock().unwrap();
        }
        ["soak", seed, who, hosts] => {
            worker::work(&session, seed.parse().unwrap(), who, hosts.parse().unwrap(), is_ready);
        }
        ["verify", list] => worker::verify(&session, list),
        ["count", node] => {
            let node = NodeId(node.parse().unwrap());
            count(&session, node, is_ready);
        }
        ["miss", node] => {
            let node = NodeId(node.parse().unwrap());
            miss(&session, node, is_ready);
        }
        _ => panic!("no such task: {task}"),
    }
}

/// Writes, reads and counts on another node until it is stopped; no operation may fail, be lost or be executed twice.
fn count(session: &Session, node: NodeId, is_ready: impl FnOnce()) {
    let lh = session.alloc(None, 1 << 20, Placement::On(node), Permissions::empty()).unwrap();
    let text = [7; 10_000];
    is_ready();
    let mut rounds = 0;
    while !Path::new(STOP).exists() {
        assert_eq!(session.fetch_add(lh, 0, 1).unwrap(), rounds);
        session.write(lh, 8 + rounds % 1000, &text).unwrap();
        let mut read = [0; 10_000];
        session.read(lh, 8 + rounds % 1000, &mut read).unwrap();
        assert_eq!(read, text);
        rounds += 1;
    }
    println!("counted to {rounds}");
}

/// Reads from another node until it is unreachable; prints the error that the application gets.
fn miss(session: &Session, node: NodeId, is_ready: impl FnOnce()) {
    let lh = session.alloc(None, 1 << 20, Placement::On(node), Permissions::empty()).unwrap();
    is_ready();
    let failure = loop {
        if let Err(error) = session.read(lh, 0, &mut [0; 10_000]) {
            break error;
        }
    };
    println!("missed: {:?}", failure.cause);
}
