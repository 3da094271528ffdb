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
use std::sync::atomic::{AtomicU8, AtomicU32};
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
    /// Which of the sources may be watched, from 1; 0 if none.
    watched: AtomicU8,
}

impl Kind {
    /// Watches that source, and no other.
    fn watch(&self, sources: [BorrowedFd<'_>; 2], index: Option<usize>) {
        let wanted = index.map_or(0, |index| index as u8 + 1);
        let before = self.watched.swap(wanted, SeqCst);
        if before != 0 && before != wanted {
            self.sleepers.watch_once(sources[usize::from(before) - 1], false);
        }
        if let Some(index) = index {
            self.sleepers.watch_once(sources[index], true);
        }
    }
}

impl Bell {
    /// For those who wait for one of two `sources`, or for `control`, which is always watched.
    pub(super) fn new(sources: [BorrowedFd<'_>; 2], control: BorrowedFd<'_>) -> io::Result<Bell> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kind = || -> io::Result<Kind> {
            let sleepers = Sleepers::new([eventfd.as_fd(), control, sources[0], sources[1]])?;
            sources.iter().for_each(|source| sleepers.watch_once(*source, false));
            Ok(Kind { sleepers, watched: AtomicU8::new(0) })
        };
        let kinds = [kind()?, kind()?];
        Ok(Bell { seq: AtomicU32::new(0), eventfd, kinds, armed: AtomicU8::new(0) })
    }

    /// Who arms waits for the source of that index.  Where another one is to be waited for from some moment on, it is woken.
    pub(super) fn arm(&self, sleeper: Option<Sleeper>, (sources, index): ([BorrowedFd<'_>; 2], usize)) {
        self.armed.store(sleeper.map_or(0, |sleeper| sleeper.place() as u8 + 1), SeqCst);
        let Some(armed) = sleeper.map(Sleeper::place) else { return };
        let (own, other) = (&self.kinds[armed], &self.kinds[1 - armed]);
        other.watch(sources, None);
        own.watch(sources, Some(index));
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
