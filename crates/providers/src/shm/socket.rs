//! Sends and receives packets, with descriptors attached, over the sockets of a cluster directory.
//!
//! All calls are non-blocking. Incoming packets are untrusted and parsed completely. The kernel closes descriptors
//! beyond the expected number.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::wire::{BadMessage, MESSAGE_BYTES_MAX, Message};

/// Maximum number of descriptors per message.
const FDS_MAX: usize = 5;

/// Sends one message; returns false if the socket has no room for it.
pub(super) fn send(socket: BorrowedFd<'_>, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
    assert_eq!(fds.len(), message.fds(), "each kind of message has a fixed number of descriptors");
    let packet = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(pushed, "the buffer has space for FDS_MAX descriptors");
    }
    // NOSIGNAL: SIGPIPE must not kill this process when a peer hangs up.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let parts = [IoSlice::new(&packet)];
    let sent = retry_on_intr(|| rustix::net::sendmsg(socket, &parts, &mut control, flags));
    match sent {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::NOBUFS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Result of a receive.
#[derive(Debug)]
pub(super) enum Received {
    /// A message with exactly the descriptors of its kind.
    Message(Message, Vec<OwnedFd>),
    /// A message whose descriptors were lost, because this process has reached its limit of descriptors.
    WithoutDescriptors(Message),
    /// No message waits at the socket.
    Nothing,
    /// The other end has closed the socket.
    HungUp,
}

/// The reason why a received packet is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error("the peer sent {0}")]
    BadMessage(#[from] BadMessage),
    #[error("the peer sent a packet of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the peer sent {sent} descriptors instead of {wanted}")]
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
        // A peer that closes its socket with unread messages resets it. The kernel reports the reset once, before the
        // peer's last messages, which may include Detached.
        Err(Errno::CONNRESET) => receive(),
        received => received,
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(Received::Nothing),
        // All other errors are permanent.
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
        return Ok(Received::WithoutDescriptors(message));
    }
    if sent != wanted || received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(ReceiveError::Descriptors { sent, wanted });
    }
    Ok(Received::Message(message, fds))
}
