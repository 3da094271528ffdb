//! Functions and ports that a node serves for its attached sessions.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use halite_tier::ids::NodeId;
use serde::{Deserialize, Serialize};

use super::port::Message;
use super::server::{Function, serve_error};
use crate::error::{Gone, ReplyCause, ReplyError, ServeError};
use crate::rpc::ServiceId;
use crate::session::attached::entry::{CALL_BYTES_MAX, INLINE_BYTES_MAX, Kind, NO_SERVER, Status};
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{Answer, Client, Remote, Unfinished, decoded};

/// A call that the node has received for an attached session. Its input follows as data.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    /// The id of the call among the node's objects.
    pub(crate) call: u64,
    pub(crate) caller: String,
    pub(crate) node: NodeId,
    pub(crate) len: u32,
}

/// A function that the node of an attached session serves.
pub(super) struct RemoteServer {
    remote: Remote,
    id: ServiceId,
    /// Received calls that exceed the number which the receive requested.
    ready: Mutex<VecDeque<RemoteIncoming>>,
}

/// A call that the node of an attached session has received. Dropping it fails the call at its caller.
pub(super) struct RemoteIncoming {
    client: Arc<Client>,
    /// The node's id of the call; `None` once it is answered.
    call: Option<u64>,
    node: NodeId,
    content: Content,
}

/// The name of a caller, and the input of its call.
enum Content {
    /// The name and then the input, which a line contained. Most calls are short, and an allocation for each would be a
    /// good part of their time.
    Short {
        bytes: [u8; INLINE_BYTES_MAX],
        caller_len: usize,
        len: usize,
    },
    Long {
        caller: String,
        input: Vec<u8>,
    },
}

impl fmt::Debug for RemoteServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl RemoteServer {
    pub(super) async fn open(
        client: &Arc<Client>,
        request: &Request<'_>,
        id: ServiceId,
    ) -> Result<RemoteServer, ServeError> {
        let remote = Remote::open(client, request, |gone| serve_error(id, gone.into())).await?;
        Ok(RemoteServer { remote, id, ready: Mutex::default() })
    }

