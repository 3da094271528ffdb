//! Calls of attached sessions, which the session's node executes.

use std::sync::Arc;
use std::time::Duration;

use halite_tier::ids::NodeId;
use halite_tier::rpc::PAYLOAD_BYTES_MAX;

use super::answer::Answer;
use super::{Function, OutgoingCall};
use crate::error::{CallCause, CallError, Gone};
use crate::rpc::ReplyBuffer;
use crate::session::Embedded;
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{self, Client, Pending, decoded};

/// A call to send.
#[derive(Clone)]
pub(crate) struct RemoteCall<'c> {
    client: &'c Arc<Client>,
    node: NodeId,
    function: Function,
    /// Maximum length of the answer; `None` for any length.
    answer_bytes_max: Option<u32>,
    timeout: Duration,
}

impl Embedded {
    /// Calls a function for an attached session, as [`Session::call`](crate::Session::call) does. The answer has at most
    /// `answer_bytes_max` bytes.
    pub(crate) async fn call_for_client(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let mut output = Vec::new();
        let calling = OutgoingCall::new(self, node, function, timeout).bounded(answer_bytes_max);
        calling.run(input, ReplyBuffer::Vec(&mut output)).await?;
        Ok(output)
    }
}

/// A call that was sent.
pub(super) struct RemoteAnswer {
    client: Arc<Client>,
    node: NodeId,
    function: Function,
    pending: Pending,
}

impl<'c> RemoteCall<'c> {
    pub(crate) fn new(
        client: &'c Arc<Client>,
        node: NodeId,
        function: Function,
        timeout: Duration,
    ) -> RemoteCall<'c> {
        RemoteCall { client, node, function, answer_bytes_max: None, timeout }
    }

    pub(crate) fn limited(self, len: usize) -> RemoteCall<'c> {
        RemoteCall { answer_bytes_max: Some(len.min(PAYLOAD_BYTES_MAX as usize) as u32), ..self }
    }

    pub(super) fn post(&self, input: &[u8]) -> Result<RemoteAnswer, CallError> {
        let RemoteCall { client, node, function, answer_bytes_max, timeout } = *self;
        let failed = |cause| CallError { node, function: function.0, cause, may_have_run: false };
        match input.len() {
            len if len as u64 > PAYLOAD_BYTES_MAX => {
                return Err(failed(CallCause::InputTooLong { len: len as u64 }));
            }
            len if len > wire::PAYLOAD_BYTES_MAX => return Err(failed(CallCause::NoMemory)),
            _ => {}
        }
        let request = Request::Call { node, function: function.0, answer_bytes_max, timeout };
        let pending = client.post(&request, &[input]).map_err(|gone| failed(gone.into()))?;
        Ok(RemoteAnswer { client: client.clone(), node, function, pending })
    }
}

impl RemoteAnswer {
    pub(super) fn target(&self) -> (NodeId, u32) {
        (self.node, self.function.0)
    }

    pub(super) async fn answer(self) -> Result<Vec<u8>, CallError> {
        self.wait().await.map(attached::Answer::into_data)
    }

    pub(super) async fn answer_into(self, output: &mut [u8]) -> Result<usize, CallError> {
        let (node, function) = self.target();
        let answer = self.wait().await?;
        let (len, max) = (answer.data().len(), output.len());
        if len > max {
            let cause = CallCause::ReplyTooLong { len: len as u64, max: max as u64 };
            return Err(CallError { node, function, cause, may_have_run: true });
        }
        output[..len].copy_from_slice(answer.data());
        Ok(len)
    }

    pub(super) fn answer_blocking(self, into: ReplyBuffer<'_>) -> Result<usize, CallError> {
        let client = self.client.clone();
        match into {
            ReplyBuffer::Vec(output) => {
                *output = client.block_on(self.answer())?;
                Ok(output.len())
            }
            ReplyBuffer::Slice(output) => client.block_on(self.answer_into(output)),
            ReplyBuffer::Lent(_) => unreachable!("answers of attached sessions are lent by `lend_blocking`"),
        }
    }

    pub(super) fn lend_blocking(self) -> Result<Answer, CallError> {
        let client = self.client.clone();
        client.block_on(self.answer()).map(Answer::fetched)
    }

    async fn wait(self) -> Result<attached::Answer<()>, CallError> {
        let RemoteAnswer { node, function: Function(function), pending, client } = self;
        let lost =
            |gone: Gone| CallError { node, function, cause: gone.into(), may_have_run: gone.maybe_done() };
        decoded(client.node(), pending.await, lost)
    }
}
