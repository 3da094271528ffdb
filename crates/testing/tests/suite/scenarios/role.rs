//! The program of a scenario's process: reads commands, one per line, and answers each with one line.
//!
//! ```text
//!   join NODE ARENA SEGMENT CHUNK LEASE_MS FENCE DIR      quit
//!   alloc NAME LEN here|on:N|spread:N,N    map NAME    unmap NAME    free NAME    move NAME NODE
//!   fill NAME LEN SEED    check NAME LEN SEED    zero NAME
//!   stripes NAME COUNTS WRITER DONE  ->  halt: `done N`, and the cause if it ended by itself
//!   flood NAME LEN, gulp NAME LEN    write or read again and again; the events are `NAME begun`, `NAME ended CAUSE`
//!   lock NAME    unlock NAME    await NAME (as lock, with the answer as event)
//!   serve FUNCTION echo|hold|leave    call NODE FUNCTION LEN    burst NODE FUNCTION    see `calls.rs`
//!   id       the number of its node
//!   held     file descriptors, shared mappings of memory, threads
//!   private  bytes of private memory
//! ```
//!
//! Answers are `ok`, or the cause of the error.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::time::Duration;

use halite::blocking::Session;
use halite::{Config, Fence, Lh, Node, NodeId, Permissions, Placement};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::calls;
use super::cluster::{ANSWER, EVENT, PARENT, READ_WRITE};
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
    // The test may have closed the pipe; then this process is about to be killed.
    let _ = writeln!(output, "{prefix}{text}").and_then(|()| output.flush());
}