    /// Wraps an object of the node that serves a name.
    pub(super) fn named(remote: Remote, function: Function) -> RemoteServer {
        RemoteServer { remote, id: ServiceId::Function(function.0), ready: Mutex::default() }
    }

    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.remote.client().block_on(future)
    }

    /// Receives on a thread. The call, if it is short, arrives through shared memory as a line.
    pub(super) fn recv_blocking(&self) -> Result<RemoteIncoming, ServeError> {
        match self.has_ready() {
            true => self.block_on(self.recv()),
            false => self.receive(Kind::Receive, [self.remote.id(), 0, 0], &[]),
        }
    }

    /// Answers one call, then receives the next one on a thread.
    pub(super) fn reply_and_recv_blocking(
        &self,
        mut call: RemoteIncoming,
        output: &[u8],
    ) -> Result<RemoteIncoming, ServeError> {
        if output.len() > CALL_BYTES_MAX
            || self.has_ready()
            || !Arc::ptr_eq(self.remote.client(), &call.client)
        {
            call.reply_later(output);
            return self.recv_blocking();
        }
        let id = call.call.take().expect("a call is answered once");
        self.receive(Kind::Answer, [id, self.remote.id(), output.len() as u64], output)
    }

    fn receive(&self, kind: Kind, words: [u64; 3], output: &[u8]) -> Result<RemoteIncoming, ServeError> {
        let client = self.remote.client();
        let take = |_, body: &[u8]| RemoteIncoming::single(client, body);
        let pending = match client.exchange(kind, words, output, take) {
            Ok(call) => return Ok(call),
            Err(Unfinished::NotSent) => {
                if kind == Kind::Answer {
                    client.tell_with(&Request::Reply(words[0]), &[output]);
                }
                return self.block_on(self.recv());
            }
            Err(Unfinished::Sent(pending)) => pending,
            Err(Unfinished::Ended(body)) => {
                return self.first_of(decoded(client.node(), body, |gone| self.lost(gone))?);
            }
        };
        let received = self.remote.recv_of(pending, |gone| self.lost(gone));
        self.first_of(client.block_on_after_spin(received)?)
    }

    fn first_of(&self, received: Answer<Vec<Received>>) -> Result<RemoteIncoming, ServeError> {
        Ok(self.split(received, 1)?.pop().expect("a receive ends with a call"))
    }

    /// Returns true if calls of earlier receives wait for the next receive.
    fn has_ready(&self) -> bool {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        !ready.is_empty() || self.remote.has_left()
    }

    pub(super) async fn recv(&self) -> Result<RemoteIncoming, ServeError> {
        Ok(self.recv_many(1).await?.pop().expect("a receive ends with a call"))
    }

    pub(super) async fn recv_many(&self, max: usize) -> Result<Vec<RemoteIncoming>, ServeError> {
        let max = max.max(1);
        let ready = self.take_ready(max);
        if !ready.is_empty() {
            return Ok(ready);
        }
        let request = Request::RecvCalls { server: self.remote.id(), max: max as u64 };
        let received = self.remote.recv(&request, |gone| self.lost(gone)).await?;
        self.split(received, max)
    }

    pub(super) fn try_recv(&self) -> Result<Option<RemoteIncoming>, ServeError> {
        if let Some(ready) = self.take_ready(1).pop() {
            return Ok(Some(ready));
        }
        let request = Request::TryRecvCall(self.remote.id());
        if let Some(received) = self.remote.try_recv(&request, |gone| self.lost(gone))? {
            return Ok(self.split(received, 1)?.pop());
        }
        Ok(None)
    }

    pub(super) fn close(&self) {
        let request = Request::Close(self.remote.id());
        // A node that is gone serves nothing.
        let _: Result<(), ServeError> =
            self.block_on(self.remote.client().ask(&request, |gone| self.lost(gone)));
    }

    fn take_ready(&self, max: usize) -> Vec<RemoteIncoming> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let count = max.min(ready.len());
        ready.drain(..count).collect()
    }

    /// Returns the first `max` of the received calls. Keeps the others, which another receive requested, for later
    /// receives.
    fn split(&self, received: Answer<Vec<Received>>, max: usize) -> Result<Vec<RemoteIncoming>, ServeError> {
        let mut data = received.data();
        let mut calls = VecDeque::new();
        for Received { call, caller, node, len } in &received.value {
            let Some((input, rest)) = data.split_at_checked(*len as usize) else {
                return Err(self.lost(Gone::Lost(self.remote.client().node())));
            };
            data = rest;
            calls.push_back(RemoteIncoming {
                client: self.remote.client().clone(),
                call: Some(*call),
                node: *node,
                content: Content::new(caller, input),
            });
        }
        let first = calls.drain(..max.min(calls.len())).collect();
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).append(&mut calls);
        Ok(first)
    }

    fn lost(&self, gone: Gone) -> ServeError {
        serve_error(self.id, gone.into())
    }
}

impl Drop for RemoteServer {
    fn drop(&mut self) {
        // When this returns, the function has no server.
        self.close();
        // Calls that no receive returned fail at their callers.
        for left in self.remote.take_left() {
            if let Ok(received) = decoded(self.remote.client().node(), Ok(left), |gone| self.lost(gone)) {
                drop(self.split(received, usize::MAX));
            }
        }
    }
}

impl Content {
    fn new(caller: &str, input: &[u8]) -> Content {
        let (caller_len, len) = (caller.len(), caller.len() + input.len());
        if len > INLINE_BYTES_MAX {
            return Content::Long { caller: caller.to_owned(), input: input.to_vec() };
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..caller_len].copy_from_slice(caller.as_bytes());
        bytes[caller_len..len].copy_from_slice(input);
        Content::Short { bytes, caller_len, len }
    }
}

impl RemoteIncoming {
    /// Decodes the reply to a receive if it contains exactly one call, without a list.
    fn single(client: &Arc<Client>, body: &[u8]) -> Option<RemoteIncoming> {
        // A result that is a list of one call: two bytes, and the fields of `Received`.
        let ((0, 1, call, caller, node, _), input) = wire::decode::<(u8, u8, u64, &str, NodeId, u32)>(body)?
        else {
            return None;
        };
        let content = Content::new(caller, input);
        Some(RemoteIncoming { client: client.clone(), call: Some(call), node, content })
    }

