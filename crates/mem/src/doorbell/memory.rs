//! The words, the futex and the descriptors of a doorbell; under loom, models of them.

#[cfg(loom)]
pub(super) use model::fence;
#[cfg(loom)]
pub(crate) use model::{Eventfd, Memory};
#[cfg(not(loom))]
pub(super) use shared::fence;
#[cfg(not(loom))]
pub(crate) use shared::{Eventfd, Memory};

#[cfg(not(loom))]
mod shared {
    use std::num::NonZeroU32;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::thread::futex;
    use rustix::time::{ClockId, Timespec, clock_gettime};

    use crate::{AccessError, Window};

    const SEQ_OFFSET: u64 = 0;
    const ARMED_OFFSET: u64 = 4;

    pub(in super::super) fn fence() {
        std::sync::atomic::fence(SeqCst);
    }

    #[derive(Debug)]
    pub(crate) struct Memory {
        window: Window,
    }

    impl Memory {
        pub(crate) fn new(window: Window) -> Result<Memory, AccessError> {
            window.atomic_u32(SEQ_OFFSET)?;
            window.atomic_u32(ARMED_OFFSET)?;
            Ok(Memory { window })
        }

        pub(crate) fn seq(&self) -> u32 {
            // Pairs with the Release in advance().
            self.word(SEQ_OFFSET).load(Acquire)
        }

        pub(crate) fn advance(&self) {
            // Pairs with the Acquire in seq().
            self.word(SEQ_OFFSET).fetch_add(1, Release);
        }

        #[inline]
        pub(crate) fn armed(&self) -> u32 {
            // Ordered by the fences of ring() and arm().
            self.word(ARMED_OFFSET).load(Relaxed)
        }

        pub(crate) fn set_armed(&self, armed: u32) {
            // Ordered by the fences of ring() and arm().
            self.word(ARMED_OFFSET).store(armed, Relaxed);
        }

        pub(crate) fn wake(&self, mask: NonZeroU32) {
            // Not a private futex: the sleeper maps the same memfd elsewhere. The call cannot fail on a mapped word.
            let flags = futex::Flags::empty();
            let _ = futex::wake_bitset(self.word(SEQ_OFFSET), flags, i32::MAX as u32, mask);
        }

        pub(crate) fn wait(&self, mask: NonZeroU32, seen: u32, timeout: Option<Duration>) {
            // A timeout that the kernel cannot represent counts as no timeout.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            // FUTEX_WAIT_BITSET takes an absolute time.
            let until = timeout.and_then(|timeout| clock_gettime(ClockId::Monotonic).checked_add(timeout));
            let flags = futex::Flags::empty();
            // The caller checks again after any error: a changed word, a signal, or the timeout.
            let _ = futex::wait_bitset(self.word(SEQ_OFFSET), flags, seen, until.as_ref(), mask);
        }

        #[inline]
        fn word(&self, offset: u64) -> &AtomicU32 {
            self.window.atomic_u32(offset).expect("new() checked both words")
        }
    }

    /// An eventfd that does not block.
    #[derive(Debug)]
    pub(crate) struct Eventfd(OwnedFd);

    impl Eventfd {
        pub(crate) fn new(eventfd: OwnedFd) -> Eventfd {
            Eventfd(eventfd)
        }

        pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }

        /// Signals the descriptor. Each write causes an edge, even if no thread has read the previous one.
        pub(crate) fn ring(&self) {
            let one = 1u64.to_ne_bytes();
            // Only a hostile process can fill the counter: 2^64 rings would take centuries.
            if let Err(Errno::AGAIN) = rustix::io::write(&self.0, &one) {
                let _ = rustix::io::read(&self.0, &mut [0; 8]);
                let _ = rustix::io::write(&self.0, &one);
            }
        }
    }
}

#[cfg(loom)]
mod model {
    use std::num::NonZeroU32;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::time::Duration;

    use loom::sync::atomic::AtomicU32;
    use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
    use loom::sync::{Condvar, Mutex};

    use crate::{AccessError, Window};

    pub(in super::super) fn fence() {
        loom::sync::atomic::fence(SeqCst);
    }

    /// A model of the kernel's futex queue: the mutex is its lock, and each condition variable the sleepers of one bit.
    #[derive(Debug)]
    pub(crate) struct Memory {
        seq: AtomicU32,
        armed: AtomicU32,
        queue_lock: Mutex<()>,
        queues: [Condvar; 2],
    }

    impl Memory {
        /// Returns a private model, because loom has no shared memory.
        pub(crate) fn new(_: Window) -> Result<Memory, AccessError> {
            Ok(Memory::private())
        }

        pub(crate) fn private() -> Memory {
            Memory {
                seq: AtomicU32::new(0),
                armed: AtomicU32::new(0),
                queue_lock: Mutex::new(()),
                queues: [Condvar::new(), Condvar::new()],
            }
        }

        pub(crate) fn seq(&self) -> u32 {
            self.seq.load(Acquire)
        }

        pub(crate) fn advance(&self) {
            self.seq.fetch_add(1, Release);
        }

        #[inline]
        pub(crate) fn armed(&self) -> u32 {
            self.armed.load(Relaxed)
        }

        pub(crate) fn set_armed(&self, armed: u32) {
            self.armed.store(armed, Relaxed);
        }

        pub(crate) fn wake(&self, mask: NonZeroU32) {
            let _queue_lock = self.queue_lock.lock().unwrap();
            let queues = self.queues.iter().enumerate();
            queues.filter(|(bit, _)| mask.get() & 1 << bit != 0).for_each(|(_, queue)| queue.notify_all());
        }

        pub(crate) fn wait(&self, mask: NonZeroU32, seen: u32, _: Option<Duration>) {
            let queue_lock = self.queue_lock.lock().unwrap();
            // The kernel compares under its lock, too.
            if self.seq.load(Acquire) == seen {
                drop(self.queues[mask.trailing_zeros() as usize].wait(queue_lock).unwrap());
            }
        }
    }

    /// An eventfd as seen by an edge-triggered watcher.
    #[derive(Debug)]
    pub(crate) struct Eventfd {
        has_edge: Mutex<bool>,
        watchers: Condvar,
    }

    impl Eventfd {
        /// Returns a model, since loom has no descriptors.
        pub(crate) fn new(_: OwnedFd) -> Eventfd {
            Eventfd::private()
        }

        pub(crate) fn private() -> Eventfd {
            Eventfd { has_edge: Mutex::new(false), watchers: Condvar::new() }
        }

        pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        pub(crate) fn ring(&self) {
            *self.has_edge.lock().unwrap() = true;
            self.watchers.notify_all();
        }

        #[cfg(test)]
        pub(crate) fn wait_for_edge(&self) {
            let mut has_edge = self.has_edge.lock().unwrap();
            while !std::mem::take(&mut *has_edge) {
                has_edge = self.watchers.wait(has_edge).unwrap();
            }
        }
    }
}
