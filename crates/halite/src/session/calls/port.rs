//! Messages: bytes that a session sends to a port, and that the port's receivers get in order.

use std::fmt;
use std::sync::Arc;

use halite_tier::access::Count;
use halite_tier::ids::NodeId;
use halite_tier::rpc::{Kind, PAYLOAD_BYTES_MAX, ReplyState, Status, Target};

use super::server::Receiver;
use crate::driver::requests::{Pending, PostFailure, SpinResult};
use crate::error::{Gone, SendCause, SendError, ServeCause, ServeError};
use crate::rpc::{Incoming, Reply, ReplyBuffer, Request, ServeOptions, ServiceId};
use crate::runtime::lanes::Queue;
use crate::session::attached::wire::{self, Request as Asked};
use crate::session::attached::{Answer, Client};
use crate::session::calls::served::RemoteMailbox;
use crate::session::{Embedded, Session, embedded};

/// The number of a message port at a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u32);

impl Port {
    /// First of the ports that are reserved for [`Watch`](crate::Watch): applications cannot open ports from this
    /// number on, or send to them.
    pub const RESERVED_MIN: Port = Port(1 << 31);
}

/// An open port. Clones receive from the same port. Dropping the last clone closes the port and discards its queued
/// messages.
#[derive(Clone)]
pub struct Mailbox {
    opened: Opened,
}

enum Opened {
    Local(Receiver),
    /// The node of an attached session has the port.
    Remote(Arc<RemoteMailbox>),
}

/// A message that a port received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Principal of the session that sent the message.
    pub from: String,
    /// Node of the session that sent the message.
    pub node: NodeId,
    /// The message's bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.opened {
            Opened::Local(receiver) => f.debug_tuple("Mailbox").field(&receiver.service.id).finish(),
            Opened::Remote(mailbox) => f.debug_tuple("Mailbox").field(mailbox).finish(),
        }
    }
}

impl Clone for Opened {
    fn clone(&self) -> Opened {
        match self {
            Opened::Local(receiver) => Opened::Local(receiver.join()),
            Opened::Remote(mailbox) => Opened::Remote(mailbox.clone()),
        }
    }
}

impl Mailbox {
    /// Waits for the next message. If the future is dropped, the message stays for other receivers.
    pub async fn recv(&self) -> Result<Message, ServeError> {
        match &self.opened {
            Opened::Local(receiver) => receiver.recv().await.map(|incoming| message(receiver, incoming)),
            Opened::Remote(mailbox) => mailbox.recv().await,
        }
    }

    /// Returns the next message, or `None` if none is queued.
    pub fn try_recv(&self) -> Result<Option<Message>, ServeError> {
        match &self.opened {
            Opened::Local(receiver) => Ok(receiver.try_recv()?.map(|incoming| message(receiver, incoming))),
            Opened::Remote(mailbox) => mailbox.try_recv(),
        }
    }

    /// Closes the port for all its receivers. Later `recv`s and sends fail.
    pub fn close(&self) {
        match &self.opened {
            Opened::Local(receiver) => receiver.close(),
            Opened::Remote(mailbox) => mailbox.close(),
        }
    }

    pub(crate) fn recv_blocking(&self) -> Result<Message, ServeError> {
        match &self.opened {
            Opened::Local(receiver) => receiver.recv_blocking().map(|incoming| message(receiver, incoming)),
            Opened::Remote(mailbox) => mailbox.block_on(mailbox.recv()),
        }
    }
}

fn message(receiver: &Receiver, incoming: Box<Incoming>) -> Message {
    let bytes = incoming.input.as_slice().len() as u64;
    let path = &receiver.driver().shared.path;
    path.count_one(Count::MessagesReceived, Count::MessageBytesReceived, bytes);
    Message::new(incoming)
}

