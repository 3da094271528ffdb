//! Halite over an emulated link: one fabric over UDP in each of the two networks, each driven by a thread.
//!
//! Measures the fabric below a session, with as much in flight as a session posts: 768 KiB in slices of 32 KiB.

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

/// Bytes per write.
pub const SLICE_BYTES: u64 = 32 << 10;
/// Slices in flight: 768 KiB.
const SLICES: u64 = 24;
/// Registered memory of each end, in bytes.
const MEMORY_BYTES: u64 = SLICE_BYTES * 64;
/// Length of a ping, which is a write with immediate.
const PING_BYTES: usize = 64;
/// Maximum sleep of a thread between checks for the end.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Time limit that turns a hang into a failure.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const BULK: Lane = Lane { number: 1, class: Class::Bulk };

/// Two connected fabrics.
pub struct Ends {
    ends: [End; 2],
    _dir: TempDir,
}

struct End {
    fabric: Arc<RoceFabric>,
    peer: PeerId,
    /// This end's memory.
    memory: Window,
    /// Key of this end's memory. Each end registers one segment, so the peer's key is the same.
    key: Key,
    /// Number of loads that this end has started.
    loads: AtomicU64,
}

impl Drop for End {
    /// Closes the fabric at once. Otherwise, its drop would wait for acknowledgements from a peer that no thread drives
    /// any more.
    fn drop(&mut self) {
        self.fabric.disconnect(self.peer);
    }
}

/// Traffic that one end sends; the other end answers.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// True if the end writes slices continuously.
    pub has_bulk: bool,
    /// True if the end sends pings of 64 bytes, one at a time, continuously.
    pub has_pings: bool,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub time: Duration,
}

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes of completed slices, in megabits per second.
    pub goodput_mbps: f64,
    /// Round trips of all pings, sorted.
    pub trips: Vec<Duration>,
}

impl Outcome {
    /// Returns the round trip that `percent` % of the pings do not exceed; `None` if no ping came back.
    pub fn percentile(&self, percent: usize) -> Option<Duration> {
        let last = self.trips.len().checked_sub(1)?;
        Some(self.trips[last * percent / 100])
    }
}

impl Ends {
    /// Opens both ends; side 0 dials.
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

    /// Runs the load on side 0, and drives both ends until the load is over.
    pub fn run(&self, network: &Network, load: Load) -> io::Result<Outcome> {
        let is_over = AtomicBool::new(false);
        let [outcome, answered] = network.both(|side| {
            let end = &self.ends[side];
            if side == 1 {
                return end.answer(&is_over).map(|()| Outcome::default());
            }
            let outcome = LoadRun::new(end, load).run();
            is_over.store(true, Relaxed);
            outcome
        });
        answered.and(outcome)
    }

    /// Writes `slices` slices, each followed by a message in the same lane. Fails unless the messages arrive in order,
    /// and each slice is complete in the other end's memory when its message arrives.
    pub fn transfer(&self, network: &Network, slices: u32) -> io::Result<()> {
        let is_over = AtomicBool::new(false);
        let [sent, received] = network.both(|side| match side {
            0 => self.ends[0].send_slices(slices, &is_over),
            _ => self.ends[1].receive_slices(slices, &is_over),
        });
        // If the receiver fails, the sender runs into its time limit; the receiver's error is the cause.
        received.and(sent)
    }

    /// Returns the counters of both ends' queue pairs.
    pub fn counters(&self) -> [Counters; 2] {
        self.ends.each_ref().map(|end| end.fabric.counters(end.peer).unwrap_or_default())
    }

    /// Returns how many packets each fabric has dropped, by cause.
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

