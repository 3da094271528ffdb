//! The interface between Halite and its networks: a trait modelled on RDMA verbs.
//!
//! A [`Fabric`] moves bytes between the registered memory of connected peers. Its concepts are peers, keys, work
//! requests and completions. Names, permissions, regions and clusters belong to the tier above. A provider implements
//! the trait; [`middleware`] wraps any provider.

mod atomics;
pub mod completion;
pub mod composite;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod event;
pub mod fault;
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

/// Id of a connected peer within one fabric instance, which never reuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

/// Key of a registered segment (verbs' rkey). It is meaningful only together with the peer that registered the segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u32);

/// Id of a work request, chosen by the poster and returned in the completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkId(pub u64);

/// Capabilities of the provider that reaches a peer. Callers choose operations by them, and tests skip cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Name of the provider, shown to users: `shm`, `roce`, `verbs`, `sim`.
    pub provider: &'static str,
    /// True if [`Fabric::direct`] maps peers' memory, so that loads and stores reach it.
    pub direct: bool,
    /// The one-sided atomics on peers' memory.
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
/// All methods may be called from any thread. `poll` returns each event to exactly one caller; in the tier, only the
/// holder of the poll token polls.
pub trait Fabric: Send + Sync {
    /// Returns the names of the providers.
    fn providers(&self) -> Vec<&'static str>;

    /// Returns the capabilities for `peer`. They are fixed from its [`Event::Connected`] on, and undefined before.
    fn capabilities(&self, peer: PeerId) -> Capabilities;

    /// Makes `segment` reachable by all present and future peers, and returns its key.
    ///
    /// Keys count from 0 and are never reused, so a provider's number of keys bounds all registrations together. A peer
    /// that learns the key from a later message can use it at once.
    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError>;

    /// Deregisters a local key. Has no effect if the key is not registered.
    ///
    /// [`Event::Deregistered`] follows, at once or when all peers have answered. From then on, no posted request of a
    /// peer reaches the segment, and the provider releases it. A request that a peer posts with the key fails as with a
    /// wrong key; if deregistration interrupts it, it may have taken effect in part. Windows of the segment that peers
    /// hold ([`Fabric::direct`]) stay mapped until the peers drop them. Requests of this end that use the key for their
    /// local memory and are already posted are executed, and keep the segment until they complete; later ones are
    /// refused.
    fn deregister(&self, key: Key);

    /// Starts a connection to the peer at `address`.
    ///
    /// [`Event::Connected`] or [`Event::ConnectFailed`] follows, even if this fabric is closed meanwhile. The peer
    /// receives `hello`, at most [`HELLO_BYTES_MAX`] bytes that the fabric does not interpret.
    fn connect(&self, address: &str, hello: &[u8]);

    /// Posts requests to `peer`, in order within `lane`, and without order relative to other lanes (see [`Lane`]).
    ///
    /// On an error, the requests before `posted` are posted and the rest are not. Every posted and signalled request
    /// completes exactly once, with an error status if the connection ends. After [`PostCause::QueueFull`],
    /// [`Event::Room`] or [`Event::Disconnected`] follows.
    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError>;

    /// Appends the next events to `events` and returns their number; the provider limits the batch. A peer that sends
    /// continuously does not starve others.
    fn poll(&self, events: &mut Vec<Event>) -> usize;

    /// Returns a window of the segment that `peer` registered under `key`, for loads and stores. `None` if the provider
    /// cannot map it (see [`Capabilities::direct`]), or if the peer or the key is unknown or gone.
    fn direct(&self, peer: PeerId, key: Key) -> Option<Window>;

    /// Returns `count` lines at `at` in the memory of `peer`, to be written by stores. `None` if stores do not reach
    /// that memory, or if `at` and `count` name no lines in it; the caller then posts each line as an inline write with
    /// immediate.
    fn lines(&self, _peer: PeerId, _at: RemoteAddress, _count: u32) -> Option<Box<dyn Lines>> {
        None
    }

    /// Starts to cut `peer` off, so that it can no longer touch this end's memory. [`Event::CutOff`] follows, possibly
    /// at once; never if [`CutOff::NotPermitted`] is returned.
    fn cut_off(&self, peer: PeerId) -> CutOff;

    /// Writes the reason for a cut-off to the terminal or log of `peer`'s process, if that is possible without blocking
    /// and without side effects. Does nothing if the fabric may not cut peers off.
    fn warn(&self, _peer: PeerId, _text: &str) {}

