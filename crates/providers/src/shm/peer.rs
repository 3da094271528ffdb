//! The data path to one connected peer: its mapped segments, and the ring into which we push for it.
//!
//! Any thread may use a peer; nothing here talks to its socket (see `link`).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLock, Weak};

use halite_fabric::{Key, PeerId, PostCause};
use halite_mem::ring::{Producer, PushError};
use halite_mem::{Doorbell, Segment, Window};

use super::{lock, read, write};

/// A process that we know by a descriptor, so that its number cannot be reused under us.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

/// A peer from when it is connected until it is cut off.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// The link that it came through.
    pub(super) link_token: u64,
    pub(super) process: Arc<Process>,
    /// `None` once disconnected.
    outgoing: Mutex<Option<Outgoing>>,
    /// Its segments by key; `None` once disconnected.
    windows: RwLock<Option<Vec<Window>>>,
}

/// Where our messages to the peer go.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) ring: Producer,
    pub(super) mailbox: Doorbell,
}

/// What a key of the peer stands for.
#[derive(Debug)]
pub(super) enum Lookup<T> {
    Found(T),
    /// Perhaps not heard of yet.
    Unknown,
    /// The peer is disconnected.
    Gone,
}

/// What the last byte of a ring record's payload says it is.  An empty payload is the immediate of a write,
/// which makes the most frequent record the shortest; the byte comes last so that taking it off is free.
pub(super) const TAG_SEND: u8 = 1;

impl Peer {
    pub(super) fn new(
        id: PeerId,
        link_token: u64,
        process: Arc<Process>,
        outgoing: Outgoing,
        windows: Vec<Window>,
    ) -> Peer {
        Peer {
            id,
            link_token,
            process,
            outgoing: Mutex::new(Some(outgoing)),
            windows: RwLock::new(Some(windows)),
        }
    }

    /// Applies `access` to the segment behind `key`.  The peer is not disconnected meanwhile.
    pub(super) fn with_window<T>(&self, key: Key, access: impl FnOnce(&Window) -> T) -> Lookup<T> {
        match &*read(&self.windows) {
            None => Lookup::Gone,
            Some(windows) => match windows.get(key.0 as usize) {
                Some(window) => Lookup::Found(access(window)),
                None => Lookup::Unknown,
            },
        }
    }

    /// Adds the peer's next segment.
    pub(super) fn push_window(&self, window: Window) {
        if let Some(windows) = &mut *write(&self.windows) {
            windows.push(window);
        }
    }

    pub(super) fn segments(&self) -> usize {
        read(&self.windows).as_ref().map_or(0, Vec::len)
    }

    /// Pushes a message, without ringing.
    pub(super) fn push_send(&self, bytes: &[u8], imm: u32) -> Result<(), PostCause> {
        self.push(imm, &[bytes, &[TAG_SEND]])
    }

    /// Pushes the immediate of a write, without ringing.
    pub(super) fn push_notification(&self, imm: u32) -> Result<(), PostCause> {
        self.push(imm, &[])
    }

    /// Whether the immediate of a write would find room now.
    pub(super) fn check_room(&self) -> Result<(), PostCause> {
        self.with_outgoing(|outgoing| outgoing.ring.check_room(0))
    }

    /// Wakes the peer if it sleeps.
    pub(super) fn ring(&self) {
        if let Some(outgoing) = &*lock(&self.outgoing) {
            outgoing.mailbox.ring();
        }
    }

    /// Drops what we map of the peer.  Returns its segments, which others of this process may still hold.
    pub(super) fn disconnect(&self) -> Vec<Weak<Segment>> {
        *lock(&self.outgoing) = None;
        // Waits for copies under way: each is bounded by the length of one request.
        let windows = write(&self.windows).take().unwrap_or_default();
        windows.iter().map(|window| Arc::downgrade(window.segment())).collect()
    }

    fn push(&self, imm: u32, parts: &[&[u8]]) -> Result<(), PostCause> {
        self.with_outgoing(|outgoing| outgoing.ring.try_push(imm, parts))
    }

    fn with_outgoing(
        &self,
        push: impl FnOnce(&mut Outgoing) -> Result<(), PushError>,
    ) -> Result<(), PostCause> {
        let mut outgoing = lock(&self.outgoing);
        let Some(connected) = &mut *outgoing else {
            return Err(PostCause::NotConnected);
        };
        match push(connected) {
            Ok(()) => Ok(()),
            Err(PushError::Full { .. }) => Err(PostCause::QueueFull),
            Err(PushError::TooLong { .. }) => Err(PostCause::Malformed),
            Err(PushError::Corrupt) => Err(PostCause::NotConnected),
        }
    }
}
