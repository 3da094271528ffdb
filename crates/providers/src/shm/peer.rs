//! The data path to one connected peer: its mapped segments, and the ring that carries our messages to it.
//!
//! Any thread may use a peer; this module does not use the peer's socket (see `link`).

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLock, Weak};

use halite_fabric::{Key, Local, Operation, PeerId, PostCause, RemoteAddress};
use halite_mem::ring::{Producer, PushError};
use halite_mem::{Doorbell, Segment, Window};

use super::send_port::SendPort;
use super::{lock, read, record, write};

/// A process that we know by a descriptor, so that its number cannot be reused under us.
#[derive(Debug)]
pub(super) struct Process {
    /// Its number; `None` in another pid namespace, whose processes can be watched and not be killed.
    pub(super) pid: Option<i32>,
    pub(super) pidfd: OwnedFd,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process of another pid namespace"),
        }
    }
}

/// A peer from when it is connected until it is cut off.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// The link that it came through.
    pub(super) link_token: u64,
    pub(super) process: Arc<Process>,
    pub(super) send_port: Arc<SendPort>,
    /// Its segments by key; `None` once disconnected.
    segments: RwLock<Option<Vec<PeerSegment>>>,
}

/// A segment of the peer's.
#[derive(Debug)]
pub(super) enum PeerSegment {
    /// Within reach.
    Mapped(Window),
    /// Beyond what this process may map.  Its descriptor is kept, where we could be given that, to try again.
    Unmapped { fd: Option<OwnedFd>, len: u64 },
    /// Taken back.  Others of this process may still hold it.
    Withdrawn { held: Option<Weak<Segment>> },
}

impl PeerSegment {
    fn len(&self) -> Option<u64> {
        match self {
            PeerSegment::Mapped(window) => Some(window.len()),
            PeerSegment::Unmapped { len, .. } => Some(*len),
            PeerSegment::Withdrawn { .. } => None,
        }
    }

    /// As it is once taken back; `None` if it was before.
    pub(super) fn withdrawn(&self) -> Option<PeerSegment> {
        match self {
            PeerSegment::Mapped(window) => {
                Some(PeerSegment::Withdrawn { held: Some(Arc::downgrade(window.segment())) })
            }
            PeerSegment::Unmapped { .. } => Some(PeerSegment::Withdrawn { held: None }),
            PeerSegment::Withdrawn { .. } => None,
        }
    }
}

/// Where our messages to the peer go.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Producer,
    mailbox: Arc<Doorbell>,
    /// Lengths of the peer's segments by key, but of those that were taken back: all that a small write needs to know of them.
    segment_bytes: Vec<Option<u64>>,
}

/// What became of an operation that might travel inside of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    Whole,
    /// It has to be done by way of the peer's memory.  Nothing was done yet.
    NotInRing,
}

/// What a key of the peer stands for.
#[derive(Debug)]
pub(super) enum Lookup<T> {
    Found(T),
    /// Perhaps not heard of yet.
    Unknown,
    /// This process lacked what mapping it takes.
    Unmapped,
    /// The peer is disconnected.
    Gone,
}

impl Peer {
    pub(super) fn new(
        id: PeerId,
        link_token: u64,
        process: Arc<Process>,
        outgoing: Outgoing,
        segments: Vec<PeerSegment>,
    ) -> Peer {
        Peer {
            id,
            link_token,
            process,
            send_port: Arc::new(Mutex::new(Some(outgoing))),
            segments: RwLock::new(Some(segments)),
        }
    }

    /// Applies `access` to the segment behind `key`. The peer stays connected during the call.
    pub(super) fn with_window<T>(&self, key: Key, access: impl FnOnce(&Window) -> T) -> Lookup<T> {
        match &*read(&self.segments) {
            None => Lookup::Gone,
            Some(segments) => match segments.get(key.0 as usize) {
                Some(PeerSegment::Mapped(window)) => Lookup::Found(access(window)),
                Some(PeerSegment::Unmapped { .. }) => Lookup::Unmapped,
                Some(PeerSegment::Withdrawn { .. }) | None => Lookup::Unknown,
            },
        }
    }

    /// Calls `queue`, which may queue events, and returns its result; `None` once the peer is disconnected. The peer
    /// stays connected during the call.
    pub(super) fn while_connected<T>(&self, queue: impl FnOnce() -> T) -> Option<T> {
        read(&self.segments).as_ref().map(|_| queue())
    }

    /// Adds the peer's next segment.
    pub(super) fn push_segment(&self, segment: PeerSegment) {
        if let Some(outgoing) = &mut *lock(&self.send_port) {
            outgoing.segment_bytes.push(segment.len());
        }
        if let Some(segments) = &mut *write(&self.segments) {
            segments.push(segment);
        }
    }

    /// Drops a segment that the peer has deregistered, after the copies in flight. Returns false if there is none.
    pub(super) fn withdraw(&self, key: u32) -> bool {
        if let Some(outgoing) = &mut *lock(&self.send_port)
            && let Some(len) = outgoing.segment_bytes.get_mut(key as usize)
        {
            *len = None;
        }
        let mut segments = write(&self.segments);
        let segment = segments.as_mut().and_then(|segments| segments.get_mut(key as usize));
        let Some((segment, withdrawn)) = segment.and_then(|segment| {
            let withdrawn = segment.withdrawn()?;
            Some((segment, withdrawn))
        }) else {
            return false;
        };
        *segment = withdrawn;
        true
    }

