//! Calls that have been posted, and are kept until somebody wants their answers.
//!
//! Who waits where the call was made borrows its session, and touches no reference count; who keeps a call owns a part of the
//! session, so that it can be given to another thread, or stored by those who know no lifetimes.

use std::fmt;

use super::answer::Answer;
use super::call::{Calling, Terms};
use crate::driver::requests::Pending;
use crate::error::CallError;
use crate::rpc::{Into, Lent, Posted};
use crate::session::Session;

/// A call that has been posted.  Dropped, it is cancelled.  It keeps its session open, as a clone of that does.
pub struct PendingCall {
    terms: Terms,
    kept: Kept,
}

impl fmt::Debug for PendingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, function) = (self.terms.node, self.terms.number);
        f.debug_struct("PendingCall").field("node", &node).field("function", &function).finish()
    }
}

impl PendingCall {
    #[inline]
    pub(super) fn new(terms: Terms, kept: Kept) -> PendingCall {
        PendingCall { terms, kept }
    }

    /// The call as it was when it was posted.  From here on what is returned cancels it.
    #[inline]
    fn resume(&mut self) -> (Calling<'_>, Pending<'_>) {
        let session = &self.kept.session;
        let posted = self.kept.posted.take().expect("a call is resumed once");
        (Calling { session, terms: self.terms }, Pending::new(&session.inner.driver, posted))
    }

    /// Waits for the answer.
    pub async fn answer(mut self) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        let (calling, mut pending) = self.resume();
        calling.finish(&mut pending, Into::Vec(&mut output)).await?;
        Ok(output)
    }

    /// As [`PendingCall::answer`], into a buffer of the caller's.  Returns how many bytes it has; one that is longer than the
    /// buffer is lost, and the error says how long it was.
    pub async fn answer_into(mut self, output: &mut [u8]) -> Result<usize, CallError> {
        let (calling, mut pending) = self.resume();
        calling.finish(&mut pending, Into::Slice(output)).await
    }

    /// As [`PendingCall::answer`], without a copy: lends the answer where it has arrived.  One of more than 64 MiB is fetched.
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
    pub async fn lend_answer(mut self) -> Result<Answer, CallError> {
        let mut lent = Lent::default();
        let (calling, mut pending) = self.resume();
        calling.finish(&mut pending, Into::Lent(&mut lent)).await?;
        self.kept.posted = pending.into_open();
        Ok(Answer::new(lent, self.kept))
    }

    #[inline]
    pub(crate) fn answer_blocking(mut self, into: Into<'_>) -> Result<usize, CallError> {
        let (mut calling, mut pending) = self.resume();
        calling.wait_blocking(&mut pending, into)
    }

    pub(crate) fn lend_answer_blocking(mut self) -> Result<Answer, CallError> {
        let mut lent = Lent::default();
        let (mut calling, mut pending) = self.resume();
        calling.wait_blocking(&mut pending, Into::Lent(&mut lent))?;
        self.kept.posted = pending.into_open();
        Ok(Answer::new(lent, self.kept))
    }
}

/// A posted request together with the session that it is of.  Dropped, it gives its slot back, and cancels the request if that
/// has not been answered.
pub(super) struct Kept {
    session: Session,
    /// Unless somebody else sees to it.
    posted: Option<Posted>,
}

impl Kept {
    #[inline]
    pub(super) fn new(session: &Session, pending: Pending<'_>) -> Kept {
        Kept { session: session.clone(), posted: pending.into_open() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(posted) = self.posted.take() {
            drop(Pending::new(&self.session.inner.driver, posted));
        }
    }
}
