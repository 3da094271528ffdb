//! The verbs-shaped vocabulary that every network under Halite speaks.
//!
//! A [`Fabric`] moves bytes between the registered memory of connected peers.  It knows peers, keys, work
//! requests and completions; it does not know names, permissions, regions or clusters: those live in the
//! tier above.  A provider implements the trait; [`middleware`] wraps any provider.

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

/// A connected peer, as one fabric instance numbers it.  Never reused within that instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u32);

/// The key of a registered segment (verbs' rkey).  Means something only together with the peer that
/// registered it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u32);

/// What the issuer calls a work request; comes back in its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkId(pub u64);

/// What the provider that reaches a peer can do for it, so that callers choose and tests skip with a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The name that users see: `shm`, `roce`, `verbs`, `sim`.
    pub provider: &'static str,
    /// Peers' memory can be reached by loads and stores, through [`Fabric::direct`].
    pub direct: bool,
    /// Which one-sided atomics it offers.
    pub atomics: Atomics,
    /// How many orders of requests there are, at least one: see [`Lane`].
    pub lanes: usize,
    /// Largest payload of one [`Operation::Send`], in bytes.
    pub send_bytes_max: usize,
    /// Largest inline source of a write, in bytes: at least 8, a word.
    pub inline_bytes_max: usize,
}

/// One network, as one node sees it.
///
/// All methods may be called from any thread.  `poll` hands each event to
/// exactly one caller; the tier lets one thread at a time poll (the holder of the poll token).
pub trait Fabric: Send + Sync {
    /// The names of the providers, as users see them.
    fn providers(&self) -> Vec<&'static str>;

    /// What can be done for `peer`.  It is the same from its [`Event::Connected`] on, and of no meaning before.
    fn capabilities(&self, peer: PeerId) -> Capabilities;

    /// Makes `segment` reachable by all connected peers, now and later, and returns its key.  Keys count from 0, and a provider has so many
    /// of them in all: one that is taken back makes no room for another.
    /// A peer to which the key is mentioned afterwards in a message can use it at once.
    fn register(&self, segment: Arc<Segment>) -> Result<Key, RegisterError>;

    /// Takes back a key of ours, which is never given again.  [`Event::Deregistered`] tells, at once or when all peers have answered, that from
    /// then on no posted request of a peer reaches its segment: such requests end as those with a wrong key do, of which a part may have been done.
    /// The provider then holds the segment no more.  Windows that peers have of it ([`Fabric::direct`]) stay mapped for as long as they hold
    /// them.  What we have posted with it as our own end is carried out as if it were there, and holds it; nothing more can be posted.
    /// A key that is not registered is none to take back, and nothing is told.
    fn deregister(&self, key: Key);

    /// Starts connecting to the peer at `address`; [`Event::Connected`] or [`Event::ConnectFailed`] follows, also if this fabric
    /// is closed meanwhile.
    /// The peer is shown `hello`, at most [`HELLO_BYTES_MAX`] bytes that the fabric does not interpret.
    fn connect(&self, address: &str, hello: &[u8]);

