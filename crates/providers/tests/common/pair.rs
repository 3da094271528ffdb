//! Two connected roce fabrics in this process, polled in turn. Their sockets may be in different networks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use halite_fabric::{
    Completion, CompletionKind, Event, Fabric, Key, Lane, Operation, PeerId, Sleeper, Status, WorkId,
    WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_providers::roce::Counters;
use halite_providers::{RoceConfig, RoceFabric};

/// Time limit that turns a hang into a failure; no test should come near it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for which one end sleeps before the other is polled.
const SLEEP_MAX: Duration = Duration::from_micros(100);

/// One of the two ends.
pub struct End {
    pub fabric: Arc<RoceFabric>,
    /// Id of the other end, as a peer of this one.
    pub peer: PeerId,
    /// Events that the test has not taken yet.
    pub events: VecDeque<Event>,
}

pub struct Pair {
    pub ends: [End; 2],
    posted: u64,
}

impl End {
    pub fn register(&self, len: u64) -> (Key, Window) {
        let segment = Segment::create("test", len, PagePolicy::Normal).unwrap();
        let window = segment.window(0, len).unwrap();
        (self.fabric.register(segment).unwrap(), window)
    }

    pub fn counters(&self) -> Counters {
        self.fabric.counters(self.peer).expect("the connection lives")
    }

    /// Returns the next completion, if any.
    pub fn take_completion(&mut self) -> Option<Completion> {
        let index = self.events.iter().position(|event| matches!(event, Event::Completed(_)))?;
        self.events.remove(index)?.into_completion().ok()
    }

    /// Returns the next message, if any.
    pub fn take_message(&mut self) -> Option<(Vec<u8>, u32)> {
        let is_message = |event: &Event| {
            matches!(event, Event::Completed(Completion { kind: CompletionKind::Received { .. }, .. }))
        };
        let index = self.events.iter().position(is_message)?;
        match self.events.remove(index)?.into_completion() {
            Ok(Completion { kind: CompletionKind::Received { bytes, imm }, .. }) => Some((bytes, imm)),
            other => panic!("no message: {other:?}"),
        }
    }
}

impl Pair {
    /// Connects fabrics named "one" and "two" in one directory; the first dials.
    pub fn connect(fabrics: [Arc<RoceFabric>; 2]) -> Pair {
        let end = |fabric| End { fabric, peer: PeerId(0), events: VecDeque::new() };
        let mut pair = Pair { ends: fabrics.map(end), posted: 0 };
        pair.ends[0].fabric.connect("two.sock", b"");
        for index in 0..2 {
            pair.ends[index].peer =
                pair.wait_for("a connection", |pair| match pair.ends[index].events.pop_front()? {
                    Event::Connected { peer, .. } => Some(peer),
                    event => panic!("expected a connection, got {event:?}"),
                });
        }
        pair
    }

    pub fn open(one: RoceConfig, two: RoceConfig) -> Pair {
        Pair::connect([one, two].map(|config| RoceFabric::open(config).unwrap()))
    }

    /// Polls both ends. Sleeps for at most [`SLEEP_MAX`] if neither has an event.
    pub fn poll_all(&mut self) {
        let mut count = 0;
        for end in &mut self.ends {
            let mut polled = Vec::new();
            count += end.fabric.poll(&mut polled);
            end.events.extend(polled);
        }
        if count == 0 {
            let fabric = &self.ends[0].fabric;
            let seen = fabric.doorbell();
            fabric.arm(Some(Sleeper::Progress));
            fabric.wait(Sleeper::Progress, seen, Some(SLEEP_MAX));
            fabric.arm(None);
        }
    }

    /// Polls both ends until `find` returns a value.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, mut find: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "timed out waiting for {what}");
            self.poll_all();
        }
    }

    /// Posts one request at an end; returns the id of its completion.
    pub fn post(&mut self, end: usize, operation: Operation<'_>) -> WorkId {
        self.post_to(end, Lane::FIRST, operation)
    }

    pub fn post_to(&mut self, end: usize, lane: Lane, operation: Operation<'_>) -> WorkId {
        self.posted += 1;
        let id = WorkId(self.posted);
        let request = WorkRequest { id, operation, signalled: true, solicited: true };
        let End { fabric, peer, .. } = &self.ends[end];
        fabric.post(*peer, lane, &[request]).unwrap();
        id
    }

    /// Executes one request; returns the old value of an atomic.
    #[track_caller]
    pub fn run(&mut self, end: usize, operation: Operation<'_>) -> u64 {
        let id = self.post(end, operation);
        let completion = self.wait_for("a completion", |pair| {
            let is_completion = |event: &Event| {
                matches!(event, Event::Completed(Completion { kind: CompletionKind::Done { id: done }
                    | CompletionKind::Atomic { id: done, .. }, .. }) if *done == id)
            };
            let events = &mut pair.ends[end].events;
            let index = events.iter().position(is_completion)?;
            events.remove(index)?.into_completion().ok()
        });
        assert_eq!(completion.status, Status::Success);
        match completion.kind {
            CompletionKind::Atomic { old, .. } => old,
            _ => 0,
        }
    }

    /// Waits until all requests at both ends have completed and all late acknowledgements have arrived.
    pub fn settle(&mut self) {
        let mut quiet_rounds = 0;
        self.wait_for("the completion of all requests", |pair| {
            let is_quiet = |end: &End| end.fabric.is_idle() && end.fabric.poll_timeout().is_none();
            quiet_rounds = if pair.ends.iter().all(is_quiet) { quiet_rounds + 1 } else { 0 };
            // Several rounds, because an end receives the last packets of the other end in the next round.
            (quiet_rounds > 3).then_some(())
        });
    }
}
