//! Operations of an application of the soak test. The application logs each operation before its start and after its
//! end.
//!
//! ```text
//!   TIME add COUNTER                 TIME add COUNTER OLD | no | maybe       no: not executed; maybe: unknown
//!   TIME place NAME NODE             TIME place NAME ok | failed             put on the node, or moved to it
//!   TIME get NAME ok | failed | wrong
//!   TIME lock NAME TOKEN ASKED TAKEN HELD      times of the request, of the grant, and when it was last held for sure
//! ```
//!
//! Times are nanoseconds of a clock that all hosts of a test share. Each line is written by a single write, so a
//! killed process leaves only complete lines.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use halite::blocking::Session;
use halite::{Lh, NodeId, Permissions, Placement, RegionError};

/// File on a host. When the file exists, all workers of the host end.
pub const STOP: &str = "/tmp/soak-stop";
pub const COUNTER: &str = "counter-";
const MODEL: &str = "model-";
const TILLS: u64 = 2;
/// Maximum wait for a lock, including a holder that is unreachable.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of regions of one application, so that all can be checked at the end.
const PUTS_MAX: u64 = 30;
const LEN_MAX: u64 = 40_000;
/// Time limit after which everything that must exist can be read.
const GET_PATIENCE: Duration = Duration::from_secs(20);

/// Returns the path of a worker's log on its host.
pub fn log_of(who: &str) -> String {
    format!("/tmp/soak-{who}.log")
}

pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the contents of a region: its name determines its bytes and their number.
fn content(name: &str) -> Vec<u8> {
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
    /// Mapped counters.
    counters: BTreeMap<String, Lh>,
    /// Regions of this worker.
    own: Vec<String>,
    puts: u64,
}

/// Runs operations until it is stopped.
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

    /// Writes a region completely before it has a name, as `halite put` does.
    fn put(&mut self) {
        self.puts += 1;
        let name = format!("{MODEL}{}-{}", self.who, self.puts);
        let (session, bytes) = (self.session, content(&name));
        let is_done = self.place(&name, |node| {
            let made = session.alloc(None, bytes.len() as u64, Placement::On(node), Permissions::all());
            with(session, made, |lh| {
                session.write(lh, 0, &bytes)?;
                Ok(session.set_name(lh, &name)?)
            })
        });
        if is_done {
            self.own.push(name);
        }
    }

    /// Moves a region of this worker; no other worker moves it.
    fn mv(&mut self) {
        let (session, own) = (self.session, self.own.clone());
        let Some(name) = self.one_of(&own) else { return };
        let is_done = self.place(&name, |node| {
            with(session, session.map(&name, Permissions::MASTER), |lh| Ok(session.move_to(lh, node)?))
        });
        self.forget_sometimes_if(!is_done, &name);
    }

    fn place(&mut self, name: &str, put: impl FnOnce(NodeId) -> Outcome<()>) -> bool {
        let node = self.random.u64(0..self.hosts);
        self.say(&format!("place {name} {node}"));
        let is_done = put(NodeId(node as u32)).is_ok();
        self.say(&format!("place {name} {}", if is_done { "ok" } else { "failed" }));
        is_done
    }

    /// After a failure, stops using the region with a probability of one in four: it may be lost, and is checked at
    /// the end anyway.
    fn forget_sometimes_if(&mut self, has_failed: bool, name: &str) {
        if has_failed && self.random.u64(0..4) == 0 {
            self.own.retain(|own| own != name);
        }
    }

    fn get(&mut self) {
        let names = if self.random.u64(0..4) == 0 { self.names(MODEL) } else { self.own.clone() };
        let Some(name) = self.one_of(&names) else { return };
        let found = check_region(self.session, &name);
        self.say(&format!("get {name} {}", found.as_deref().unwrap_or("failed")));
        self.forget_sometimes_if(found.is_err(), &name);
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

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Maps a region, uses it, and unmaps it.
fn with<T>(
    session: &Session,
    mapped: Result<Lh, RegionError>,
    to_use: impl FnOnce(Lh) -> Outcome<T>,
) -> Outcome<T> {
    let lh = mapped?;
    let used = to_use(lh);
    let _ = session.unmap(lh);
    used
}

/// Returns `ok` if the region's contents match its name, else `wrong`; or the value, if it is a counter.
fn check_region(session: &Session, name: &str) -> Outcome<String> {
    if name.starts_with(COUNTER) {
        let mapped = session.map(name, Permissions::READ | Permissions::ATOMIC);
        return with(session, mapped, |lh| Ok(session.fetch_add(lh, 0, 0)?.to_string()));
    }
    with(session, session.map(name, Permissions::READ), |lh| {
        let mut bytes = vec![0; session.len(lh)? as usize];
        session.read(lh, 0, &mut bytes)?;
        Ok(if bytes == content(name) { "ok" } else { "wrong" }.to_owned())
    })
}

/// Reads all regions and counters of a list, repeatedly until each can be read, and prints the result of each.
pub fn verify(session: &Session, list: &str) {
    println!();
    for name in std::fs::read_to_string(list).unwrap().lines() {
        let begin = Instant::now();
        let mut found = check_region(session, name);
        while found.is_err() && begin.elapsed() < GET_PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            found = check_region(session, name);
        }
        println!("{name} {}", found.unwrap_or_else(|error| format!("lost: {error}")));
    }
}
