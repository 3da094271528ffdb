//! A doorbell in shared memory: wakes a process that sleeps until something arrives.
//!
//! It says that something may have arrived, never what; the sleeper polls its rings to find out.  It is not a
//! lock, and spurious rings are allowed.
//!
//! ```text
//!   offset 0      4      8
//!          | seq  | armed |       seq: changes with every ring, the futex; written by ringers
//!                                 armed: whether rings are wanted, and how; written by the sleeper
//!
//!   armed   0 not at all
//!           1 by the futex
//!           2 by the descriptor, an eventfd that both ends have, for a sleeper in epoll
//!
//!   sleeper                             ringer
//!     arm(true)   armed = 1 or 2, fence   publish the message
//!     seen = seq()                        ring()   fence, then if armed: seq += 1, wake
//!     poll everything once more
//!     wait(seen), or epoll, unless seq moved
//! ```
//!
//! Both fences are sequentially consistent, so either the ringer sees `armed`, or the sleeper's poll sees the
//! message; a ring between `seq()` and `wait()` moves `seq`, and `wait` returns at once.  A hostile process
//! that maps the doorbell can suppress or multiply rings and nothing else, which is why sleepers that cannot
//! afford to miss one pass a timeout.  The same holds for the descriptor, whose kind its receiver has to check: nobody
//! reads it but a ringer who finds it full, and the sleeper watches for edges.

mod memory;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use memory::{Bell, Memory, fence};

use crate::{AccessError, Window};

/// Bytes of shared memory that a doorbell takes.
pub const DOORBELL_BYTES: u64 = 8;

/// Values of the word.
const UNARMED: u32 = 0;
const BY_FUTEX: u32 = 1;
const BY_DESCRIPTOR: u32 = 2;

/// One end of a doorbell, whether it is to be rung or waited for.
///
/// ```
/// # use halite_mem::{Doorbell, PagePolicy, Segment, doorbell::DOORBELL_BYTES};
/// let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal)?;
/// let doorbell = Doorbell::new(segment.window(0, DOORBELL_BYTES).expect("in bounds")).expect("aligned");
/// doorbell.arm(true);
/// let seen = doorbell.seq();
/// doorbell.ring();
/// doorbell.wait(seen, None); // returns at once: it has rung
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Doorbell {
    memory: Memory,
    bell: Option<Bell>,
}

