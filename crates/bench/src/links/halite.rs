//! Halite over an emulated link: two fabrics over UDP, one in each network, that are driven by a thread each.
//!
//! What is measured is the fabric below a session, with as much under way as a session posts, 768 KiB, in slices of 32 KiB.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use halite_fabric::{
    Class, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, RemoteAddress, Sleeper,
    Status, WorkId, WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::roce::{Counters, Dropped};
use halite_providers::{RoceConfig, RoceFabric};
use tempfile::TempDir;

use super::network::Network;

/// Written at a time.
pub const SLICE_BYTES: u64 = 32 << 10;
/// Slices under way: 768 KiB.
const SLICES: u64 = 24;
/// Registered by each end.
const MEMORY_BYTES: u64 = SLICE_BYTES * 64;
/// Of a ping, which is a write with immediate.
const PING_BYTES: usize = 64;
/// How long a thread sleeps at most before it looks whether all is over.
const NAP: Duration = Duration::from_millis(5);
/// Turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);
const BULK: Lane = Lane { number: 1, class: Class::Bulk };

/// Two fabrics that are connected.
pub struct Ends {
    ends: [End; 2],
    _dir: TempDir,
}

struct End {
    fabric: Arc<RoceFabric>,
    peer: PeerId,
    /// Our memory, and its key, which is that of the other end as well: both register one segment.
    memory: Window,
    key: Key,
    /// Loads that were put on it.
    loads: AtomicU64,
}

impl Drop for End {
    /// At once: a fabric that is dropped would wait for acknowledgements of a peer that nobody drives any more.
    fn drop(&mut self) {
        self.fabric.disconnect(self.peer);
    }
}

/// What one end does until the time is over; the other answers.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Whether slices are written without an end.
    pub has_bulk: bool,
    /// Whether 64 bytes go there and back without an end.
    pub has_pings: bool,
    /// Before anything counts.
    pub warm_up: Duration,
    /// What counts.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes of slices whose writes have completed, in megabits a second.
    pub goodput_mbps: f64,
    /// How long each ping took, there and back, sorted.
    pub trips: Vec<Duration>,
}

impl Outcome {
    /// So many of a hundred pings took at most this long.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let last = self.trips.len().checked_sub(1)?;
        Some(self.trips[last * percent / 100])
    }
}

impl Ends {
    /// Opens both, and has the one on side 0 dial.
    pub fn connect(
        network: &Network,
        configure: impl Fn(RoceConfig) -> RoceConfig + Sync,
    ) -> io::Result<Ends> {
        let dir = tempfile::tempdir()?;
        let are_open = Barrier::new(2);
        let [one, two] = network.both(|side| {
            let config = RoceConfig::new(dir.path().join("cluster"), ["one", "two"][side]);
            let opened = open(configure(RoceConfig { address: Network::address(side).into(), ..config }));
            are_open.wait();
            let (fabric, memory, key) = opened?;
            if side == 0 {
                fabric.connect("two.sock", b"");
            }
            let peer = drive(&fabric, |events| match events.pop() {
                Some(Event::Connected { peer, .. }) => Ok(Some(peer)),
                Some(other) => Err(io::Error::other(format!("no connection: {other:?}"))),
                None => Ok(None),
            })?;
            Ok::<_, io::Error>(End { fabric, peer, memory, key, loads: AtomicU64::new(0) })
        });
        Ok(Ends { ends: [one?, two?], _dir: dir })
    }

    /// Puts the load on the first end, and drives both until it is over.
    pub fn run(&self, network: &Network, load: Load) -> io::Result<Outcome> {
        let is_over = AtomicBool::new(false);
        let [outcome, answered] = network.both(|side| {
            let end = &self.ends[side];
            if side == 1 {
                return end.answer(&is_over).map(|()| Outcome::default());
            }
            let outcome = Loaded::new(end, load).run();
            is_over.store(true, Relaxed);
            outcome
        });
        answered.and(outcome)
    }

    /// Writes so many slices, each with a message behind it in its lane.  Fails unless each message comes in order and finds its
    /// slice in the other end's memory, byte by byte.
    pub fn transfer(&self, network: &Network, slices: u32) -> io::Result<()> {
        let is_over = AtomicBool::new(false);
        let [sent, received] = network.both(|side| match side {
            0 => self.ends[0].send_slices(slices, &is_over),
            _ => self.ends[1].receive_slices(slices, &is_over),
        });
        // Where the receiver has given up, the sender waits in vain.
        received.and(sent)
    }