    /// Ends the connection to `peer` on this side: unmaps its memory and fails outstanding work.
    fn disconnect(&self, peer: PeerId);

    /// Sets which kind of sleeper an arrival wakes; `None` while a thread polls, so that arrivals wake no thread.
    ///
    /// After arming, the caller must poll once more before it sleeps; otherwise it may miss an arrival. A wake-up may
    /// disarm the doorbell, so a sleeper arms it again before each sleep.
    fn arm(&self, sleeper: Option<Sleeper>);

    /// Sleeps as `sleeper` until the doorbell rings for it, `timeout` passes, or [`Fabric::wake`] is called. May wake
    /// early.
    ///
    /// `seen` is the value of [`Fabric::doorbell`] before the last poll. A thread that sleeps on [`Fabric::descriptor`]
    /// calls this with a timeout of zero after each edge.
    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>);

    /// Returns the time after which [`Fabric::poll`] must be called even if nothing arrives, because a timer of the
    /// provider (retransmission, delayed acknowledgement) expires. `None` if no timer runs.
    ///
    /// The thread that sleeps as [`Sleeper::Progress`] calls this before each sleep. If the time becomes shorter during
    /// the sleep, the provider wakes the thread.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the time since the last packet, possibly only an acknowledgement, that shows that the process of `peer`
    /// is running. `None` if the provider has no such packets: the operating system reports the exits of processes, or
    /// an adapter sends acknowledgements even for a stopped process.
    fn heard(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Returns the smoothed round-trip time to `peer`: about how long it is worth spinning for an answer. `None` if the
    /// provider has not measured it.
    fn round_trip(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Returns true if this end is dialling a peer that has answered, or whose host has, but the connection is not
    /// complete yet: the peer is distant or slow, not gone. A provider that does not know returns true.
    fn is_being_answered(&self) -> bool {
        true
    }

    /// Returns the packet counters and windows of the path to `peer`; `None` if the provider does not count packets.
    fn path(&self, _peer: PeerId) -> Option<Path> {
        None
    }

    /// Returns true if even a poll that finds nothing makes a system call of some hundred nanoseconds. Reading the
    /// clock at each poll then adds little to the cost.
    fn polls_by_system_calls(&self) -> bool {
        false
    }

    /// Returns a number that changes with each poll that processes packets of a peer, such as a write or a read
    /// request, even if the poll returns no event. A poller uses it to decide whether to poll again. Constant if peers
    /// access memory without polls of this end.
    fn traffic(&self) -> u64 {
        0
    }

    /// Returns a number that changes with every ring of the doorbell.
    fn doorbell(&self) -> u32;

    /// Rings this end's doorbell for all sleepers; may be called from any thread.
    fn wake(&self);

    /// Returns a descriptor for threads that sleep in epoll as `sleeper`. It becomes readable with each ring while
    /// `sleeper` is armed, and with each [`Fabric::wake`]. The sleeper watches it edge-triggered and never reads it, so
    /// it may stay readable. `None` if the provider has no such descriptor.
    fn descriptor(&self, _sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Closes the fabric: disconnects all peers, unmaps their memory, and notifies them that this end no longer
    /// accesses it.
    fn close(&self);
}

/// Maximum length of a hello, in bytes.
pub const HELLO_BYTES_MAX: usize = 1024;

/// The reason why a segment could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The provider has used all its keys. Keys are never reused, so deregistration does not help.
    #[error("cannot register a segment: all {max} keys have been used")]
    TooManyKeys {
        /// Number of keys.
        max: usize,
    },
    /// One of several providers returned another key than the others. This is a bug of that provider; all later
    /// registrations fail, too.
    #[error("cannot register a segment: {provider} returned {given:?} instead of {expected:?}")]
    Mismatch {
        /// The provider.
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

/// A post that did not accept all of its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("only {posted} requests were posted to peer {peer:?}: {cause}")]
pub struct PostError {
    /// The peer to which the requests were posted.
    pub peer: PeerId,
    /// Number of requests posted before the error.
    pub posted: usize,
    /// The reason why the first request that was not posted was refused.
    pub cause: PostCause,
}

/// The reason why a request was refused when it was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostCause {
    /// The lane's queue to this peer is full; post again after [`Event::Room`].
    #[error("the queue is full")]
    QueueFull,
    /// The peer does not exist, or its connection is down.
    #[error("the peer is not connected")]
    NotConnected,
    /// The request is invalid, for example: its inline source is too long, or its local key is not registered.
    #[error("the request is malformed")]
    Malformed,
}
