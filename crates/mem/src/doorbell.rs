//! A doorbell in shared memory, which wakes a process that sleeps until a message arrives.
//!
//! A doorbell carries no data: the woken thread polls its rings for arrivals. A doorbell is not a lock, and spurious
//! wake-ups are allowed.
//!
//! ```text
//!   offset 0      4      8
//!          | seq  | armed |       seq: changes with every wake-up; the futex; written by ringers
//!                                 armed: which sleeper to wake, and by which mechanism; written by the sleepers
//!
//!   armed   0 no sleeper
//!           1 the progress thread, by the futex
//!           2 the progress thread, by its descriptor, an eventfd that both ends have, for sleepers in epoll
//!           3 a caller, by the futex
//!           4 a caller, by its descriptor
//!
//!   sleeper                             ringer
//!     seen = seq()                        publish the message
//!     arm()       armed = 1 to 4, fence   ring()   fence, then if armed: seq += 1, wake
//!     poll everything once more
//!     wait(seen), or epoll, unless seq moved
//! ```
//!
//! Two threads may sleep on one doorbell: a caller that waits for a completion, and the progress thread, which handles
//! arrivals while no caller sleeps. A ring must wake only the right thread, and directly. So each thread sleeps on the
//! futex under its own bit of the mask, or on its own descriptor. The value of `armed` selects the thread to wake.
//!
//! Both fences are sequentially consistent, so either the ringer sees `armed`, or the sleeper's poll sees the message.
//! After a ring between `seq()` and `wait()`, `wait` returns at once. A hostile process that maps the doorbell can only
//! suppress or add wake-ups, so a sleeper that must not miss a wake-up passes a timeout. The same holds for a process
//! that has the descriptor; a process that receives such a descriptor must check its kind. Sleepers watch the eventfd
//! edge-triggered and never read it. A ringer reads the eventfd only if its counter is full.

mod memory;

use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use memory::{Eventfd, Memory, fence};

use crate::{AccessError, Window};

/// Size of a doorbell in shared memory, in bytes.
pub const DOORBELL_BYTES: u64 = 8;

/// Values of `armed`.
const UNARMED: u32 = 0;
const PROGRESS_BY_FUTEX: u32 = 1;
const PROGRESS_BY_DESCRIPTOR: u32 = 2;
const CALLER_BY_FUTEX: u32 = 3;
const CALLER_BY_DESCRIPTOR: u32 = 4;

/// The kind of thread that sleeps on a doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// A thread that waits for its own completion or message.
    Caller,
    /// The thread that handles arrivals while no caller sleeps.
    Progress,
}

impl Sleeper {
    /// Both kinds, in the order of [`Sleeper::place`].
    pub const KINDS: [Sleeper; 2] = [Sleeper::Progress, Sleeper::Caller];

    /// Returns the index of this kind of sleeper in arrays with one entry per kind.
    pub fn place(self) -> usize {
        match self {
            Sleeper::Progress => 0,
            Sleeper::Caller => 1,
        }
    }

    /// Returns the bit of this kind in the futex's mask.
    fn bit(self) -> NonZeroU32 {
        match self {
            Sleeper::Progress => NonZeroU32::MIN,
            Sleeper::Caller => NonZeroU32::MIN.saturating_add(1),
        }
    }
}

/// Mask of both kinds.
const ALL: NonZeroU32 = NonZeroU32::MAX;

/// One end of a doorbell, for the ringer or for the sleeper.
///
/// ```
/// # use halite_mem::{Doorbell, PagePolicy, Segment, Sleeper, doorbell::DOORBELL_BYTES};
/// let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal)?;
/// let doorbell = Doorbell::new(segment.window(0, DOORBELL_BYTES).expect("in bounds")).expect("aligned");
/// doorbell.arm(Some(Sleeper::Caller));
/// let seen = doorbell.seq();
/// doorbell.ring();
/// doorbell.wait(Sleeper::Caller, seen, None); // returns at once: the doorbell has rung
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Doorbell {
    memory: Memory,
    /// Descriptors by [`Sleeper::place`]; `None` if sleepers use the futex.
    eventfds: Option<[Eventfd; 2]>,
}