    /// Posts requests to `peer`, in order behind those of the same `lane`, and in no order with those of others (see [`Lane`]).  On an
    /// error the requests before `posted` are posted, the rest are not.
    /// Every posted and signalled request completes exactly once, with an error status if the peer goes away.
    /// Where the queue of the lane was full, [`Event::Room`] follows when there is room again, or [`Event::Disconnected`].
    fn post(&self, peer: PeerId, lane: Lane, requests: &[WorkRequest<'_>]) -> Result<(), PostError>;

    /// Appends what has happened (at most a provider-chosen batch) and returns how many events that are.  A peer that sends
    /// without end does not keep others from being heard.
    fn poll(&self, events: &mut Vec<Event>) -> usize;

    /// The memory behind `key` of `peer`, where loads and stores can reach it (see [`Capabilities::direct`]).
    /// `None` where they cannot, or the peer or key is unknown or gone.
    fn direct(&self, peer: PeerId, key: Key) -> Option<Window>;

    /// The `count` lines at `at` in the memory of `peer`, where stores reach them.  `None` where they do not, or there are no such lines:
    /// then a line is posted as an inline write with immediate.
    fn lines(&self, _peer: PeerId, _at: RemoteAddress, _count: u32) -> Option<Box<dyn Lines>> {
        None
    }

    /// Starts to cut `peer` off, so that it can no longer touch our memory.  [`Event::CutOff`] follows when
    /// it is so; it may be at once, or never where [`CutOff::NotPermitted`] is returned.
    fn cut_off(&self, peer: PeerId) -> CutOff;

    /// Tells the person at the terminal of `peer`'s process, or its log, why it is about to be cut off: where that can be
    /// done without waiting and without harm, and not where cutting it off is not permitted.
    fn warn(&self, _peer: PeerId, _text: &str) {}

    /// Drops the connection to `peer` on our side: gives up its memory, fails outstanding work.
    fn disconnect(&self, peer: PeerId);

    /// Says whom arrivals wake; nobody, while a thread polls anyway.
    /// After arming, the caller polls once more before it sleeps, or a wake-up could be lost.  One wake-up may use it up: who sleeps
    /// again arms again.
    fn arm(&self, sleeper: Option<Sleeper>);

    /// Sleeps, as `sleeper`, until the doorbell rings for it, `timeout` passes, or [`Fabric::wake`] is called.  May wake early.
    /// Who sleeps on [`Fabric::descriptor`] instead says so by a wait of no time once that has had an edge.
    /// `seen` is the value of [`Fabric::doorbell`] that was read before the last poll.
    fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>);

    /// The longest time after which [`Fabric::poll`] is to be called again though nothing arrives, for what the provider does by time:
    /// retransmission, delayed acknowledgements.  [`Sleeper::Progress`] asks before each sleep; where the time becomes shorter meanwhile, the
    /// provider wakes it when that is over, or before.  `None` where nothing is due.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// How long ago the process of `peer` last gave a sign of life, be it a bare acknowledgement.  `None` where there is nothing to go
    /// by: where the operating system tells of ends, or an adapter acknowledges even while its process stands still.
    fn heard(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// How long a round trip to `peer` takes, smoothed: for about that long it pays to spin for an answer.  `None` where the provider
    /// has not measured any, or there is nothing to measure.
    fn round_trip(&self, _peer: PeerId) -> Option<Duration> {
        None
    }

    /// Whether somebody whom this end dials has been heard, be it by the network alone, and is not connected yet: who is far away, or slow, is there.  True where
    /// that cannot be told.
    fn is_being_answered(&self) -> bool {
        true
    }

    /// What is known of the way to `peer`, where that is made of packets that a provider counts.
    fn path(&self, _peer: PeerId) -> Option<Path> {
        None
    }

    /// Whether a poll that finds nothing takes a call of the system, and so some hundreds of nanoseconds: who polls may as well look at the
    /// clock each time.
    fn polls_by_system_calls(&self) -> bool {
        false
    }

    /// A number that changes with each poll that takes something of a peer in, be it an event or not: bytes that it writes, a request to
    /// read.  Who polls on for what follows closely goes by it.  It stays where peers reach memory without a poll.
    fn traffic(&self) -> u64 {
        0
    }

    /// A number that changes with every ring of the doorbell.
    fn doorbell(&self) -> u32;

    /// Rings our own doorbell for all sleepers, from any thread.
    fn wake(&self);

    /// What becomes readable with each ring of the doorbell that `sleeper` is armed for, and each [`Fabric::wake`], for those who sleep in
    /// epoll as such.  It is watched for edges: it may stay readable, and is never read by who sleeps.  `None` where there is none.
    fn descriptor(&self, _sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Leaves: unmaps all peers' memory and tells them that we can no longer reach theirs.
    fn close(&self);
}

/// Most bytes of a hello.
pub const HELLO_BYTES_MAX: usize = 1024;

/// Why a segment could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The provider's table of keys is full.
    #[error("cannot register a segment: all {max} keys have been used")]
    TooManyKeys {
        /// How many keys there are.
        max: usize,
    },
    /// Of several providers, one gave another key than the others: its own fault, and no segment can be registered after that.
    #[error("cannot register a segment: {provider} calls it {given:?}, where {expected:?} was to come")]
    Mismatch {
        /// Which provider.
        provider: &'static str,
        /// The key that the others gave.
        expected: Key,
        /// The key that it gave.
        given: Key,
    },
    /// The operating system refused.
    #[error("cannot register a segment: {0}")]
    Io(#[from] std::io::Error),
}

/// Why a list of requests was not posted whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("only {posted} requests posted to peer {peer:?}: {cause}")]
pub struct PostError {
    /// To whom.
    pub peer: PeerId,
    /// How many of the requests were posted before the error.
    pub posted: usize,
    /// Why the next one was not.
    pub cause: PostCause,
}

/// See [`PostError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostCause {
    /// The queue to this peer is full; try again after [`Event::Room`].
    #[error("queue full")]
    QueueFull,
    /// No such peer, or its connection is down.
    #[error("not connected")]
    NotConnected,
    /// A request that could never be posted: too long for inline, a local key that is not registered.
    #[error("malformed request")]
    Malformed,
}
