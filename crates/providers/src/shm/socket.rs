//! The sockets of a cluster directory: listening under a name, connecting, and packets with descriptors.
//!
//! Everything is non-blocking.  What arrives is untrusted: packets are parsed whole, and descriptors beyond the
//! expected ones are closed by the kernel.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::wire::{BadMessage, MESSAGE_BYTES_MAX, Message};
use crate::private_dir::{DirError, Kind, NameLock, PrivateDir};

/// No message carries more descriptors.
const FDS_MAX: usize = 4;
/// How many initiators may wait while the gate is busy.
const BACKLOG: i32 = 128;
/// How often the listener of a name may be another one while we look at it.
const SUCCESSORS_MAX: usize = 10;
/// What the file name of every socket ends with.
pub(super) const SUFFIX: &str = ".sock";

/// A listening socket, and the lock that says that its name is in use.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    dir: Arc<PrivateDir>,
    file_name: String,
    lock: NameLock,
}

impl Listener {
    /// Listens at `dir/name.sock`; residue of a process that died is replaced, a living one is not.
    pub(super) fn bind(dir: &Path, name: &str) -> io::Result<Listener> {
        let dir = Arc::new(PrivateDir::open_or_create(dir)?);
        let file_name = format!("{name}{SUFFIX}");
        let path = dir.path().join(&file_name);
        let address = SocketAddrUnix::new(&path).map_err(|error| too_long(&path, error))?;
        let lock = NameLock::take_patiently(&dir, &lock_name(&file_name))?;
        let lock = lock.ok_or(io::ErrorKind::AddrInUse)?;
        // Whoever held the lock before us is gone, so a socket file that exists is residue.
        dir.remove(&file_name, Kind::Socket)?;
        let socket = new_socket()?;
        rustix::net::bind(&socket, &address)?;
        let listener = Listener { socket, dir, file_name, lock };
        // Sockets are bound by their path, which may lead elsewhere by now.
        if !listener.dir.has(&listener.file_name, Kind::Socket)? {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the directory was moved"));
        }
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
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While the lock is held nobody else has put a socket of theirs there.
        let _ = self.dir.remove(&self.file_name, Kind::Socket);
        self.lock.remove();
    }
}

/// The lock that goes with a socket.
fn lock_name(socket_name: &str) -> String {
    let name = socket_name.strip_suffix(SUFFIX).expect("names of sockets are told by their suffix");
    format!("{name}.lock")
}

/// File names of the sockets in `dir` whose owners live, as [`ShmFabric::connect`](super::ShmFabric) takes them.
pub fn listeners(dir: &PrivateDir) -> Result<Vec<String>, DirError> {
    let mut names = Vec::new();
    for name in dir.entries()? {
        let Some(name) = name.to_str().filter(|name| name.ends_with(SUFFIX)) else {
            continue;
        };
        // What has no lock of ours is not ours either.
        if NameLock::is_held(dir, &lock_name(name)).unwrap_or(false) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// A process that listens at a socket, held by a pidfd: its number may be another's a moment later.
#[derive(Debug)]
pub struct Listening {
    /// Its number.
    pub pid: i32,
    /// Itself.
    pub pidfd: OwnedFd,
}

/// The process that listens at the socket `name` in `dir`, `None` if nobody does.  It is whom the kernel names as the
/// other end of a connection, never what a file says.
///
/// An error of the kind `PermissionDenied` says that it is another user's, one of the kind `NotFound` that it is in
/// another pid namespace, one of the kind `WouldBlock` that it takes no connections now.
pub fn listening(dir: &PrivateDir, name: &str) -> io::Result<Option<Listening>> {
    for _ in 0..SUCCESSORS_MAX {
        let Some(pid) = listener_pid(dir, name)? else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => continue,
            Err(error) => return Err(error.into()),
        };
        // Whoever still listens was that process when it was opened, and not one that was given its number since.
        if listener_pid(dir, name)? == Some(pid) {
            return Ok(Some(Listening { pid: pid.as_raw_nonzero().get(), pidfd }));
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

fn listener_pid(dir: &PrivateDir, name: &str) -> io::Result<Option<Pid>> {
    if !dir.has(name, Kind::Socket)? {
        return Ok(None);
    }
    let socket = match connect(&dir.path().join(name)) {
        Ok(socket) => socket,
        // Nobody listens there any more.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let pid = peer_pid(socket.as_fd())?.and_then(Pid::from_raw);
    pid.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it runs in another pid namespace"))
}

/// Few know that the paths of sockets are shorter than those of files.
fn too_long(path: &Path, error: Errno) -> io::Error {
    let len = path.as_os_str().len();
    match error {
        Errno::NAMETOOLONG => io::Error::new(
            io::ErrorKind::InvalidFilename,
            format!(
                "the path of its socket has {len} bytes, and 107 are the most; choose a directory with a shorter path"
            ),
        ),
        error => error.into(),
    }
}

/// Connects to a process of our own user, or fails at once.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = new_socket()?;
    rustix::net::connect(&socket, &address)?;
    // The path is not our directory's descriptor: another user may have put theirs in its place.
    let uid = peer_credentials(socket.as_fd())?.uid;
    if uid != rustix::process::geteuid().as_raw() {
        let reason = format!("user {uid} listens there");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(socket)
}

/// The process at the other end when it connected or began to listen; `None` if our pid namespace does not
/// know it.
pub(super) fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    Ok(Some(peer_credentials(socket)?.pid).filter(|pid| *pid > 0))
}

fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
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
    Ok(credentials)
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
    /// A message whose descriptors this process could not be given.
    Bare(Message),
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
    #[error("the peer sent {sent} descriptors where {wanted} belong")]
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
    if sent < wanted && received.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::Bare(message));
    }
    if sent != wanted || received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(ReceiveError::Descriptors { sent, wanted });
    }
    Ok(Received::Message(message, fds))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
