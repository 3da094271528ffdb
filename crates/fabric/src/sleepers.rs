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
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Release};
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
    /// A bit for each descriptor that had an edge which was taken.
    edges: AtomicU64,
}

#[derive(Debug, Default)]
struct Watch {
    /// Whether somebody sleeps in epoll.
    is_kept: bool,
    /// How often something was seen there.
    rings: u64,
    /// How many others sleep: to tell nobody is a call of the system, too.
    others: usize,
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
    /// Those who sleep until one of `descriptors`, at most 64 of which all outlive the value, becomes readable anew.
    pub fn new<'a>(descriptors: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Sleepers> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, descriptor) in descriptors.into_iter().enumerate() {
            assert!(index < u64::BITS as usize, "so many parts need another way to sleep");
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(index as u64), flags)?;
        }
        Ok(Sleepers { epoll, watch: Mutex::default(), told: Condvar::new(), edges: AtomicU64::new(0) })
    }

    /// Watches one of the descriptors, the one of that place, for one edge more, or for none.  One that is readable counts as having become so.
    pub fn watch_once(&self, place: usize, descriptor: BorrowedFd<'_>, is_watched: bool) {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET | epoll::EventFlags::ONESHOT;
        let flags = if is_watched { edge } else { epoll::EventFlags::empty() };
        // It fails for none of those that the value was made of.
        let _ = epoll::modify(&self.epoll, descriptor, epoll::EventData::new_u64(place as u64), flags);
    }

    /// Of which of the descriptors an edge was taken since this was last asked, as a bit for each place.
    pub fn take_edges_seen(&self) -> u64 {
        // Pairs with the Release in take_edges().
        self.edges.swap(0, AcqRel)
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
            watch.others += 1;
            watch = match left {
                None => self.told.wait(watch).expect(POISONED),
                Some(left) => self.told.wait_timeout(watch, left).expect(POISONED).0,
            };
            watch.others -= 1;
        }
    }

    fn keep_watch(&self, timeout: Option<Duration>) {
        let is_rung = self.wait_for_edge(timeout);
        let mut watch = self.lock();
        watch.is_kept = false;
        if is_rung {
            watch.rings += 1;
            if watch.others > 0 {
                self.told.notify_all();
            }
        } else {
            self.leave(&watch);
        }
    }

    /// A sleeper that goes leaves somebody on watch, if anybody sleeps: the one who was told to may be the one who goes.
    fn leave(&self, watch: &Watch) {
        if !watch.is_kept && watch.others > 0 {
            self.told.notify_one();
        }
    }

    fn wait_for_edge(&self, timeout: Option<Duration>) -> bool {
        let Some(timeout) = timeout.and_then(|timeout| Timespec::try_from(timeout).ok()) else {
            return self.take_edges_within(None);
        };
        // Not by epoll alone, which counts in milliseconds.  Every error means: look again.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
        self.take_edges()
    }

    fn take_edges(&self) -> bool {
        self.take_edges_within(Some(&Timespec::default()))
    }

    fn take_edges_within(&self, timeout: Option<&Timespec>) -> bool {
        let mut space = [MaybeUninit::uninit(); EDGES_MAX];
        let Ok((edges, _)) = epoll::wait(&self.epoll, &mut space[..], timeout) else { return false };
        let places = edges.iter().fold(0, |places, edge| places | 1 << edge.data.u64());
        // Pairs with the AcqRel in take_edges_seen().
        self.edges.fetch_or(places, Release);
        places != 0
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().expect(POISONED)
    }
}

/// Nothing panics while it holds the lock.
const POISONED: &str = "a thread panicked while it held the lock of those who sleep";
