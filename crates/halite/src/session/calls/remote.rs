//! Calls of attached sessions, which the session's node executes.

use std::sync::Arc;
use std::time::Duration;

use halite_tier::access::Count;
use halite_tier::ids::NodeId;
use halite_tier::rpc::{self, PAYLOAD_BYTES_MAX};

use super::answer::Answer;
use super::{Function, OutgoingCall};
use crate::error::{CallCause, CallError, Gone};
use crate::rpc::ReplyBuffer;
use crate::session::Embedded;
use crate::session::attached::entry::{self, Kind, Status};
use crate::session::attached::wire::{self, Request};
use crate::session::attached::{self, Client, Pending, Unfinished, decoded};

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

/// Figures of calls that pass from one attached session to another.
impl Embedded {
    /// Counts a call of this session.
    pub(crate) fn count_called(&self, len: usize) {
        self.inner.driver.count_posted(rpc::Kind::Call, len as u64);
    }

    /// Counts a call that this session has received.
    pub(crate) fn count_received(&self, len: usize) {
        self.inner.path.count_one(Count::CallsReceived, Count::CallBytesReceived, len as u64);
    }

    /// Counts a call of this session that has failed.
    pub(crate) fn count_failed(&self) {
        self.inner.path.count(Count::CallFailures, 1);
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

    /// Calls on a thread, and puts the answer into `into`. A short call passes through shared memory as a line.
    pub(crate) fn run_blocking(&self, input: &[u8], mut into: ReplyBuffer<'_>) -> Result<usize, CallError> {
        let RemoteCall { client, node, function: Function(function), answer_bytes_max, timeout } = *self;
        let output_max = answer_bytes_max.unwrap_or(u32::MAX);
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let words = entry::call_words(node.0, function, input.len(), output_max, timeout_ns);
        let failed = |cause| CallError { node, function, cause, may_have_run: true };
        let mut put = |output: &[u8]| match into.prepare(output.len()) {
            Ok(place) => {
                place.copy_from_slice(output);
                Ok(output.len())
            }
            Err(_) => {
                let (len, max) = (output.len() as u64, u64::from(output_max));
                Err(failed(CallCause::ReplyTooLong { len, max }))
            }
        };
        let take = |status, output: &[u8]| (status == Status::Value).then(|| put(output));
        let body = match client.exchange(Kind::Call, words, input, take) {
            Ok(put) => return put,
            Err(Unfinished::NotSent) => return self.post(input)?.answer_blocking(into),
            Err(Unfinished::Sent(pending)) => client.block_on_after_spin(pending),
            Err(Unfinished::Ended(body)) => body,
        };
        let lost =
            |gone: Gone| CallError { node, function, cause: gone.into(), may_have_run: gone.maybe_done() };
        let answer: attached::Answer<()> = decoded(client.node(), body, lost)?;
        put(answer.data())
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