impl Doorbell {
    /// The doorbell in `window`.  Fails if that is shorter than [`DOORBELL_BYTES`] or not aligned to 4 bytes.
    pub fn new(window: Window) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory, bell: None })
    }

    /// As [`Doorbell::new`], with the descriptor that is rung: an eventfd that does not block.
    pub fn with_descriptor(window: Window, eventfd: OwnedFd) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory, bell: Some(Bell::new(eventfd)) })
    }

    /// What a sleeper in epoll watches, for edges.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().and_then(Bell::descriptor)
    }

    /// Wakes the sleeper if it asked for that.  Call it after publishing what it should find.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in arm(): see the header of this file.
        fence();
        match self.memory.armed() {
            UNARMED => {}
            armed => self.wake_by(armed),
        }
    }

    /// Wakes the sleeper whether it asked for that or not.
    pub fn wake(&self) {
        self.wake_by(self.way());
    }

    fn wake_by(&self, way: u32) {
        // First, so that who is woken, or finds no edge any more, sees that it has rung.
        self.memory.advance();
        match &self.bell {
            Some(bell) if way == BY_DESCRIPTOR => bell.ring(),
            // A word that makes no sense costs at most a wake-up.
            _ => self.memory.wake_all(),
        }
    }

    /// How we sleep.
    fn way(&self) -> u32 {
        if self.bell.is_some() { BY_DESCRIPTOR } else { BY_FUTEX }
    }

    /// Says whether rings are wanted.  After arming, poll once more before waiting.
    pub fn arm(&self, armed: bool) {
        self.memory.set_armed(if armed { self.way() } else { UNARMED });
        if armed {
            // Pairs with the fence in ring(): see the header of this file.
            fence();
        }
    }

    /// A number that changes with every ring that wakes.
    pub fn seq(&self) -> u32 {
        self.memory.seq()
    }

    /// Sleeps until [`Doorbell::seq`] differs from `seen` or `timeout` passes; may return early.
    /// A doorbell with a descriptor is waited for by that.
    pub fn wait(&self, seen: u32, timeout: Option<Duration>) {
        self.memory.wait(seen, timeout);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{PagePolicy, Segment};

    fn doorbell() -> Doorbell {
        let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal).unwrap();
        Doorbell::new(segment.window(0, DOORBELL_BYTES).unwrap()).unwrap()
    }

    #[test]
    fn rings_count_only_while_armed_but_wakes_always() {
        let doorbell = doorbell();
        doorbell.ring();
        assert_eq!(doorbell.seq(), 0);
        doorbell.arm(true);
        doorbell.ring();
        assert_eq!(doorbell.seq(), 1);
        doorbell.arm(false);
        doorbell.ring();
        assert_eq!(doorbell.seq(), 1);
        doorbell.wake();
        assert_eq!(doorbell.seq(), 2);
    }

    #[test]
    fn a_wait_for_the_past_returns_at_once() {
        let doorbell = doorbell();
        doorbell.wake();
        doorbell.wait(0, None);
    }

    #[test]
    fn a_wait_without_a_ring_ends_with_its_timeout() {
        let doorbell = doorbell();
        doorbell.wait(0, Some(Duration::from_millis(1)));
        assert_eq!(doorbell.seq(), 0);
    }

    #[test]
    fn another_mapping_of_the_same_memory_wakes_a_sleeper() {
        let ours = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal).unwrap();
        let theirs = Segment::open(ours.fd().unwrap().try_clone_to_owned().unwrap(), DOORBELL_BYTES);
        let whole = |segment: Arc<Segment>| segment.window(0, DOORBELL_BYTES).unwrap();
        let sleeper = Doorbell::new(whole(ours)).unwrap();
        let ringer = Doorbell::new(whole(theirs.unwrap())).unwrap();
        sleeper.arm(true);
        let seen = sleeper.seq();
        let sleeping = std::thread::spawn(move || {
            // Waits may end early, so a sleeper always looks again.
            while sleeper.seq() == seen {
                sleeper.wait(seen, None);
            }
        });
        ringer.ring();
        sleeping.join().unwrap();
    }

    fn eventfd() -> OwnedFd {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).unwrap()
    }

    /// How often it was rung since this was last looked at.
    fn count(doorbell: &Doorbell) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(doorbell.descriptor().unwrap(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                0
            }
        }
    }

    #[test]
    fn a_sleeper_with_a_descriptor_is_rung_by_it_and_only_while_armed() {
        let (ours, shared) = (eventfd(), eventfd());
        let theirs = shared.try_clone().unwrap();
        let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal).unwrap();
        let window = || segment.window(0, DOORBELL_BYTES).unwrap();
        let sleeper = Doorbell::with_descriptor(window(), shared).unwrap();
        let ringer = Doorbell::with_descriptor(window(), theirs).unwrap();
        ringer.ring();
        assert_eq!((count(&sleeper), sleeper.seq()), (0, 0));
        sleeper.arm(true);
        ringer.ring();
        ringer.ring();
        assert_eq!((count(&sleeper), sleeper.seq()), (2, 2));
        sleeper.arm(false);
        ringer.ring();
        sleeper.wake();
        assert_eq!((count(&sleeper), sleeper.seq()), (1, 3));
        // Who arms for the futex is not rung by a descriptor, whatever the ringer has.
        let plain = Doorbell::new(window()).unwrap();
        plain.arm(true);
        let other = Doorbell::with_descriptor(window(), ours).unwrap();
        other.ring();
        assert_eq!((count(&other), plain.seq()), (0, 4));
    }

    #[test]
    fn a_descriptor_that_somebody_filled_rings_all_the_same() {
        let doorbell = {
            let segment = Segment::create("doorbell", DOORBELL_BYTES, PagePolicy::Normal).unwrap();
            Doorbell::with_descriptor(segment.window(0, DOORBELL_BYTES).unwrap(), eventfd()).unwrap()
        };
        let full = u64::MAX - 1;
        rustix::io::write(doorbell.descriptor().unwrap(), &full.to_ne_bytes()).unwrap();
        doorbell.wake();
        assert_eq!(count(&doorbell), 1);
    }

    #[test]
    fn a_doorbell_needs_its_bytes() {
        let segment = Segment::create("doorbell", 64, PagePolicy::Normal).unwrap();
        assert!(Doorbell::new(segment.window(0, 7).unwrap()).is_err());
        assert!(Doorbell::new(segment.window(2, 8).unwrap()).is_err());
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
        Arc::new(Doorbell { memory, bell: None })
    }

    fn doorbell_with_descriptor() -> Arc<Doorbell> {
        let memory = Memory::private();
        Arc::new(Doorbell { memory, bell: Some(Bell::private()) })
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
            doorbell.arm(true);
            loop {
                let seen = doorbell.seq();
                if message.load(Relaxed) {
                    break;
                }
                // A lost wake-up would block here for ever, which loom reports as a deadlock.
                doorbell.wait(seen, None);
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
            doorbell.wait(seen, None);
            assert_ne!(doorbell.seq(), seen);
            waker.join().unwrap();
        });
    }

    #[test]
    fn loom_no_edge_of_a_descriptor_is_lost() {
        loom::model(|| {
            let doorbell = doorbell_with_descriptor();
            // Relaxed on purpose: the fences alone must make the message or the ring visible.
            let message = Arc::new(AtomicBool::new(false));
            let ringer = {
                let (doorbell, message) = (doorbell.clone(), message.clone());
                loom::thread::spawn(move || {
                    message.store(true, Relaxed);
                    doorbell.ring();
                })
            };
            doorbell.arm(true);
            let bell = doorbell.bell.as_ref().unwrap();
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
            let doorbell = doorbell_with_descriptor();
            let seen = doorbell.seq();
            let waker = {
                let doorbell = doorbell.clone();
                loom::thread::spawn(move || doorbell.wake())
            };
            let bell = doorbell.bell.as_ref().unwrap();
            bell.wait_for_edge();
            assert_ne!(doorbell.seq(), seen);
            waker.join().unwrap();
        });
    }
}
