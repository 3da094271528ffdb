//! The program of the processes in scenarios. It reads commands, one per line, and answers each with one line.
//!
//! ```text
//!   join NODE ARENA SEGMENT CHUNK LEASE_MS FENCE PROVIDER DIR      quit
//!   host NODE ARENA SEGMENT CHUNK RING LEASE_MS PRINCIPAL JOIN|- SECRET DIR    see `hosts.rs`
//!   alloc NAME LEN here|on:N|spread:N,N    map NAME    unmap NAME    free NAME    move NAME NODE
//!   fill NAME LEN SEED    check NAME LEN SEED    zero NAME
//!   stripes NAME COUNTS WRITER DONE    start a writer of `stripes.rs`
//!   halt                               stop it; the answer is `done N`, followed by the cause if a write failed
//!   rewrite NAME LEN, reread NAME LEN  write or read repeatedly; the events are `NAME begun`, `NAME ended CAUSE`
//!   lock NAME    unlock NAME    await NAME (as lock, but the result is an event)
//!   serve FUNCTION echo|hold|leave    call NODE FUNCTION LEN    burst NODE FUNCTION    see `calls.rs`
//!   id             the number of the node
//!   resources      numbers of file descriptors, shared mappings and threads
//!   private-bytes  bytes of private memory
//! ```
//!
//! Answers are `ok`, or the cause of the error.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use halite::blocking::Session;
use halite::{
    AttachMode, Config, Fence, Hosts, JoinError, Lh, Node, NodeId, Permissions, Placement, Provider,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::calls;
use super::cluster::{ANSWER, EVENT, PARENT, READ_WRITE};
use super::hosts::{READY, TAKEN};
use super::pattern::{bytes, first_difference, first_nonzero};
use super::stripes::Writer;

/// Executes commands until `quit`, or until the test closes the input.
pub fn run() {
    let Ok(parent) = std::env::var(PARENT) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).expect("the kernel supports the request");
    // The kernel sends the signal only for a later death, so check whether the parent is still alive.
    let is_child = getppid().is_some_and(|pid| pid.as_raw_nonzero().to_string() == parent);
    assert!(is_child, "the parent has ended");
    let mut role = Role::default();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if line == "quit" {
            break;
        }
        let answer = role.execute(&line).unwrap_or_else(|cause| cause);
        print(ANSWER, &answer);
    }
}

pub fn print(prefix: &str, text: &str) {
    let mut output = std::io::stdout().lock();
    // If the test has closed the pipe, this process is killed soon.
    let _ = writeln!(output, "{prefix}{text}").and_then(|()| output.flush());
}

/// The answer to a command: `Err` for the cause of a failure.
type Answer = Result<String, String>;

/// State of the process.
#[derive(Default)]
struct Role {
    handles: BTreeMap<String, Lh>,
    writer: Option<Writer>,
    session: Option<Session>,
    node: Option<Node>,
}