impl Message {
    fn new(mut incoming: Box<Incoming>) -> Message {
        let bytes = incoming.input.take_vec();
        let to = &incoming.to;
        // `String::from`, since `to_string` takes as long as the rest of this function.
        let from = String::from(&*to.caller.principal.0);
        let message = Message { from, node: to.link().node, bytes };
        incoming.recycle();
        message
    }
}

/// Ports and messages.
impl Session {
    /// Opens a port of this session's node. Fails if the port is open already.
    pub fn open_port(&self, port: Port, options: ServeOptions) -> Result<Mailbox, ServeError> {
        if port >= Port::RESERVED_MIN {
            return Err(ServeError { what: format!("port {}", port.0), cause: ServeCause::Reserved });
        }
        let session = embedded!(self, client => {
            let request = Asked::OpenPort { port: port.0, options };
            let mailbox = client.block_on(RemoteMailbox::open(client, &request, port.0))?;
            Ok(Mailbox { opened: Opened::Remote(Arc::new(mailbox)) })
        });
        session.open_any_port(port, options)
    }

    /// Sends a message, and returns when it is in the port's queue; waits while the queue is full. Messages that are
    /// sent one after another arrive in this order. If the future is dropped, the message may or may not arrive. The
    /// message goes only to the node's current incarnation: if this incarnation ends first, the send fails with
    /// [`SendCause::PeerDown`], even if the node has been restarted.
    pub async fn send(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        check_port(node, port, bytes)?;
        let session = embedded!(self, client => send_there(client, node, port, bytes, true).await);
        session.send_to_any_port(node, port, bytes).await
    }

    /// Sends a message as [`Session::send`] does, but fails with [`SendCause::WouldBlock`] if the port is full.
    pub async fn try_send(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        check_port(node, port, bytes)?;
        let session = embedded!(self, client => send_there(client, node, port, bytes, false).await);
        session.send_once(node, port, bytes, Kind::TrySend, None).await.map(drop)
    }
}

/// Lets the node of an attached session send a message.
async fn send_there(
    client: &Client,
    node: NodeId,
    port: Port,
    bytes: &[u8],
    waits: bool,
) -> Result<(), SendError> {
    let lost = lost(node, port, bytes.len());
    if bytes.len() > wire::PAYLOAD_BYTES_MAX {
        return Err(send_error(node, port, bytes.len(), SendCause::TooLong, false));
    }
    let request = Asked::Send { node, port: port.0, waits };
    client.ask_with(&request, &[bytes], None, lost).await.map(|answer: Answer<()>| answer.value)
}

/// Returns the error of a message to which the node sent no reply.
pub(super) fn lost(node: NodeId, port: Port, len: usize) -> impl Fn(Gone) -> SendError {
    move |gone| send_error(node, port, len, gone.into(), gone.maybe_done())
}

impl Embedded {
    pub(crate) fn open_any_port(&self, port: Port, options: ServeOptions) -> Result<Mailbox, ServeError> {
        let receiver = Receiver::open(self, ServiceId::Port(port.0), options)?;
        Ok(Mailbox { opened: Opened::Local(receiver) })
    }

    pub(crate) async fn send_to_any_port(
        &self,
        node: NodeId,
        port: Port,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        match self.send_once(node, port, bytes, Kind::Send, None).await? {
            Some(granted) => self.send_granted(node, port, bytes, granted).await,
            None => Ok(()),
        }
    }

    /// Sends a message into the room that `granted` reserves at the port.
    async fn send_granted(
        &self,
        node: NodeId,
        port: Port,
        bytes: &[u8],
        granted: Grant<'_>,
    ) -> Result<(), SendError> {
        let mut granted = Some(granted);
        while granted.is_some() {
            granted = self.send_once(node, port, bytes, Kind::Send, granted).await?;
        }
        Ok(())
    }

