//! Threads that sleep until one of several descriptors becomes readable.
//!
//! One of them watches all descriptors in epoll, the others sleep until it tells them: each ring wakes all, as a
//! futex would, and each is watched for once.  One that rings for some only is watched for when it is asked for.  The descriptors
//! are watched for edges, so nobody has to empty them.  What they watch can be watched in turn, by who sleeps for more than they do.
//!
//! ```text
//!   ringer --> descriptor --edge--> epoll --> the one who watches --> the others
//!                                             times out           --> one of them, who watches next
//! ```
//!
//! An edge that comes while nobody watches is kept by epoll, and ends the next watch at once.  A sleeper that had it taken away
//! by another one sees that the doorbell has moved, which it does before the descriptor becomes readable.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

/// See the header of this file.
#[derive(Debug)]
pub struct Sleepers {
    epoll: OwnedFd,
    watch: Mutex<Watch>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Watch {
    /// Whether somebody sleeps in epoll.
    is_kept: bool,
    /// How often something was seen there.
    rings: u64,
}

/// Edges that are taken at a time; the rest waits.
const EDGES_MAX: usize = 8;

impl AsFd for Sleepers {
    /// Has an edge with each edge of the descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Sleepers {
    /// Those who sleep until one of `descriptors`, all of which outlive the value, becomes readable anew.
    pub fn new<'a>(descriptors: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Sleepers> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, descriptor) in descriptors.into_iter().enumerate() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(index as u64), flags)?;
        }
        Ok(Sleepers { epoll, watch: Mutex::default(), told: Condvar::new() })
    }

    /// Watches one of the descriptors for one edge more, or for none.  One that is readable counts as having become so.
    pub fn watch_once(&self, descriptor: BorrowedFd<'_>, is_watched: bool) {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET | epoll::EventFlags::ONESHOT;
        let flags = if is_watched { edge } else { epoll::EventFlags::empty() };
        // It fails for none of those that the value was made of.
        let _ = epoll::modify(&self.epoll, descriptor, epoll::EventData::new_u64(0), flags);
    }

    /// Sleeps until a descriptor becomes readable or `timeout` passes, and not while `is_rung`.  May wake early.  In no time, it takes
    /// away the edges that are there.
    pub fn sleep(&self, timeout: Option<Duration>, is_rung: impl Fn() -> bool) {
        if timeout == Some(Duration::ZERO) {
            self.take_edges();
            return;
        }
        // A time beyond what the clock can tell never comes.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut watch = self.lock();
        let rings = watch.rings;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_rung() || watch.rings != rings || left == Some(Duration::ZERO) {
                return self.leave(&watch);
            }
            if !watch.is_kept {
                watch.is_kept = true;
                drop(watch);
                return self.keep_watch(left);
            }
            watch = match left {
                None => self.told.wait(watch).expect(POISONED),
                Some(left) => self.told.wait_timeout(watch, left).expect(POISONED).0,
            };
        }
    }

    fn keep_watch(&self, timeout: Option<Duration>) {
        let is_rung = self.wait_for_edge(timeout);
        let mut watch = self.lock();
        watch.is_kept = false;
        if is_rung {
            watch.rings += 1;
            self.told.notify_all();
        } else {
            self.leave(&watch);
        }
    }

    /// A sleeper that goes leaves somebody on watch, if anybody sleeps: the one who was told to may be the one who goes.
    fn leave(&self, watch: &Watch) {
        if !watch.is_kept {
            self.told.notify_one();
        }
    }

    fn wait_for_edge(&self, timeout: Option<Duration>) -> bool {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // Not by epoll alone, which counts in milliseconds.  Every error means: look again.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref());
        self.take_edges()
    }

    fn take_edges(&self) -> bool {
        let mut space = [MaybeUninit::uninit(); EDGES_MAX];
        let taken = epoll::wait(&self.epoll, &mut space[..], Some(&Timespec::default()));
        taken.is_ok_and(|(edges, _)| !edges.is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().expect(POISONED)
    }
}

/// Nothing panics while it holds the lock.
const POISONED: &str = "a thread panicked while it held the lock of those who sleep";
