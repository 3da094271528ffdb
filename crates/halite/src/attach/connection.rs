//! The connection of one client: its bytes in both directions, and its operations under way.

mod calls;
mod ring;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use halite_tier::quota::{Quota, QuotaExceeded};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use self::calls::Calls;
pub(super) use self::calls::Forward;
use self::ring::{RING_BYTES, Ring};
use super::desk::Desk;
use super::requests::carry_out;
use super::socket::Socket;
use super::{OperationId, OperationWaker, Ready};
use crate::metrics::Account;
use crate::session::attached::entry::{WAKE_ID, slot_of};
use crate::session::attached::wire::{self, Message, Refusal, VERSION, Welcome};

/// Maximum number of a client's operations in progress.
const OPERATIONS_MAX: usize = 8192;
/// Maximum total length of a client's requests in progress and unsent replies, in bytes. Beyond it, the node stops
/// reading the client's socket. It is twice the longest message, so that a long reply does not stop the next request.
const BYTES_MAX: usize = 2 * wire::BODY_BYTES_MAX;
/// Memory of the node for an operation in progress, beside its request: its future, and its places in tables.
const OPERATION_BYTES: usize = 4608;
/// Memory in bytes, and operations in progress, that each session may use even if other sessions of its principal have
/// used up the quotas, so that a client can always release resources. The memory holds a slice and its request, and
/// these operations.
pub(super) const SHARE_BYTES: usize = 2 * wire::SLICE_BYTES + SHARE_OPERATIONS * OPERATION_BYTES;
const SHARE_OPERATIONS: usize = 16;
/// Maximum number of bytes that a client gets in one turn, so that clients take turns.
const SENT_MAX: usize = 4 * wire::SLICE_BYTES;

/// Why the node sends a client no descriptors.
pub(super) const NOT_RECEIVED: &str = "too many descriptors that the node has sent were not received; the user's other clients must receive theirs, or end";

/// The connection ended, or must end.
#[derive(Debug)]
pub(super) struct Over;

/// The client's process, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) pid: u32,
}

pub(super) struct Connection {
    socket: Rc<Socket>,
    client: u64,
    peer: Peer,
    ready: Arc<Ready>,
    /// Operations in progress, by id. They are dropped before the session.
    operations: BTreeMap<u64, Operation>,
    desk: Option<Rc<Desk>>,
    /// Resource use of the principal in all its sessions; `None` until the session is open.
    account: Option<Arc<Account>>,
    /// Memory of this session that `account` includes, in bytes.
    charged: usize,
    /// Memory shared with the client; `None` before the client attaches, and if no memory could be shared.
    ring: Option<Ring>,
    calls: Calls,
    /// Number of socket messages whose requests were started, modulo 2^16.
    started: u16,
    /// Received bytes of an incomplete message, or of messages that wait because of a bound.
    input: Vec<u8>,
    /// Length of the first message of `input`, in bytes, if it is incomplete and the quota has room for it; else 0.
    announced: usize,
    /// Number of bytes of a refused request that have not arrived yet. The node discards them.
    skipped: usize,
    output: VecDeque<Outgoing>,
    /// Number of bytes of the first message in `output` that were sent.
    sent: usize,
    /// Length of `output`, in bytes.
    unsent: usize,
    /// Total length of the requests in progress, in bytes.
    requested: usize,
    /// Operations that can continue.
    woken: VecDeque<u64>,
    /// Operations that wait until the client reads replies, because their results would use more memory of the node.
    stalled: Vec<u64>,
    /// True if messages of `input` wait for room.
    waits_for_room: bool,
    /// True if there is something to do in the client's next turn.
    wants_turn: bool,
    /// Numbers of operations started, and of requests refused because of a quota, since the last
    /// [`Connection::take_counts`].
    counts: [u64; 2],
    /// True if the connection ends once its output is sent.
    is_refused: bool,
    /// True once the client has closed its socket. The connection ends when the requests before that are started: a
    /// process may release a lock and exit.
    has_closed: bool,
    interest: epoll::EventFlags,
}