    /// Writes a slice. Only writes of slices complete with an event.
    fn write_slice(&self, id: WorkId, slice: u64) -> io::Result<()> {
        let offset = offset_of(slice);
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

    /// Answers pings until the load is over.
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
                    // The receiver has checked a slice, so its place is free.
                    seen += 1;
                }
            }
            while posted < slices && posted - seen < SLICES as u32 {
                self.memory
                    .write(offset_of(posted.into()), &slice_bytes(posted))
                    .expect("the slice lies within the memory");
                self.write_slice(WorkId(0), posted.into())?;
                self.send(BULK, posted)?;
                posted += 1;
            }
            // The receiver still waits for acknowledgements until it sets `is_over`.
            Ok((seen == slices && is_over.load(Relaxed)).then_some(()))
        })
    }

    fn receive_slices(&self, slices: u32, is_over: &AtomicBool) -> io::Result<()> {
        let mut next = 0;
        drive(&self.fabric, |events| {
            for event in events.drain(..) {
                let CompletionKind::Received { imm, .. } = completed(event)? else { continue };
                if imm != next {
                    return Err(io::Error::other(format!("message {imm} arrived instead of {next}")));
                }
                let mut found = vec![0; SLICE_BYTES as usize];
                self.memory
                    .read(offset_of(next.into()), &mut found)
                    .expect("the slice lies within the memory");
                if found != slice_bytes(next) {
                    return Err(io::Error::other(format!("slice {next} differs from what was written")));
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

/// A load in progress at one end.
struct LoadRun<'a> {
    end: &'a End,
    load: Load,
    /// Id of the writes of this load; writes of an earlier load may still be in flight.
    id: WorkId,
    posted: u64,
    done: u64,
    /// Start of the measurement, and the number of slices done before it.
    measured_from: Option<(Instant, u64)>,
    /// Time at which the ping in flight was sent.
    ping_sent: Option<Instant>,
    trips: Vec<Duration>,
    /// Result of the measurement; the end then posts no more requests.
    outcome: Option<Outcome>,
}

impl LoadRun<'_> {
    fn new(end: &End, load: Load) -> LoadRun<'_> {
        let (measured_from, ping_sent, trips, outcome) = (None, None, Vec::new(), None);
        let id = WorkId(1 + end.loads.fetch_add(1, Relaxed));
        LoadRun { end, load, id, posted: 0, done: 0, measured_from, ping_sent, trips, outcome }
    }

    fn run(mut self) -> io::Result<Outcome> {
        let begin = Instant::now();
        drive(&self.end.fabric, |events| {
            let now = Instant::now();
            for event in events.drain(..) {
                match completed(event)? {
                    CompletionKind::Notified { .. } => {
                        self.trips.extend(self.ping_sent.take().map(|ping_sent| now - ping_sent));
                    }
                    CompletionKind::Done { id } => self.done += u64::from(id == self.id),
                    _ => {}
                }
            }
            self.count(begin, now);
            if self.outcome.is_none() {
                self.post()?;
            }
            Ok(if self.ping_sent.is_none() { self.outcome.take() } else { None })
        })
    }

    fn post(&mut self) -> io::Result<()> {
        while self.load.has_bulk && self.posted - self.done < SLICES {
            self.end.write_slice(self.id, self.posted)?;
            self.posted += 1;
        }
        if self.load.has_pings && self.ping_sent.is_none() {
            self.ping_sent = Some(Instant::now());
            self.end.ping()?;
        }
        Ok(())
    }

    /// Returns true if the measurement is complete: its time is over, and at least one ping has returned, even if other
    /// processes kept the cores busy.
    fn is_complete(&self, elapsed: Duration) -> bool {
        let Load { has_pings, time, .. } = self.load;
        elapsed >= time && (!has_pings || !self.trips.is_empty())
    }

    fn count(&mut self, begin: Instant, now: Instant) {
        match self.measured_from {
            None if now - begin >= self.load.warm_up => {
                self.measured_from = Some((now, self.done));
                self.trips.clear();
            }
            Some((from, done)) if self.is_complete(now - from) && self.outcome.is_none() => {
                let bits = (8 * SLICE_BYTES * (self.done - done)) as f64;
                let mut trips = std::mem::take(&mut self.trips);
                trips.sort_unstable();
                self.outcome = Some(Outcome { goodput_mbps: bits / 1e6 / (now - from).as_secs_f64(), trips });
            }
            _ => {}
        }
    }
}

/// Returns the offset of a slice, the same at both ends.
fn offset_of(slice: u64) -> u64 {
    slice * SLICE_BYTES % MEMORY_BYTES
}

/// Returns the content of a slice. No two slices have a word in common.
fn slice_bytes(slice: u32) -> Vec<u8> {
    let words = SLICE_BYTES as u32 / 4;
    (0..words).flat_map(|word| (slice * words + word).to_le_bytes()).collect()
}

/// Returns the completion; fails if it is not a successful one.
fn completed(event: Event) -> io::Result<CompletionKind> {
    match event.into_completion() {
        Ok(completion) if completion.status == Status::Success => Ok(completion.kind),
        Ok(completion) => Err(io::Error::other(format!("{completion:?}"))),
        Err(event) => Err(io::Error::other(format!("{event:?}"))),
    }
}

/// Polls and sleeps on a fabric until `turn` has a result. Calls `turn` with the polled events, sometimes none.
fn drive<R>(
    fabric: &RoceFabric,
    mut turn: impl FnMut(&mut Vec<Event>) -> io::Result<Option<R>>,
) -> io::Result<R> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut events = Vec::new();
    while Instant::now() < deadline {
        if fabric.poll(&mut events) == 0 {
            fabric.arm(Some(Sleeper::Progress));
            let seen = fabric.doorbell();
            if fabric.poll(&mut events) == 0 {
                let timeout = fabric.poll_timeout().map_or(WAIT_MAX, |timeout| timeout.min(WAIT_MAX));
                fabric.wait(Sleeper::Progress, seen, Some(timeout));
            }
            fabric.arm(None);
        }
        if let Some(result) = turn(&mut events)? {
            return Ok(result);
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no result within a minute"))
}
