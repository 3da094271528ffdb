//! What an application of the soak does, and writes down before and after.
//!
//! ```text
//!   TIME add COUNTER                 TIME add COUNTER OLD | no | maybe       whether it was done, where that failed
//!   TIME put NAME NODE               TIME put NAME ok | failed
//!   TIME mv NAME NODE                TIME mv NAME ok | failed
//!   TIME get NAME ok | failed | wrong
//!   TIME lock NAME TOKEN ASKED TAKEN HELD      when it was asked for, when it was there, and when it was ours for sure for the last time
//! ```
//!
//! Times are nanoseconds of a clock that all hosts of a test have in common.  Each line is written in one piece, so that a process
//! that is killed leaves whole ones.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use halite::blocking::Session;
use halite::{Lh, NodeId, Permissions, Placement};

/// Ends all workers of a host.
pub const STOP: &str = "/tmp/soak-stop";
pub const COUNTER: &str = "counter-";
const MODEL: &str = "model-";
pub const TILLS: u64 = 2;
/// How long somebody waits for a lock, a holder that is out of sight included.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Most regions that one application makes, so that all can be looked at in the end.
const PUTS_MAX: u64 = 30;
const LEN_MAX: u64 = 40_000;

/// What a worker writes to, on its own host.
pub fn log_of(who: &str) -> String {
    format!("/tmp/soak-{who}.log")
}

pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What the region of that name holds: its name tells its bytes, and their number.
pub fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(1, |seed, byte| Rng::with_seed(seed ^ u64::from(byte)).u64(..));
    let mut random = Rng::with_seed(seed);
    let len = 1 + random.u64(0..LEN_MAX);
    (0..len).map(|_| random.u64(..) as u8).collect()
}

struct Worker<'a> {
    session: &'a Session,
    random: Rng,
    who: String,
    hosts: u64,
    log: File,
    /// Counters that are mapped.
    counters: BTreeMap<String, Lh>,
    /// Our own regions.
    own: Vec<String>,
    puts: u64,
}

/// Works until it is told to stop.
pub fn work(session: &Session, seed: u64, who: &str, hosts: u64, is_ready: impl FnOnce()) {
    let log = File::options().create(true).append(true).open(log_of(who)).unwrap();
    let (random, counters) = (Rng::with_seed(seed), BTreeMap::new());
    let who = who.to_owned();
    let mut worker = Worker { session, random, who, hosts, log, counters, own: Vec::new(), puts: 0 };
    is_ready();
    let mut rounds = 0_u64;
    while !Path::new(STOP).exists() {
        worker.step();
        rounds += 1;
    }
    println!("did {rounds} operations");
}

