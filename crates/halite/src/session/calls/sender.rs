//! Senders: messages to one port, for which the sender does not wait one by one.
//!
//! ```text
//!   sender ── message, message, ... ──► port's queue ──► receiver
//!     ◄── one answer each, once it is in the queue; read when the limit of messages in progress is reached
//! ```
//!
//! A full port parks messages in the order of arrival, so no message is sent twice, and none overtakes another.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use halite_tier::ids::NodeId;
use halite_tier::rpc::{Kind, ReplyState, Target};

use super::port::{OutgoingMessage, Port, check_port, lost, send_error};
use crate::driver::requests::{Pending, SpinResult};
use crate::error::{SendCause, SendError};
use crate::rpc::{Posted, Reply, ReplyBuffer};
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{Answer, Client, Remote};
use crate::session::{self, Embedded, Session};

/// Maximum number of messages of a sender in progress.
const IN_PROGRESS_MAX: usize = 64;
/// Maximum number of bytes of the messages in progress; a single message may be longer.
const IN_PROGRESS_BYTES_MAX: usize = 256 << 10;

/// Sends messages to a port without waiting for each of them. The messages arrive in the order of sending.
///
/// At most 64 messages, of 256 KiB in total, are in progress; the next message waits until the first is in the port's
/// queue. So a slow receiver slows its sender.
pub struct Sender {
    node: NodeId,
    port: Port,
    kind: SenderKind,
}

enum SenderKind {
    Local(LocalSender),
    /// The node of an attached session sends the messages. It creates its sender for the first message.
    Remote(Arc<Client>, Option<Remote>),
}

/// A sender of this process's node.
struct LocalSender {
    session: Embedded,
    node: NodeId,
    port: Port,
    posted_messages: VecDeque<PostedMessage>,
    bytes: usize,
}

/// A message that has been posted, but may not be in the port's queue yet.
struct PostedMessage {
    posted: Posted,
    len: usize,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, port) = (self.node, self.port);
        f.debug_struct("Sender").field("node", &node).field("port", &port).finish_non_exhaustive()
    }
}

impl Session {
    /// Creates a sender of messages to a port. The sender does not wait for each message.
    ///
    /// ```
    /// # use halite::{Config, Node, NodeId, Port, ServeOptions};
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-sender-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let mailbox = session.open_port(Port(7), ServeOptions::default())?;
    /// let mut sender = session.sender(NodeId(0), Port(7));
    /// for event in ["added", "changed", "removed"] {
    ///     sender.send(event.as_bytes())?;
    /// }
    /// sender.flush()?;
    /// assert_eq!(mailbox.recv()?.bytes, b"added");
    /// # drop((mailbox, sender));
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sender(&self, node: NodeId, port: Port) -> Sender {
        let kind = match &self.kind {
            session::Kind::Embedded(session) => {
                let (session, posted_messages) = (session.clone(), VecDeque::new());
                SenderKind::Local(LocalSender { session, node, port, posted_messages, bytes: 0 })
            }
            session::Kind::Attached(client) => SenderKind::Remote(client.clone(), None),
        };
        Sender { node, port, kind }
    }
}

impl Sender {
    /// Publishes a message and returns once it is posted. The receiver gets it unless one of the two nodes, the port or
    /// this sender ends first.
    ///
    /// The error may belong to an earlier message, as [`SendError::len`] shows; then the message of this call is not
    /// sent. A sender may be used after an error. Messages that were published after the failed one and before the
    /// error may have arrived. [`SendCause::WouldBlock`](crate::SendCause::WouldBlock) means that the port is full, and
    /// that this node has the maximum of parked messages at the port: 4,096 messages, or 4 MiB.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        let (node, port) = (self.node, self.port);
        check_port(node, port, bytes)?;
        let (client, remote) = match &mut self.kind {
            SenderKind::Local(sender) => return sender.send(bytes).await,
            SenderKind::Remote(client, remote) => (client, remote),
        };
        if bytes.len() > wire::PAYLOAD_BYTES_MAX {
            return Err(send_error(node, port, bytes.len(), SendCause::TooLong, false));
        }
        let lost = lost(node, port, bytes.len());
        let remote = match remote {
            Some(remote) => remote,
            None => {
                let request = Request::OpenSender { node, port: port.0 };
                remote.insert(Remote::open(client, &request, &lost).await?)
            }
        };
        let request = Request::Publish(remote.id());
        client.ask_with(&request, &[bytes], None, lost).await.map(|answer: Answer<()>| answer.value)
    }

    /// Waits until all messages are in the port's queue. Fails as [`Sender::send`] does; the caller may flush again
    /// after an error.
    pub async fn flush(&mut self) -> Result<(), SendError> {
        let lost = lost(self.node, self.port, 0);
        match &mut self.kind {
            SenderKind::Local(sender) => sender.flush().await,
            SenderKind::Remote(client, Some(remote)) => client.ask(&Request::Flush(remote.id()), lost).await,
            SenderKind::Remote(_, None) => Ok(()),
        }
    }

    /// Publishes a message as [`Sender::send`] does, on a thread that drives the node while it waits.
    pub(crate) fn send_blocking(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        match &mut self.kind {
            SenderKind::Local(sender) => sender.send_blocking(bytes),
            SenderKind::Remote(client, _) => client.clone().block_on(self.send(bytes)),
        }
    }

    /// Waits as [`Sender::flush`] does, on a thread that drives the node while it waits.
    pub(crate) fn flush_blocking(&mut self) -> Result<(), SendError> {
        match &mut self.kind {
            SenderKind::Local(sender) => sender.flush_blocking(),
            SenderKind::Remote(client, _) => client.clone().block_on(self.flush()),
        }
    }
}