    /// Tries again to map a segment that could not be mapped when it came.
    pub(super) fn map_again(&self, key: Key) {
        let mut segments = write(&self.segments);
        let segment = segments.as_mut().and_then(|segments| segments.get_mut(key.0 as usize));
        if let Some(segment @ PeerSegment::Unmapped { .. }) = segment
            && let PeerSegment::Unmapped { fd: Some(fd), len } = &*segment
            && let Ok(opened) = Segment::open(fd, *len)
        {
            let window = opened.window(0, *len).expect("the segment was opened with this length");
            *segment = PeerSegment::Mapped(window);
        }
    }

    pub(super) fn segments(&self) -> usize {
        read(&self.segments).as_ref().map_or(0, Vec::len)
    }

    /// Unmaps the peer's memory. Returns its segments, to which other threads may still hold windows.
    pub(super) fn disconnect(&self) -> Vec<Weak<Segment>> {
        *lock(&self.send_port) = None;
        // Waits for copies under way: each is bounded by the length of one request.
        let segments = write(&self.segments).take().unwrap_or_default();
        let mapped = segments.iter().filter_map(|segment| match segment {
            PeerSegment::Mapped(window) => Some(Arc::downgrade(window.segment())),
            PeerSegment::Unmapped { .. } => None,
            PeerSegment::Withdrawn { held } => held.clone(),
        });
        mapped.collect()
    }
}

/// Nothing here rings of itself: one ring does for many messages.
impl Outgoing {
    pub(super) fn new(ring: Producer, mailbox: Doorbell, segments: &[PeerSegment]) -> Outgoing {
        let segment_bytes = segments.iter().map(PeerSegment::len).collect();
        Outgoing { ring, mailbox: Arc::new(mailbox), segment_bytes }
    }

    /// Where the peer is woken.
    pub(super) fn mailbox(&self) -> &Arc<Doorbell> {
        &self.mailbox
    }

    /// Lends what is behind `send port` to `push`, for as many messages as it likes.
    #[inline]
    pub(super) fn behind<T>(
        send_port: &SendPort,
        push: impl FnOnce(&mut Outgoing) -> Result<T, PostCause>,
    ) -> Result<T, PostCause> {
        match &mut *lock(send_port) {
            Some(outgoing) => push(outgoing),
            None => Err(PostCause::NotConnected),
        }
    }

    /// Pushes `operation` if it is one that travels inside of the ring as a whole.
    #[inline]
    pub(super) fn try_push(&mut self, operation: &Operation<'_>) -> Result<Pushed, PostCause> {
        match *operation {
            Operation::Send { bytes, imm } => self.push(record::SEND, imm, &[bytes]),
            Operation::WriteImm { local: Local::Inline(bytes), remote, imm } => {
                match self.small_write_address(remote, bytes) {
                    Some(address) => self.push(record::WRITE, imm, &[&address.to_ne_bytes(), bytes]),
                    None => Ok(Pushed::NotInRing),
                }
            }
            _ => Ok(Pushed::NotInRing),
        }
    }

    /// Pushes the immediate of a write that has been made.
    pub(super) fn push_notice(&mut self, imm: u32) -> Result<Pushed, PostCause> {
        self.push(record::NOTICE, imm, &[])
    }

    /// Whether the immediate of a write would find room now.
    pub(super) fn check_room(&mut self) -> Result<(), PostCause> {
        self.ring.check_room(0).map_err(cause_of)
    }

    /// Returns true if a message of `len` bytes fits. Otherwise the peer rings when it has made room; it is woken once
    /// for that, since it may sleep while unsolicited messages wait.
    pub(super) fn has_or_asks_for_room(&mut self, len: usize) -> Result<bool, PostCause> {
        let had_asked = self.ring.asks_for_room();
        let has_room = self.ring.has_or_asks_for_room(len as u64).map_err(cause_of)?;
        if !has_room && !had_asked {
            self.ring();
        }
        Ok(has_room)
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    pub(super) fn ring(&self) {
        self.mailbox.ring();
    }

    /// `None` if the write is not small, or is not known to be one that the peer would take.
    #[inline]
    fn small_write_address(&self, remote: RemoteAddress, bytes: &[u8]) -> Option<u64> {
        let segment_bytes = (*self.segment_bytes.get(remote.key.0 as usize)?)?;
        let address = record::pack(remote)?;
        // An offset that packs is far from where the sum would overflow.
        let inside = remote.offset + bytes.len() as u64 <= segment_bytes;
        (bytes.len() <= record::SMALL_WRITE_BYTES_MAX && inside).then_some(address)
    }

    #[inline]
    fn push(&mut self, kind: u8, imm: u32, parts: &[&[u8]]) -> Result<Pushed, PostCause> {
        self.ring.try_push(kind, imm, parts).map_err(cause_of)?;
        Ok(Pushed::Whole)
    }
}

fn cause_of(error: PushError) -> PostCause {
    match error {
        PushError::Full { .. } => PostCause::QueueFull,
        PushError::TooLong { .. } => PostCause::Malformed,
        PushError::Corrupt => PostCause::NotConnected,
    }
}