impl Worker<'_> {
    fn step(&mut self) {
        match self.random.u64(0..20) {
            0 if self.puts < PUTS_MAX => self.put(),
            1 => self.mv(),
            2..=6 => self.get(),
            7..=9 => self.lock(),
            _ => self.add(),
        }
    }

    fn say(&mut self, what: &str) {
        let line = format!("{} {what}\n", now_ns());
        self.log.write_all(line.as_bytes()).unwrap();
    }

    fn names(&self, kind: &str) -> Vec<String> {
        let regions = self.session.list().unwrap_or_default();
        regions.into_iter().filter_map(|region| region.name).filter(|name| name.starts_with(kind)).collect()
    }

    fn one_of(&mut self, names: &[String]) -> Option<String> {
        (!names.is_empty()).then(|| names[self.random.u64(0..names.len() as u64) as usize].clone())
    }

    fn add(&mut self) {
        if self.counters.is_empty() || self.random.u64(0..20) == 0 {
            let names = self.names(COUNTER);
            let Some(name) = self.one_of(&names) else { return };
            if let Ok(lh) = self.session.map(&name, Permissions::READ | Permissions::ATOMIC)
                && let Some(former) = self.counters.insert(name, lh)
            {
                let _ = self.session.unmap(former);
            }
        }
        let names: Vec<String> = self.counters.keys().cloned().collect();
        let Some(name) = self.one_of(&names) else { return };
        self.say(&format!("add {name}"));
        match self.session.fetch_add(self.counters[&name], 0, 1) {
            Ok(old) => self.say(&format!("add {name} {old}")),
            Err(error) => {
                self.say(&format!("add {name} {}", if error.partly { "maybe" } else { "no" }));
                if let Some(lh) = self.counters.remove(&name) {
                    let _ = self.session.unmap(lh);
                }
            }
        }
    }

    /// Makes a region whole before it has a name, as `halite put` does.
    fn put(&mut self) {
        self.puts += 1;
        let name = format!("{MODEL}{}-{}", self.who, self.puts);
        let node = self.random.u64(0..self.hosts);
        self.say(&format!("put {name} {node}"));
        let bytes = content(&name);
        let place = Placement::On(NodeId(node as u32));
        let is_done =
            self.session.alloc(None, bytes.len() as u64, place, Permissions::all()).is_ok_and(|lh| {
                let is_named =
                    self.session.write(lh, 0, &bytes).is_ok() && self.session.set_name(lh, &name).is_ok();
                let _ = self.session.unmap(lh);
                is_named
            });
        self.say(&format!("put {name} {}", if is_done { "ok" } else { "failed" }));
        if is_done {
            self.own.push(name);
        }
    }

    /// Moves a region of our own: nobody else moves it.
    fn mv(&mut self) {
        let own = self.own.clone();
        let Some(name) = self.one_of(&own) else { return };
        let node = self.random.u64(0..self.hosts);
        self.say(&format!("mv {name} {node}"));
        let is_done = self.session.map(&name, Permissions::MASTER).is_ok_and(|lh| {
            let is_moved = self.session.move_to(lh, NodeId(node as u32)).is_ok();
            let _ = self.session.unmap(lh);
            is_moved
        });
        self.say(&format!("mv {name} {}", if is_done { "ok" } else { "failed" }));
        self.leave_alone_if(!is_done, &name);
    }

    /// What fails is asked for a few times more: it may be lost, and is looked at in the end in any case.
    fn leave_alone_if(&mut self, has_failed: bool, name: &str) {
        if has_failed && self.random.u64(0..4) == 0 {
            self.own.retain(|own| own != name);
        }
    }

    fn get(&mut self) {
        let names = if self.random.u64(0..4) == 0 { self.names(MODEL) } else { self.own.clone() };
        let Some(name) = self.one_of(&names) else { return };
        let how = match read(self.session, &name) {
            Some(bytes) if bytes == content(&name) => "ok",
            Some(_) => "wrong",
            None => "failed",
        };
        self.say(&format!("get {name} {how}"));
        self.leave_alone_if(how == "failed", &name);
    }

    fn lock(&mut self) {
        let name = format!("till-{}", self.random.u64(0..TILLS));
        let asked = now_ns();
        let Ok(guard) = self.session.lock_within(&name, LOCK_PATIENCE) else { return };
        let (token, taken) = (guard.token(), now_ns());
        let mut held = taken;
        for _ in 0..self.random.u64(0..200) {
            let before = now_ns();
            if guard.check().is_err() {
                break;
            }
            held = before;
            std::thread::yield_now();
        }
        let _ = guard.unlock();
        self.say(&format!("lock {name} {token} {asked} {taken} {held}"));
    }
}

/// The bytes of a region, if they can be had now.
pub fn read(session: &Session, name: &str) -> Option<Vec<u8>> {
    let lh = session.map(name, Permissions::READ).ok()?;
    let mut bytes = session.len(lh).ok().map(|len| vec![0; len as usize]);
    let is_read = bytes.as_mut().is_some_and(|bytes| session.read(lh, 0, bytes).is_ok());
    let _ = session.unmap(lh);
    bytes.filter(|_| is_read)
}

/// Reads all regions and counters of a list, each until it can be had; prints those that are wrong, or do not come.
pub fn verify(session: &Session, list: &str) {
    for name in std::fs::read_to_string(list).unwrap().lines() {
        if name.starts_with(COUNTER) {
            match wait_for(|| count(session, name).ok()) {
                Some(value) => println!("count {name} {value}"),
                None => println!("lost {name}: {:?}", count(session, name)),
            }
            continue;
        }
        match wait_for(|| read(session, name)) {
            Some(bytes) if bytes == content(name) => {}
            Some(_) => println!("wrong {name}"),
            None => println!("lost {name}: {:?}", session.map(name, Permissions::READ)),
        }
    }
    println!("verified");
}

fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = now_ns();
    loop {
        match attempt() {
            None if now_ns() - begin < 20_000_000_000 => std::thread::sleep(Duration::from_millis(20)),
            ended => return ended,
        }
    }
}

fn count(session: &Session, name: &str) -> Result<u64, String> {
    let lh = session.map(name, Permissions::READ | Permissions::ATOMIC).map_err(|error| error.to_string())?;
    let value = session.fetch_add(lh, 0, 0).map_err(|error| error.to_string());
    let _ = session.unmap(lh);
    value
}
