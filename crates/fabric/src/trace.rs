//! Middleware that records the last steps of a fabric, and counts all of them.
//!
//! A [`Tracer`] wraps any fabric and changes nothing, except that it hides direct access, which it could not see. It
//! keeps no payloads, and has a clock only if it is given one.

mod record;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use halite_mem::{Segment, Window};

use self::record::{Record, Step};
use crate::kind::{OperationKind, payload_bytes};
use crate::middleware::Middleware;
use crate::{
    Capabilities, Completion, CompletionKind, CutOff, Event, Fabric, Key, Lane, PeerId, PostError,
    RegisterError, Status, WorkRequest,
};

/// A fabric that records its steps.
///
/// ```
/// # use std::sync::Arc;
/// # use halite_fabric::trace::Tracer;
/// # use halite_fabric::Fabric;
/// # fn wrap(fabric: Arc<dyn Fabric>) {
/// let tracer = Tracer::new(fabric, 1000);
/// // ... use it as a fabric ...
/// eprint!("{}", tracer.dump());
/// # }
/// ```
pub struct Tracer {
    inner: Arc<dyn Fabric>,
    clock: Option<Clock>,
    log: Mutex<Log>,
    operations: [Tally; OperationKind::ALL.len()],
    arrivals: Tally,
    failures: AtomicU64,
    refused: AtomicU64,
}

type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

#[derive(Debug)]
struct Log {
    records: VecDeque<Record>,
    records_max: usize,
    next: u64,
}

#[derive(Debug, Default)]
struct Tally {
    count: AtomicU64,
    bytes: AtomicU64,
}

/// Totals of a fabric's traffic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Posted requests by kind, in the order of [`OperationKind::ALL`].
    pub operations: [(OperationKind, Count); OperationKind::ALL.len()],
    /// Arrived messages and immediates.
    pub arrivals: Count,
    /// Completions without success.
    pub failures: u64,
    /// Posts that failed.
    pub refused: u64,
}

/// A number of operations, and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// Number of operations.
    pub count: u64,
    /// Payload in bytes; an atomic counts as 8.
    pub bytes: u64,
}

impl Counters {
    /// Returns the requests of one kind.
    pub fn of(&self, kind: OperationKind) -> Count {
        self.operations[kind as usize].1
    }
}

impl Tracer {
    /// Wraps `inner` and records the last `records_max` steps.
    pub fn new(inner: Arc<dyn Fabric>, records_max: usize) -> Tracer {
        Tracer {
            inner,
            clock: None,
            log: Mutex::new(Log { records: VecDeque::new(), records_max, next: 0 }),
            operations: Default::default(),
            arrivals: Tally::default(),
            failures: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Adds the time of `clock` to each step, in nanoseconds from any start.
    pub fn with_clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Tracer {
        self.clock = Some(Box::new(clock));
        self
    }

    /// Returns the recorded steps, oldest first, one per line: number, time if there is a clock, step.
    pub fn dump(&self) -> String {
        use fmt::Write;
        let mut lines = String::new();
        for record in &self.log().records {
            writeln!(lines, "{record}").expect("strings take everything");
        }
        lines
    }

    /// Returns totals since the tracer was made.
    pub fn counters(&self) -> Counters {
        Counters {
            operations: OperationKind::ALL.map(|kind| (kind, self.operations[kind as usize].count())),
            arrivals: self.arrivals.count(),
            failures: self.failures.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics while it holds this lock")
    }

    fn note(&self, step: Step) {
        let time_ns = self.clock.as_ref().map(|clock| clock());
        let mut log = self.log();
        let number = log.next;
        log.next += 1;
        if log.records.len() >= log.records_max {
            log.records.pop_front();
        }
        if log.records_max > 0 {
            log.records.push_back(Record { number, time_ns, step });
        }
    }

    fn note_post(&self, peer: PeerId, lane: Lane, request: &WorkRequest<'_>) {
        let kind = OperationKind::of(&request.operation);
        let bytes = payload_bytes(&request.operation);
        self.operations[kind as usize].add(bytes);
        self.note(Step::Post { peer, lane, kind, id: request.id, bytes });
    }

    fn note_completion(&self, completion: &Completion) {
        let (peer, status) = (completion.peer, completion.status);
        if status != Status::Success {
            self.failures.fetch_add(1, Relaxed);
        }
        let step = match &completion.kind {
            CompletionKind::Done { id } | CompletionKind::Atomic { id, .. } => {
                Step::Complete { peer, id: *id, status }
            }
            CompletionKind::Received { bytes, imm } => {
                self.arrivals.add(bytes.len() as u64);
                let bytes = Some(bytes.len());
                let imm = *imm;
                Step::Arrive { peer, imm, bytes }
            }
            CompletionKind::Notified { imm } => {
                self.arrivals.add(0);
                let (imm, bytes) = (*imm, None);
                Step::Arrive { peer, imm, bytes }
            }
        };
        self.note(step);
    }
}

impl Tally {
    fn add(&self, bytes: u64) {
        // The counters order nothing.
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn count(&self) -> Count {
        Count { count: self.count.load(Relaxed), bytes: self.bytes.load(Relaxed) }
    }
}

impl Middleware for Tracer {
    fn inner(&self) -> &dyn Fabric {
        &*self.inner
    }

    fn capabilities(&self, peer: PeerId) -> Capabilities {
        Capabilities { direct: false, ..self.inner.capabilities(peer) }
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        let len = segment.len();
        let key = self.inner.register(segment)?;
        self.note(Step::Register { key, len });
        Ok(key)
    }

    fn deregister(&self, key: Key) {
        self.note(Step::Deregister { key });
        self.inner.deregister(key);
    }

    fn connect(&self, address: &str, hello: &[u8]) {
        self.note(Step::Connect { address: address.to_owned() });
        self.inner.connect(address, hello);
    }

    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let result = self.inner.post(peer, lane, requests);
        let posted = result.map_or_else(|error| error.posted, |()| requests.len());
        for request in &requests[..posted] {
            self.note_post(peer, lane, request);
        }
        if let Err(PostError { cause, .. }) = result {
            self.refused.fetch_add(1, Relaxed);
            self.note(Step::Refuse { peer, cause });
        }
        result
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        let count = self.inner.poll(events);
        for event in &events[before..] {
            match event {
                Event::Completed(completion) => self.note_completion(completion),
                event => self.note(Step::Event(event.clone())),
            }
        }
        count
    }

    fn direct(&self, _: PeerId, _: Key) -> Option<Window> {
        None
    }

    fn cut_off(&self, peer: PeerId) -> CutOff {
        let outcome = self.inner.cut_off(peer);
        self.note(Step::CutOff { peer, outcome });
        outcome
    }

    fn disconnect(&self, peer: PeerId) {
        self.note(Step::Disconnect { peer });
        self.inner.disconnect(peer);
    }

    fn close(&self) {
        self.note(Step::Close);
        self.inner.close();
    }
}