    /// Sends a message once. Returns a grant if the message must be sent again with this grant.
    async fn send_once<'s>(
        &'s self,
        node: NodeId,
        port: Port,
        bytes: &[u8],
        kind: Kind,
        granted: Option<Grant<'s>>,
    ) -> Result<Option<Grant<'s>>, SendError> {
        let sending = OutgoingMessage::of(self, node, port, bytes);
        let request = sending.request(kind, bytes, granted.as_ref());
        let posted = self.inner.driver.post_request(node, &request).await;
        let mut pending = posted.map_err(|failure| sending.failed(failure.into(), false))?;
        if let Some(grant) = granted {
            grant.used();
        }
        sending.finish(&mut pending).await
    }

    /// Sends a message on a thread that drives the node while it waits. A message that is queued during the spin needs
    /// no waker.
    pub(crate) fn send_blocking(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        check_port(node, port, bytes)?;
        let granted = match self.send_once_blocking(node, port, bytes, Kind::Send) {
            Some(sent) => sent?,
            None => return self.inner.driver.block_on(self.send_to_any_port(node, port, bytes)),
        };
        match granted {
            None => Ok(()),
            Some(grant) => self.inner.driver.block_on(self.send_granted(node, port, bytes, grant)),
        }
    }

    /// Sends a message as [`Session::try_send`] does, on a thread that drives the node while it waits.
    pub(crate) fn try_send_blocking(&self, node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
        check_port(node, port, bytes)?;
        let sent = self.send_once_blocking(node, port, bytes, Kind::TrySend);
        let waits = || self.inner.driver.block_on(self.send_once(node, port, bytes, Kind::TrySend, None));
        sent.unwrap_or_else(waits).map(drop)
    }

    /// Sends a message once, on a thread that drives the node while it waits. Returns `None` if the message could not
    /// be posted at once.
    fn send_once_blocking<'s>(
        &'s self,
        node: NodeId,
        port: Port,
        bytes: &[u8],
        kind: Kind,
    ) -> Option<Result<Option<Grant<'s>>, SendError>> {
        let driver = &self.inner.driver;
        let sending = OutgoingMessage::of(self, node, port, bytes);
        let mut pending = driver.try_post_request(node, &sending.request(kind, bytes, None)).ok()?;
        Some(match pending.spin(ReplyBuffer::Slice(&mut [])) {
            SpinResult::Taken(reply) => sending.handle_reply(pending.target(), reply),
            SpinResult::Ended(_) => Err(sending.lost()),
            SpinResult::NoReply { has_spun } => driver.block_on_after(has_spun, sending.finish(&mut pending)),
        })
    }
}

#[derive(Clone, Copy)]
pub(super) struct OutgoingMessage<'s> {
    pub(super) session: &'s Embedded,
    pub(super) node: NodeId,
    pub(super) port: Port,
    pub(super) len: usize,
}

