//! Applications that join the cluster of their host, knowing no more than its directory.  Each is this program again.

use std::path::Path;
use std::time::Duration;

use halite::blocking::Session;
use halite::{Config, Function, LockCause, Node, NodeId, Permissions, Placement, ServeOptions};

use crate::soak::worker;
use crate::support::{Process, Running, children};
use crate::world::{CLOCK_OFFSET, Host};

/// What the application is to do.
const TASK: &str = "HALITE_APPLICATION";
const SHOUT: Function = Function(7);
/// The file that one that counts waits for.
const STOP: &str = "/tmp/stop";
/// Runs a program in a pid namespace of its own.
pub const APART: &str = "unshare --pid --fork --kill-child";
const PATIENCE: Duration = Duration::from_secs(20);

/// One that runs until it is told to end.
pub struct Application {
    running: Running,
    node: u32,
}

impl Application {
    #[track_caller]
    pub fn start(host: &Host, task: &str) -> Application {
        Application::start_by(host, &Application::line(task))
    }

    /// One in a pid namespace of its own, whose processes those of the host know and their siblings do not.
    #[track_caller]
    pub fn start_apart(host: &Host, task: &str) -> Application {
        Application::start_by(host, &Application::line(task).replace(" exec ", &format!(" exec {APART} ")))
    }

    #[track_caller]
    fn start_by(host: &Host, line: &str) -> Application {
        let mut running = Running::of(host.command(line));
        let said = loop {
            let line = running.line();
            if let Some((_, rest)) = line.split_once("ready as node ") {
                break rest.trim().to_owned();
            }
        };
        Application { running, node: said.parse().unwrap() }
    }

    /// The number that it was given.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The process itself, of one that was started apart.
    pub fn process(&self) -> u32 {
        children(self.running.pid())[0]
    }

    /// Ends it, whatever it does.
    pub fn end(&mut self) {
        // On a host with processes of its own it is the child of who has entered that.
        children(self.running.pid()).into_iter().for_each(|pid| Process::open(pid).kill());
        self.running.kill();
    }

    /// Waits until it has ended well.
    pub fn wait(&mut self) {
        assert!(self.running.wait().success());
    }

    /// What one says that waits for a node to be out of sight.
    #[track_caller]
    pub fn missed(mut self) -> String {
        self.running.line()
    }

    /// Has one that counts stop; returns what it says then.
    #[track_caller]
    pub fn stop(mut self, host: &Host) -> String {
        host.write(STOP, b"");
        self.running.line()
    }

    /// The line of a shell that runs one.
    pub fn line(task: &str) -> String {
        let program = std::env::current_exe().unwrap();
        format!(
            "{TASK}='{task}' exec {} --exact application::application --ignored --nocapture",
            program.display()
        )
    }
}

/// Not a test: what [`Application::line`] runs.
#[test]
#[ignore = "it is what other tests run on their hosts"]
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

/// Writes, reads and counts on another node, until it is told to stop; nothing of that may fail, get lost or be done twice.
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

/// Reads from another node until that is out of sight; says what an application is told then.
fn miss(session: &Session, node: NodeId, is_ready: impl FnOnce()) {
    let lh = session.alloc(None, 1 << 20, Placement::On(node), Permissions::empty()).unwrap();
    is_ready();
    let told = loop {
        if let Err(error) = session.read(lh, 0, &mut [0; 10_000]) {
            break error;
        }
    };
    println!("missed: {:?}", told.cause);
}