    pub(super) fn input(&self) -> &[u8] {
        match &self.content {
            Content::Short { bytes, caller_len, len } => &bytes[*caller_len..*len],
            Content::Long { input, .. } => input,
        }
    }

    pub(super) fn caller(&self) -> &str {
        match &self.content {
            Content::Short { bytes, caller_len, .. } => {
                str::from_utf8(&bytes[..*caller_len]).expect("these are the bytes of a name")
            }
            Content::Long { caller, .. } => caller,
        }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    pub(super) fn is_wanted(&self) -> bool {
        let Some(call) = self.call else { return false };
        let request = Request::IsWanted(call);
        let asked = self.client.ask(&request, |gone| self.failed(0, gone.into()));
        self.client.block_on(asked).unwrap_or(false)
    }

    pub(super) fn reply(mut self, output: &[u8]) -> Result<(), ReplyError> {
        let call = self.call.take().expect("a call is answered once");
        if output.len() > wire::PAYLOAD_BYTES_MAX {
            self.client.tell(&Request::End(call));
            return Err(self.failed(output.len(), ReplyCause::NoMemory));
        }
        let lost = |gone: Gone| self.failed(output.len(), gone.into());
        let words = [call, NO_SERVER, output.len() as u64];
        let take = |status, _: &[u8]| (status == Status::Value).then_some(());
        let body = match self.client.exchange(Kind::Answer, words, output, take) {
            Ok(()) => return Ok(()),
            Err(Unfinished::NotSent) => {
                let (request, data) = (Request::Reply(call), [output]);
                let asked = self.client.ask_with(&request, &data, None, lost);
                return self.client.block_on(asked).map(|answer: Answer<()>| answer.value);
            }
            Err(Unfinished::Sent(pending)) => self.client.block_on_after_spin(pending),
            Err(Unfinished::Ended(body)) => body,
        };
        decoded(self.client.node(), body, lost).map(|answer: Answer<()>| answer.value)
    }

    pub(super) fn reply_later(mut self, output: &[u8]) {
        let call = self.call.take().expect("a call is answered once");
        match output.len() > wire::PAYLOAD_BYTES_MAX {
            true => self.client.tell(&Request::End(call)),
            false => self.client.tell_with(&Request::Reply(call), &[output]),
        }
    }

    fn failed(&self, len: usize, cause: ReplyCause) -> ReplyError {
        ReplyError { node: self.node, len: len as u64, cause }
    }
}

impl Drop for RemoteIncoming {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.client.tell(&Request::End(call));
        }
    }
}

/// A port that the node of an attached session has opened.
#[derive(Debug)]
pub(super) struct RemoteMailbox {
    remote: Remote,
    port: u32,
}

impl RemoteMailbox {
    pub(super) async fn open(
        client: &Arc<Client>,
        request: &Request<'_>,
        port: u32,
    ) -> Result<RemoteMailbox, ServeError> {
        let lost = |gone: Gone| serve_error(ServiceId::Port(port), gone.into());
        Ok(RemoteMailbox { remote: Remote::open(client, request, lost).await?, port })
    }

    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.remote.client().block_on(future)
    }

    pub(super) async fn recv(&self) -> Result<Message, ServeError> {
        let request = Request::RecvMessage(self.remote.id());
        self.remote.recv(&request, |gone| self.lost(gone)).await.map(message)
    }

    pub(super) fn try_recv(&self) -> Result<Option<Message>, ServeError> {
        let request = Request::TryRecvMessage(self.remote.id());
        Ok(self.remote.try_recv(&request, |gone| self.lost(gone))?.map(message))
    }

    pub(super) fn close(&self) {
        let request = Request::Close(self.remote.id());
        let _: Result<(), ServeError> =
            self.block_on(self.remote.client().ask(&request, |gone| self.lost(gone)));
    }

    fn lost(&self, gone: Gone) -> ServeError {
        serve_error(ServiceId::Port(self.port), gone.into())
    }
}

impl Drop for RemoteMailbox {
    fn drop(&mut self) {
        // When this returns, the port is closed.
        self.close();
    }
}

fn message(mut answer: Answer<(String, NodeId)>) -> Message {
    let (from, node) = std::mem::replace(&mut answer.value, (String::new(), NodeId::FIRST));
    Message { from, node, bytes: answer.into_data() }
}
