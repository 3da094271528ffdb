//! Two ends of a fabric within one thread: what is posted at one end is done, and arrives, at once.
#![allow(dead_code, missing_docs)]

pub mod scripted;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use halite_fabric::{
    Atomics, Capabilities, Completion, CompletionKind, ConnectFailure, ConnectTrouble, CutOff, Event, Fabric,
    Key, Lane, Local, Operation, PeerId, PostCause, PostError, RegisterError, Sleeper, Status, WorkId,
    WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};

/// How each end calls the other.
pub const PEER: PeerId = PeerId(1);

#[derive(Default)]
struct State {
    segments: Vec<Option<Window>>,
    events: VecDeque<Event>,
    rings: u32,
    connected: bool,
}

/// One end.
pub struct End {
    state: Mutex<State>,
    other: Weak<End>,
    bell: OwnedFd,
}

/// Two connected ends.
pub fn pair() -> (Arc<End>, Arc<End>) {
    let new = |other: &Weak<End>| End {
        state: Mutex::new(State { connected: true, ..State::default() }),
        other: other.clone(),
        bell: bell(),
    };
    let mut second = None;
    let first = Arc::new_cyclic(|first| {
        let end = Arc::new(new(first));
        let weak = Arc::downgrade(&end);
        second = Some(end);
        new(&weak)
    });
    (first, second.expect("made along with the first"))
}

/// What becomes readable with each ring.
pub fn bell() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).unwrap()
}

pub fn ring(bell: &OwnedFd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

/// A segment of a page, registered at `end`.
pub fn register(end: &dyn Fabric) -> (Key, Window) {
    let segment = Segment::create("test", 4096, PagePolicy::Normal).unwrap();
    let window = segment.window(0, 4096).unwrap();
    (end.register(segment).unwrap(), window)
}

pub fn request(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { id: WorkId(id), operation, signalled: true, solicited: true }
}

pub fn send(id: u64, bytes: &[u8]) -> WorkRequest<'_> {
    request(id, Operation::Send { bytes, imm: 0 })
}

/// One poll.
pub fn poll_events(fabric: &dyn Fabric) -> Vec<Event> {
    let mut events = Vec::new();
    let count = fabric.poll(&mut events);
    assert_eq!(count, events.len());
    events
}

/// One poll, without what happens to connections.
pub fn poll(fabric: &dyn Fabric) -> Vec<Completion> {
    poll_events(fabric).into_iter().filter_map(|event| event.into_completion().ok()).collect()
}

/// One poll, by number of the request and how it ended.
pub fn poll_ids(fabric: &dyn Fabric) -> Vec<(u64, Status)> {
    let ended = |completion: Completion| match completion.kind {
        CompletionKind::Done { id } | CompletionKind::Atomic { id, .. } => (id.0, completion.status),
        kind => panic!("expected the end of a request, got {kind:?}"),
    };
    poll(fabric).into_iter().map(ended).collect()
}

impl End {
    fn arrive(&self, kind: CompletionKind) {
        let mut state = self.state.lock().unwrap();
        state.rings += 1;
        ring(&self.bell);
        let completion = Completion { peer: PEER, status: Status::Success, kind };
        state.events.push_back(Event::Completed(completion));
    }

    fn segment(&self, key: Key) -> Option<Window> {
        let state = self.state.lock().unwrap();
        state.segments.get(key.0 as usize).cloned().flatten()
    }

    fn end_connection(&self) {
        let mut state = self.state.lock().unwrap();
        if std::mem::take(&mut state.connected) {
            state.events.push_back(Event::Disconnected { peer: PEER });
            state.events.push_back(Event::CutOff { peer: PEER, exited: false });
        }
    }

    fn execute(&self, other: &End, request: &WorkRequest<'_>) -> (Status, CompletionKind) {
        let id = request.id;
        let done = (Status::Success, CompletionKind::Done { id });
        let refused = (Status::RemoteAccess, CompletionKind::Done { id });
        match request.operation {
            Operation::Send { bytes, imm } => {
                let bytes = bytes.to_vec();
                other.arrive(CompletionKind::Received { bytes, imm });
                done
            }
            Operation::FetchAdd { remote, add } => {
                let Some(window) = other.segment(remote.key) else {
                    return refused;
                };
                let old = window.fetch_add_u64(remote.offset, add).unwrap();
                (Status::Success, CompletionKind::Atomic { id, old })
            }
            Operation::Write { local: Local::Inline(bytes), remote } => {
                let Some(window) = other.segment(remote.key) else {
                    return refused;
                };
                window.write(remote.offset, bytes).unwrap();
                done
            }
            operation => panic!("no test posts {operation:?}"),
        }
    }
}

impl Fabric for End {
    fn providers(&self) -> Vec<&'static str> {
        vec!["test"]
    }

    fn capabilities(&self, _: PeerId) -> Capabilities {
        Capabilities {
            provider: "test",
            direct: true,
            atomics: Atomics::Processor,
            lanes: 1,
            send_bytes_max: 4096,
            inline_bytes_max: 4096,
        }
    }

    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError> {
        let mut state = self.state.lock().unwrap();
        let window = segment.window(0, segment.len()).unwrap();
        state.segments.push(Some(window));
        Ok(Key(state.segments.len() as u32 - 1))
    }

    fn deregister(&self, key: Key) {
        let mut state = self.state.lock().unwrap();
        if state.segments.get_mut(key.0 as usize).and_then(Option::take).is_some() {
            state.events.push_back(Event::Deregistered { key });
        }
    }

    fn connect(&self, address: &str, _: &[u8]) {
        let failure = ConnectFailure {
            address: address.to_owned(),
            reason: "there is nobody else".to_owned(),
            trouble: ConnectTrouble::Theirs,
        };
        self.state.lock().unwrap().events.push_back(Event::ConnectFailed(failure));
    }

    fn post(&self, peer: PeerId, _: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let other = self.other.upgrade();
        let connected = self.state.lock().unwrap().connected;
        let Some(other) = other.filter(|_| connected) else {
            return Err(PostError { peer, posted: 0, cause: PostCause::NotConnected });
        };
        for request in requests {
            let (status, kind) = self.execute(&other, request);
            if request.signalled || status != Status::Success {
                let completion = Completion { peer, status, kind };
                self.state.lock().unwrap().events.push_back(Event::Completed(completion));
            }
        }
        Ok(())
    }

    fn poll(&self, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        events.extend(self.state.lock().unwrap().events.drain(..));
        events.len() - before
    }

    fn direct(&self, _: PeerId, key: Key) -> Option<Window> {
        self.other.upgrade()?.segment(key)
    }

    fn cut_off(&self, _: PeerId) -> CutOff {
        CutOff::NotPermitted
    }

    fn disconnect(&self, _: PeerId) {
        self.end_connection();
        if let Some(other) = self.other.upgrade() {
            other.end_connection();
        }
    }

    fn arm(&self, _: Option<Sleeper>) {}

    fn wait(&self, _: Sleeper, seen: u32, _: Option<Duration>) {
        // There is one thread: nobody could ring while it sleeps.
        assert_ne!(self.doorbell(), seen, "this would sleep for ever");
    }

    fn doorbell(&self) -> u32 {
        self.state.lock().unwrap().rings
    }

    fn wake(&self) {
        self.state.lock().unwrap().rings += 1;
        ring(&self.bell);
    }

    fn descriptor(&self, _: Sleeper) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn close(&self) {
        self.disconnect(PEER);
    }
}
