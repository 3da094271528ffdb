//! Two connected hosts with a fabric each, and helpers for tests.

// Each test binary uses only some of these items.
#![allow(dead_code)]

use std::cell::RefCell;
use std::sync::Arc;

use halite_fabric::{
    Completion, CompletionKind, Event, Fabric, Key, Lane, Local, Operation, PeerId, RemoteAddress, Sleeper,
    Status, WorkId, WorkRequest,
};
use halite_mem::{PagePolicy, Segment, Window};
use halite_sim::{Counters, HostId, Link, Profile, SimFabric, World};

/// Length in bytes of the segment that each side registers.
pub const SEGMENT_BYTES: u64 = 1 << 20;
/// Longer than all operations of a test.
pub const LONG_NS: u64 = 1_000_000_000;

/// A host with a fabric.
pub struct Side {
    pub host: HostId,
    pub fabric: Arc<SimFabric>,
    pub key: Key,
    pub memory: Window,
    /// Id of the other side as a peer.
    pub peer: PeerId,
    /// Polled completions that the test has not taken yet.
    completions: RefCell<Vec<Completion>>,
    /// Other polled events that the test has not taken yet.
    events: RefCell<Vec<Event>>,
}

pub struct Pair {
    pub world: World,
    pub one: Side,
    pub two: Side,
}

/// Creates hosts 0 and 1 with armed doorbells. Host 0 has connected to host 1.
pub fn pair(seed: u64, profile: Profile) -> Pair {
    let world = World::new(seed, profile);
    let (mut one, mut two) = (open(&world, "one"), open(&world, "two"));
    one.fabric.connect("two", b"I am one");
    run_for(&world, 1_000_000);
    one.peer = one.connected();
    two.peer = two.connected();
    Pair { world, one, two }
}

/// Creates a host with one fabric and one segment.
pub fn open(world: &World, address: &str) -> Side {
    let host = world.add_host();
    open_on(world, host, address)
}

/// Creates one fabric and one segment on a running host.
pub fn open_on(world: &World, host: HostId, address: &str) -> Side {
    let fabric = world.fabric(host, address, format!("I am {address}").into_bytes());
    let segment = Segment::create("test", SEGMENT_BYTES, PagePolicy::Normal).unwrap();
    let memory = segment.window(0, SEGMENT_BYTES).unwrap();
    let key = fabric.register(segment).unwrap();
    fabric.arm(Some(Sleeper::Progress));
    let (completions, events) = Default::default();
    Side { host, fabric, key, memory, peer: PeerId(0), completions, events }
}

/// Runs the world for `ns`.
pub fn run_for(world: &World, ns: u64) {
    world.run_until(world.now_ns() + ns);
}

pub fn remote(key: Key, offset: u64) -> RemoteAddress {
    RemoteAddress { key, offset }
}

pub fn request(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { id: WorkId(id), operation, signalled: true, solicited: true }
}

impl Side {
    pub fn post(&self, id: u64, operation: Operation<'_>) {
        self.fabric.post(self.peer, Lane::FIRST, &[request(id, operation)]).unwrap();
    }

    /// Takes the event of a new connection and returns its peer.
    pub fn connected(&self) -> PeerId {
        self.poll_all();
        match self.events.borrow_mut().drain(..1).next() {
            Some(Event::Connected { peer, .. }) => peer,
            other => panic!("expected a connection, got {other:?}"),
        }
    }

    /// Returns the completions since the last call.
    pub fn poll(&self) -> Vec<Completion> {
        self.poll_all();
        std::mem::take(&mut *self.completions.borrow_mut())
    }

    fn poll_all(&self) {
        let mut polled = Vec::new();
        self.fabric.poll(&mut polled);
        for event in polled {
            match event.into_completion() {
                Ok(completion) => self.completions.borrow_mut().push(completion),
                Err(event) => self.events.borrow_mut().push(event),
            }
        }
    }

