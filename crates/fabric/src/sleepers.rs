//! Lets threads sleep until one of several descriptors becomes readable.
//!
//! One thread, the watcher, waits in epoll for all descriptors. The other threads sleep on a condition variable until
//! the watcher wakes them. Each edge wakes all threads, as a wake-up of a futex does. Epoll watches the descriptors
//! edge-triggered, so the threads need not read them. [`Sleepers::watch_once`] enables and disables single descriptors.
//! A thread that also sleeps on other descriptors can watch the epoll descriptor itself.
//!
//! ```text
//!   ringer --> descriptor --edge--> epoll --> the watcher --> the others
//!                                             times out   --> one of them, which watches next
//! ```
//!
//! If an edge occurs while no thread is the watcher, epoll keeps the edge, and the next watcher returns at once. If
//! another thread consumed the edge, a sleeper still notices the ring: the doorbell's number changes before the
//! descriptor becomes readable, and the sleeper compares this number.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll};
use rustix::time::Timespec;

/// The threads that sleep on a set of descriptors; see the header of this file.
#[derive(Debug)]
pub struct Sleepers {
    epoll: OwnedFd,
    watch: Mutex<Watch>,
    condition: Condvar,
    /// Bitmap of the descriptors whose edges were consumed from epoll, by place.
    edges: AtomicU64,
}

/// State of the sleepers.
#[derive(Debug, Default)]
struct Watch {
    /// True if a thread is the watcher: it sleeps in epoll.
    has_watcher: bool,
    /// Number of times a watcher returned with an edge.
    rings: u64,
    /// Number of sleepers other than the watcher. If it is 0, no notification is needed, which saves a system call.
    others: usize,
}

/// Maximum number of edges consumed by one call; the next call returns the rest.
const EDGES_MAX: usize = 8;

impl AsFd for Sleepers {
    /// Returns the epoll descriptor, which itself has an edge with each edge of a watched descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Sleepers {
    /// Creates a set of `descriptors`, at most 64, which must stay open as long as the result exists. The place of a
    /// descriptor is its index in this set.
    pub fn new<'a>(descriptors: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Sleepers> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, descriptor) in descriptors.into_iter().enumerate() {
            assert!(index < u64::BITS as usize, "at most 64 descriptors fit into the word of edges");
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(index as u64), flags)?;
        }
        Ok(Sleepers { epoll, watch: Mutex::default(), condition: Condvar::new(), edges: AtomicU64::new(0) })
    }

    /// Watches the descriptor at `place` for one edge if `is_watched` is true; otherwise stops watching the descriptor.
    /// If the descriptor is already readable, the edge occurs at once.
    pub fn watch_once(&self, place: usize, descriptor: BorrowedFd<'_>, is_watched: bool) {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET | epoll::EventFlags::ONESHOT;
        let flags = if is_watched { edge } else { epoll::EventFlags::empty() };
        // Cannot fail for a descriptor that was passed to `new`.
        let _ = epoll::modify(&self.epoll, descriptor, epoll::EventData::new_u64(place as u64), flags);
    }

    /// Returns a bitmap of the descriptors that had an edge since the last call: bit `n` stands for the descriptor at
    /// place `n`.
    pub fn take_edges_seen(&self) -> u64 {
        // Pairs with the Release in take_edges().
        self.edges.swap(0, AcqRel)
    }

    /// Blocks until a descriptor has an edge or `timeout` has passed; returns at once if `is_rung` returns true. May
    /// return early. A timeout of zero only consumes the pending edges.
    pub fn sleep(&self, timeout: Option<Duration>, is_rung: impl Fn() -> bool) {
        if timeout == Some(Duration::ZERO) {
            self.take_edges();
            return;
        }
        // Treats a deadline beyond the clock's range as no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut watch = self.lock();
        let rings = watch.rings;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if is_rung() || watch.rings != rings || left == Some(Duration::ZERO) {
                return self.wake_next_watcher(&watch);
            }
            if !watch.has_watcher {
                watch.has_watcher = true;
                drop(watch);
                return self.wait_as_watcher(left);
            }
            watch.others += 1;
            watch = match left {
                None => self.condition.wait(watch).expect(POISONED),
                Some(left) => self.condition.wait_timeout(watch, left).expect(POISONED).0,
            };
            watch.others -= 1;
        }
    }

    fn wait_as_watcher(&self, timeout: Option<Duration>) {
        let is_rung = self.wait_for_edge(timeout);
        let mut watch = self.lock();
        watch.has_watcher = false;
        if is_rung {
            watch.rings += 1;
            if watch.others > 0 {
                self.condition.notify_all();
            }
        } else {
            self.wake_next_watcher(&watch);
        }
    }

    /// Wakes another sleeper to become the watcher, if there is none. The caller stops sleeping, and may be the sleeper
    /// that an earlier watcher woke to take over.
    fn wake_next_watcher(&self, watch: &Watch) {
        if !watch.has_watcher && watch.others > 0 {
            self.condition.notify_one();
        }
    }

    fn wait_for_edge(&self, timeout: Option<Duration>) -> bool {
        let Some(timeout) = timeout.and_then(|timeout| Timespec::try_from(timeout).ok()) else {
            return self.take_edges_within(None);
        };
        // The timeout of epoll_wait counts in milliseconds, which is too coarse, so this calls poll. After an error,
        // the caller checks again.
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

/// No code panics while it holds the lock.
const POISONED: &str = "a thread panicked while it held the lock of the sleepers";
