//! Objects that the node keeps for an attached session: servers, ports, watches, senders and calls.
//!
//! If the future of a receive is dropped, its item may already be on the way. The next receive returns that item, in
//! order.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use serde::de::DeserializeOwned;

use super::wire::{self, Request};
use super::{Answer, Client, Pending, Undo, decoded};
use crate::error::Gone;

/// An object that the node keeps for this session. Dropping this value ends the object.
pub(crate) struct Remote {
    client: Arc<Client>,
    id: u64,
    left: Arc<Mutex<Left>>,
}

/// Replies to receives whose futures were dropped, and the wakers of the receives that wait.
#[derive(Default)]
struct Left {
    replies: VecDeque<Vec<u8>>,
    waiting: Vec<Waker>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Remote {
    pub(crate) fn new(client: &Arc<Client>, id: u64) -> Remote {
        Remote { client: client.clone(), id, left: Arc::default() }
    }

    /// Opens an object with a request whose result is the object's id.
    pub(crate) async fn open<E: DeserializeOwned>(
        client: &Arc<Client>,
        request: &Request<'_>,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<Remote, E> {
        // If the object is opened after the future was dropped, it is ended.
        let undo: Undo = Box::new(|reply| match wire::decode::<(u8, u64)>(reply)? {
            // The first byte shows that the result is a value.
            ((0, id), _) => Some(wire::message(0, &Request::End(id), &[])),
            _ => None,
        });
        let opened: Answer<u64> = client.ask_with(request, &[], Some(undo), lost).await?;
        Ok(Remote::new(client, opened.value))
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Receives an item. If the future is dropped, the item stays for the next receive.
    pub(crate) async fn recv<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        request: &Request<'_>,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<Answer<T>, E> {
        if let Some(reply) = self.left().replies.pop_front() {
            return decoded(self.client.node(), Ok(reply), lost);
        }
        match self.client.post_request(request, &[], None) {
            Ok(pending) => self.recv_of(pending, lost).await,
            Err(gone) => Err(lost(gone)),
        }
    }

    /// Receives an item by a request that was sent, as [`Remote::recv`] does.
    pub(crate) async fn recv_of<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        pending: Pending,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<Answer<T>, E> {
        let left = self.left.clone();
        let undo: Undo = Box::new(move |reply| {
            if is_value(reply) {
                let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                left.replies.push_back(reply.to_vec());
                let waiting = std::mem::take(&mut left.waiting);
                drop(left);
                waiting.into_iter().for_each(Waker::wake);
            }
            None
        });
        let mut pending = pin!(pending.with_undo(undo));
        let reply = poll_fn(|context| {
            let own = pending.as_mut().poll(context);
            let mut left = self.left();
            match (own, left.replies.pop_front()) {
                (Poll::Pending, None) => {
                    left.waiting.push(context.waker().clone());
                    Poll::Pending
                }
                (Poll::Ready(Ok(own)), Some(earlier)) if is_value(&own) => {
                    left.replies.push_back(own);
                    Poll::Ready(Ok(earlier))
                }
                // If an item arrives for this request, the next receive returns it.
                (_, Some(earlier)) => Poll::Ready(Ok(earlier)),
                (Poll::Ready(own), None) => Poll::Ready(own),
            }
        });
        decoded(self.client.node(), reply.await, lost)
    }

    /// Returns true if an item of a dropped receive waits for the next receive.
    pub(crate) fn has_left(&self) -> bool {
        !self.left().replies.is_empty()
    }

    /// Receives an item if there is one.
    pub(crate) fn try_recv<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        request: &Request<'_>,
        lost: impl FnOnce(Gone) -> E,
    ) -> Result<Option<Answer<T>>, E> {
        if let Some(reply) = self.left().replies.pop_front() {
            return decoded(self.client.node(), Ok(reply), lost).map(Some);
        }
        let asked = self.client.ask_with::<Option<T>, E>(request, &[], None, lost);
        let Answer { value, bytes, data_at } = self.client.block_on(asked)?;
        Ok(value.map(|value| Answer { value, bytes, data_at }))
    }

    /// Takes the items of dropped receives that no later receive has returned.
    pub(crate) fn take_left(&self) -> VecDeque<Vec<u8>> {
        std::mem::take(&mut self.left().replies)
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the result in a reply is a value, not an error.
fn is_value(reply: &[u8]) -> bool {
    reply.first() == Some(&0)
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.client.tell(&Request::End(self.id));
    }
}