    /// Returns the ids and statuses of requests that have completed since the last call.
    pub fn completed(&self) -> Vec<(u64, Status)> {
        self.poll().iter().filter_map(id_and_status).collect()
    }

    /// Returns the connection events since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.poll_all();
        std::mem::take(&mut *self.events.borrow_mut())
    }

    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Returns the number of bytes from the start of the memory that are equal to `byte`. Checks that each piece of
    /// `piece` bytes landed as a whole or not at all.
    pub fn landed(&self, byte: u8, piece: usize) -> usize {
        let bytes = self.bytes(0, SEGMENT_BYTES as usize);
        let landed = bytes.iter().take_while(|found| **found == byte).count();
        assert_eq!(landed % piece, 0, "a piece landed in part");
        assert!(!bytes[landed..].contains(&byte), "pieces landed out of order");
        landed
    }

    /// Returns the first `len` bytes of the local segment, as a source.
    pub fn source(&self, len: u64) -> Local<'static> {
        Local::Registered { key: self.key, offset: 0, len }
    }
}

fn id_and_status(completion: &Completion) -> Option<(u64, Status)> {
    match completion.kind {
        CompletionKind::Done { id } | CompletionKind::Atomic { id, .. } => Some((id.0, completion.status)),
        _ => None,
    }
}

impl Pair {
    /// Changes the link from one to two.
    pub fn change_forward_link(&self, change: impl FnOnce(Link) -> Link) {
        let (from, to) = (self.one.host, self.two.host);
        self.world.set_link(from, to, change(self.world.link(from, to)));
    }

    /// Changes the link from two to one.
    pub fn change_reverse_link(&self, change: impl FnOnce(Link) -> Link) {
        let (from, to) = (self.two.host, self.one.host);
        self.world.set_link(from, to, change(self.world.link(from, to)));
    }

    /// Fills `len` bytes in the memory of host 0 with `byte`, and posts their write to host 1 as request 1.
    pub fn post_long_write(&self, byte: u8, len: u64) {
        self.one.memory.fill(0, len, byte).unwrap();
        let operation = Operation::Write { local: self.one.source(len), remote: remote(self.two.key, 0) };
        self.one.post(1, operation);
    }
}

/// Changes both links with `change`, and posts 200 requests of many kinds, five at a time. Checks that each request is
/// executed once and in order.
#[track_caller]
pub fn check_executed_once_in_order(profile: Profile, change: impl Fn(Link) -> Link) -> Counters {
    let pair = pair(3, profile);
    pair.change_forward_link(&change);
    pair.change_reverse_link(&change);
    let Pair { world, one, two } = &pair;
    for round in 0..40u64 {
        one.memory.fill(0, 9_000, round as u8 + 1).unwrap();
        one.post(round, Operation::FetchAdd { remote: remote(two.key, 0), add: 1 });
        one.post(round, Operation::Send { bytes: &round.to_le_bytes(), imm: 0 });
        one.post(round, Operation::Write { local: one.source(9_000), remote: remote(two.key, 4096) });
        let local = Local::Registered { key: one.key, offset: 20_000, len: 9_000 };
        one.post(round, Operation::Read { local, remote: remote(two.key, 4096) });
        let local = Local::Inline(b"done");
        one.post(round, Operation::WriteImm { local, remote: remote(two.key, 8), imm: round as u32 });
        run_for(world, LONG_NS);
        assert_eq!(one.completed(), vec![(round, Status::Success); 5]);
        assert_eq!(two.bytes(4096, 9_000), vec![round as u8 + 1; 9_000]);
        assert_eq!(one.bytes(20_000, 9_000), vec![round as u8 + 1; 9_000]);
        let received: Vec<_> = two.poll().into_iter().map(|completion| completion.kind).collect();
        let sent = CompletionKind::Received { bytes: round.to_le_bytes().to_vec(), imm: 0 };
        assert_eq!(received, [sent, CompletionKind::Notified { imm: round as u32 }]);
    }
    assert_eq!(two.memory.load_u64(0), Ok(40), "an atomic was executed twice, or not at all");
    world.counters()
}