impl Role {
    fn execute(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["join", node, arena, segment, chunk, lease, fence, provider, dir] => {
                self.join(&config(node, [arena, segment, chunk, lease], fence, provider, dir))
            }
            ["host", node, arena, segment, chunk, ring, lease, principal, join, secret, dir] => {
                let alone = config(node, [arena, segment, chunk, lease], "kill", "roce", dir);
                let join = if join == "-" { vec![] } else { vec![address(join)] };
                self.join_hosts(Config {
                    request_ring_bytes: number(ring),
                    principal: Some(principal.to_owned()),
                    attach: Some(AttachMode::Owner),
                    hosts: Some(Hosts {
                        listen: vec![address("127.0.0.1:0")],
                        join,
                        secret_file: secret.into(),
                    }),
                    ..alone
                })
            }
            ["alloc", name, len, place] => {
                let lh = self.session().alloc(Some(name), number(len), placement(place), READ_WRITE);
                self.handles.insert(name.to_owned(), lh.map_err(|error| cause(error.cause))?);
                ok()
            }
            ["map", name] => {
                let wanted = READ_WRITE | Permissions::MASTER;
                let lh = self.session().map(name, wanted).map_err(|error| cause(error.cause))?;
                self.handles.insert(name.to_owned(), lh);
                ok()
            }
            ["unmap", name] => answer(self.session().unmap(self.handle(name)).map_err(|error| error.cause)),
            ["free", name] => answer(self.session().free(self.handle(name)).map_err(|error| error.cause)),
            ["move", name, to] => {
                let moved = self.session().move_to(self.handle(name), NodeId(number(to) as u32));
                answer(moved.map_err(|error| error.cause))
            }
            ["fill", name, len, seed] => {
                let filled =
                    self.session().write(self.handle(name), 0, &bytes(number(seed), number(len) as usize));
                answer(filled.map_err(|error| error.cause))
            }
            ["check", name, len, seed] => self.check(name, &bytes(number(seed), number(len) as usize)),
            ["zero", name] => self.zero(name),
            ["stripes", name, counts, writer, done] => {
                self.start_writer(name, counts, number(writer), number(done))
            }
            ["halt"] => self.halt(),
            ["rewrite", name, len] => self.rewrite(name, number(len) as usize),
            ["reread", name, len] => self.reread(name, number(len) as usize),
            ["lock", name] => lock(self.session(), name),
            ["unlock", name] => answer(self.session().unlock(name).map_err(|error| error.cause)),
            ["await", name] => self.await_lock(name),
            ["serve", function, how] => Ok(calls::serve(self.session(), number(function) as u32, how)),
            ["call", node, function, len] => {
                let (node, function) = (number(node) as u32, number(function) as u32);
                answer(calls::call(self.session(), node, function, number(len)))
            }
            ["burst", node, function] => {
                Ok(calls::burst(self.session(), number(node) as u32, number(function) as u32))
            }
            ["id"] => Ok(self.node.as_ref().expect("the process has joined").id().to_string()),
            ["resources"] => resources(),
            ["private-bytes"] => private_bytes(),
            _ => panic!("unknown command: {line:?}"),
        }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("the process has joined")
    }

    fn handle(&self, name: &str) -> Lh {
        *self.handles.get(name).unwrap_or_else(|| panic!("{name:?} was never mapped"))
    }

    fn join(&mut self, config: &Config) -> Answer {
        let node = Node::embedded(config.clone()).map_err(|error| error.to_string())?;
        self.session = Some(node.blocking_session());
        self.node = Some(node);
        ok()
    }

    /// Joins as a host of its own. The answer has the address at which other hosts dial the node.
    fn join_hosts(&mut self, config: Config) -> Answer {
        let node = Node::embedded(config).map_err(|error| match error {
            JoinError::AlreadyRunning { .. } | JoinError::NumberInUse { .. } => TAKEN.to_owned(),
            other => other.to_string(),
        })?;
        let dialled = node.address().expect("the node listens");
        self.node = Some(node);
        Ok(format!("{READY}{dialled}"))
    }

    fn read(&self, name: &str, len: usize) -> Result<Vec<u8>, String> {
        let mut found = vec![0; len];
        let read = self.session().read(self.handle(name), 0, &mut found);
        read.map(|()| found).map_err(|error| cause(error.cause))
    }

    fn check(&self, name: &str, wanted: &[u8]) -> Answer {
        match first_difference(&self.read(name, wanted.len())?, wanted) {
            None => ok(),
            Some(difference) => Err(format!("{name} differs: {difference:?}")),
        }
    }

    fn zero(&self, name: &str) -> Answer {
        let len = self.session().len(self.handle(name)).map_err(|error| cause(error.cause))?;
        match first_nonzero(&self.read(name, len as usize)?) {
            None => ok(),
            Some(at) => Err(format!("{name} is not zero at {at}")),
        }
    }

    fn start_writer(&mut self, name: &str, counts: &str, writer: u64, done_before: u64) -> Answer {
        let (lh, counts) = (self.handle(name), self.handle(counts));
        self.writer = Some(Writer::start(self.session().clone(), lh, counts, writer, done_before));
        ok()
    }

    fn halt(&mut self) -> Answer {
        let writer = self.writer.take().expect("a writer was started");
        match writer.stop() {
            (count, None) => Ok(format!("done {count}")),
            (count, Some(cause)) => Err(format!("done {count} {cause:?}")),
        }
    }

    fn rewrite(&self, name: &str, len: usize) -> Answer {
        let (session, lh) = (self.session().clone(), self.handle(name));
        let mut value = 0_u8;
        repeat_until_error(name, move || {
            // Never writes zero, the value of fresh memory.
            value = value % 255 + 1;
            session.write(lh, 0, &vec![value; len]).map_err(|error| error.cause)
        })
    }

    fn await_lock(&self, name: &str) -> Answer {
        let (session, name) = (self.session().clone(), name.to_owned());
        std::thread::spawn(move || {
            let ended = lock(&session, &name).unwrap_or_else(|cause| cause);
            print(EVENT, &format!("{name} {ended}"));
        });
        ok()
    }

    fn reread(&self, name: &str, len: usize) -> Answer {
        let (session, lh) = (self.session().clone(), self.handle(name));
        let mut bytes = vec![0; len];
        repeat_until_error(name, move || session.read(lh, 0, &mut bytes).map_err(|error| error.cause))
    }
}

