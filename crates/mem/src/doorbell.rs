//! A doorbell in shared memory: wakes a process that sleeps until something arrives.
//!
//! It says that something may have arrived, never what; the sleeper polls its rings to find out.  It is not a
//! lock, and spurious rings are allowed.
//!
//! ```text
//!   offset 0      4      8
//!          | seq  | armed |       seq: changes with every ring, the futex; written by ringers
//!                                 armed: who is to be rung, and how; written by the sleepers
//!
//!   armed   0 nobody
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
//! Two may sleep on it: a caller that waits for something, and the thread that sees to arrivals when no caller does.  An
//! arrival is to wake the one whom it concerns, at once and alone.  So both sleep on the futex under different bits of its
//! mask, or on a descriptor each, and whom rings wake is changed by a store.
//!
//! Both fences are sequentially consistent, so either the ringer sees `armed`, or the sleeper's poll sees the
//! message; a ring between `seq()` and `wait()` moves `seq`, and `wait` returns at once.  A hostile process
//! that maps the doorbell can suppress or multiply rings and nothing else, which is why sleepers that cannot
//! afford to miss one pass a timeout.  The same holds for the descriptor, whose kind its receiver has to check: nobody
//! reads it but a ringer who finds it full, and the sleeper watches for edges.

mod memory;

use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use memory::{Bell, Memory, fence};

use crate::{AccessError, Window};

/// Bytes of shared memory that a doorbell takes.
pub const DOORBELL_BYTES: u64 = 8;

/// Values of the word.
const UNARMED: u32 = 0;
const PROGRESS_BY_FUTEX: u32 = 1;
const PROGRESS_BY_DESCRIPTOR: u32 = 2;
const CALLER_BY_FUTEX: u32 = 3;
const CALLER_BY_DESCRIPTOR: u32 = 4;

/// Who sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// A thread that waits for what is to arrive.
    Caller,
    /// The thread that sees to arrivals when no caller sleeps.
    Progress,
}

impl Sleeper {
    /// Both kinds, in the order of their places.
    pub const KINDS: [Sleeper; 2] = [Sleeper::Progress, Sleeper::Caller];

    /// The place of this kind in an array that has one for each.
    pub fn place(self) -> usize {
        match self {
            Sleeper::Progress => 0,
            Sleeper::Caller => 1,
        }
    }

    /// Its bit in the futex's mask.
    fn bit(self) -> NonZeroU32 {
        match self {
            Sleeper::Progress => NonZeroU32::MIN,
            Sleeper::Caller => NonZeroU32::MIN.saturating_add(1),
        }
    }
}

/// Both.
const ALL: NonZeroU32 = NonZeroU32::MAX;

/// One end of a doorbell, whether it is to be rung or waited for.
///
/// ```
/// # use halite_mem::{Doorbell, PagePolicy, Segment, Sleeper, doorbell::DOORBELL_BYTES};
/// let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal)?;
/// let doorbell = Doorbell::new(segment.window(0, DOORBELL_BYTES).expect("in bounds")).expect("aligned");
/// doorbell.arm(Some(Sleeper::Caller));
/// let seen = doorbell.seq();
/// doorbell.ring();
/// doorbell.wait(Sleeper::Caller, seen, None); // returns at once: it has rung
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Doorbell {
    memory: Memory,
    /// One for each kind of sleeper, by its place.
    bells: Option<[Bell; 2]>,
}

impl Doorbell {
    /// The doorbell in `window`.  Fails if that is shorter than [`DOORBELL_BYTES`] or not aligned to 4 bytes.
    pub fn new(window: Window) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory, bells: None })
    }

    /// As [`Doorbell::new`], with the descriptors that are rung, one for each kind of sleeper by its [`Sleeper::place`]: eventfds
    /// that do not block.
    pub fn with_descriptors(window: Window, eventfds: [OwnedFd; 2]) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory, bells: Some(eventfds.map(Bell::new)) })
    }

    /// What such a sleeper watches in epoll, for edges.
    pub fn descriptor(&self, sleeper: Sleeper) -> Option<BorrowedFd<'_>> {
        self.bells.as_ref().and_then(|bells| bells[sleeper.place()].descriptor())
    }

    /// Wakes who asked for that.  Call it after publishing what it should find.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in arm(): see the header of this file.
        fence();
        match self.memory.armed() {
            UNARMED => {}
            armed => self.wake_by(armed),
        }
    }

    /// Wakes all sleepers, whether they asked for that or not.
    pub fn wake(&self) {
        // First, so that who is woken, or finds no edge any more, sees that it has rung.
        self.memory.advance();
        match &self.bells {
            Some(bells) => bells.iter().for_each(Bell::ring),
            None => self.memory.wake(ALL),
        }
    }

    fn wake_by(&self, armed: u32) {
        // As in wake().
        self.memory.advance();
        match (armed, &self.bells) {
            (PROGRESS_BY_FUTEX, _) => self.memory.wake(Sleeper::Progress.bit()),
            (CALLER_BY_FUTEX, _) => self.memory.wake(Sleeper::Caller.bit()),
            (PROGRESS_BY_DESCRIPTOR, Some(bells)) => bells[Sleeper::Progress.place()].ring(),
            (CALLER_BY_DESCRIPTOR, Some(bells)) => bells[Sleeper::Caller.place()].ring(),
            // A word that makes no sense costs at most a wake-up.
            _ => self.memory.wake(ALL),
        }
    }

    /// Says who is to be rung.  After arming, poll once more before waiting.
    pub fn arm(&self, sleeper: Option<Sleeper>) {
        self.memory.set_armed(match (sleeper, &self.bells) {
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

    /// A number that changes with every ring that wakes.
    pub fn seq(&self) -> u32 {
        self.memory.seq()
    }

    /// Sleeps, as `sleeper`, until that is rung after [`Doorbell::seq`] was `seen`, or `timeout` passes; may return early.
    /// A doorbell with descriptors is waited for by these.
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
        Arc::new(Doorbell { memory, bells: None })
    }

    fn doorbell_with_descriptors() -> Arc<Doorbell> {
        let memory = Memory::private();
        Arc::new(Doorbell { memory, bells: Some([Bell::private(), Bell::private()]) })
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
                // A lost wake-up would block here for ever, which loom reports as a deadlock.
                doorbell.wait(Sleeper::Progress, seen, None);
            }
            ringer.join().unwrap();
        });
    }

    #[test]
    fn loom_a_wake_reaches_a_sleeper_that_is_about_to_sleep() {
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
            let [bell, _] = doorbell.bells.as_ref().unwrap();
            loop {
                let seen = doorbell.seq();
                if message.load(Relaxed) {
                    break;
                }
                // A lost edge would block here for ever, which loom reports as a deadlock.
                if doorbell.seq() == seen {
                    bell.wait_for_edge();
                }
            }
            ringer.join().unwrap();
        });
    }

    #[test]
    fn loom_whose_edge_another_took_sees_that_it_has_rung() {
        loom::model(|| {
            let doorbell = doorbell_with_descriptors();
            let seen = doorbell.seq();
            let waker = {
                let doorbell = doorbell.clone();
                loom::thread::spawn(move || doorbell.wake())
            };
            let [bell, _] = doorbell.bells.as_ref().unwrap();
            bell.wait_for_edge();
            assert_ne!(doorbell.seq(), seen);
            waker.join().unwrap();
        });
    }
}
