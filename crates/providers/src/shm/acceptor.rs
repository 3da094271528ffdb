//! The acceptor: one thread per fabric, which accepts peers, receives their control messages and detects when their
//! processes exit.
//!
//! No data passes through the acceptor, so it does not limit the throughput of the fabric.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::Timespec;

use super::core::{Core, Source};
use super::link::{Link, TICK};
use super::lock;
use super::shortage::LinkError;
use super::socket;
use super::wire::Message;

/// Maximum number of connections accepted before other epoll reports are handled.
const ACCEPTS_MAX: usize = 16;
/// Maximum number of reports per call of epoll.
const REPORTS_MAX: usize = 64;

/// Runs the acceptor until the fabric stops.
pub(super) fn run(core: &Core) {
    let mut acceptor = Acceptor { core, spare: Acceptor::new_spare(core) };
    let mut reports = Vec::with_capacity(REPORTS_MAX);
    let mut has_timers = false;
    while !core.is_stopping() {
        acceptor.wait(&mut reports, has_timers.then_some(TICK));
        for report in reports.drain(..) {
            acceptor.handle(Source::unpack(report.data.u64()));
        }
        let now = Instant::now();
        has_timers = core.log_suppressed_refusals();
        for link in core.all_links() {
            has_timers |= link.handle_time(core, now);
        }
    }
}

struct Acceptor<'a> {
    core: &'a Core,
    /// A spare descriptor. If this process has reached its limit of descriptors, the acceptor closes the spare, so that
    /// it can accept and close a waiting connection. Otherwise epoll would report that connection without end.
    spare: Option<OwnedFd>,
}

impl Acceptor<'_> {
    fn wait(&self, reports: &mut Vec<epoll::Event>, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let buffer = rustix::buffer::spare_capacity(reports);
        match epoll::wait(&self.core.epoll, buffer, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => unreachable!("epoll on a descriptor of our own failed: {errno}"),
        }
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Kick => self.core.take_kick(),
            // The link may have ended since epoll reported it.
            Source::Socket { token } => {
                if let Some(link) = self.core.link(token) {
                    link.serve(self.core);
                }
            }
            Source::Exit { token } => {
                if let Some(link) = self.core.link(token) {
                    link.handle_exit(self.core);
                }
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let accepted = match &*lock(&self.core.listener) {
                Some(listener) => listener.accept(),
                None => return,
            };
            match accepted {
                Ok(Some(socket)) => self.admit(socket),
                Ok(None) => return,
                Err(_) => return self.refuse_one(),
            }
        }
    }

    fn admit(&self, accepted: OwnedFd) {
        let socket = Arc::new(accepted);
        let refusal = match self.core.must_refuse_peers() {
            true => Err(LinkError::from("the accepting node has its maximum number of peers")),
            // Link::open() fails if this process lacks memory or descriptors for the new link.
            false => Link::open(self.core, socket.clone(), None, &self.core.config.hello).map_err(Into::into),
        };
        if let Err(trouble) = refusal {
            self.core.log_refusal(&trouble.to_string());
            let _ = socket::send(socket.as_fd(), &Message::Refused { reason: trouble.to_string() }, &[]);
        }
    }

    /// Accepts and closes one waiting connection, after this process has reached its limit of descriptors.
    fn refuse_one(&mut self) {
        self.spare = None;
        if let Some(listener) = &*lock(&self.core.listener) {
            let _ = listener.accept();
        }
        self.spare = Acceptor::new_spare(self.core);
        if self.spare.is_none() {
            // Another thread took the descriptor. Waits until descriptors are closed, instead of spinning.
            std::thread::sleep(TICK);
        }
    }

    fn new_spare(core: &Core) -> Option<OwnedFd> {
        core.own.pidfd.try_clone().ok()
    }
}
