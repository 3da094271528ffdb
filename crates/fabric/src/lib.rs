//! The verbs-shaped trait of all networks under Halite.
//!
//! A [`Fabric`] moves bytes between the registered memory of connected peers. It knows peers, keys, work requests and
//! completions. It knows no names, permissions, regions or clusters, which belong to the tier above. A provider
//! implements the trait; [`middleware`] wraps any provider.

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

/// Number of a connected peer within one fabric instance. Never reused there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

/// Key of a registered segment (verbs' rkey), valid together with the peer that registered it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u32);

/// The poster's id of a work request, returned in its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkId(pub u64);

/// Capabilities of the provider that reaches a peer. Callers use them to choose operations, and tests to skip cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Name for users: `shm`, `roce`, `verbs`, `sim`.
    pub provider: &'static str,
    /// True if loads and stores reach peers' memory, through [`Fabric::direct`].
    pub direct: bool,
    /// One-sided atomics on peers' memory.
    pub atomics: Atomics,
    /// Number of lanes per peer, at least one; see [`Lane`].
    pub lanes: usize,
    /// Maximum payload of one [`Operation::Send`], in bytes.
    pub send_bytes_max: usize,
    /// Maximum inline source of a write, in bytes; at least 8, a word.
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

    /// Deregisters a local key.
    ///
    /// [`Event::Deregistered`] follows, at once or when all peers have answered; from then on no posted request of a
    /// peer reaches the segment. Such requests end like those with a wrong key, and a part may have been done. The
    /// provider then releases the segment. Windows that peers have of it ([`Fabric::direct`]) stay mapped as long as
    /// the peers hold them. Requests that this end posted with the key as their local end are carried out and keep the
    /// segment until then; further ones are refused. Has no effect for a key that is not registered.
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

    /// Appends a batch of events, of a size that the provider chooses, and returns their number. A peer that sends
    /// continuously does not starve others.
    fn poll(&self, events: &mut Vec<Event>) -> usize;

    /// Returns the memory behind `key` of `peer`, where loads and stores reach it (see [`Capabilities::direct`]).
    /// `None` if they do not, or if the peer or the key is unknown or gone.
    fn direct(&self, peer: PeerId, key: Key) -> Option<Window>;

    /// Returns `count` lines at `at` in the memory of `peer`, where stores reach them. `None` if they do not, or if
    /// there are no such lines; a line is then posted as an inline write with immediate.
    fn lines(&self, _peer: PeerId, _at: RemoteAddress, _count: u32) -> Option<Box<dyn Lines>> {
        None
    }

    /// Starts to cut `peer` off, so that it can no longer touch this end's memory. [`Event::CutOff`] follows, possibly
    /// at once; never if [`CutOff::NotPermitted`] is returned.
    fn cut_off(&self, peer: PeerId) -> CutOff;

    /// Writes the reason for a cut-off to the terminal or log of `peer`'s process, if that is possible without waiting
    /// and without harm. Does nothing where a cut-off is not permitted.
    fn warn(&self, _peer: PeerId, _text: &str) {}

    /// Ends the connection to `peer` on this side: unmaps its memory and fails outstanding work.
    fn disconnect(&self, peer: PeerId);

    /// Sets which sleeper arrivals wake; `None` while a thread polls anyway.
    ///
    /// After arming, the caller polls once more before it sleeps; otherwise a wake-up could be lost. One wake-up may
    /// use the arming up, so a sleeper arms again before each sleep.
    fn arm(&self, sleeper: Option<Sleeper>);

    /// Sleeps as `sleeper` until the doorbell rings for it, `timeout` passes, or [`Fabric::wake`] is called. May wake
    /// early.
    ///
    /// `seen` is the value of [`Fabric::doorbell`] before the last poll. A thread that sleeps on [`Fabric::descriptor`]
    /// calls this with a timeout of zero after each edge.
    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>);

    /// Returns the maximum time until the next [`Fabric::poll`], even without arrivals, for the provider's timers:
    /// retransmission, delayed acknowledgements.
    ///
    /// [`Sleeper::Progress`] asks before each sleep; if the time becomes shorter, the provider wakes it in time. `None`
    /// if no timer runs.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the time since the process of `peer` last gave a sign of life, which may be a bare acknowledgement.
    /// `None` if the provider has no such sign: the operating system reports ends, or an adapter acknowledges even
    /// while its process is stopped.
    fn heard(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Returns the smoothed round trip to `peer`; a caller may spin about that long for an answer. `None` if the
    /// provider has measured none.
    fn round_trip(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Returns true if a connection that this end dials was answered by the peer or its host, but is not complete yet:
    /// the peer is far away or slow, not gone. A provider that cannot tell returns true.
    fn is_being_answered(&self) -> bool {
        true
    }

    /// Returns the state of the path to `peer`, if the provider counts packets.
    fn path(&self, _peer: PeerId) -> Option<Path> {
        None
    }

    /// Returns true if a poll without events takes a system call, and so some hundreds of nanoseconds; a poller may
    /// then as well read the clock each time.
    fn polls_by_system_calls(&self) -> bool {
        false
    }

    /// Returns a number that changes with each poll that processes traffic of a peer, with or without an event: written
    /// bytes, or a read request. A poller uses it to decide whether to continue. Constant where peers reach memory
    /// without a poll.
    fn traffic(&self) -> u64 {
        0
    }

    /// Returns a number that changes with every ring of the doorbell.
    fn doorbell(&self) -> u32;

    /// Rings this end's doorbell for all sleepers; may be called from any thread.
    fn wake(&self);

    /// Returns a descriptor that becomes readable with each ring of the doorbell that `sleeper` is armed for, and with
    /// each [`Fabric::wake`], for threads that sleep in epoll. It is watched for edges, may stay readable, and is never
    /// read by the sleeper. `None` if the provider has none.
    fn descriptor(&self, _sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Leaves: unmaps all peers' memory, and tells them that they are out of reach.
    fn close(&self);
}

/// Maximum length of a hello, in bytes.
pub const HELLO_BYTES_MAX: usize = 1024;

/// The cause of a failed registration.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The provider has no more keys.
    #[error("cannot register a segment: all {max} keys have been used")]
    TooManyKeys {
        /// Number of keys.
        max: usize,
    },
    /// One of several providers returned another key than the others. This is a bug of the provider, and no segment can
    /// be registered any more.
    #[error("cannot register a segment: {provider} returned {given:?} instead of {expected:?}")]
    Mismatch {
        /// The provider.
        provider: &'static str,
        /// The key of the others.
        expected: Key,
        /// Its key.
        given: Key,
    },
    /// The operating system refused.
    #[error("cannot register a segment: {0}")]
    Io(#[from] std::io::Error),
}

/// The error of a list of requests that was posted only in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("only {posted} requests were posted to peer {peer:?}: {cause}")]
pub struct PostError {
    /// The peer.
    pub peer: PeerId,
    /// Number of requests posted before the error.
    pub posted: usize,
    /// Cause for the first request that was not posted.
    pub cause: PostCause,
}

/// The cause of a refused post.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostCause {
    /// The queue to this peer is full; try again after [`Event::Room`].
    #[error("the queue is full")]
    QueueFull,
    /// The peer does not exist, or its connection is down.
    #[error("the peer is not connected")]
    NotConnected,
    /// The request is invalid: too long for inline, or with a local key that is not registered.
    #[error("the request is malformed")]
    Malformed,
}
