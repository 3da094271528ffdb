//! Finds a node that accepts sessions in a cluster directory, and exchanges hellos with it.
//!
//! The cluster directory belongs to the user who runs the nodes, and only this user can put sockets there. So the
//! client opens the directory once, follows no link, and accepts only a listener of the directory's owner. The default
//! directory must be the user's own.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use halite_mem::exchange;
use halite_tier::ids::NodeId;
use rustix::fs::{CWD, Dir, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use super::wire::{self, HEADER_BYTES, Refusal, VERSION, Welcome};
use crate::cluster::cluster_dir::{ATTACH_DIR, attach_socket_node};
use crate::cluster::config::fallback_dir;
use crate::error::AttachError;

/// A connection: its socket, the node's reply, and the memory that the node shares, if any.
pub(super) type Connected = (UnixStream, Welcome, Option<exchange::Client>);

/// Maximum silence of a node before its hello. The next node is then tried, if there is one.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to the node `wanted`, or to any living node of this host, in the cluster directory.
pub(super) fn connect(dir: &Path, wanted: Option<NodeId>) -> Result<Connected, AttachError> {
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| match error.kind() {
            ErrorKind::NotFound => absent(dir, wanted),
            ErrorKind::PermissionDenied => AttachError::NotAdmitted { path },
            _ => AttachError::Io { path, source: error },
        }
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |at: &OwnedFd, name: &str, more| rustix::fs::openat(at, name, flags | more, Mode::empty());
    let root = rustix::fs::openat(CWD, dir, flags | OFlags::PATH, Mode::empty());
    let root = root.map_err(|error| io_error(dir)(error.into()))?;
    let owner = rustix::fs::fstat(&root).map_err(|error| io_error(dir)(error.into()))?.st_uid;
    // Anybody can make a directory with this name in /tmp, and a user who names no directory does not look at its owner.
    if owner != rustix::process::geteuid().as_raw() && dir == fallback_dir() {
        return Err(AttachError::ForeignDefault { dir: dir.to_owned(), owner });
    }
    let path = dir.join(ATTACH_DIR);
    let sockets = open(&root, ATTACH_DIR, OFlags::RDONLY).map_err(|error| io_error(&path)(error.into()))?;
    let mut nodes = Vec::new();
    for entry in Dir::read_from(&sockets).map_err(|error| io_error(&path)(error.into()))? {
        let entry = entry.map_err(|error| io_error(&path)(error.into()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        nodes.extend(attach_socket_node(&name).map(|node| (node, name)));
    }
    nodes.retain(|(node, _)| wanted.is_none_or(|wanted| wanted == *node));
    nodes.sort();
    let mut last = absent(dir, wanted);
    for (_, name) in nodes {
        // Through the descriptor: the path may lead elsewhere by now, and may be too long for an address.
        let through: PathBuf = ["/proc/self/fd", &sockets.as_raw_fd().to_string(), &name].iter().collect();
        let connected = connect_to(&through).or_else(|error| match error.kind() {
            // There is no /proc.
            ErrorKind::NotFound => connect_to(&path.join(&name)),
            _ => Err(error),
        });
        match connected {
            Ok(socket) => match greet(socket, dir, owner) {
                // The node is stopped, or has just ended.
                Err(error @ (AttachError::Silent { .. } | AttachError::Refused { .. })) => last = error,
                greeted => return greeted,
            },
            // The node has ended.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
            // The node is stopped, and others wait for it.
            Err(error) if error.kind() == ErrorKind::WouldBlock => last = silent(dir),
            Err(error) => last = io_error(&path.join(&name))(error),
        }
    }
    Err(last)
}

/// Connects to a socket. A node that accepts no connections has room for some; beyond these, a connection waits.
fn connect_to(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(HELLO_TIMEOUT))?;
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn silent(dir: &Path) -> AttachError {
    AttachError::Silent { dir: dir.to_owned(), waited_s: HELLO_TIMEOUT.as_secs() }
}

fn absent(dir: &Path, wanted: Option<NodeId>) -> AttachError {
    let dir = dir.to_owned();
    match wanted {
        Some(node) => AttachError::NotHere { dir, node },
        None => AttachError::NoNode { dir },
    }
}

fn greet(mut socket: UnixStream, dir: &Path, owner: u32) -> Result<Connected, AttachError> {
    let dir = dir.to_owned();
    let (uid, _) = match halite_providers::peer_of(socket.as_fd()) {
        Ok(peer) => peer,
        Err(source) => return Err(AttachError::Io { path: dir, source }),
    };
    if uid != owner {
        return Err(AttachError::Stranger { dir, uid, owner });
    }
    let (body, fds) = match exchange_hellos(&mut socket) {
        Ok(hello) => hello,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return Err(silent(&dir));
        }
        Err(_) => return Err(AttachError::Refused { dir }),
    };
    let Some((theirs, rest)) = wire::version_of(&body) else { return Err(AttachError::Refused { dir }) };
    if theirs != VERSION {
        return Err(AttachError::OtherVersion { dir, theirs, ours: VERSION });
    }
    match wire::decode::<Result<Welcome, Refusal>>(rest) {
        Some((Ok(mut welcome), _)) => {
            // Without the memory, all requests go over the socket.
            let memory = fds.map(exchange::Client::open).transpose().unwrap_or_else(|error| {
                welcome.socket_reason = Some(format!("this process cannot map it: {error}"));
                None
            });
            Ok((socket, welcome, memory))
        }
        Some((Err(Refusal::TooManySessions { max, of_user_only }), _)) => {
            Err(AttachError::TooManySessions { dir, max, of_user_only })
        }
        None => Err(AttachError::Refused { dir }),
    }
}

/// Sends a hello. Returns the body of the node's hello, and the descriptors that came with it.
fn exchange_hellos(socket: &mut UnixStream) -> io::Result<(Vec<u8>, Option<[OwnedFd; 2]>)> {
    socket.set_read_timeout(Some(HELLO_TIMEOUT))?;
    socket.write_all(&wire::hello_message(&[]))?;
    let mut header = [0; HEADER_BYTES];
    let (count, fds) = receive_fds(socket, &mut header)?;
    socket.read_exact(&mut header[count..])?;
    let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if len > wire::HELLO_BYTES_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    socket.read_exact(&mut body)?;
    Ok((body, fds.try_into().ok()))
}

/// Receives bytes, at least one, with the descriptors that are attached to them.
fn receive_fds(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| rustix::net::recvmsg(socket, parts, &mut control, flags))?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match received.bytes {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        count => Ok((count, fds)),
    }
}
