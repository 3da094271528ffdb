//! Checks a peer's hello message, and the process, the mailbox (which contains the doorbell) and the ring whose
//! descriptors are attached to the hello.
//!
//! All fields and descriptors of a hello are untrusted. This module checks them once, so the resulting [`Greeting`]
//! needs no further checks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use halite_mem::doorbell::DOORBELL_BYTES;
use halite_mem::ring::{self, BadRing, Consumer};
use halite_mem::{Doorbell, OpenError, Segment};
use rustix::fs::OFlags;

use super::RING_BYTES_MAX;
use super::peer::Process;
use crate::unix_sockets;

/// A checked [`super::wire::Message::Hello`].
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) hello: Vec<u8>,
    pub(super) process: Arc<Process>,
    /// The peer's doorbell, which this process rings.
    pub(super) mailbox: Doorbell,
    /// The ring with the peer's messages to this process.
    pub(super) incoming: Consumer,
}

/// The reason why a greeting is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadGreeting {
    #[error(
        "the peer is in another pid namespace, and this kernel cannot report its exit (Linux 6.5 and later can)"
    )]
    ForeignNamespace,
    #[error("the peer sent the descriptor of another process")]
    Process,
    #[error("cannot use the peer's mailbox: {0}")]
    Mailbox(OpenError),
    #[error("the peer's mailbox is misaligned")]
    MailboxShape,
    #[error("the peer's doorbell is not a non-blocking eventfd")]
    Eventfd,
    #[error("cannot use the peer's ring: {0}")]
    Ring(OpenError),
    #[error("cannot use the peer's ring: {0}")]
    RingShape(#[from] BadRing),
    #[error("the peer's ring of {len} bytes is too long: the maximum capacity is {RING_BYTES_MAX}")]
    RingTooLong { len: u64 },
    #[error("a system call failed: {0}")]
    Io(#[from] io::Error),
}

impl Greeting {
    /// Checks a hello. `fds` are the descriptors that were attached to the hello.
    pub(super) fn check(
        socket: BorrowedFd<'_>,
        hello: Vec<u8>,
        fds: Vec<OwnedFd>,
    ) -> Result<Greeting, BadGreeting> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().expect("the socket counted the descriptors");
        let (pidfd, mailbox, ring) = (next(), next(), next());
        Ok(Greeting {
            hello,
            process: Arc::new(check_process(socket, pidfd)?),
            mailbox: open_mailbox(mailbox, fds.next().zip(fds.next()))?,
            incoming: open_ring(ring)?,
        })
    }
}

/// Checks that the pidfd refers to the process that the kernel reports at the other end of the socket. Without this
/// check, a peer could make this process watch, and kill, another process.
fn check_process(socket: BorrowedFd<'_>, pidfd: OwnedFd) -> Result<Process, BadGreeting> {
    let Some(pid) = unix_sockets::peer_pid(socket)? else {
        // The peer has no pid in this namespace, so the check is impossible: use a pidfd from the kernel instead.
        let pidfd = unix_sockets::peer_pidfd(socket).ok_or(BadGreeting::ForeignNamespace)?;
        return Ok(Process { pid: None, pidfd });
    };
    if pid_of(&pidfd)? != Some(pid) {
        return Err(BadGreeting::Process);
    }
    Ok(Process { pid: Some(pid), pidfd })
}

/// Returns the process id that a pidfd refers to; `None` for another kind of descriptor, and for an exited process.
fn pid_of(pidfd: &OwnedFd) -> io::Result<Option<i32>> {
    Ok(field(pidfd, "Pid:")?.and_then(|pid| pid.parse().ok()))
}

/// Returns the field `name` of a descriptor's fdinfo; `None` if this kind of descriptor has no such field.
fn field(fd: &OwnedFd, name: &str) -> io::Result<Option<String>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let value = info.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.map(|value| value.trim().to_owned()))
}

fn open_mailbox(fd: OwnedFd, eventfds: Option<(OwnedFd, OwnedFd)>) -> Result<Doorbell, BadGreeting> {
    let segment = Segment::open(&fd, DOORBELL_BYTES).map_err(BadGreeting::Mailbox)?;
    let window = segment.window(0, DOORBELL_BYTES);
    let window = window.expect("the segment was opened with this length");
    let doorbell = match eventfds.map(<[OwnedFd; 2]>::from) {
        None => Doorbell::new(window),
        Some(eventfds) => {
            eventfds.iter().try_for_each(check_eventfd)?;
            Doorbell::with_descriptors(window, eventfds)
        }
    };
    doorbell.map_err(|_| BadGreeting::MailboxShape)
}

/// Checks that the descriptor is a non-blocking eventfd, so that a write to it only wakes its watcher, and neither
/// blocks nor extends a file. Later, a peer could still make the eventfd blocking and fill it, to block threads that
/// ring it. But the peer runs as the same user, so it could also stop these threads by a signal.
fn check_eventfd(eventfd: &OwnedFd) -> Result<(), BadGreeting> {
    let is_eventfd = field(eventfd, "eventfd-count:")?.is_some();
    let flags = rustix::fs::fcntl_getfl(eventfd.as_fd()).map_err(io::Error::from)?;
    if !is_eventfd || !flags.contains(OFlags::NONBLOCK) {
        return Err(BadGreeting::Eventfd);
    }
    Ok(())
}

fn open_ring(fd: OwnedFd) -> Result<Consumer, BadGreeting> {
    let len = rustix::fs::fstat(&fd).map_err(io::Error::from)?.st_size as u64;
    // Limits the memory that one message can make this process allocate.
    if len > ring::ring_bytes(RING_BYTES_MAX) {
        return Err(BadGreeting::RingTooLong { len });
    }
    let segment = Segment::open(&fd, len).map_err(BadGreeting::Ring)?;
    let window = segment.window(0, len);
    let window = window.expect("the segment was opened with this length");
    Ok(Consumer::new(window)?)
}