/// A message to the client, and the descriptors that go with it.
struct Outgoing {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// The future of an operation, which returns the reply.
type Execution = Pin<Box<dyn Future<Output = Option<Vec<u8>>>>>;

struct Operation {
    future: Execution,
    waker: Waker,
    /// Length of the request, in bytes.
    bytes: usize,
}

impl Connection {
    pub(super) fn new(socket: Socket, client: u64, peer: Peer, ready: Arc<Ready>) -> Connection {
        Connection {
            socket: Rc::new(socket),
            client,
            peer,
            ready,
            operations: BTreeMap::new(),
            desk: None,
            account: None,
            charged: 0,
            ring: None,
            calls: Calls::default(),
            started: 0,
            input: Vec::new(),
            announced: 0,
            skipped: 0,
            output: VecDeque::new(),
            sent: 0,
            unsent: 0,
            requested: 0,
            woken: VecDeque::new(),
            stalled: Vec::new(),
            waits_for_room: false,
            wants_turn: false,
            counts: [0; 2],
            is_refused: false,
            has_closed: false,
            interest: epoll::EventFlags::IN,
        }
    }

    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns the number of operations in progress, and the memory in bytes that the client's messages use in this
    /// node.
    pub(super) fn figures(&self) -> (u64, u64) {
        ((self.operations.len() + self.calls.under_way()) as u64, self.memory() as u64)
    }

    /// Returns true if operations of the client are in progress, other than receives of calls by a line.
    pub(super) fn is_waiting(&self) -> bool {
        self.operations.len() > self.calls.receives()
    }

    /// Returns true if receives of calls wait.
    pub(super) fn is_receiving(&self) -> bool {
        self.calls.receives() > 0
    }

    /// Returns the numbers of operations started and of requests refused since the last call.
    pub(super) fn take_counts(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.counts)
    }

    /// Returns the memory in bytes that the client's messages and operations use in this node.
    fn memory(&self) -> usize {
        let messages = self.requested + self.unsent + self.input.len().max(self.announced);
        messages + self.operations.len() * OPERATION_BYTES
    }

    /// Updates the memory of this session in the principal's account.
    pub(super) fn charge(&mut self) {
        if let Some(account) = &self.account {
            let memory = self.memory();
            account.change(Quota::Memory, self.charged as u64, memory as u64);
            self.charged = memory;
        }
    }

    /// Checks that the principal's quotas allow another request, whose message has `len` bytes.
    fn admit(&self, len: usize) -> Result<(), QuotaExceeded> {
        let Some(account) = &self.account else { return Ok(()) };
        if self.operations.len() + self.calls.under_way() >= SHARE_OPERATIONS {
            account.admit(Quota::Operations, 1)?;
        }
        if self.memory() + OPERATION_BYTES + len > SHARE_BYTES {
            account.admit(Quota::Memory, (OPERATION_BYTES + len) as u64)?;
        }
        Ok(())
    }

    /// Returns true if results of operations must wait until the client has received replies.
    fn is_stalled(&self) -> bool {
        let is_exhausted = |account: &Arc<Account>| account.is_exhausted(Quota::Memory);
        let max = if self.account.as_ref().is_some_and(is_exhausted) { SHARE_BYTES } else { BYTES_MAX };
        self.unsent >= max
    }

    /// Returns true if operations wait until the client receives replies.
    pub(super) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Returns true if operations wait, and may now continue.
    pub(super) fn may_continue(&self) -> bool {
        !self.stalled.is_empty() && !self.is_stalled()
    }

    pub(super) fn is_attached(&self) -> bool {
        self.desk.is_some()
    }

    /// Receives at most one slice from the socket.
    pub(super) fn receive(&mut self, slice: &mut [u8]) -> Result<(), Over> {
        if let Some(count) = self.socket.receive(slice)? {
            let skipped = count.min(self.skipped);
            self.skipped -= skipped;
            self.input.extend_from_slice(&slice[skipped..count]);
            self.has_closed = count == 0;
            self.wants_turn = true;
        }
        Ok(())
    }

    /// Returns true if the client has closed its socket, and all bytes that it sent have been received.
    pub(super) fn has_closed(&self) -> bool {
        self.has_closed
    }