    /// What the queue pairs of both ends have counted.
    pub fn counters(&self) -> [Counters; 2] {
        self.ends.each_ref().map(|end| end.fabric.counters(end.peer).unwrap_or_default())
    }

    /// What both fabrics have dropped.
    pub fn dropped(&self) -> [Dropped; 2] {
        self.ends.each_ref().map(|end| end.fabric.dropped())
    }
}

fn open(config: RoceConfig) -> io::Result<(Arc<RoceFabric>, Window, Key)> {
    let fabric = RoceFabric::open(config).map_err(io::Error::other)?;
    let segment = Segment::create("links", MEMORY_BYTES, PagePolicy::Normal).map_err(io::Error::other)?;
    let memory = segment.window(0, MEMORY_BYTES).expect("the whole segment");
    let key = fabric.register(segment).map_err(io::Error::other)?;
    Ok((fabric, memory, key))
}

impl End {
    fn post(&self, lane: Lane, id: WorkId, operation: Operation<'_>, signalled: bool) -> io::Result<()> {
        let request = WorkRequest { id, operation, signalled, solicited: true };
        self.fabric.post(self.peer, lane, &[request]).map_err(io::Error::other)
    }

    /// All that completes but for arrivals.
    fn write_slice(&self, id: WorkId, slice: u64) -> io::Result<()> {
        let offset = place(slice);
        let local = Local::Registered { key: self.key, offset, len: SLICE_BYTES };
        let remote = RemoteAddress { key: self.key, offset };
        self.post(BULK, id, Operation::Write { local, remote }, true)
    }

    fn ping(&self) -> io::Result<()> {
        let remote = RemoteAddress { key: self.key, offset: 0 };
        let local = Local::Inline(&[0; PING_BYTES]);
        self.post(Lane::FIRST, WorkId(0), Operation::WriteImm { local, remote, imm: 0 }, false)
    }

    fn send(&self, lane: Lane, imm: u32) -> io::Result<()> {
        self.post(lane, WorkId(0), Operation::Send { bytes: &imm.to_le_bytes(), imm }, false)
    }

    /// Answers pings until all is over.
    fn answer(&self, is_over: &AtomicBool) -> io::Result<()> {
        drive(&self.fabric, |events| {
            for event in events.drain(..) {
                if let CompletionKind::Notified { .. } = completed(event)? {
                    self.ping()?;
                }
            }
            Ok(is_over.load(Relaxed).then_some(()))
        })
    }

    fn send_slices(&self, slices: u32, is_over: &AtomicBool) -> io::Result<()> {
        let (mut posted, mut seen) = (0, 0);
        drive(&self.fabric, |events| {
            for event in events.drain(..) {
                if let CompletionKind::Received { .. } = completed(event)? {
                    // The receiver has looked at a slice, so that its place is free.
                    seen += 1;
                }
            }
            while posted < slices && posted - seen < SLICES as u32 {
                self.memory.write(place(posted.into()), &slice_bytes(posted)).expect("it is within");
                self.write_slice(WorkId(0), posted.into())?;
                self.send(BULK, posted)?;
                posted += 1;
            }
            // Until then the receiver waits for acknowledgements.
            Ok((seen == slices && is_over.load(Relaxed)).then_some(()))
        })
    }

    fn receive_slices(&self, slices: u32, is_over: &AtomicBool) -> io::Result<()> {
        let mut next = 0;
        drive(&self.fabric, |events| {
            for event in events.drain(..) {
                let CompletionKind::Received { imm, .. } = completed(event)? else { continue };
                if imm != next {
                    return Err(io::Error::other(format!("message {imm} came in place of {next}")));
                }
                let mut found = vec![0; SLICE_BYTES as usize];
                self.memory.read(place(next.into()), &mut found).expect("it is within");
                if found != slice_bytes(next) {
                    return Err(io::Error::other(format!("slice {next} is not as it was written")));
                }
                next += 1;
                self.send(Lane::FIRST, imm)?;
            }
            if next == slices && self.fabric.is_idle() {
                is_over.store(true, Relaxed);
            }
            Ok(is_over.load(Relaxed).then_some(()))
        })
    }
}

