//! A fabric under test, with the events that the case has polled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use halite_mem::{PagePolicy, Segment, Window};

use super::Harness;
use crate::{
    Completion, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, PostError, RemoteAddress,
    Sleeper, Status, WorkId, WorkRequest,
};

/// Bytes of the segment that each end of a [`Pair`] registers.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// A fabric, and its polled events that the case has not consumed yet. Panics if the events of a peer come in a wrong
/// order.
pub struct Node<'h> {
    /// The harness, which lets time pass.
    pub harness: &'h dyn Harness,
    /// The fabric under test.
    pub fabric: Arc<dyn Fabric>,
    events: VecDeque<Event>,
    peers: BTreeMap<PeerId, Phase>,
}

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connected,
    Disconnected,
    CutOff,
}

impl<'h> Node<'h> {
    /// Opens a fabric with `name` as its hello.
    pub fn open(harness: &'h dyn Harness, name: &str) -> Node<'h> {
        let fabric = harness.open(name, name.as_bytes());
        Node { harness, fabric, events: VecDeque::new(), peers: BTreeMap::new() }
    }

    /// Returns the next event; `None` if no event is pending.
    pub fn try_event(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            let mut polled = Vec::new();
            let count = self.fabric.poll(&mut polled);
            assert_eq!(count, polled.len(), "poll returned a wrong number of events");
            polled.iter().for_each(|event| self.check_order(event));
            self.events.extend(polled);
        }
        self.events.pop_front()
    }

    fn check_order(&mut self, event: &Event) {
        let (peer, next) = match event {
            Event::ConnectFailed(_) | Event::Deregistered { .. } => return,
            Event::Connected { peer, .. } => {
                let known = self.peers.insert(*peer, Phase::Connected);
                return assert_eq!(known, None, "{event:?}: a peer number was used again");
            }
            Event::Completed(Completion { peer, .. }) | Event::Room { peer } => (peer, Phase::Connected),
            Event::Disconnected { peer } => (peer, Phase::Disconnected),
            Event::CutOff { peer, .. } => (peer, Phase::CutOff),
        };
        let before = if next == Phase::CutOff { Phase::Disconnected } else { Phase::Connected };
        let known = self.peers.insert(*peer, next);
        assert_eq!(known, Some(before), "{event:?} arrived out of order");
    }

