//! The interface between Halite and its networks: a trait modelled on RDMA verbs.
//!
//! A [`Fabric`] moves bytes between the registered memory of connected peers. Its concepts are peers, keys, work
//! requests and completions. Names, permissions, regions and clusters belong to the tier above. A provider implements
//! the trait; [`middleware`] wraps any provider.

mod atomics;
mod backlog;
pub mod completion;
pub mod composite;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod event;
pub mod kind;
pub mod lane;
pub mod line;
pub mod middleware;
mod path;
pub mod request;
mod sleepers;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use halite_mem::{Segment, Window};

pub use atomics::Atomics;
pub use backlog::Backlog;
pub use completion::{Completion, CompletionKind, Status};
pub use composite::{Composite, CompositeError};
pub use event::{ConnectFailure, ConnectTrouble, CutOff, Event};
pub use halite_mem::Sleeper;
pub use lane::{Class, Lane};
pub use line::{LINE_BYTES, LINE_WORDS, Lines};
pub use middleware::Middleware;
pub use path::Path;
pub use request::{Local, Operation, RemoteAddress, WorkRequest};
pub use sleepers::Sleepers;

/// Id of a connected peer within one fabric instance. The fabric never reuses an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

/// Key of a registered segment (verbs' rkey). A key is meaningful only together with the peer that registered the
/// segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u32);

/// Id of a work request. The poster chooses the id, and the completion returns it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkId(pub u64);

/// Capabilities of the provider that reaches a peer. Callers choose operations by these capabilities, and tests skip
/// cases for which a capability is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Name of the provider, shown to users: `shm`, `roce`, `verbs`, `sim`.
    pub provider: &'static str,
    /// True if [`Fabric::direct`] maps the memory of peers, so that loads and stores reach this memory.
    pub direct: bool,
    /// The one-sided atomics that the provider offers on the memory of peers.
    pub atomics: Atomics,
    /// Number of lanes per peer, at least one; see [`Lane`].
    pub lanes: usize,
    /// Maximum payload of one [`Operation::Send`], in bytes.
    pub send_bytes_max: usize,
    /// Maximum length of an inline source of a write, in bytes; at least 8 (one word).
    pub inline_bytes_max: usize,
}

/// One network, as one node sees it.
///
/// Any thread may call any method. `poll` returns each event to exactly one caller; in the tier, only the holder of the
/// poll token polls.
pub trait Fabric: Send + Sync {
    /// Returns the names of the providers: one, or several for a [`Composite`].
    fn providers(&self) -> Vec<&'static str>;

    /// Returns the capabilities for `peer`. The capabilities are fixed once the peer has connected
    /// ([`Event::Connected`]), and undefined before.
    fn capabilities(&self, peer: PeerId) -> Capabilities;

    /// Makes `segment` reachable by all present and future peers, and returns its key.
    ///
    /// Keys count from 0, and a fabric never reuses a key, so the number of keys of a provider limits the number of
    /// registrations over its lifetime. A peer that learns the key from a later message can use the key at once.
    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError>;

    /// Deregisters a local key. Has no effect if the key is not registered.
    ///
    /// [`Event::Deregistered`] follows, at once or when all peers have answered. From then on, no posted request of a
    /// peer reaches the segment, and the provider releases the segment. A request that a peer posts with the key fails
    /// as with a wrong key; a request that the deregistration interrupts may have taken effect in part. Windows of the
    /// segment that peers hold ([`Fabric::direct`]) stay mapped until the peers drop them. Already posted requests of
    /// this end that use the key for their local memory are executed, and keep the segment until they complete. The
    /// fabric refuses later posts of such requests.
    fn deregister(&self, key: Key);

    /// Starts a connection to the peer at `address`.
    ///
    /// [`Event::Connected`] or [`Event::ConnectFailed`] follows, even if this fabric is closed meanwhile. The peer
    /// receives `hello`: at most [`HELLO_BYTES_MAX`] bytes, which the fabric does not interpret.
    fn connect(&self, address: &str, hello: &[u8]);

    /// Posts requests to `peer`, in order within `lane`, and without order relative to other lanes (see [`Lane`]).
    ///
    /// If this fails, the first [`PostError::posted`] requests are posted, and the rest are not. Every posted and
    /// signalled request completes exactly once, with an error status if the connection ends. After
    /// [`PostCause::QueueFull`], [`Event::Room`] or [`Event::Disconnected`] follows.
    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError>;

    /// Appends the next events to `events`, and returns their number, which the provider limits. A peer that sends
    /// continuously does not starve other peers.
    fn poll(&self, events: &mut Vec<Event>) -> usize;

    /// Returns a window of the segment that `peer` registered under `key`, for loads and stores. Returns `None` if the
    /// provider cannot map the segment (see [`Capabilities::direct`]), if the peer is not connected, or if the key is
    /// not registered.
    fn direct(&self, peer: PeerId, key: Key) -> Option<Window>;

    /// Returns an array of `count` lines at `at` in the memory of `peer`, for writes by stores. Returns `None` if
    /// stores do not reach that memory, or if the lines would not be inside a segment; the caller then posts each line
    /// as an inline write with immediate.
    fn lines(&self, _peer: PeerId, _at: RemoteAddress, _count: u32) -> Option<Box<dyn Lines>> {
        None
    }

    /// Starts to cut `peer` off, so that the peer can no longer access this end's memory. [`Event::CutOff`] follows,
    /// possibly at once, unless this method returns [`CutOff::NotPermitted`].
    fn cut_off(&self, peer: PeerId) -> CutOff;

    /// Writes `text`, the reason for a cut-off, to the terminal or log of the process of `peer`, if that is possible
    /// without blocking and without side effects. Has no effect if the fabric may not cut peers off.
    fn warn(&self, _peer: PeerId, _text: &str) {}

