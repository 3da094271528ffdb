//! The sockets of a cluster directory: listening under a name, connecting, and packets with descriptors.
//!
//! Everything is non-blocking.  What arrives is untrusted: packets are parsed whole, and descriptors beyond the
//! expected ones are closed by the kernel.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::wire::{BadMessage, MESSAGE_BYTES_MAX, Message};

/// No message carries more descriptors.
const FDS_MAX: usize = 3;
/// How many initiators may wait while the gate is busy.
const BACKLOG: i32 = 128;
/// Removing residue takes microseconds; a name that stays locked for this many milliseconds is in use.
const TAKE_ATTEMPTS_MAX: usize = 20;
/// What the file name of every socket ends with.
pub(super) const SUFFIX: &str = ".sock";

/// A listening socket, and the lock that says that its name is in use.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    lock: NameLock,
}

impl Listener {
    /// Listens at `dir/name.sock`; residue of a process that died is replaced, a living one is not.
    pub(super) fn bind(dir: &Path, name: &str) -> io::Result<Listener> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(dir)?;
        let path = dir.join(format!("{name}{SUFFIX}"));
        let address = SocketAddrUnix::new(&path)?;
        let lock = NameLock::take_patiently(&path)?.ok_or(io::ErrorKind::AddrInUse)?;
        // Whoever held the lock before us is gone, so a socket file that exists is residue.
        let _ = std::fs::remove_file(&path);
        let socket = new_socket()?;
        rustix::net::bind(&socket, &address)?;
        let listener = Listener { socket, path, lock };
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// The next connection, if one waits.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            // One that was reset while it waited is no error of ours.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While the lock is held nobody else has put a socket of theirs there.
        let _ = std::fs::remove_file(&self.path);
        self.lock.remove();
    }
}

/// Exclusive use of a name in a directory, held until dropped, also by dying.
#[derive(Debug)]
struct NameLock {
    path: PathBuf,
    _file: File,
}

impl NameLock {
    /// Like `take`, but outwaits those who hold it for a moment to remove residue: see discover().
    fn take_patiently(socket_path: &Path) -> io::Result<Option<NameLock>> {
        for _ in 0..TAKE_ATTEMPTS_MAX {
            if let Some(lock) = NameLock::take(socket_path, true)? {
                return Ok(Some(lock));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(None)
    }

    /// `None` if a living process holds it.
    fn take(socket_path: &Path, create: bool) -> io::Result<Option<NameLock>> {
        let path = socket_path.with_extension("lock");
        loop {
            let mut options = File::options();
            options.write(true).create(create).mode(0o600);
            let file = options.open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Ok(None),
                locked => locked?,
            }
            // The former holder may have removed the file between our open and our lock.
            let locked = file.metadata()?.ino();
            if std::fs::metadata(&path).is_ok_and(|current| current.ino() == locked) {
                return Ok(Some(NameLock { path, _file: file }));
            }
        }
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// File names of the sockets in `dir` whose owners live, but `own`.  Residue found on the way is removed.
pub(super) fn discover(dir: &Path, own: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| name.ends_with(SUFFIX)) else {
            continue;
        };
        if path == own {
            continue;
        }
        match NameLock::take(&path, false) {
            Ok(Some(residue)) => {
                let _ = std::fs::remove_file(&path);
                residue.remove();
            }
            // Held, or without a lock and so not ours to judge.
            Ok(None) | Err(_) => names.push(name.to_owned()),
        }
    }
    names.sort();
    Ok(names)
}

/// Connects, or fails at once.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket()?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// The process at the other end when it connected or began to listen; `None` if our pid namespace does not
/// know it.
pub(super) fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `credentials`, both of which outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((credentials.pid > 0).then_some(credentials.pid))
}

/// Sends one message; `false` if there is no room for it now.
pub(super) fn send(socket: BorrowedFd<'_>, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
    assert_eq!(fds.len(), message.fds(), "each kind of message has its descriptors");
    let packet = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(pushed, "the space is that of FDS_MAX descriptors");
    }
    // NOSIGNAL: a peer that hangs up must not end us by SIGPIPE.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let parts = [IoSlice::new(&packet)];
    let sent = retry_on_intr(|| rustix::net::sendmsg(socket, &parts, &mut control, flags));
    match sent {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// What was found on a socket.
#[derive(Debug)]
pub(super) enum Received {
    /// A message with exactly the descriptors that its kind wants.
    Message(Message, Vec<OwnedFd>),
    /// Nothing for now.
    Nothing,
    /// The other end is closed.
    HungUp,
}

/// Why what was found on a socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("the peer sent {0}")]
    BadMessage(#[from] BadMessage),
    #[error("the peer sent a packet of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the peer sent {sent} descriptors where {wanted} belong, or we may open no more")]
    Descriptors { sent: usize, wanted: usize },
}

/// Receives one message.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Received, ReceiveError> {
    let mut packet = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let parts = &mut [IoSliceMut::new(&mut packet)];
    let mut receive = || retry_on_intr(|| rustix::net::recvmsg(socket, parts, &mut control, flags));
    let received = match receive() {
        // A peer that closed without having read everything resets the socket.  That is reported once, and before
        // its last words, which may be what proves that it is detached.
        Err(Errno::CONNRESET) => receive(),
        received => received,
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(Received::Nothing),
        // After any other error nothing more can be heard either.
        Err(_) => return Ok(Received::HungUp),
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(Received::HungUp);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveError::TooLong);
    }
    let message = Message::decode(&packet[..received.bytes])?;
    let (sent, wanted) = (fds.len(), message.fds());
    if sent != wanted || received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(ReceiveError::Descriptors { sent, wanted });
    }
    Ok(Received::Message(message, fds))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