    /// Returns true if the client has sent its hello, and no session is open yet. Answers a hello of another version.
    pub(super) fn has_hello(&mut self) -> Result<bool, Over> {
        if self.is_attached() || self.is_refused {
            return Ok(false);
        }
        // Checked early, so that the node buffers few bytes for an unknown process.
        if self.input.len() > wire::HEADER_BYTES + wire::HELLO_BYTES_MAX {
            return Err(Over);
        }
        let Some(Message { body, len, .. }) = wire::split(&self.input).map_err(|_| Over)? else {
            return Ok(false);
        };
        let (version, _) = wire::version_of(body).ok_or(Over)?;
        self.input.drain(..len);
        if version != VERSION {
            self.is_refused = true;
            self.queue(wire::hello_message(&[]));
        }
        Ok(version == VERSION)
    }

    /// Answers the hello of a client. Returns the answer if the client has a session.
    pub(super) fn greet(&mut self, answer: Result<(Welcome, Desk), Refusal>) -> Option<Welcome> {
        let mut hello_fds = Vec::new();
        let answer = answer.map(|(mut welcome, desk)| {
            // Without memory, descriptors or room in the quota, the client uses the socket only.
            let made = match desk.account.admit(Quota::Memory, RING_BYTES) {
                Ok(()) if !desk.in_flight.admits(self.peer.uid, 2) => Err(NOT_RECEIVED.to_owned()),
                Ok(()) => Ring::create().map_err(|error| format!("the node cannot create it: {error}")),
                Err(QuotaExceeded { asked, max, .. }) => Err(format!(
                    "it takes {asked} bytes, and the principal's quota `memory` of {max} bytes has too little room"
                )),
            };
            match made {
                Ok((ring, fds)) => {
                    desk.account.change(Quota::Memory, 0, RING_BYTES);
                    self.ring = Some(ring);
                    hello_fds.extend(fds);
                }
                Err(reason) => welcome.socket_reason = Some(reason),
            }
            self.account = Some(desk.account.clone());
            self.desk = Some(Rc::new(desk));
            welcome
        });
        self.is_refused = answer.is_err();
        let encoded = postcard::to_stdvec(&answer).expect("numbers and texts can be encoded");
        self.queue_with(wire::hello_message(&encoded), hello_fds);
        answer.ok()
    }

    /// Ends the connection, its operations and calls. Returns the session, whose objects the caller must end.
    pub(super) fn end(self, epoll: &OwnedFd) -> Option<Rc<Desk>> {
        let desk = self.desk.clone()?;
        desk.in_flight.end((self.peer.uid, self.client), &self.socket, epoll);
        Some(desk)
    }

    /// Returns true if there is something to do in the client's next turn.
    pub(super) fn wants_turn(&self) -> bool {
        self.wants_turn
    }

    /// Continues an operation in the client's next turn.
    pub(super) fn wake(&mut self, request: u64) {
        self.woken.push_back(request);
        self.wants_turn = true;
    }

    /// Continues operations that can continue, and starts those whose requests are complete, as far as the bounds
    /// allow. Ends the turn after `until`.
    pub(super) fn take_turn(&mut self, until: Instant) -> Result<(), Over> {
        self.wants_turn = false;
        if !self.is_stalled() {
            self.woken.extend(std::mem::take(&mut self.stalled));
        }
        // An operation that yields is woken again, for a later turn.
        for _ in 0..self.woken.len() {
            if Instant::now() >= until {
                self.wants_turn = true;
                return Ok(());
            }
            let request = self.woken.pop_front().expect("the loop counts them");
            self.poll(request)?;
        }
        self.advance(until)?;
        match self.has_closed && (!self.wants_turn || self.is_copying()) {
            true => Err(Over),
            false => Ok(()),
        }
    }

