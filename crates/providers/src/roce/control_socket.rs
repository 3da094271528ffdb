//! The socket of a control connection: a Unix socket within a host, an encrypted TCP stream between hosts.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::greeting::{MESSAGE_BYTES_MAX, Message};
use crate::secure::{BadChannel, Channel, FIRST_BYTES_MAX, Secrets};
use crate::unix_sockets;

const _: () =
    assert!(MESSAGE_BYTES_MAX <= FIRST_BYTES_MAX, "a greeting fits into the channel's first message");

/// Bytes per read from a stream.
const READ_BYTES: usize = 4096;
const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// The local end of a control connection.
#[derive(Debug)]
pub(super) struct ControlSocket {
    socket: OwnedFd,
    /// State of a TCP connection; `None` for a Unix socket.
    stream: Option<Box<Stream>>,
    /// pidfd of the process at the other end; `None` if that process is unknown or on another host.
    process: Option<OwnedFd>,
}

#[derive(Debug)]
struct Stream {
    channel: Channel,
    /// True until the TCP connection is established.
    is_connecting: bool,
    /// Address of the other host if that host has dialled; `None` if this end has dialled.
    dialler: Option<IpAddr>,
}

/// A message from the other end, or a change of the connection's state.
#[derive(Debug)]
pub(super) enum ControlEvent {
    Message(Message),
    /// An invalid message, with a description of the defect.
    Malformed(String),
    /// The encrypted channel failed, for example because the other end has another secret.
    ChannelFailed(BadChannel),
    /// The other end cannot be reached.
    Unreachable(io::Error),
    /// The connection has ended, with the system's error if it did not end in order.
    HungUp(Option<io::Error>),
}

impl ControlSocket {
    /// Connects to a Unix socket of this host.
    pub(super) fn dial_path(path: &Path) -> io::Result<ControlSocket> {
        Ok(ControlSocket::to_process(unix_sockets::connect(path)?))
    }

    /// Starts to connect to another host. A later call of [`ControlSocket::receive`] reports a failure.
    pub(super) fn dial_host(address: SocketAddr, secrets: Secrets) -> io::Result<ControlSocket> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let channel = Channel::dial(secrets).map_err(io::Error::other)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        let stream = Stream { channel, is_connecting: true, dialler: None };
        Ok(ControlSocket { socket, stream: Some(Box::new(stream)), process: None })
    }

    /// Wraps a Unix socket whose other end is a process of this host.
    pub(super) fn to_process(socket: OwnedFd) -> ControlSocket {
        let process = peer_process(socket.as_fd());
        ControlSocket { socket, stream: None, process }
    }

    /// Returns the pidfd of the process at the other end, which becomes readable when the process ends; `None` if the
    /// process is unknown.
    pub(super) fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }

    /// Returns true if the process at the other end is known to have ended.
    pub(super) fn has_exited(&self) -> bool {
        self.process.as_ref().is_some_and(|process| is_ready(process.as_fd(), PollFlags::IN))
    }

    /// Accepts the next pending connection of a listener, and returns it with its source address; `None` if no
    /// connection is pending.
    pub(super) fn accept_tcp(listener: &TcpListener) -> io::Result<Option<(TcpStream, IpAddr)>> {
        let (socket, source) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => match error.kind() {
                // A connection reset while it waited is not an error.
                io::ErrorKind::WouldBlock
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::Interrupted => return Ok(None),
                _ => return Err(error),
            },
        };
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Some((socket, source.ip().to_canonical())))
    }

    /// Wraps a TCP connection that the host `dialler` has opened. That host must know one of the secrets.
    pub(super) fn accepted_tcp(socket: TcpStream, dialler: IpAddr, secrets: Secrets) -> ControlSocket {
        let channel = Channel::answer(secrets);
        let stream = Stream { channel, is_connecting: false, dialler: Some(dialler) };
        ControlSocket { socket: socket.into(), stream: Some(Box::new(stream)), process: None }
    }

    /// Returns the address of the other host, if that host has dialled. Returns `None` for a Unix socket, and if this
    /// end has dialled.
    pub(super) fn dialler(&self) -> Option<IpAddr> {
        self.stream.as_ref()?.dialler
    }

    /// Returns true if the other end has proven that it knows the secret, and is not a replay.
    pub(super) fn is_authenticated(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.channel.is_proven())
    }

    /// Returns the local address of a connection between hosts, even before the other host has answered.
    pub(super) fn own_ip(&self) -> Option<IpAddr> {
        self.stream.as_ref()?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&self.socket).ok()?).ok()?;
        Some(address.ip().to_canonical())
    }

    /// Returns true if the other end has answered. For TCP, an established connection counts as an answer.
    pub(super) fn has_answered(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| !stream.is_connecting)
    }

    /// Returns true if epoll must watch the socket for room to send: data is queued, or the connection is not
    /// established.
    pub(super) fn needs_writable(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_connecting || !stream.channel.output().is_empty())
    }

    /// Sends a message. For TCP, queues the bytes for which the socket has no room.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let ControlSocket { socket, stream, .. } = self;
        match stream {
            None => {
                retry_on_intr(|| rustix::net::send(&*socket, &message.encode(), SEND))?;
                Ok(())
            }
            Some(stream) => {
                stream.channel.send(&message.encode());
                stream.flush(socket.as_fd())
            }
        }
    }

    /// Returns the next message or event; `None` if none is pending.
    pub(super) fn receive(&mut self) -> Option<ControlEvent> {
        let ControlSocket { socket, stream, .. } = self;
        match stream {
            None => receive_packet(socket.as_fd()),
            Some(stream) => stream.receive(socket.as_fd()),
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns a pidfd of the process at the other end of a Unix socket; `None` if it is unknown or has closed the socket.
fn peer_process(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    if let Some(process) = unix_sockets::peer_pidfd(socket) {
        return Some(process);
    }
    let pid = unix_sockets::peer_pid(socket).ok()??;
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    // While the other end is open, its process runs, so the kernel cannot have reused its pid.
    (!is_ready(socket, PollFlags::RDHUP | PollFlags::HUP)).then_some(process)
}

/// Returns true if one of the flags is set now.
fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(descriptor, flags)];
    let is_polled = matches!(retry_on_intr(|| poll(&mut polled, Some(&Timespec::default()))), Ok(1));
    is_polled && polled[0].revents().intersects(flags)
}

