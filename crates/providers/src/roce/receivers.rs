//! Receivers: optional threads of the fabric that receive from its sockets.
//!
//! ```text
//!   sockets 0, 2, ..  ── epoll ── receiver 0 ──┐
//!   sockets 1, 3, ..  ── epoll ── receiver 1 ──┴── queue pair ── memory, answers, events ──► poller
//! ```
//!
//! A receiver does part of the poller's work: it looks up the queue pairs of packets, executes peers' requests, sends
//! responses, and sends the packets that an acknowledgement releases. So peers' reads and writes make progress while no
//! other thread of the node runs, and reads and writes of different peers run in parallel. The poller still takes
//! events and handles handshakes and timers. While too many events wait for the poller, receivers block, and peers get
//! no responses.
//!
//! All packets of a peer arrive at one socket, and one thread at a time receives from this socket, so the packets stay
//! in order.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::EventfdFlags;
use rustix::time::Timespec;

use super::core::Core;
use super::lock;
use super::port::Batch;
use crate::threads;

/// State shared between a receiver and the poller.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// Held by the thread that receives from the sockets and handles the packets.
    receiving: Mutex<()>,
    /// Consecutive receives that left packets in its sockets.
    pub(super) full_in_a_row: AtomicU32,
}

/// Handle of the receiver threads, which end when this value is dropped.
#[derive(Debug)]
pub(super) struct Receivers {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
    must_exit: Arc<AtomicBool>,
    /// Becomes readable when the threads must exit; `None` without receivers, to save a descriptor.
    exit_event: Option<OwnedFd>,
}

impl Receivers {
    pub(super) fn start(core: &Arc<Core>) -> io::Result<Receivers> {
        let count = core.receivers.len();
        let eventfd = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let exit_event = (count > 0).then(eventfd).transpose()?;
        if let Some(exit_event) = &exit_event {
            core.ports.wake_receivers_by(exit_event.as_fd())?;
        }
        let mut receivers = Receivers {
            core: core.clone(),
            threads: Vec::with_capacity(count),
            must_exit: Arc::default(),
            exit_event,
        };
        for index in 0..count {
            let (core, must_exit) = (core.clone(), receivers.must_exit.clone());
            let receive = move || core.receive_until(index, &must_exit);
            receivers.threads.push(threads::spawn(&format!("receiver-{index}"), receive)?);
        }
        Ok(receivers)
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.must_exit.store(true, Relaxed);
        if let Some(exit_event) = &self.exit_event {
            // The event stays readable, so a receiver sees the flag that was stored before.
            let _ = rustix::io::write(exit_event, &1u64.to_ne_bytes());
        }
        self.core.events.interrupt();
        for thread in self.threads.drain(..) {
            // A panicked receiver has reported its panic.
            let _ = thread.join();
        }
    }
}

/// Makes the poller panic after a receiver panicked, as if the poller had received.
struct PanicGuard<'c>(&'c Core);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_receiver_panicked.store(true, Relaxed);
            self.0.bell.wake();
        }
    }
}

impl Core {
    /// The main function of a receiver thread: receives until `must_exit` is true.
    fn receive_until(&self, index: usize, must_exit: &AtomicBool) {
        let _guard = PanicGuard(self);
        let mut batch = Batch::new();
        while !must_exit.load(Relaxed) {
            if self.events.is_full() {
                // Even if no pending event rings, a sleeping poller must wake to make room.
                self.bell.on_received();
                self.receivers[index].full_in_a_row.store(0, Relaxed);
                self.events.await_room(|| must_exit.load(Relaxed));
            }
            // A receiver that sleeps must not count as busy.
            let at_once = (batch.full_in_a_row() > 0).then(Timespec::default);
            let is_more = self.receive_for(index, &mut batch, at_once.as_ref());
            batch.on_polled(is_more);
            self.receivers[index].full_in_a_row.store(batch.full_in_a_row(), Relaxed);
        }
    }

    /// Receives once from each ready socket of a receiver; returns true if more may wait.
    fn receive_for(&self, index: usize, batch: &mut Batch, timeout: Option<&Timespec>) -> bool {
        let receiver = &self.receivers[index];
        let mut is_more = false;
        self.ports.for_each_ready_of(index, timeout, |port| {
            let _guard = lock(&receiver.receiving);
            let received = self.receive_from(port, batch, None, self.now_ns());
            is_more |= received.is_more;
            if received.rings {
                self.bell.on_received();
            }
        });
        is_more
    }

    /// Receives in place of these receivers after a peer has ended its connection: handles all packets that arrived
    /// earlier, but at most `batches_max` batches per receiver.
    pub(super) fn receive_for_receivers(
        &self,
        receivers: BTreeSet<usize>,
        batch: &mut Batch,
        batches_max: usize,
    ) {
        for index in receivers {
            let _ = (0..batches_max).find(|_| !self.receive_for(index, batch, Some(&Timespec::default())));
            // The receiver holds this lock while it handles received packets.
            drop(lock(&self.receivers[index].receiving));
        }
    }

    /// Returns the number of consecutive receives that left packets in the receivers' sockets. Without receivers, the
    /// poller keeps this count itself.
    pub(super) fn full_in_a_row_of_receivers(&self) -> u32 {
        let of_each = self.receivers.iter().map(|receiver| receiver.full_in_a_row.load(Relaxed));
        of_each.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::RoceConfig;
    use super::*;

    #[test]
    fn a_panic_of_a_receiver_ends_the_fabric() {
        let dir = tempfile::tempdir().unwrap();
        let config = RoceConfig { receivers: 1, ..RoceConfig::new(dir.path().join("cluster"), "one") };
        let core = Core::open(config).unwrap();
        core.poll_once();
        let seen = core.bell.seq();
        let receiver = catch_unwind(AssertUnwindSafe(|| {
            let _guard = PanicGuard(&core);
            panic!("a bug in a receiver");
        }));
        assert!(receiver.is_err());
        assert_ne!(core.bell.seq(), seen, "the panic wakes the sleeper");
        assert!(catch_unwind(AssertUnwindSafe(|| core.poll_once())).is_err());
    }
}
