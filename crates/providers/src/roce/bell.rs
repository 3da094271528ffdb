//! Whom arrivals wake.
//!
//! There is no ring of a peer's: a datagram makes the socket readable, and the kernel wakes who sleeps on it.  So each kind of
//! sleeper has an epoll of its own, in which the socket is watched for one edge at a time, and only while that kind is armed.
//! Disarming costs nothing; an edge that was still watched for wakes somebody once too often.
//!
//! The number of the doorbell moves where somebody is woken by something else, and where a poll finds what was to ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use std::time::Duration;

use halite_fabric::{Sleeper, Sleepers};
use rustix::event::EventfdFlags;

/// See the header of this file.
#[derive(Debug)]
pub(super) struct Bell {
    seq: AtomicU32,
    eventfd: OwnedFd,
    /// By their places.
    kinds: [Kind; 2],
    /// Which of them is armed, from 1.
    armed: AtomicU8,
}

#[derive(Debug)]
struct Kind {
    sleepers: Sleepers,
    /// Whether the socket may be watched for.
    is_watched: AtomicBool,
}

impl Bell {
    /// For those who wait for `socket`, or for `control`, which is always watched.
    pub(super) fn new(socket: BorrowedFd<'_>, control: BorrowedFd<'_>) -> io::Result<Bell> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kind = || -> io::Result<Kind> {
            let sleepers = Sleepers::new([eventfd.as_fd(), control, socket])?;
            sleepers.watch_once(socket, false);
            Ok(Kind { sleepers, is_watched: AtomicBool::new(false) })
        };
        let kinds = [kind()?, kind()?];
        Ok(Bell { seq: AtomicU32::new(0), eventfd, kinds, armed: AtomicU8::new(0) })
    }

    pub(super) fn arm(&self, sleeper: Option<Sleeper>, socket: BorrowedFd<'_>) {
        self.armed.store(sleeper.map_or(0, |sleeper| sleeper.place() as u8 + 1), SeqCst);
        let Some(armed) = sleeper.map(Sleeper::place) else { return };
        let (own, other) = (&self.kinds[armed], &self.kinds[1 - armed]);
        if other.is_watched.swap(false, SeqCst) {
            other.sleepers.watch_once(socket, false);
        }
        own.is_watched.store(true, SeqCst);
        own.sleepers.watch_once(socket, true);
    }

    /// Something has been polled that was to ring.
    pub(super) fn note_arrival(&self) {
        if self.armed.load(Relaxed) != 0 {
            self.seq.fetch_add(1, SeqCst);
        }
    }

    pub(super) fn wake(&self) {
        // Before the descriptor becomes readable, so that who is woken by it sees that it has rung.
        self.seq.fetch_add(1, SeqCst);
        // A full counter is readable as well, but only a change makes an edge.
        while rustix::io::write(&self.eventfd, &1u64.to_ne_bytes()).is_err() {
            let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        }
    }

    pub(super) fn seq(&self) -> u32 {
        self.seq.load(SeqCst)
    }

    pub(super) fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        self.kinds[sleeper.place()].sleepers.sleep(timeout, || self.seq() != seen);
    }

    /// For those who sleep for several fabrics.
    pub(super) fn descriptor(&self, sleeper: Sleeper) -> BorrowedFd<'_> {
        self.kinds[sleeper.place()].sleepers.as_fd()
    }
}
