//! A doorbell in shared memory: wakes a process that sleeps until something arrives.
//!
//! It says that something may have arrived, never what; the sleeper polls its rings to find out.  It is not a
//! lock, and spurious rings are allowed.
//!
//! ```text
//!   offset 0      4      8
//!          | seq  | armed |       seq: changes with every ring, the futex; written by ringers
//!                                 armed: whether rings are wanted; written by the sleeper
//!
//!   sleeper                             ringer
//!     arm(true)   armed = 1, fence        publish the message
//!     seen = seq()                        ring()   fence, then if armed: seq += 1, wake
//!     poll everything once more
//!     wait(seen)  unless seq moved
//! ```
//!
//! Both fences are sequentially consistent, so either the ringer sees `armed`, or the sleeper's poll sees the
//! message; a ring between `seq()` and `wait()` moves `seq`, and `wait` returns at once.  A hostile process
//! that maps the doorbell can suppress or multiply rings and nothing else, which is why sleepers that cannot
//! afford to miss one pass a timeout.

mod memory;

use std::time::Duration;

use memory::{Memory, fence};

use crate::{AccessError, Window};

/// Bytes of shared memory that a doorbell takes.
pub const DOORBELL_BYTES: u64 = 8;

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
}

impl Doorbell {
    /// The doorbell in `window`.  Fails if that is shorter than [`DOORBELL_BYTES`] or not aligned to 4 bytes.
    pub fn new(window: Window) -> Result<Doorbell, AccessError> {
        let memory = Memory::new(window)?;
        Ok(Doorbell { memory })
    }

    /// Wakes the sleeper if it asked for that.  Call it after publishing what it should find.
    #[inline]
    pub fn ring(&self) {
        // Pairs with the fence in arm(): see the header of this file.
        fence();
        if self.memory.is_armed() {
            self.wake();
        }
    }

    /// Wakes the sleeper whether it asked for that or not.
    pub fn wake(&self) {
        self.memory.advance();
        self.memory.wake_all();
    }

    /// Says whether rings are wanted.  After arming, poll once more before waiting.
    pub fn arm(&self, armed: bool) {
        self.memory.set_armed(armed);
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
        Arc::new(Doorbell { memory })
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
}