impl LocalSender {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        while self.is_full(bytes.len()) {
            self.settle_first().await?;
        }
        let sending = OutgoingMessage::of(&self.session, self.node, self.port, bytes);
        let request = sending.request(Kind::Publish, bytes, None);
        let posted = self.session.inner.driver.post_request(self.node, &request).await;
        let pending = posted.map_err(|failure| sending.failed(failure.into(), false))?;
        let posted = pending.into_open();
        self.record_posted(posted, bytes.len());
        Ok(())
    }

    fn record_posted(&mut self, posted: Option<Posted>, len: usize) {
        if let Some(posted) = posted {
            self.posted_messages.push_back(PostedMessage { posted, len });
            self.bytes += len;
        }
    }

    async fn flush(&mut self) -> Result<(), SendError> {
        while !self.posted_messages.is_empty() {
            self.settle_first().await?;
        }
        Ok(())
    }

    fn send_blocking(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        check_port(self.node, self.port, bytes)?;
        while self.is_full(bytes.len()) {
            self.settle_first_blocking()?;
        }
        let driver = &self.session.inner.driver;
        let sending = OutgoingMessage::of(&self.session, self.node, self.port, bytes);
        let Ok(pending) = driver.try_post_request(self.node, &sending.request(Kind::Publish, bytes, None))
        else {
            // There is no room now, or an error to report.
            let driver = driver.clone();
            return driver.block_on(self.send(bytes));
        };
        let posted = pending.into_open();
        self.record_posted(posted, bytes.len());
        Ok(())
    }

    fn flush_blocking(&mut self) -> Result<(), SendError> {
        while !self.posted_messages.is_empty() {
            self.settle_first_blocking()?;
        }
        Ok(())
    }

    fn is_full(&self, more: usize) -> bool {
        let count = self.posted_messages.len();
        count >= IN_PROGRESS_MAX || count > 0 && self.bytes + more > IN_PROGRESS_BYTES_MAX
    }

    /// Waits for the reply to the oldest message. If the future is dropped, the message stays in progress.
    async fn settle_first(&mut self) -> Result<(), SendError> {
        poll_fn(|context| {
            let Some(first) = self.posted_messages.pop_front() else { return Poll::Ready(Ok(())) };
            let mut pending = Pending::new(&self.session.inner.driver, first.posted);
            let Poll::Ready(state) = pending.poll(context) else {
                let posted = pending.into_open().expect("the message is in progress");
                self.posted_messages.push_front(PostedMessage { posted, ..first });
                return Poll::Pending;
            };
            let target = pending.target();
            let reply = (state == ReplyState::Replied).then(|| pending.take(ReplyBuffer::Slice(&mut [])));
            drop(pending);
            Poll::Ready(self.settle(first.len, target, reply))
        })
        .await
    }

    fn settle_first_blocking(&mut self) -> Result<(), SendError> {
        let Some(first) = self.posted_messages.pop_front() else { return Ok(()) };
        let mut pending = Pending::new(&self.session.inner.driver, first.posted);
        let target = pending.target();
        let reply = match pending.spin(ReplyBuffer::Slice(&mut [])) {
            SpinResult::Taken(reply) => Some(reply),
            SpinResult::Ended(_) => None,
            SpinResult::NoReply { has_spun } => {
                let posted = pending.into_open().expect("the message is in progress");
                self.posted_messages.push_front(PostedMessage { posted, ..first });
                let driver = self.session.inner.driver.clone();
                return driver.block_on_after(has_spun, self.settle_first());
            }
        };
        drop(pending);
        self.settle(first.len, target, reply)
    }

    /// Handles the reply to the oldest message, which had `len` bytes. `reply` is `None` if no reply will arrive.
    fn settle(&mut self, len: usize, from: Target, reply: Option<Reply>) -> Result<(), SendError> {
        self.bytes -= len;
        let sending = OutgoingMessage { session: &self.session, node: self.node, port: self.port, len };
        let reply = reply.ok_or_else(|| sending.lost())?;
        // Published messages get no grants.
        sending.handle_reply(from, reply).map(drop)
    }
}

impl Drop for LocalSender {
    fn drop(&mut self) {
        for PostedMessage { posted, .. } in self.posted_messages.drain(..) {
            drop(Pending::new(&self.session.inner.driver, posted));
        }
    }
}