impl Doorbell {
    /// Opens the doorbell in `window`. Fails if the window is shorter than [`DOORBELL_BYTES`] or not aligned to 4
    /// bytes.
    pub fn new(window: Window) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory, eventfds: None })
    }

    /// Opens a doorbell whose sleepers sleep on descriptors: one non-blocking eventfd per kind of sleeper, ordered by
    /// [`Sleeper::place`]. Fails as [`Doorbell::new`] does.
    pub fn with_descriptors(window: Window, eventfds: [OwnedFd; 2]) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory, eventfds: Some(eventfds.map(Eventfd::new)) })
    }

    /// Returns the descriptor that this kind of sleeper watches in epoll, edge-triggered; `None` for a doorbell without
    /// descriptors.
    pub fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        self.eventfds.as_ref().and_then(|eventfds| eventfds[sleeper.place()].descriptor())
    }

    /// Wakes the armed sleeper; has no effect if no sleeper is armed. The caller publishes its message before this
    /// call.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in arm(): see the header of this file.
        fence();
        match self.memory.armed() {
            UNARMED => {}
            armed => self.wake_by(armed),
        }
    }

    /// Wakes all sleepers, armed or not.
    pub fn wake(&self) {
        // `seq` changes first: a thread sees the change even if another thread has consumed the edge of the descriptor.
        self.memory.advance();
        match &self.eventfds {
            Some(eventfds) => eventfds.iter().for_each(Eventfd::ring),
            None => self.memory.wake(ALL),
        }
    }

    fn wake_by(&self, armed: u32) {
        // As in wake().
        self.memory.advance();
        match (armed, &self.eventfds) {
            (PROGRESS_BY_FUTEX, _) => self.memory.wake(Sleeper::Progress.bit()),
            (CALLER_BY_FUTEX, _) => self.memory.wake(Sleeper::Caller.bit()),
            (PROGRESS_BY_DESCRIPTOR, Some(eventfds)) => eventfds[Sleeper::Progress.place()].ring(),
            (CALLER_BY_DESCRIPTOR, Some(eventfds)) => eventfds[Sleeper::Caller.place()].ring(),
            // A hostile process may store any value. Waking all sleepers is harmless.
            _ => self.memory.wake(ALL),
        }
    }

    /// Selects the kind of sleeper that [`Doorbell::ring`] wakes; with `None`, a ring wakes no thread. After this call,
    /// the caller must poll once more before it waits.
    pub fn arm(&self, sleeper: Option<Sleeper>) {
        self.memory.set_armed(match (sleeper, &self.eventfds) {
            (None, _) => UNARMED,
            (Some(Sleeper::Progress), None) => PROGRESS_BY_FUTEX,
            (Some(Sleeper::Caller), None) => CALLER_BY_FUTEX,
            (Some(Sleeper::Progress), Some(_)) => PROGRESS_BY_DESCRIPTOR,
            (Some(Sleeper::Caller), Some(_)) => CALLER_BY_DESCRIPTOR,
        });
        if sleeper.is_some() {
            // Pairs with the fence in ring(): see the header of this file.
            fence();
        }
    }

    /// Returns the number of wake-ups so far, modulo 2^32.
    pub fn seq(&self) -> u32 {
        self.memory.seq()
    }

    /// Blocks until the doorbell rings for `sleeper` after [`Doorbell::seq`] returned `seen`, or until `timeout` has
    /// passed. May return early. The thread blocks on the descriptor if the doorbell has descriptors, and otherwise on
    /// the futex.
    pub fn wait(&self, sleeper: Sleeper, seen: u32, timeout: Option<Duration>) {
        self.memory.wait(sleeper.bit(), seen, timeout);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn doorbell() -> Arc<Doorbell> {
        let memory = Memory::private();
        Arc::new(Doorbell { memory, eventfds: None })
    }

    fn doorbell_with_descriptors() -> Arc<Doorbell> {
        let memory = Memory::private();
        Arc::new(Doorbell { memory, eventfds: Some([Eventfd::private(), Eventfd::private()]) })
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        loom::model(|| {
            let doorbell = doorbell();
            // Relaxed on purpose: the fences alone must make the message or the ring visible.
            let message = Arc::new(AtomicBool::new(false));
            let ringer = {
                let (doorbell, message) = (doorbell.clone(), message.clone());
                loom::thread::spawn(move || {
                    message.store(true, Relaxed);
                    doorbell.ring();
                })
            };
            doorbell.arm(Some(Sleeper::Progress));
            loop {
                let seen = doorbell.seq();
                if message.load(Relaxed) {
                    break;
                }
                // A lost wake-up would block here forever, which loom reports as a deadlock.
                doorbell.wait(Sleeper::Progress, seen, None);
            }
            ringer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_wake_reaches_a_thread_about_to_sleep() {
        loom::model(|| {
            let doorbell = doorbell();
            let seen = doorbell.seq();
            let waker = {
                let doorbell = doorbell.clone();
                loom::thread::spawn(move || doorbell.wake())
            };
            doorbell.wait(Sleeper::Progress, seen, None);
            assert_ne!(doorbell.seq(), seen);
            waker.join().unwrap();
        });
    }

    #[test]
    fn loom_no_edge_of_a_descriptor_is_lost() {
        loom::model(|| {
            let doorbell = doorbell_with_descriptors();
            // Relaxed on purpose: the fences alone must make the message or the ring visible.
            let message = Arc::new(AtomicBool::new(false));
            let ringer = {
                let (doorbell, message) = (doorbell.clone(), message.clone());
                loom::thread::spawn(move || {
                    message.store(true, Relaxed);
                    doorbell.ring();
                })
            };
            doorbell.arm(Some(Sleeper::Progress));
            let [eventfd, _] = doorbell.eventfds.as_ref().unwrap();
            loop {
                let seen = doorbell.seq();
                if message.load(Relaxed) {
                    break;
                }
                // A lost edge would block here forever, which loom reports as a deadlock.
                if doorbell.seq() == seen {
                    eventfd.wait_for_edge();
                }
            }
            ringer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_wake_is_seen_after_its_edge_was_consumed() {
        loom::model(|| {
            let doorbell = doorbell_with_descriptors();
            let seen = doorbell.seq();
            let waker = {
                let doorbell = doorbell.clone();
                loom::thread::spawn(move || doorbell.wake())
            };
            let [eventfd, _] = doorbell.eventfds.as_ref().unwrap();
            eventfd.wait_for_edge();
            assert_ne!(doorbell.seq(), seen);
            waker.join().unwrap();
        });
    }
}
