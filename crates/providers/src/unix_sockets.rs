//! Sockets in a cluster directory: a fabric listens under a name, peers connect to this name, and each end identifies
//! the process at the other end.
//!
//! ```text
//!   DIR/NAME.sock    the fabric's listening socket (SOCK_SEQPACKET)
//!   DIR/NAME.lock    locked while the fabric exists; if it is not locked, the process that created the files is dead
//! ```
//!
//! All calls are non-blocking. The fabric that listens at a socket defines the protocol of the messages on this socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::private_dir::{DirError, Kind, NameLock, PrivateDir};

/// Maximum number of connections that wait to be accepted.
pub(crate) const BACKLOG: i32 = 128;
/// Maximum number of retries while one process replaces another as the listener of a name.
const REPLACEMENTS_MAX: usize = 10;
/// Suffix of every socket's file name.
pub(crate) const SUFFIX: &str = ".sock";

/// A listening socket and the lock of its name.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    dir: Arc<PrivateDir>,
    file_name: String,
    lock: NameLock,
}

impl Listener {
    /// Listens at `dir/name.sock`. Replaces the files of a dead process. Fails with `AddrInUse` if a running process
    /// uses the name.
    pub(crate) fn bind(dir: &Path, name: &str) -> io::Result<Listener> {
        let dir = Arc::new(PrivateDir::open_or_create(dir)?);
        let file_name = format!("{name}{SUFFIX}");
        let path = dir.path().join(&file_name);
        let lock = NameLock::take_patiently(&dir, &lock_name(&file_name))?;
        let lock = lock.ok_or(io::ErrorKind::AddrInUse)?;
        // The previous holder of the lock is gone, so an existing socket file is a leftover.
        dir.remove(&file_name, Kind::Socket)?;
        let socket = new_socket()?;
        with_address(&path, |address| rustix::net::bind(&socket, address))?;
        let listener = Listener { socket, dir, file_name, lock };
        // `bind` resolved the path, and another process may have moved the directory before.
        if !listener.dir.has(&listener.file_name, Kind::Socket)? {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the directory was moved"));
        }
        // Other users may be able to traverse the directory, so the mode is set before the socket accepts connections.
        listener.dir.set_private(&listener.file_name)?;
        rustix::net::listen(&listener.socket, BACKLOG)?;
        Ok(listener)
    }

    /// Accepts the next waiting connection; returns `None` if no connection waits.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(socket)),
            // The peer reset the connection while it waited.
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
        // No other process replaces the socket file while this one holds the lock.
        let _ = self.dir.remove(&self.file_name, Kind::Socket);
        self.lock.remove();
    }
}

/// Returns the name of a socket's lock file.
fn lock_name(socket_name: &str) -> String {
    let name = socket_name.strip_suffix(SUFFIX).expect("socket names end with the suffix");
    format!("{name}.lock")
}

/// Returns the file names of the sockets in `dir` at which running processes listen.
/// [`Fabric::connect`](halite_fabric::Fabric::connect) accepts such a file name as an address.
pub fn listeners(dir: &PrivateDir) -> Result<Vec<String>, DirError> {
    let mut names = Vec::new();
    for name in dir.entries()? {
        let Some(name) = name.to_str().filter(|name| name.ends_with(SUFFIX)) else {
            continue;
        };
        // If the lock is not held, the fabric of the socket is dead.
        if NameLock::is_held(dir, &lock_name(name)).unwrap_or(false) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// A process that listens at a socket. The pidfd refers to this process even after its process id has been reused.
#[derive(Debug)]
pub struct Listening {
    /// Process id of the listening process.
    pub pid: i32,
    /// pidfd of the listening process.
    pub pidfd: OwnedFd,
}

/// Returns the process that listens at the socket `name` in `dir`, or `None` if no process does. The call connects to
/// the socket, and the kernel reports the process. The call does not trust the content of files.
///
/// Error kinds: `PermissionDenied` if the process belongs to another user, `NotFound` if the process is in another pid
/// namespace, `WouldBlock` if the process cannot accept a connection at the moment or another process is replacing it.
pub fn listening(dir: &PrivateDir, name: &str) -> io::Result<Option<Listening>> {
    for _ in 0..REPLACEMENTS_MAX {
        let Some(pid) = listener_pid(dir, name)? else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => continue,
            Err(error) => return Err(error.into()),
        };
        // The process still listens, so its process id was not reused before the pidfd was opened.
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
        // The listener has ended.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let pid = peer_pid(socket.as_fd())?.and_then(Pid::from_raw);
    pid.map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the process runs in another pid namespace"))
}

/// Calls `with` with the address of the socket at `path`. An address has at most 107 bytes. For a longer path, the
/// address names the socket through a descriptor of its directory, in `/proc/self/fd`.
pub(crate) fn with_address<T>(
    path: &Path,
    with: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<T>,
) -> io::Result<T> {
    match SocketAddrUnix::new(path) {
        Ok(address) => return Ok(with(&address)?),
        Err(Errno::NAMETOOLONG) => {}
        Err(error) => return Err(error.into()),
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string());
    if !short.exists() {
        let len = path.as_os_str().len();
        let reason = format!(
            "the path of its socket has {len} bytes; without /proc, the maximum is 107; choose a directory with a shorter path"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, reason));
    }
    Ok(with(&SocketAddrUnix::new(short.join(name))?)?)
}

/// Connects to the socket at `path`, or fails at once. Fails with `PermissionDenied` if another user owns the listening
/// process.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    with_address(path, |address| rustix::net::connect(&socket, address)).map_err(|error| {
        match Errno::from_io_error(&error) {
            // Not the raw error, because EAGAIN also means that this process lacks a resource.
            Some(Errno::AGAIN) => io::Error::other(
                "the process at this socket does not accept connections, and its backlog is full",
            ),
            _ => error,
        }
    })?;
    // The kernel resolves the path anew, so another user may have replaced the socket.
    let uid = peer_credentials(socket.as_fd())?.uid;
    if uid != rustix::process::geteuid().as_raw() {
        let reason = format!("a process of user {uid} listens at this socket");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(socket)
}

/// Returns the process id of the other end of a socket; `None` if that process is in another pid namespace.
pub(crate) fn peer_pid(socket: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    Ok(Some(peer_credentials(socket)?.pid).filter(|pid| *pid > 0))
}

/// Returns a pidfd of the process at the other end of a socket; the process may be in another pid namespace. Returns
/// `None` if the process has exited or the kernel is older than 6.5.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let fd = socket_option::<libc::c_int>(socket, libc::SO_PEERPIDFD, -1).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just opened the descriptor, and no other code owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the user id and the process id that the other end of a Unix socket had when it connected or listened. The
/// process id is 0 if the process is in another pid namespace.
pub fn peer_of(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let credentials = peer_credentials(socket)?;
    Ok((credentials.uid, u32::try_from(credentials.pid).unwrap_or(0)))
}

/// Returns the memory, in bytes, of what this end of a Unix socket has sent and the other end has not received; 0 if the
/// other end has received everything.
pub fn unreceived_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: this request writes one `c_int`, which outlives the call.
    let failed = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match failed {
        0 => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    socket_option(socket, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })
}

/// Reads a socket option. The type of `value` is the type of the option.
fn socket_option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and both outlive the call; callers pass the option's
    // type, which is plain numbers.
    let failed = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len)
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