/// An end with a load on it.
struct Loaded<'a> {
    end: &'a End,
    load: Load,
    /// What its slices are called: some of a load before may still be under way.
    id: WorkId,
    posted: u64,
    done: u64,
    /// When the counting began, and what was done by then.
    counted_from: Option<(Instant, u64)>,
    /// When the ping left that is under way.
    pinged: Option<Instant>,
    trips: Vec<Duration>,
    /// Nothing is posted any more when there is one.
    outcome: Option<Outcome>,
}

impl Loaded<'_> {
    fn new(end: &End, load: Load) -> Loaded<'_> {
        let (counted_from, pinged, trips, outcome) = (None, None, Vec::new(), None);
        let id = WorkId(1 + end.loads.fetch_add(1, Relaxed));
        Loaded { end, load, id, posted: 0, done: 0, counted_from, pinged, trips, outcome }
    }

    fn run(mut self) -> io::Result<Outcome> {
        let begin = Instant::now();
        drive(&self.end.fabric, |events| {
            let now = Instant::now();
            for event in events.drain(..) {
                match completed(event)? {
                    CompletionKind::Notified { .. } => {
                        self.trips.extend(self.pinged.take().map(|pinged| now - pinged));
                    }
                    CompletionKind::Done { id } => self.done += u64::from(id == self.id),
                    _ => {}
                }
            }
            self.count(begin, now);
            if self.outcome.is_none() {
                self.post()?;
            }
            Ok(if self.pinged.is_none() { self.outcome.take() } else { None })
        })
    }

    fn post(&mut self) -> io::Result<()> {
        while self.load.has_bulk && self.posted - self.done < SLICES {
            self.end.write_slice(self.id, self.posted)?;
            self.posted += 1;
        }
        if self.load.has_pings && self.pinged.is_none() {
            self.pinged = Some(Instant::now());
            self.end.ping()?;
        }
        Ok(())
    }

    /// Whether a figure is complete: one ping has come back at least, however long the processors were others'.
    fn is_enough(&self, counted: Duration) -> bool {
        let Load { has_pings, time, .. } = self.load;
        counted >= time && (!has_pings || !self.trips.is_empty())
    }

    fn count(&mut self, begin: Instant, now: Instant) {
        match self.counted_from {
            None if now - begin >= self.load.warm_up => {
                self.counted_from = Some((now, self.done));
                self.trips.clear();
            }
            Some((from, done)) if self.is_enough(now - from) && self.outcome.is_none() => {
                let bits = (8 * SLICE_BYTES * (self.done - done)) as f64;
                let mut trips = std::mem::take(&mut self.trips);
                trips.sort_unstable();
                self.outcome = Some(Outcome { goodput_mbps: bits / 1e6 / (now - from).as_secs_f64(), trips });
            }
            _ => {}
        }
    }
}

/// Where a slice lies, at both ends.
fn place(slice: u64) -> u64 {
    slice * SLICE_BYTES % MEMORY_BYTES
}

/// What a slice holds: no two have a word in common.
fn slice_bytes(slice: u32) -> Vec<u8> {
    let words = SLICE_BYTES as u32 / 4;
    (0..words).flat_map(|word| (slice * words + word).to_le_bytes()).collect()
}

/// What has completed, and must have done so with success.
fn completed(event: Event) -> io::Result<CompletionKind> {
    match event.into_completion() {
        Ok(completion) if completion.status == Status::Success => Ok(completion.kind),
        Ok(completion) => Err(io::Error::other(format!("{completion:?}"))),
        Err(event) => Err(io::Error::other(format!("{event:?}"))),
    }
}

/// Polls a fabric, and sleeps on it, until `turn` has a result.  It is called with what was polled, and now and then with nothing.
fn drive<R>(
    fabric: &RoceFabric,
    mut turn: impl FnMut(&mut Vec<Event>) -> io::Result<Option<R>>,
) -> io::Result<R> {
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while Instant::now() < deadline {
        if fabric.poll(&mut events) == 0 {
            fabric.arm(Some(Sleeper::Progress));
            let seen = fabric.doorbell();
            if fabric.poll(&mut events) == 0 {
                let timeout = fabric.poll_timeout().map_or(NAP, |timeout| timeout.min(NAP));
                fabric.wait(Sleeper::Progress, seen, Some(timeout));
            }
            fabric.arm(None);
        }
        if let Some(result) = turn(&mut events)? {
            return Ok(result);
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "nothing has come of it for a minute"))
}