    fn advance(&mut self, until: Instant) -> Result<(), Over> {
        if !self.is_attached() {
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        // A message asks for its whole length, so its bytes that have arrived must not count as well.
        self.charge();
        // A wake-up may overtake lines and messages.
        while let Some((WAKE_ID, len)) = wire::peek(&input[at..]).map_err(|_| Over)? {
            if len > wire::HEADER_BYTES {
                return Err(Over);
            }
            self.wake_ring();
            at += len;
        }
        // The client wrote the lines in front of each message before it sent the message. Without a message, the thread
        // polls the lines, where users take shorter turns.
        let polls_lines = self.is_awake() && !self.has_closed;
        let mut is_drained = polls_lines && at == input.len() || self.drain_ring(until)?;
        while is_drained
            && self.has_room()
            && !self.is_copying()
            && let Some((id, len)) = wire::peek(&input[at..]).map_err(|_| Over)?
        {
            if at > 0 && Instant::now() >= until {
                self.wants_turn = true;
                break;
            }
            if id == WAKE_ID {
                if len > wire::HEADER_BYTES {
                    return Err(Over);
                }
                self.wake_ring();
                at += len;
                is_drained = self.drain_ring(until)?;
                continue;
            }
            // A message, such as a cancel, may concern a line in front of it that has not been passed on yet.
            if self.has_forwards() {
                self.wants_turn = true;
                break;
            }
            let message = wire::split(&input[at..]).map_err(|_| Over)?;
            let is_admitted = std::mem::take(&mut self.announced) > 0;
            if !is_admitted
                && let Err(exceeded) = self.admit(len)
                && !message.as_ref().is_some_and(|message| is_release(message.body))
            {
                // Lines may come after this message.
                self.started = self.started.wrapping_add(1);
                self.queue(wire::refused(id, exceeded));
                self.skipped = len.saturating_sub(input.len() - at);
                at = input.len().min(at + len);
                continue;
            }
            let Some(Message { body, .. }) = message else {
                self.announced = len;
                break;
            };
            if body.len() > wire::SLICE_BYTES {
                // Copying it would take milliseconds.
                let rest = input.split_off(at + len);
                self.start_message(id, std::mem::replace(&mut input, rest), at + wire::HEADER_BYTES)?;
                at = 0;
            } else {
                self.start_message(id, body.to_vec(), 0)?;
                at += len;
            }
            is_drained = self.drain_ring(until)?;
        }
        self.waits_for_room = !self.has_room();
        // The messages behind lines, or an access in progress, wait for them.
        self.wants_turn |= !is_drained || self.is_copying() && (at < input.len() || !self.is_awake());
        input.drain(..at);
        // A long message must not move while it grows; an idle client keeps no buffer.
        input.reserve_exact(self.announced.saturating_sub(input.len()));
        self.input = if input.is_empty() { Vec::new() } else { input };
        Ok(())
    }

    fn has_room(&self) -> bool {
        let bytes = self.requested + self.unsent;
        let is_below = self.operations.len() < OPERATIONS_MAX && bytes < BYTES_MAX;
        // Refusals take memory, too, until the client receives them.
        is_below && !self.is_stalled() && !self.is_refused
    }

    /// Starts the request of a socket's message, whose body begins at `begin` of `bytes`.
    fn start_message(&mut self, request: u64, bytes: Vec<u8>, begin: usize) -> Result<(), Over> {
        self.started = self.started.wrapping_add(1);
        if wire::is_cancel(&bytes[begin..]) {
            if let Some(operation) = self.operations.remove(&request) {
                self.end_operation(operation);
                self.answer(request, wire::message(request, &(), &[]));
            } else if let Some(slot) = slot_of(request)
                && self.calls.forget(&self.desk, slot)
            {
                self.end_call(slot);
                self.answer(request, wire::message(request, &(), &[]));
            }
            return Ok(());
        }
        if self.operations.contains_key(&request) || slot_of(request).is_some() {
            return Err(Over);
        }
        self.start(request, bytes, begin)
    }

    fn start(&mut self, request: u64, bytes: Vec<u8>, begin: usize) -> Result<(), Over> {
        let desk = self.desk.clone().ok_or(Over)?;
        let len = bytes.len() - begin;
        self.start_future(request, len, Box::pin(carry_out(desk, request, bytes, begin)))
    }

    fn start_future(&mut self, request: u64, bytes: usize, future: Execution) -> Result<(), Over> {
        let id = OperationId { client: self.client, request };
        let waker = Waker::from(Arc::new(OperationWaker { ready: self.ready.clone(), id }));
        self.requested += bytes;
        self.counts[0] += 1;
        self.operations.insert(request, Operation { future, waker, bytes });
        if let Some(account) = &self.account {
            account.change(Quota::Operations, 0, 1);
        }
        self.charge();
        self.poll(request)
    }

    /// Drops an operation that was removed from the table of operations.
    fn end_operation(&mut self, operation: Operation) {
        self.requested -= operation.bytes;
        if let Some(account) = &self.account {
            account.change(Quota::Operations, 1, 0);
        }
    }

    /// Polls an operation if it is still in progress.
    fn poll(&mut self, request: u64) -> Result<(), Over> {
        if self.is_stalled() {
            self.stalled.push(request);
            return Ok(());
        }
        let Some(operation) = self.operations.get_mut(&request) else { return Ok(()) };
        let polled = operation.future.as_mut().poll(&mut Context::from_waker(&operation.waker));
        if let Poll::Ready(reply) = polled {
            let ended = self.operations.remove(&request).expect("looked up just before");
            self.end_operation(ended);
            self.answer(request, reply.ok_or(Over)?);
        }
        Ok(())
    }

    /// Sends the reply to a request the way the request came: through shared memory or the socket.
    fn answer(&mut self, request: u64, message: Vec<u8>) {
        let fd = self.desk.as_ref().and_then(|desk| desk.take_fd());
        if let Some(slot) = slot_of(request) {
            self.stop_receiving(slot);
        }
        match (slot_of(request), fd) {
            (Some(slot), None) => self.answer_slot(slot, message),
            (slot, fd) => {
                self.queue_with(message, fd.into_iter().collect());
                slot.into_iter().for_each(|slot| self.announce_message(slot));
            }
        }
    }

    /// Returns true if bytes wait to be sent.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    fn queue(&mut self, message: Vec<u8>) {
        self.queue_with(message, Vec::new());
    }