    /// Returns the reason why the connection to `peer` has ended, as text for users; `None` if the reason is unknown.
    /// Only the first call after [`Event::Disconnected`] returns the reason.
    fn take_end_reason(&self, _peer: PeerId) -> Option<String> {
        None
    }

    /// Ends the connection to `peer` on this side: unmaps the memory of the peer, and completes outstanding requests
    /// with an error.
    fn disconnect(&self, peer: PeerId);

    /// Sets the kind of sleeper that an arrival wakes. With `None`, arrivals wake no thread, because a thread polls.
    ///
    /// After arming, the caller must poll once more before it sleeps; otherwise it may miss an arrival. A wake-up may
    /// disarm the doorbell, so a sleeper arms the doorbell again before each sleep.
    fn arm(&self, sleeper: Option<Sleeper>);

    /// Sleeps as `sleeper` until the doorbell rings for this kind of sleeper, `timeout` passes, or a thread calls
    /// [`Fabric::wake`]. May return early.
    ///
    /// `seen` is the value of [`Fabric::doorbell`] before the last poll. A thread that sleeps on [`Fabric::descriptor`]
    /// calls this method with a timeout of zero after each edge.
    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>);

    /// Returns the time until the next timer of the provider expires, such as a retransmission or a delayed
    /// acknowledgement; `None` if no timer runs. A thread must call [`Fabric::poll`] at that time, even if nothing
    /// arrives.
    ///
    /// The thread that sleeps as [`Sleeper::Progress`] calls this method before each sleep. If the time becomes shorter
    /// during the sleep, the provider wakes the thread.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the time since the last packet that the process of `peer` sent; an acknowledgement counts as well.
    /// Returns `None` if packets do not show whether the process runs: the operating system reports its exit instead,
    /// or an adapter acknowledges even for a stopped process.
    fn heard(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Returns the smoothed round-trip time to `peer`, for which a caller may spin for an answer. Returns `None` if the
    /// provider has not measured this time.
    fn round_trip(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Returns true during a dial if the peer or its host has answered, but the connection is not complete yet. Such a
    /// peer is distant or slow, but has not gone. A provider that cannot distinguish the two cases returns true.
    fn is_being_answered(&self) -> bool {
        true
    }

    /// Returns the packet counters and windows of the path to `peer`; `None` if the provider does not count packets.
    fn path(&self, _peer: PeerId) -> Option<Path> {
        None
    }

    /// Returns the numbers of packets that the provider has dropped, by reason; empty if it does not count any.
    fn dropped_packets(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns true if every poll makes a system call, which takes some hundred nanoseconds. A poller may then read the
    /// clock at each poll, because reading the clock adds little to this cost.
    fn polls_by_system_calls(&self) -> bool {
        false
    }

    /// Returns a number that changes with each poll that processes packets of a peer, such as a write or a read
    /// request, even if the poll returns no event. A poller uses this number to decide whether to poll again. The
    /// number is constant if peers access memory without polls of this end.
    fn traffic(&self) -> u64 {
        0
    }

    /// Returns a number that changes with every ring of the doorbell.
    fn doorbell(&self) -> u32;

    /// Rings this end's doorbell for all kinds of sleepers. Any thread may call this method.
    fn wake(&self);

    /// Returns a descriptor for threads that sleep in epoll as `sleeper`; `None` if the provider has no such
    /// descriptor. The descriptor has an edge with each ring while `sleeper` is armed, and with each [`Fabric::wake`].
    /// The sleeper watches the descriptor edge-triggered and never reads it, so the descriptor may stay readable.
    fn descriptor(&self, _sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Closes the fabric: disconnects all peers, unmaps their memory, and notifies the peers that this end no longer
    /// accesses their memory.
    fn close(&self);
}

/// Maximum length of a hello, in bytes.
pub const HELLO_BYTES_MAX: usize = 1024;

/// The reason why [`Fabric::register`] failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The provider has used all its keys. Keys are never reused, so deregistration does not help.
    #[error("cannot register a segment: all {max} keys of this fabric have been used; open a new fabric")]
    TooManyKeys {
        /// Number of keys that the provider has.
        max: usize,
    },
    /// One of several providers returned another key than the other providers. This is a bug of that provider; all
    /// later registrations fail, too.
    #[error(
        "cannot register a segment: {provider} returned {given:?} instead of {expected:?} (a bug of {provider})"
    )]
    Mismatch {
        /// Name of the provider.
        provider: &'static str,
        /// The key that the other providers returned.
        expected: Key,
        /// The key that this provider returned.
        given: Key,
    },
    /// A system call failed.
    #[error("cannot register a segment: {0}")]
    Io(#[from] std::io::Error),
}

/// An error of [`Fabric::post`]: a request was refused, and only the requests before it were posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("only {posted} requests were posted to peer {peer:?}: {cause}")]
pub struct PostError {
    /// The peer to which the requests were posted.
    pub peer: PeerId,
    /// Number of requests posted before the error.
    pub posted: usize,
    /// The reason why the fabric refused the first request that it did not post.
    pub cause: PostCause,
}

/// The reason why [`Fabric::post`] refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostCause {
    /// The queue of the lane to this peer is full. The caller may post again after [`Event::Room`].
    #[error("the queue is full; post again after the room event")]
    QueueFull,
    /// The peer does not exist, or its connection is down.
    #[error("the peer is not connected; connect first")]
    NotConnected,
    /// The request is invalid. For example, its inline source is too long, or its local key is not registered.
    #[error("the request is malformed: check the lengths, the alignment and the local key")]
    Malformed,
}