fn lock(session: &Session, name: &str) -> Answer {
    let guard = session.lock(name).map_err(|error| cause(error.cause))?;
    let recovered = guard.recovered();
    guard.keep();
    if recovered { Ok("recovered".to_owned()) } else { ok() }
}

/// Repeats an operation in a new thread until it fails. Reports its first completion and its end as events.
fn repeat_until_error<C: Debug>(
    name: &str,
    mut once: impl FnMut() -> Result<(), C> + Send + 'static,
) -> Answer {
    let name = name.to_owned();
    std::thread::spawn(move || {
        let mut ended = once();
        print(EVENT, &format!("{name} begun"));
        while ended.is_ok() {
            ended = once();
        }
        print(EVENT, &format!("{name} ended {}", ended.err().map(cause).unwrap_or_default()));
    });
    ok()
}

/// Returns the numbers of file descriptors, shared memory mappings, and threads.
fn resources() -> Answer {
    let count = |dir: &str| std::fs::read_dir(dir).map(Iterator::count).map_err(|error| error.to_string());
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    // Counts only shared mappings: private ones belong to the allocator and to stacks.
    let shared = maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.ends_with('s')));
    Ok(format!("{} {} {}", count("/proc/self/fd")?, shared.count(), count("/proc/self/task")?))
}

/// Returns the private memory in use, in bytes.
fn private_bytes() -> Answer {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("the kernel reports none")?;
    let kib = line.split_whitespace().next().ok_or("the kernel reports none")?;
    Ok((number(kib) << 10).to_string())
}

fn config(
    node: &str,
    [arena, segment, chunk, lease]: [&str; 4],
    fence: &str,
    provider: &str,
    dir: &str,
) -> Config {
    Config {
        dir: dir.into(),
        node: (node != "any").then(|| NodeId(number(node) as u32)),
        arena_bytes: number(arena),
        segment_bytes: number(segment),
        chunk_bytes: number(chunk),
        lease: Duration::from_millis(number(lease)),
        fence: if fence == "never" { Fence::Never } else { Fence::Kill },
        providers: vec![if provider == "roce" { Provider::Roce } else { Provider::Shm }],
        ..Config::default()
    }
}

fn placement(words: &str) -> Placement {
    match words.split_once(':') {
        Some(("on", node)) => Placement::On(NodeId(number(node) as u32)),
        Some(("spread", nodes)) => {
            Placement::Spread(nodes.split(',').map(|node| NodeId(number(node) as u32)).collect())
        }
        _ => Placement::Local,
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not a number"))
}

fn address(word: &str) -> SocketAddr {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not an address"))
}

fn ok() -> Answer {
    Ok("ok".to_owned())
}

fn answer<C: Debug>(result: Result<(), C>) -> Answer {
    result.map_err(cause).and_then(|()| ok())
}

fn cause<C: Debug>(cause: C) -> String {
    format!("{cause:?}")
}