    fn queue_with(&mut self, message: Vec<u8>, fds: Vec<OwnedFd>) {
        if let Some(desk) = self.desk.as_ref().filter(|_| !fds.is_empty()) {
            desk.in_flight.add((self.peer.uid, self.client), &self.socket, fds.len());
        }
        self.counts[1] += u64::from(wire::refusal_of(&message[wire::HEADER_BYTES..]).is_some());
        self.unsent += message.len();
        self.output.push_back(Outgoing { bytes: message, fds });
        self.charge();
    }

    /// Sends the bytes that the socket accepts, at most those of one turn.
    pub(super) fn flush(&mut self) -> Result<(), Over> {
        let mut sent_in_turn = 0;
        while let Some(first) = self.output.front_mut()
            && sent_in_turn < SENT_MAX
        {
            let fds: Vec<BorrowedFd<'_>> = first.fds.iter().map(AsFd::as_fd).collect();
            match send(&*self.socket, &first.bytes[self.sent..], &fds) {
                Ok(count) => {
                    self.socket.count_sent(std::mem::take(&mut first.fds).len());
                    self.sent += count;
                    sent_in_turn += count;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The client has gone, but its last requests may not have been received yet.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.output.clear();
                    (self.unsent, self.sent) = (0, 0);
                    break;
                }
                Err(_) => return Err(Over),
            }
            if self.sent == first.bytes.len() {
                self.unsent -= first.bytes.len();
                self.sent = 0;
                self.output.pop_front();
            }
        }
        if self.is_refused && self.output.is_empty() {
            return Err(Over);
        }
        self.wants_turn |= self.may_continue() || self.waits_for_room && self.has_room();
        self.charge();
        Ok(())
    }

    /// Registers with epoll for the events that the connection waits for.
    pub(super) fn set_interest(&mut self, epoll: &OwnedFd, client: u64) -> Result<(), Over> {
        let mut interest = epoll::EventFlags::empty();
        let is_behind = self.wants_turn && self.input.len() >= wire::SLICE_BYTES;
        interest.set(epoll::EventFlags::IN, self.has_room() && !is_behind && !self.has_closed);
        interest.set(epoll::EventFlags::OUT, !self.output.is_empty());
        if interest == self.interest {
            return Ok(());
        }
        self.interest = interest;
        epoll::modify(epoll, &*self.socket, epoll::EventData::new_u64(client), interest).map_err(|_| Over)
    }
}

fn is_release(body: &[u8]) -> bool {
    wire::decode_request(body).is_some_and(|(_, request, data)| request.is_release() && data.is_empty())
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.drop_calls();
        if let Some(account) = &self.account {
            let ring = if self.ring.is_some() { RING_BYTES } else { 0 };
            account.change(Quota::Memory, self.charged as u64 + ring, 0);
            account.change(Quota::Operations, self.figures().0, 0);
        }
    }
}

/// Sends bytes, with descriptors if there are any.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    if fds.is_empty() {
        return rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "the buffer has space for two descriptors");
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}
