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

/// Maximum number of sockets that one decision looks at: about 0.1 ms.
const LOOKS_MAX: usize = 256;

/// The sockets with such descriptors. The thread that serves the clients owns this state.
#[derive(Default)]
pub(super) struct InFlight(RefCell<State>);

#[derive(Default)]
struct State {
    users: BTreeMap<u32, Share>,
    /// Users of the clients whose connections have ended, and whose sockets still have descriptors.
    ended: BTreeMap<u64, u32>,
}

/// The sockets of one user, by client.
#[derive(Default)]
struct Share {
    sockets: BTreeMap<u64, Rc<Socket>>,
    /// Number of descriptors that the sockets had when they were last looked at.
    sent: usize,
    /// The client at which the next search begins.
    next: u64,
}

impl Share {
    /// Looks at a client's socket. Forgets it, and returns false, if the client has received all descriptors or has closed
    /// its socket.
    fn look(&mut self, client: u64) -> bool {
        let Some(socket) = self.sockets.get(&client) else { return false };
        let sent = socket.descriptors();
        if !socket.has_descriptors() {
            self.sent -= sent;
            self.sockets.remove(&client);
        }
        self.sockets.contains_key(&client)
    }
}

impl InFlight {
    /// Returns true if `count` more descriptors may be sent to a user's clients: the user's share has room, and the
    /// kernel accepts more descriptors of the node's user.
    pub(super) fn admits(&self, uid: u32, count: usize) -> bool {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let has_room = |share: &Share| (share.sent + count) as u64 <= limit / SHARES;
        let mut state = self.0.borrow_mut();
        let State { users, ended } = &mut *state;
        let share = users.entry(uid).or_default();
        if !has_room(share) {
            let behind = share.sockets.range(share.next..).chain(share.sockets.range(..share.next));
            let clients: Vec<u64> = behind.map(|(client, _)| *client).take(LOOKS_MAX).collect();
            for client in clients {
                share.next = client + 1;
                if !share.look(client) {
                    ended.remove(&client);
                }
            }
        }
        has_room(share) && may_send()
    }

    /// Counts descriptors of a message that waits to be sent.
    pub(super) fn add(&self, (uid, client): (u32, u64), socket: &Rc<Socket>, count: usize) {
        let mut state = self.0.borrow_mut();
        let share = state.users.entry(uid).or_default();
        share.sockets.entry(client).or_insert_with(|| socket.clone());
        share.sent += count;
        socket.queue_descriptors(count);
    }

    /// Ends the connection of a client. Keeps its socket, which can no longer be used, while the client has descriptors
    /// to receive. Each change of the socket then causes an event with the number of the client.
    pub(super) fn end(&self, (uid, client): (u32, u64), socket: &Socket, epoll: &OwnedFd) {
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        // Before the first look, so that no change is missed.
        let _ = epoll::modify(epoll, socket, epoll::EventData::new_u64(client), flags);
        socket.end();
        self.0.borrow_mut().ended.insert(client, uid);
        self.look(client);
    }

    /// Returns the user of a client whose connection has ended, if its socket is kept.
    pub(super) fn user_of(&self, client: u64) -> Option<u32> {
        self.0.borrow().ended.get(&client).copied()
    }

    /// Closes the socket of an ended connection if its client has received all descriptors, or has closed its socket.
    pub(super) fn look(&self, client: u64) {
        let mut state = self.0.borrow_mut();
        let State { users, ended } = &mut *state;
        let Some(uid) = ended.get(&client) else { return };
        if let Some(share) = users.get_mut(uid) {
            if share.look(client) {
                return;
            }
            if share.sockets.is_empty() {
                users.remove(uid);
            }
        }
        ended.remove(&client);
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