impl<'s> OutgoingMessage<'s> {
    pub(super) fn of(session: &'s Embedded, node: NodeId, port: Port, bytes: &[u8]) -> OutgoingMessage<'s> {
        OutgoingMessage { session, node, port, len: bytes.len() }
    }

    pub(super) fn request<'b>(&self, kind: Kind, bytes: &'b [u8], granted: Option<&Grant<'_>>) -> Request<'b>
    where
        's: 'b,
    {
        Request {
            to: granted.map(|grant| grant.at),
            kind: granted.map_or(kind, |grant| Kind::GrantedSend(grant.number)),
            number: self.port.0,
            principal: &self.session.inner.principal,
            principal_number: self.session.inner.principal_number,
            input: bytes,
            reply_bytes_max: 0,
            reply_in_place: false,
            deadline_ns: u64::MAX,
            queue: Queue::of(self.session.inner.id, self.session.priority),
        }
    }

    async fn finish(&self, pending: &mut Pending<'_>) -> Result<Option<Grant<'s>>, SendError> {
        match pending.answered().await {
            // If dropped meanwhile, the grant is declined by the slot that holds it.
            ReplyState::Replied => {
                let reply = pending.take(ReplyBuffer::Slice(&mut []));
                self.handle_reply(pending.target(), reply)
            }
            _ => Err(self.lost()),
        }
    }

    /// Handles the receiving node's reply. Returns a grant if the message must be sent again with it.
    pub(super) fn handle_reply(&self, from: Target, reply: Reply) -> Result<Option<Grant<'s>>, SendError> {
        let OutgoingMessage { session, port, .. } = *self;
        match answer_of(reply) {
            Ok(granted) => Ok(granted.map(|number| Grant { session, at: from, port, number })),
            Err(cause) => Err(self.failed(cause, cause == SendCause::NotUnderstood)),
        }
    }

    /// Returns the error of a message that got no reply.
    pub(super) fn lost(&self) -> SendError {
        let driver = &self.session.inner.driver;
        let cause = match driver.is_closed() {
            true => driver.closed_or_forked(SendCause::NodeClosed(driver.shared.node), SendCause::Forked),
            false => SendCause::PeerDown,
        };
        self.failed(cause, true)
    }

    pub(super) fn failed(&self, cause: SendCause, may_have_arrived: bool) -> SendError {
        let driver = &self.session.inner.driver;
        if !driver.is_forked() {
            driver.shared.path.count(Count::MessageFailures, 1);
        }
        send_error(self.node, self.port, self.len, cause, may_have_arrived)
    }
}

pub(super) fn check_port(node: NodeId, port: Port, bytes: &[u8]) -> Result<(), SendError> {
    if port < Port::RESERVED_MIN {
        return Ok(());
    }
    Err(send_error(node, port, bytes.len(), SendCause::Reserved, false))
}

pub(super) fn send_error(
    node: NodeId,
    port: Port,
    len: usize,
    cause: SendCause,
    may_have_arrived: bool,
) -> SendError {
    SendError { node, port: port.0, len: len as u64, cause, may_have_arrived }
}

fn answer_of(reply: Reply) -> Result<Option<u32>, SendCause> {
    match reply {
        Reply::Done(_) => Ok(None),
        Reply::Refused(Status::Granted(grant)) => Ok(Some(grant)),
        Reply::Refused(Status::Unknown | Status::Closed) => Err(SendCause::UnknownPort),
        Reply::Refused(Status::WouldBlock) => Err(SendCause::WouldBlock),
        Reply::Refused(Status::Denied) => Err(SendCause::PermissionDenied),
        Reply::Refused(Status::NoMemory) => Err(SendCause::NoMemory),
        Reply::Refused(_)
        | Reply::DoneAt(..)
        | Reply::Lent(_)
        | Reply::TooLong(..)
        | Reply::NotUnderstood => Err(SendCause::NotUnderstood),
    }
}

impl From<PostFailure> for SendCause {
    fn from(failure: PostFailure) -> SendCause {
        match failure {
            PostFailure::UnknownNode => SendCause::UnknownNode,
            PostFailure::PeerDown => SendCause::PeerDown,
            PostFailure::NotMet => SendCause::NotMet,
            PostFailure::Timeout => unreachable!("messages have no deadline"),
            PostFailure::TooLong { len } => {
                debug_assert!(len > PAYLOAD_BYTES_MAX);
                SendCause::TooLong
            }
            PostFailure::NoMemory => SendCause::NoMemory,
            PostFailure::TooManyCalls => SendCause::TooManyCalls,
            PostFailure::NodeClosed(node) => SendCause::NodeClosed(node),
            PostFailure::Forked => SendCause::Forked,
        }
    }
}

/// Room that a port has reserved for a message. If it is dropped before the message is posted, the port gets the room
/// back.
pub(super) struct Grant<'s> {
    session: &'s Embedded,
    /// The node that reserved the room. Its next incarnation has no record of this reservation.
    at: Target,
    port: Port,
    number: u32,
}

impl Grant<'_> {
    fn used(self) {
        std::mem::forget(self);
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let driver = &self.session.inner.driver;
        if driver.is_forked() {
            return;
        }
        driver.with_calls(|rpc, wakes| rpc.decline_room(self.at, self.port.0, self.number, wakes));
    }
}
