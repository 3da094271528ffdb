//! The data path to one connected peer: the peer's mapped segments, and the ring for messages to the peer.
//!
//! Any thread may use the data path. The peer's socket belongs to [`super::link`].

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLock, Weak};

use halite_fabric::{Key, Local, Operation, PeerId, PostCause, RemoteAddress};
use halite_mem::ring::{Producer, PushError};
use halite_mem::{Doorbell, Segment, Window};

use super::send_port::SendPort;
use super::{lock, read, record, write};

/// A process, identified by its pidfd, because the kernel may reuse a process id.
#[derive(Debug)]
pub(super) struct Process {
    /// `None` if the process is in another pid namespace. This process can watch such a process, but cannot kill it.
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

/// A peer. The value exists from its connection until it is cut off.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// Token of the link that connects this peer.
    pub(super) link_token: u64,
    pub(super) process: Arc<Process>,
    pub(super) send_port: Arc<SendPort>,
    /// The peer's segments, by key; `None` once disconnected.
    segments: RwLock<Option<Vec<PeerSegment>>>,
}

/// A segment of the peer.
#[derive(Debug)]
pub(super) enum PeerSegment {
    Mapped(Window),
    /// This process could not map the segment. `fd` is kept for another attempt, if this process received the
    /// descriptor.
    Unmapped {
        fd: Option<OwnedFd>,
        len: u64,
    },
    /// The peer has deregistered the segment. Threads of this process may still hold the segment.
    Withdrawn {
        held: Option<Weak<Segment>>,
    },
}

impl PeerSegment {
    fn len(&self) -> Option<u64> {
        match self {
            PeerSegment::Mapped(window) => Some(window.len()),
            PeerSegment::Unmapped { len, .. } => Some(*len),
            PeerSegment::Withdrawn { .. } => None,
        }
    }

    /// Returns the segment's withdrawn form; `None` if it is withdrawn already.
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

/// The sending side of the data path to the peer.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Producer,
    mailbox: Arc<Doorbell>,
    /// Lengths of the peer's segments, by key, to check small writes without the lock of `segments`; `None` once
    /// withdrawn.
    segment_bytes: Vec<Option<u64>>,
}

/// Result of [`Outgoing::try_push`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    Done,
    /// The operation needs the peer's memory, so the call had no effect.
    NotInRing,
}

/// The result of looking up a key of the peer.
#[derive(Debug)]
pub(super) enum Lookup<T> {
    Found(T),
    /// The key is unknown. A message that this process has not received yet may announce the segment.
    Unknown,
    /// This process could not map the segment.
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

    /// Calls `access` with the window of the segment with this `key`. The peer stays connected during the call.
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

    /// Calls `queue`, which may queue events, and returns its result; `None` if the peer is disconnected. The peer
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

    /// Marks a segment as withdrawn once the copies in progress have finished. Returns false if the peer has no segment
    /// with this key.
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

    /// Tries again to map a segment that this process could not map when the segment was announced.
    pub(super) fn retry_mapping(&self, key: Key) {
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

    /// Drops the peer's segments and ring. Returns the segments, of which other threads may still hold windows.
    pub(super) fn disconnect(&self) -> Vec<Weak<Segment>> {
        *lock(&self.send_port) = None;
        // The lock waits for copies in progress, each of which belongs to one request.
        let segments = write(&self.segments).take().unwrap_or_default();
        let mapped = segments.iter().filter_map(|segment| match segment {
            PeerSegment::Mapped(window) => Some(Arc::downgrade(window.segment())),
            PeerSegment::Unmapped { .. } => None,
            PeerSegment::Withdrawn { held } => held.clone(),
        });
        mapped.collect()
    }
}

/// Unless documented, methods do not wake the peer, because one wake-up suffices for many messages.
impl Outgoing {
    pub(super) fn new(ring: Producer, mailbox: Doorbell, segments: &[PeerSegment]) -> Outgoing {
        let segment_bytes = segments.iter().map(PeerSegment::len).collect();
        Outgoing { ring, mailbox: Arc::new(mailbox), segment_bytes }
    }

    /// Returns the peer's doorbell.
    pub(super) fn mailbox(&self) -> &Arc<Doorbell> {
        &self.mailbox
    }

    /// Calls `push` with the sending side in `send_port`, under its lock.
    #[inline]
    pub(super) fn with_lock<T>(
        send_port: &SendPort,
        push: impl FnOnce(&mut Outgoing) -> Result<T, PostCause>,
    ) -> Result<T, PostCause> {
        match &mut *lock(send_port) {
            Some(outgoing) => push(outgoing),
            None => Err(PostCause::NotConnected),
        }
    }

    /// Pushes `operation` into the ring, if the operation needs only a ring record.
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

    /// Pushes the immediate of a write whose bytes have been copied.
    pub(super) fn push_notice(&mut self, imm: u32) -> Result<Pushed, PostCause> {
        self.push(record::NOTICE, imm, &[])
    }

    /// Fails if the ring has no room now for the immediate of a write.
    pub(super) fn check_room(&mut self) -> Result<(), PostCause> {
        self.ring.check_room(0).map_err(cause_of)
    }

    /// Returns true if a message of `len` bytes fits into the ring. Otherwise requests that the peer rings this
    /// process's doorbell once the ring has room. The first request wakes the peer, which may sleep although
    /// unsolicited messages wait.
    pub(super) fn check_or_request_room(&mut self, len: usize) -> Result<bool, PostCause> {
        let was_requested = self.ring.asks_for_room();
        let has_room = self.ring.has_or_asks_for_room(len as u64).map_err(cause_of)?;
        if !has_room && !was_requested {
            self.ring();
        }
        Ok(has_room)
    }

    /// Rings the doorbell of the peer, which wakes the peer if it sleeps.
    #[inline]
    pub(super) fn ring(&self) {
        self.mailbox.ring();
    }

    /// Returns the packed address of a small write; `None` if the write is too long, or not known to be inside a
    /// segment of the peer.
    #[inline]
    fn small_write_address(&self, remote: RemoteAddress, bytes: &[u8]) -> Option<u64> {
        let segment_bytes = (*self.segment_bytes.get(remote.key.0 as usize)?)?;
        let address = record::pack(remote)?;
        // The sum cannot overflow, because the offset fits into the packed address.
        let is_inside = remote.offset + bytes.len() as u64 <= segment_bytes;
        (bytes.len() <= record::SMALL_WRITE_BYTES_MAX && is_inside).then_some(address)
    }

    #[inline]
    fn push(&mut self, kind: u8, imm: u32, parts: &[&[u8]]) -> Result<Pushed, PostCause> {
        self.ring.try_push(kind, imm, parts).map_err(cause_of)?;
        Ok(Pushed::Done)
    }
}

fn cause_of(error: PushError) -> PostCause {
    match error {
        PushError::Full { .. } => PostCause::QueueFull,
        PushError::TooLong { .. } => PostCause::Malformed,
        PushError::Corrupt => PostCause::NotConnected,
    }
}
