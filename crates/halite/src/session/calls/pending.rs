//! Posted calls, whose answers the caller takes later.
//!
//! A blocking caller borrows its session and touches no reference count. A [`PendingCall`] owns a reference to its
//! session, so that it can be moved to another thread or stored without a lifetime.

use std::fmt;

use super::answer::Answer;
use super::call::{CallParameters, OutgoingCall};
use crate::driver::requests::Pending;
use crate::error::CallError;
use crate::rpc::{self, LentReply, ReplyBuffer};
use crate::session::Embedded;
use crate::session::calls::remote::RemoteAnswer;

/// A posted call. Dropping it cancels the call. Like a clone of the session, it keeps the session open.
pub struct PendingCall {
    call: Posted,
}

enum Posted {
    Local(LocalCall),
    /// The node of an attached session executes the call.
    Remote(RemoteAnswer),
}

struct LocalCall {
    parameters: CallParameters,
    request: OwnedRequest,
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, function) = match &self.call {
            Posted::Local(call) => (call.parameters.node, call.parameters.number),
            Posted::Remote(call) => call.target(),
        };
        f.debug_struct("PendingCall").field("node", &node).field("function", &function).finish()
    }
}

impl PendingCall {
    #[inline]
    pub(super) fn new(parameters: CallParameters, request: OwnedRequest) -> PendingCall {
        PendingCall { call: Posted::Local(LocalCall { parameters, request }) }
    }

    pub(super) fn remote(call: RemoteAnswer) -> PendingCall {
        PendingCall { call: Posted::Remote(call) }
    }
}

impl LocalCall {
    /// Returns the call and its request. From now on, dropping the returned request cancels the call.
    #[inline]
    fn resume(&mut self) -> (OutgoingCall<'_>, Pending<'_>) {
        let session = &self.request.session;
        let posted = self.request.posted.take().expect("a call is resumed once");
        (OutgoingCall { session, parameters: self.parameters }, Pending::new(&session.inner.driver, posted))
    }
}

impl PendingCall {
    /// Waits for the answer and returns it.
    pub async fn answer(self) -> Result<Vec<u8>, CallError> {
        let mut call = match self.call {
            Posted::Local(call) => call,
            Posted::Remote(call) => return call.answer().await,
        };
        let mut output = Vec::new();
        let (calling, mut pending) = call.resume();
        calling.finish(&mut pending, ReplyBuffer::Vec(&mut output)).await?;
        Ok(output)
    }

    /// Waits for the answer and copies it into `output`. Returns the answer's length in bytes. Fails if `output` is
    /// shorter than the answer; the answer is then lost, and the error contains its length.
    pub async fn answer_into(self, output: &mut [u8]) -> Result<usize, CallError> {
        let mut call = match self.call {
            Posted::Local(call) => call,
            Posted::Remote(call) => return call.answer_into(output).await,
        };
        let (calling, mut pending) = call.resume();
        calling.finish(&mut pending, ReplyBuffer::Slice(output)).await
    }

    /// Waits for the answer and lends it in place, without a copy. An answer of more than 64 MiB is first read from the
    /// server's memory.
    ///
    /// ```
    /// # use halite::{Config, Function, Node, NodeId, ServeOptions};
    /// # use std::time::Duration;
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-lend-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// # let session = node.blocking_session();
    /// # let server = session.serve(Function(7), ServeOptions::default())?;
    /// let pending = session.post_call(NodeId(0), Function(7), b"", 1 << 20, Duration::from_secs(10))?;
    /// server.recv()?.reply(&[7; 1 << 20])?;
    /// let answer = pending.lend_answer()?;
    /// let mut end = [0; 4];
    /// assert_eq!(answer.copy_to((1 << 20) - 4, &mut end), 4);
    /// assert_eq!(end, [7; 4]);
    /// # drop((answer, server));
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn lend_answer(self) -> Result<Answer, CallError> {
        let mut call = match self.call {
            Posted::Local(call) => call,
            Posted::Remote(call) => return call.answer().await.map(Answer::fetched),
        };
        let mut lent = LentReply::default();
        let (calling, mut pending) = call.resume();
        calling.finish(&mut pending, ReplyBuffer::Lent(&mut lent)).await?;
        call.request.posted = pending.into_open();
        Ok(Answer::new(lent, call.request))
    }

    #[inline]
    pub(crate) fn answer_blocking(self, into: ReplyBuffer<'_>) -> Result<usize, CallError> {
        let mut call = match self.call {
            Posted::Local(call) => call,
            Posted::Remote(call) => return call.answer_blocking(into),
        };
        let (mut calling, mut pending) = call.resume();
        calling.wait_blocking(&mut pending, into)
    }

    pub(crate) fn lend_answer_blocking(self) -> Result<Answer, CallError> {
        let mut call = match self.call {
            Posted::Local(call) => call,
            Posted::Remote(call) => return call.lend_blocking(),
        };
        let mut lent = LentReply::default();
        let (mut calling, mut pending) = call.resume();
        calling.wait_blocking(&mut pending, ReplyBuffer::Lent(&mut lent))?;
        call.request.posted = pending.into_open();
        Ok(Answer::new(lent, call.request))
    }
}

/// A posted request and its session. Dropping it frees the slot, and cancels an unanswered request.
pub(super) struct OwnedRequest {
    session: Embedded,
    /// The request; `None` while a [`Pending`] owns it.
    posted: Option<rpc::Posted>,
}

impl OwnedRequest {
    #[inline]
    pub(super) fn new(session: &Embedded, pending: Pending<'_>) -> OwnedRequest {
        OwnedRequest { session: session.clone(), posted: pending.into_open() }
    }

    pub(super) fn is_forked(&self) -> bool {
        self.session.inner.driver.is_forked()
    }
}

impl Drop for OwnedRequest {
    fn drop(&mut self) {
        if let Some(posted) = self.posted.take() {
            drop(Pending::new(&self.session.inner.driver, posted));
        }
    }
}