fn receive_packet(socket: BorrowedFd<'_>) -> Option<ControlEvent> {
    let mut packet = [0; MESSAGE_BYTES_MAX + 1];
    match retry_on_intr(|| rustix::net::recv(socket, &mut packet, RecvFlags::DONTWAIT)) {
        Err(Errno::AGAIN) => None,
        Err(error) => Some(ControlEvent::HungUp(Some(error.into()))),
        Ok((0, _)) => Some(ControlEvent::HungUp(None)),
        Ok((len, _)) => Some(parse_message(&packet[..len.min(packet.len())])),
    }
}

fn parse_message(bytes: &[u8]) -> ControlEvent {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return ControlEvent::Malformed("a greeting that is too long".to_owned());
    }
    match Message::decode(bytes) {
        Ok(message) => ControlEvent::Message(message),
        Err(bad) => ControlEvent::Malformed(bad.to_string()),
    }
}

impl Stream {
    fn receive(&mut self, socket: BorrowedFd<'_>) -> Option<ControlEvent> {
        if self.is_connecting {
            match self.has_connected(socket) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(ControlEvent::Unreachable(error)),
            }
        }
        loop {
            let message = self.channel.next_message();
            // The flush may also find that the connection was refused.
            let flushed = self.flush(socket);
            match message {
                Ok(Some(message)) => return Some(parse_message(&message)),
                Err(bad) => return Some(ControlEvent::ChannelFailed(bad)),
                Ok(None) => {
                    if let Err(error) = flushed {
                        return Some(ControlEvent::HungUp(Some(error)));
                    }
                }
            }
            let mut bytes = [0; READ_BYTES];
            let bytes_max = self.channel.wanted().min(bytes.len());
            match retry_on_intr(|| rustix::net::recv(socket, &mut bytes[..bytes_max], RecvFlags::DONTWAIT)) {
                Err(Errno::AGAIN) => return None,
                Err(error) => return Some(ControlEvent::HungUp(Some(error.into()))),
                Ok((0, _)) => return Some(ControlEvent::HungUp(None)),
                Ok((len, _)) => self.channel.receive(&bytes[..len]),
            }
        }
    }

    /// Returns true if the other host has answered; an error if it refused.
    fn has_connected(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        sockopt::socket_error(socket)??;
        self.is_connecting = match rustix::net::getpeername(socket) {
            Ok(_) => false,
            Err(Errno::NOTCONN) => true,
            Err(errno) => return Err(errno.into()),
        };
        Ok(!self.is_connecting)
    }

    fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while !self.is_connecting && !self.channel.output().is_empty() {
            match retry_on_intr(|| rustix::net::send(socket, self.channel.output(), SEND)) {
                Ok(len) => self.channel.sent(len),
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}