type Answer = Result<String, String>;

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
            ["join", node, arena, segment, chunk, lease, fence, dir] => {
                self.join(&config(node, [arena, segment, chunk, lease], fence, dir))
            }
            ["alloc", name, len, place] => {
                let lh = self.session().alloc(Some(name), number(len), placement(place), READ_WRITE);
                self.handles.insert(name.to_owned(), lh.map_err(|error| cause(error.cause))?);
                done()
            }
            ["map", name] => {
                let wanted = READ_WRITE | Permissions::MASTER;
                let lh = self.session().map(name, wanted).map_err(|error| cause(error.cause))?;
                self.handles.insert(name.to_owned(), lh);
                done()
            }
            ["unmap", name] => ended(self.session().unmap(self.handle(name)).map_err(|error| error.cause)),
            ["free", name] => ended(self.session().free(self.handle(name)).map_err(|error| error.cause)),
            ["move", name, to] => {
                let moved = self.session().move_to(self.handle(name), NodeId(number(to) as u32));
                ended(moved.map_err(|error| error.cause))
            }
            ["fill", name, len, seed] => {
                let filled =
                    self.session().write(self.handle(name), 0, &bytes(number(seed), number(len) as usize));
                ended(filled.map_err(|error| error.cause))
            }
            ["check", name, len, seed] => self.check(name, &bytes(number(seed), number(len) as usize)),
            ["zero", name] => self.zero(name),
            ["stripes", name, counts, writer, done] => {
                self.start_writer(name, counts, number(writer), number(done))
            }
            ["halt"] => self.halt(),
            ["flood", name, len] => self.flood(name, number(len) as usize),
            ["gulp", name, len] => self.gulp(name, number(len) as usize),
            ["lock", name] => lock(self.session(), name),
            ["unlock", name] => ended(self.session().unlock(name).map_err(|error| error.cause)),
            ["await", name] => self.await_lock(name),
            ["serve", function, how] => Ok(calls::serve(self.session(), number(function) as u32, how)),
            ["call", node, function, len] => {
                let (node, function) = (number(node) as u32, number(function) as u32);
                ended(calls::call(self.session(), node, function, number(len)))
            }
            ["burst", node, function] => {
                Ok(calls::burst(self.session(), number(node) as u32, number(function) as u32))
            }
            ["id"] => Ok(self.node.as_ref().expect("the process has joined").id().to_string()),
            ["held"] => held(),
            ["private"] => private(),
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
        done()
    }

    fn read(&self, name: &str, len: usize) -> Result<Vec<u8>, String> {
        let mut found = vec![0; len];
        let read = self.session().read(self.handle(name), 0, &mut found);
        read.map(|()| found).map_err(|error| cause(error.cause))
    }

    fn check(&self, name: &str, wanted: &[u8]) -> Answer {
        match first_difference(&self.read(name, wanted.len())?, wanted) {
            None => done(),
            Some(difference) => Err(format!("{name} differs: {difference:?}")),
        }
    }

    fn zero(&self, name: &str) -> Answer {
        let len = self.session().len(self.handle(name)).map_err(|error| cause(error.cause))?;
        match first_nonzero(&self.read(name, len as usize)?) {
            None => done(),
            Some(at) => Err(format!("{name} is not zero at {at}")),
        }
    }

    fn start_writer(&mut self, name: &str, counts: &str, writer: u64, done_before: u64) -> Answer {
        let (lh, counts) = (self.handle(name), self.handle(counts));
        self.writer = Some(Writer::start(self.session().clone(), lh, counts, writer, done_before));
        done()
    }

    fn halt(&mut self) -> Answer {
        let writer = self.writer.take().expect("a writer was started");
        match writer.stop() {
            (count, None) => Ok(format!("done {count}")),
            (count, Some(cause)) => Err(format!("done {count} {cause:?}")),
        }
    }

    fn flood(&self, name: &str, len: usize) -> Answer {
        let (session, lh) = (self.session().clone(), self.handle(name));
        let mut value = 0_u8;
        repeat_until_error(name, move || {
            // Never zero, the value of fresh memory.
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
        done()
    }

    fn gulp(&self, name: &str, len: usize) -> Answer {
        let (session, lh) = (self.session().clone(), self.handle(name));
        let mut bytes = vec![0; len];
        repeat_until_error(name, move || session.read(lh, 0, &mut bytes).map_err(|error| error.cause))
    }
}

fn lock(session: &Session, name: &str) -> Answer {
    let guard = session.lock(name).map_err(|error| cause(error.cause))?;
    let recovered = guard.recovered();
    guard.keep();
    if recovered { Ok("recovered".to_owned()) } else { done() }
}

/// Repeats an operation in a thread of its own until it fails.
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
    done()
}

/// Returns the numbers of file descriptors, shared mappings of memory, and threads.
fn held() -> Answer {
    let count = |dir: &str| std::fs::read_dir(dir).map(Iterator::count).map_err(|error| error.to_string());
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    // Only shared mappings: private memory belongs to the allocator and to stacks.
    let shared = maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.ends_with('s')));
    Ok(format!("{} {} {}", count("/proc/self/fd")?, shared.count(), count("/proc/self/task")?))
}

/// Returns the private memory in use, in bytes.
fn private() -> Answer {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("the kernel reports none")?;
    let kib = line.split_whitespace().next().ok_or("the kernel reports none")?;
    Ok((number(kib) << 10).to_string())
}

fn config(node: &str, [arena, segment, chunk, lease]: [&str; 4], fence: &str, dir: &str) -> Config {
    Config {
        dir: dir.into(),
        node: (node != "any").then(|| NodeId(number(node) as u32)),
        arena_bytes: number(arena),
        segment_bytes: number(segment),
        chunk_bytes: number(chunk),
        lease: Duration::from_millis(number(lease)),
        fence: if fence == "never" { Fence::Never } else { Fence::Kill },
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

fn done() -> Answer {
    Ok("ok".to_owned())
}

fn ended<C: Debug>(result: Result<(), C>) -> Answer {
    result.map_err(cause).and_then(|()| done())
}

fn cause<C: Debug>(cause: C) -> String {
    format!("{cause:?}")
}
