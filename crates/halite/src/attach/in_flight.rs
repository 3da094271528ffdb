//! Descriptors that clients have not received yet.
//!
//! The kernel limits their number for all processes of the node's user together, to the limit of descriptors of the
//! process that sends. So that a client which receives nothing does not use up the limit, the clients of each user have
//! a share. The end of its session frees nothing: the descriptors stay in the client's socket until its process receives
//! them or closes the socket.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use rustix::event::epoll;
use rustix::net::RecvFlags;
use rustix::process::{Resource, getrlimit};

use super::connection::send;
use super::socket::Socket;

/// The share of a user is the limit divided by this number. If the clients of three users receive nothing, one share is left.
const SHARES: u64 = 4;

/// The sockets with such descriptors, by user. The thread that serves the clients owns this state.
#[derive(Default)]
pub(super) struct InFlight(RefCell<BTreeMap<u32, Vec<Rc<Socket>>>>);

impl InFlight {
    /// Returns true if `count` more descriptors may be sent to a user's clients: the user's share has room, and the
    /// kernel accepts more descriptors of the node's user.
    pub(super) fn admits(&self, uid: u32, count: usize) -> bool {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let mut users = self.0.borrow_mut();
        let sockets = users.entry(uid).or_default();
        let has_room = |sockets: &[Rc<Socket>]| {
            let sent: usize = sockets.iter().map(|socket| socket.descriptors()).sum();
            (sent + count) as u64 <= limit / SHARES
        };
        if !has_room(sockets) {
            sockets.retain(|socket| socket.has_descriptors());
        }
        has_room(sockets) && may_send()
    }

    /// Counts descriptors of a message that waits to be sent.
    pub(super) fn add(&self, uid: u32, socket: &Rc<Socket>, count: usize) {
        let mut users = self.0.borrow_mut();
        let sockets = users.entry(uid).or_default();
        if !sockets.iter().any(|other| Rc::ptr_eq(other, socket)) {
            sockets.push(socket.clone());
        }
        socket.queue_descriptors(count);
    }

    /// Ends the connection of a socket. Keeps the socket, which can no longer be used, while the client has descriptors
    /// to receive. Each change of the socket then causes one event `token`.
    pub(super) fn end(&self, socket: &Socket, epoll: &OwnedFd, token: u64) {
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        // Before the first look, so that no change is missed.
        let _ = epoll::modify(epoll, socket, epoll::EventData::new_u64(token), flags);
        socket.end();
        self.collect();
    }

    /// Closes the sockets of ended connections whose clients have received all descriptors, or have closed their sockets.
    pub(super) fn collect(&self) {
        self.0.borrow_mut().retain(|_, sockets| {
            sockets.retain(|socket| !socket.has_ended() || socket.has_descriptors());
            !sockets.is_empty()
        });
    }
}

/// Returns true if the kernel lets this process send a descriptor.
fn may_send() -> bool {
    let sent = UnixStream::pair().and_then(|(from, to)| {
        send(&from, &[0], &[from.as_fd()])?;
        // Discards the descriptor.
        Ok(rustix::net::recv(&to, &mut [0], RecvFlags::empty())?)
    });
    sent.is_ok()
}