    /// Arms the doorbell, then calls `find` and sleeps in turn, until `find` returns `Some`. Returns the value that
    /// `find` found.
    pub fn until<T>(&mut self, mut find: impl FnMut(&mut Node<'h>) -> Option<T>) -> T {
        self.fabric.arm(Some(Sleeper::Progress));
        loop {
            let seen = self.fabric.doorbell();
            if let Some(found) = find(self) {
                self.fabric.arm(None);
                return found;
            }
            assert!(
                self.harness.sleep(&*self.fabric, seen),
                "no event arrived in time: an event or a ring was lost"
            );
        }
    }

    /// Waits for the next event and returns it.
    pub fn event(&mut self) -> Event {
        self.until(Node::try_event)
    }

    /// Waits for the next event, which must be a completion, and returns the completion.
    pub fn completion(&mut self) -> Completion {
        self.event().into_completion().unwrap_or_else(|event| panic!("expected a completion, got {event:?}"))
    }

    /// Collects completed requests until another kind of event arrives. Returns the status of each request by its id,
    /// and the other event.
    pub fn ended_until_end(&mut self) -> (BTreeMap<u64, Status>, Event) {
        let mut ended = BTreeMap::new();
        loop {
            match self.event() {
                Event::Completed(completion) => {
                    let (id, status) = own(&completion).expect("only completions of requests are expected");
                    assert_eq!(ended.insert(id, status), None, "request {id} completed twice");
                }
                event => return (ended, event),
            }
        }
    }

    /// Waits for the next event, which must be the completion of a request. Returns the request's id and status.
    pub fn ended(&mut self) -> (u64, Status) {
        let completion = self.completion();
        own(&completion).unwrap_or_else(|| panic!("expected the completion of a request, got {completion:?}"))
    }

    /// Waits for the next event, which must be a message. Returns its bytes and immediate.
    pub fn received(&mut self) -> (Vec<u8>, u32) {
        match self.completion().kind {
            CompletionKind::Received { bytes, imm } => (bytes, imm),
            kind => panic!("expected a message, got {kind:?}"),
        }
    }

    /// Waits for the next event, which must be a new connection. Returns the id of the peer.
    pub fn connected(&mut self) -> PeerId {
        match self.event() {
            Event::Connected { peer, .. } => peer,
            event => panic!("expected a connection, got {event:?}"),
        }
    }

    /// Waits for the events of a peer that disconnects while its process is still running.
    pub fn gone(&mut self, peer: PeerId) {
        assert_eq!(self.event(), Event::Disconnected { peer });
        assert_eq!(self.event(), Event::CutOff { peer, exited: false });
    }

    /// Returns all events that arrive without further action by the case.
    pub fn rest(&mut self) -> Vec<Event> {
        self.harness.settle();
        std::iter::from_fn(|| self.try_event()).collect()
    }

    /// Expects that no event arrives without further action by the case.
    pub fn expect_nothing(&mut self) {
        assert_eq!(self.rest(), []);
    }

    /// Registers a new segment of `len` bytes. Returns its key, and a window of the whole segment.
    pub fn register(&self, len: u64) -> (Key, Window) {
        let segment = Segment::create("case", len, PagePolicy::Normal).expect("a segment is created");
        let window = segment.window(0, len).expect("the window is the whole segment");
        (self.fabric.register(segment).expect("the segment is registered"), window)
    }

    /// Registers the segment of `window` again, under a new key. This needs no further descriptor.
    pub fn register_again(&self, window: &Window) -> (Key, Window) {
        (self.fabric.register(window.segment().clone()).expect("the segment is registered"), window.clone())
    }

    /// Posts one signalled and solicited request in the first lane. Panics if the post is refused.
    pub fn post(&self, peer: PeerId, id: u64, operation: Operation<'_>) {
        self.try_post(peer, &[request(id, operation)]).expect("the request is accepted");
    }

    /// Posts a list of requests in a lane. Panics if a request is refused.
    pub fn post_in(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) {
        self.fabric.post(peer, lane, requests).expect("the requests are accepted");
    }

    /// Posts a list of requests in the first lane, and returns the outcome of the post.
    pub fn try_post(&self, peer: PeerId, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        self.fabric.post(peer, Lane::FIRST, requests)
    }

    /// Sends a solicited message, whose request produces no completion. Panics if the post is refused.
    pub fn send(&self, peer: PeerId, bytes: &[u8], imm: u32) {
        let send = quiet(0, Operation::Send { bytes, imm });
        self.try_post(peer, &[send]).expect("the request is accepted");
    }
}

/// Two connected fabrics, each with a registered segment.
pub struct Pair<'h> {
    /// The fabric that dialled.
    pub one: Node<'h>,
    /// The fabric that was dialled.
    pub two: Node<'h>,
    /// The id by which `one` knows `two`.
    pub to_two: PeerId,
    /// The id by which `two` knows `one`.
    pub to_one: PeerId,
    /// Key and window of `one`'s segment.
    pub source: (Key, Window),
    /// Key and window of `two`'s segment.
    pub target: (Key, Window),
}

impl<'h> Pair<'h> {
    /// Opens two fabrics and connects them.
    pub fn new(harness: &'h dyn Harness) -> Pair<'h> {
        Pair::between(harness, ["one", "two"])
    }

    /// Opens two fabrics with the given names and connects them, for cases with several pairs.
    pub fn between(harness: &'h dyn Harness, names: [&str; 2]) -> Pair<'h> {
        let [mut one, mut two] = names.map(|name| Node::open(harness, name));
        let (source, target) = (one.register(SEGMENT_BYTES), two.register(SEGMENT_BYTES));
        let (to_two, to_one) = connect(&mut one, &mut two, names[1]);
        Pair { one, two, to_two, to_one, source, target }
    }

    /// Returns the address at `offset` in the segment of `two`.
    pub fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { key: self.target.0, offset }
    }

    /// Returns a range of the segment of `one`, as the local source or destination of a request.
    pub fn local(&self, offset: u64, len: u64) -> Local<'static> {
        Local::Registered { key: self.source.0, offset, len }
    }
}

/// Connects `one` to `two`, whose name is `name`. Returns the id by which `one` knows `two`, and the id by which `two`
/// knows `one`.
pub fn connect(one: &mut Node<'_>, two: &mut Node<'_>, name: &str) -> (PeerId, PeerId) {
    one.fabric.connect(&one.harness.address(name), b"");
    (one.connected(), two.connected())
}

/// Returns a signalled and solicited request.
pub fn request(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { id: WorkId(id), operation, signalled: true, solicited: true }
}

/// Returns an unsignalled, solicited request, which produces a completion only if it fails.
pub fn quiet(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { signalled: false, ..request(id, operation) }
}

/// Returns the id and status of a completed request; `None` for a message or an immediate.
pub fn own(completion: &Completion) -> Option<(u64, Status)> {
    match completion.kind {
        CompletionKind::Done { id } | CompletionKind::Atomic { id, .. } => Some((id.0, completion.status)),
        CompletionKind::Received { .. } | CompletionKind::Notified { .. } => None,
    }
}

/// Returns `len` bytes of a window, from `offset` on.
pub fn bytes_of(window: &Window, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    window.read(offset, &mut bytes).expect("the range lies within the segment");
    bytes
}
