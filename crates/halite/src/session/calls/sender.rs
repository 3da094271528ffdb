//! Messages to one port whose sender goes on while they are on their way.
//!
//! ```text
//!   sender ── message, message, ... ──► port's queue ──► receiver
//!     ◄── one answer each, when it is in the queue; looked at when as many are under way as may be
//! ```
//!
//! A port that is full keeps what comes in the order in which it came, so that nothing is sent again, nor overtaken.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

use halite_tier::ids::NodeId;
use halite_tier::rpc::{Kind, ReplyState, Target};

use super::port::{Port, Sending, check_port};
use crate::driver::requests::{Pending, Spun};
use crate::error::SendError;
use crate::rpc::{Into, Posted, Reply};
use crate::session::Session;

/// How many messages of a sender are under way at most.
const UNDER_WAY_MAX: usize = 64;
/// How many bytes these have at most; a single one may be longer.
const UNDER_WAY_BYTES_MAX: usize = 256 << 10;

/// Sends messages to a port without waiting for each of them.  They are received in their order.
///
/// At most 64 messages, of 256 KiB in all, are under way; the next one waits until the first is in the port's queue.  So a slow
/// receiver pushes back.
pub struct Sender {
    session: Session,
    node: NodeId,
    port: Port,
    under_way: VecDeque<UnderWay>,
    bytes: usize,
}

/// A message that is not known to be in the port's queue.
struct UnderWay {
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
    /// Messages to a port whose sender goes on while they are on their way.
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
        Sender { session: self.clone(), node, port, under_way: VecDeque::new(), bytes: 0 }
    }
}

impl Sender {
    /// Publishes a message: returns when it is on its way, and will be received unless one of the two nodes, the port or this sender ends
    /// before.
    ///
    /// An error may be that of an earlier message, as its length tells; the message of this call is not sent then.  A sender may be used
    /// after an error: what was published after the message that failed, before the error was told, may be received.
    /// [`SendCause::WouldBlock`](crate::SendCause::WouldBlock) says that the port is full, and that too much of this node waits for
    /// it already: 4,096 messages, or 4 MiB.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        check_port(self.node, self.port, bytes)?;
        while self.is_full(bytes.len()) {
            self.settle_first().await?;
        }
        let sending = Sending::of(&self.session, self.node, self.port, bytes);
        let request = sending.request(Kind::Publish, bytes, None);
        let posted = self.session.inner.driver.post_request(self.node, &request).await;
        let pending = posted.map_err(|failure| sending.failed(failure.into(), false))?;
        let posted = pending.into_open();
        self.note_posted(posted, bytes.len());
        Ok(())
    }

    fn note_posted(&mut self, posted: Option<Posted>, len: usize) {
        if let Some(posted) = posted {
            self.under_way.push_back(UnderWay { posted, len });
            self.bytes += len;
        }
    }

    /// Waits until all messages are in the port's queue.  Errors are as those of [`Sender::send`]; it can be called again after one.
    pub async fn flush(&mut self) -> Result<(), SendError> {
        while !self.under_way.is_empty() {
            self.settle_first().await?;
        }
        Ok(())
    }

    /// As [`Sender::send`], on a thread that helps to move the node forward.
    pub(crate) fn send_blocking(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        check_port(self.node, self.port, bytes)?;
        while self.is_full(bytes.len()) {
            self.settle_first_blocking()?;
        }
        let driver = &self.session.inner.driver;
        let sending = Sending::of(&self.session, self.node, self.port, bytes);
        let Ok(pending) = driver.try_post_request(self.node, &sending.request(Kind::Publish, bytes, None))
        else {
            // There is no room now, or there is something to be said.
            let driver = driver.clone();
            return driver.block_on(self.send(bytes));
        };
        let posted = pending.into_open();
        self.note_posted(posted, bytes.len());
        Ok(())
    }

    /// As [`Sender::flush`], on such a thread.
    pub(crate) fn flush_blocking(&mut self) -> Result<(), SendError> {
        while !self.under_way.is_empty() {
            self.settle_first_blocking()?;
        }
        Ok(())
    }

    fn is_full(&self, more: usize) -> bool {
        let count = self.under_way.len();
        count >= UNDER_WAY_MAX || count > 0 && self.bytes + more > UNDER_WAY_BYTES_MAX
    }

    /// Waits for what has become of the first message.  A future that is dropped leaves it as it is.
    async fn settle_first(&mut self) -> Result<(), SendError> {
        poll_fn(|context| {
            let Some(first) = self.under_way.pop_front() else { return Poll::Ready(Ok(())) };
            let mut pending = Pending::new(&self.session.inner.driver, first.posted);
            let Poll::Ready(state) = pending.poll(context) else {
                let posted = pending.into_open().expect("it is under way");
                self.under_way.push_front(UnderWay { posted, ..first });
                return Poll::Pending;
            };
            let target = pending.target();
            let reply = (state == ReplyState::Replied).then(|| pending.take(Into::Slice(&mut [])));
            drop(pending);
            Poll::Ready(self.settle(first.len, target, reply))
        })
        .await
    }

    fn settle_first_blocking(&mut self) -> Result<(), SendError> {
        let Some(first) = self.under_way.pop_front() else { return Ok(()) };
        let mut pending = Pending::new(&self.session.inner.driver, first.posted);
        let target = pending.target();
        let reply = match pending.spin(Into::Slice(&mut [])) {
            Spun::Taken(reply) => Some(reply),
            Spun::Ended(_) => None,
            Spun::InVain { has_spun } => {
                let posted = pending.into_open().expect("it is under way");
                self.under_way.push_front(UnderWay { posted, ..first });
                let driver = self.session.inner.driver.clone();
                return driver.block_on_after(has_spun, self.settle_first());
            }
        };
        drop(pending);
        self.settle(first.len, target, reply)
    }

    /// What was the first message, of `len` bytes, is in the queue, or has failed: without a reply there will be none.
    fn settle(&mut self, len: usize, from: Target, reply: Option<Reply>) -> Result<(), SendError> {
        self.bytes -= len;
        let sending = Sending { session: &self.session, node: self.node, port: self.port, len };
        let reply = reply.ok_or_else(|| sending.lost())?;
        // Nobody is told to send again what was published.
        sending.heard(from, reply).map(drop)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        for UnderWay { posted, .. } in self.under_way.drain(..) {
            drop(Pending::new(&self.session.inner.driver, posted));
        }
    }
}
