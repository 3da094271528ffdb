//! The caller's side of calls.

use std::time::Duration;

use halite_fabric::RemoteAddress;
use halite_tier::access::Count;
use halite_tier::ids::NodeId;
use halite_tier::rpc::{Kind, PAYLOAD_BYTES_MAX, ReplyState, Status};

use super::pending::{OwnedRequest, PendingCall};
use super::server::Function;
use crate::driver::Driver;
use crate::driver::fetch::fetch;
use crate::driver::requests::{Pending, PostFailure, SpinResult};
use crate::error::{CallCause, CallError};
use crate::metrics::Timed;
use crate::rpc::{BATCH_MAX, Reply, ReplyBuffer, Request};
use crate::runtime::lanes::Queue;
use crate::runtime::wait::{AdaptiveSpin, join_all};
use crate::session::calls::remote::RemoteCall;
use crate::session::{Embedded, Session, embedded};

/// Calls of functions at any node.
impl Session {
    /// Calls a function and returns its answer. Fails with [`CallCause::Timeout`] after `timeout`; an answer that
    /// arrives later is dropped.
    pub async fn call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let session = embedded!(self, client => {
            RemoteCall::new(client, node, function, timeout).post(input)?.answer().await
        });
        let mut output = Vec::new();
        let calling = OutgoingCall::new(session, node, function, timeout).unlimited();
        calling.run(input, ReplyBuffer::Vec(&mut output)).await?;
        Ok(output)
    }

    /// Calls a function and copies its answer into `output`. Returns the answer's length in bytes; fails if `output` is
    /// shorter.
    pub async fn call_into(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        output: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, CallError> {
        let session = embedded!(self, client => {
            let call = RemoteCall::new(client, node, function, timeout).limited(output.len());
            call.post(input)?.answer_into(output).await
        });
        let calling = OutgoingCall::new(session, node, function, timeout).limited(output.len());
        calling.run(input, ReplyBuffer::Slice(output)).await
    }

    /// Posts a call and returns without waiting for its answer, so that several calls can be in progress.
    /// [`PendingCall`] returns the answer, of at most `answer_bytes_max` bytes. The timeout starts now.
    pub async fn post_call(
        &self,
        node: NodeId,
        function: Function,
        input: &[u8],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Result<PendingCall, CallError> {
        let session = embedded!(self, client => {
            let call = RemoteCall::new(client, node, function, timeout).limited(answer_bytes_max);
            Ok(PendingCall::remote(call.post(input)?))
        });
        let mut calling = OutgoingCall::new(session, node, function, timeout).limited(answer_bytes_max);
        calling.start();
        Ok(calling.keep(calling.post(input).await?))
    }

    /// Posts a call for each of `inputs`, in order. Returns the results in the same order; a call that fails does not
    /// affect the others. One `timeout` applies to all calls: a call that finds no room within this time is not posted,
    /// and fails.
    ///
    /// Consecutive calls to another node are posted up to 16 at a time, at much lower cost, if their inputs have up to
    /// about 400 bytes. Calls with longer inputs are posted one by one, in the same order.
    ///
    /// ```
    /// # use halite::{Config, Function, Node, NodeId, ServeOptions};
    /// # use std::time::Duration;
    /// # let dir = std::env::temp_dir().join(format!("halite-doc-batches-{}", std::process::id()));
    /// # let node = Node::embedded(Config { dir: dir.clone(), node: Some(NodeId(0)), ..Config::default() })?;
    /// let session = node.blocking_session();
    /// let server = session.serve(Function(7), ServeOptions::default())?;
    /// let pending = session.post_calls(NodeId(0), Function(7), &["salt", "pepper"], 64, Duration::from_secs(10));
    /// let calls = server.recv_many(16)?;
    /// server.reply_all(calls.into_iter().map(|call| {
    ///     let shout = call.input().to_ascii_uppercase();
    ///     (call, shout)
    /// }));
    /// let answers = pending.into_iter().map(|call| call?.answer()).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(answers, [b"SALT".to_vec(), b"PEPPER".to_vec()]);
    /// # drop(server);
    /// # drop(node);
    /// # std::fs::remove_dir_all(dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn post_calls<I: AsRef<[u8]>>(
        &self,
        node: NodeId,
        function: Function,
        inputs: &[I],
        answer_bytes_max: usize,
        timeout: Duration,
    ) -> Vec<Result<PendingCall, CallError>> {
        let session = embedded!(self, client => {
            let call = RemoteCall::new(client, node, function, timeout).limited(answer_bytes_max);
            inputs.iter().map(|input| Ok(PendingCall::remote(call.post(input.as_ref())?))).collect()
        });
        let mut calling = OutgoingCall::new(session, node, function, timeout).limited(answer_bytes_max);
        calling.start();
        let mut posted = Vec::with_capacity(inputs.len());
        while let Some(input) = calling.post_batches(inputs, &mut posted) {
            let pending = calling.post(input).await;
            posted.push(pending.map(|pending| calling.keep(pending)));
        }
        posted
    }

    /// Calls the same function at several nodes at once. Returns the answers in the order of `nodes`.
    pub async fn call_many(
        &self,
        nodes: &[NodeId],
        function: Function,
        input: &[u8],
        timeout: Duration,
    ) -> Vec<Result<Vec<u8>, CallError>> {
        let session = embedded!(self, client => {
            let posted = nodes.iter().map(|node| RemoteCall::new(client, *node, function, timeout).post(input));
            let posted: Vec<_> = posted.collect();
            join_all(posted.into_iter().map(|call| async { call?.answer().await })).await
        });
        let mut pending = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut calling = OutgoingCall::new(session, *node, function, timeout).unlimited();
            calling.start();
            let posted = calling.try_post(input);
            pending.push((calling, posted));
        }
        // Concurrently, so that a slow node does not use up the time of the others.
        let answers = pending.into_iter().map(|(calling, posted)| async move {
            let mut output = Vec::new();
            let mut pending = match posted {
                Some(pending) => pending,
                None => calling.post(input).await?,
            };
            calling.finish(&mut pending, ReplyBuffer::Vec(&mut output)).await?;
            Ok(output)
        });
        join_all(answers).await
    }
}

/// Longest answer, in bytes, for which the caller reserves memory per call; it reads longer answers from the server's
/// memory.
const IN_PLACE_BYTES_MAX: usize = 64 << 20;

/// Longest answer, in bytes, that the server copies in less time than a wake-up takes.
const SOON_COPIED_BYTES_MAX: u32 = 64 << 10;
/// Longest answer, in bytes, for whose copy the caller spins. For a longer answer, a wake-up costs little compared with
/// the copy.
const SPUN_BYTES_MAX: u32 = 2 << 20;
/// Minimum speed, in bytes per nanosecond, at which a server copies into memory that its caller has read from
/// (measured: 14).
const COPIED_BYTES_PER_NS: u64 = 8;

/// A call and its session.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingCall<'s> {
    pub(super) session: &'s Embedded,
    pub(super) parameters: CallParameters,
}

/// The destination and limits of a call.
#[derive(Clone, Copy)]
pub(super) struct CallParameters {
    pub(super) node: NodeId,
    pub(super) number: u32,
    reply_bytes_max: u32,
    reply_in_place: bool,
    timeout_ns: u64,
    /// Deadline on the node's clock; `u64::MAX` until the timeout starts.
    deadline_ns: u64,
}

impl<'s> OutgoingCall<'s> {
    #[inline]
    pub(crate) fn new(
        session: &'s Embedded,
        node: NodeId,
        function: Function,
        timeout: Duration,
    ) -> OutgoingCall<'s> {
        let parameters = CallParameters {
            node,
            number: function.0,
            reply_bytes_max: 0,
            reply_in_place: false,
            timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
            deadline_ns: u64::MAX,
        };
        OutgoingCall { session, parameters }
    }

    /// Makes a [`PendingCall`], which owns a reference to the call's session.
    #[inline]
    fn keep(&self, pending: Pending<'s>) -> PendingCall {
        PendingCall::new(self.parameters, OwnedRequest::new(self.session, pending))
    }

    /// Accepts an answer of any length; the caller reads a long answer from the server's memory.
    pub(crate) fn unlimited(self) -> OutgoingCall<'s> {
        OutgoingCall {
            parameters: CallParameters { reply_bytes_max: PAYLOAD_BYTES_MAX as u32, ..self.parameters },
            ..self
        }
    }

    /// Accepts an answer of at most `len` bytes. The server writes it to this node's memory, unless it is very long.
    #[inline]
    pub(crate) fn limited(self, len: usize) -> OutgoingCall<'s> {
        let reply_bytes_max = len.min(PAYLOAD_BYTES_MAX as usize) as u32;
        let reply_in_place = len <= IN_PLACE_BYTES_MAX;
        OutgoingCall {
            parameters: CallParameters { reply_bytes_max, reply_in_place, ..self.parameters },
            ..self
        }
    }

    /// Accepts an answer of at most `len` bytes, for which the caller reserves no memory.
    pub(crate) fn bounded(self, len: usize) -> OutgoingCall<'s> {
        let reply_bytes_max = len.min(PAYLOAD_BYTES_MAX as usize) as u32;
        OutgoingCall { parameters: CallParameters { reply_bytes_max, ..self.parameters }, ..self }
    }

    #[inline]
    fn request<'a>(&'a self, input: &'a [u8]) -> Request<'a> {
        Request {
            to: None,
            kind: Kind::Call,
            number: self.parameters.number,
            principal: &self.session.inner.principal,
            principal_number: self.session.inner.principal_number,
            input,
            reply_bytes_max: self.parameters.reply_bytes_max,
            reply_in_place: self.parameters.reply_in_place,
            deadline_ns: self.parameters.deadline_ns,
            queue: Queue::of(self.session.inner.id, self.session.priority),
        }
    }

    #[inline]
    fn start(&mut self) {
        self.parameters.deadline_ns =
            self.session.inner.driver.now_ns().saturating_add(self.parameters.timeout_ns);
    }

    /// Starts the timeout if it has not started yet. A spinning thread starts it at the end of its spin, which is
    /// short.
    #[inline]
    fn start_unless_started(&mut self) -> bool {
        let starts = self.parameters.deadline_ns == u64::MAX;
        if starts {
            self.start();
        }
        starts
    }

    pub(crate) async fn run(self, input: &[u8], into: ReplyBuffer<'_>) -> Result<usize, CallError> {
        let begin_ns = self.begin();
        let ended = self.run_untimed(input, into).await;
        self.end(begin_ns);
        ended
    }

    async fn run_untimed(mut self, input: &[u8], into: ReplyBuffer<'_>) -> Result<usize, CallError> {
        self.start();
        let mut pending = self.post(input).await?;
        self.finish(&mut pending, into).await
    }

    /// Runs the call on a thread that drives the node while it waits. A reply that arrives during the spin needs no
    /// waker, and no clock read unless the call is timed.
    #[inline]
    pub(crate) fn run_blocking(mut self, input: &[u8], into: ReplyBuffer<'_>) -> Result<usize, CallError> {
        let begin_ns = self.begin();
        let ended = match self.try_post(input) {
            Some(mut pending) => self.wait_blocking(&mut pending, into),
            None => self.session.inner.driver.block_on(self.run_untimed(input, into)),
        };
        self.end(begin_ns);
        ended
    }

    #[inline]
    pub(super) fn wait_blocking(
        &mut self,
        pending: &mut Pending<'s>,
        mut into: ReplyBuffer<'_>,
    ) -> Result<usize, CallError> {
        let driver: &'s Driver = &self.session.inner.driver;
        if self.parameters.reply_in_place && self.parameters.reply_bytes_max > SOON_COPIED_BYTES_MAX {
            let bytes = self.parameters.reply_bytes_max.min(SPUN_BYTES_MAX);
            AdaptiveSpin::change(|spin| spin.expect_work(u64::from(bytes) / COPIED_BYTES_PER_NS));
        }
        match pending.spin(into.reborrow()) {
            SpinResult::Taken(Reply::DoneAt(len, address)) => {
                self.start_unless_started();
                driver.block_on(self.fetch_output(pending, len, address, into))
            }
            SpinResult::Taken(reply) => self.output_of(reply),
            SpinResult::Ended(state) => Err(self.failed(self.ended(state))),
            SpinResult::NoReply { has_spun } => {
                if self.start_unless_started() {
                    pending.set_deadline(self.parameters.deadline_ns);
                }
                driver.block_on_after(has_spun, self.finish(pending, into))
            }
        }
    }

    /// Posts a call, without waiting if there is room.
    #[inline]
    pub(crate) fn post_blocking(mut self, input: &[u8]) -> Result<PendingCall, CallError> {
        self.start();
        self.post_one_blocking(input)
    }

    #[inline]
    fn post_one_blocking(self, input: &[u8]) -> Result<PendingCall, CallError> {
        let pending = match self.try_post(input) {
            Some(pending) => pending,
            None => self.session.inner.driver.block_on(self.post(input))?,
        };
        Ok(self.keep(pending))
    }

    pub(crate) fn post_all_blocking<I: AsRef<[u8]>>(
        mut self,
        inputs: &[I],
    ) -> Vec<Result<PendingCall, CallError>> {
        self.start();
        let mut posted = Vec::with_capacity(inputs.len());
        while let Some(input) = self.post_batches(inputs, &mut posted) {
            posted.push(self.post_one_blocking(input));
        }
        posted
    }

    /// Posts `inputs` in batches, without the first `posted.len()` inputs, which are posted already. Returns the next
    /// input, which must be posted by itself. After the deadline, fails all remaining inputs.
    fn post_batches<'i, I: AsRef<[u8]>>(
        &self,
        inputs: &'i [I],
        posted: &mut Vec<Result<PendingCall, CallError>>,
    ) -> Option<&'i [u8]> {
        let driver: &'s Driver = &self.session.inner.driver;
        loop {
            // Converted before any lock is taken, since this runs the application's code.
            let left: Vec<_> = inputs[posted.len()..].iter().take(BATCH_MAX).map(AsRef::as_ref).collect();
            let next = *left.first()?;
            // Under a policy, each call waits for its turn.
            if driver.is_forked() || driver.shared.shaping.is_active() {
                return Some(next);
            }
            if !posted.is_empty() && driver.now_ns() >= self.parameters.deadline_ns {
                posted.resize_with(inputs.len(), || Err(self.not_posted(PostFailure::Timeout)));
                return None;
            }
            let sent = driver
                .with_calls(|rpc, _| rpc.try_request_batch(self.parameters.node, &self.request(next), &left));
            let Some(sent) = sent else { return Some(next) };
            left[..sent.len()].iter().for_each(|input| driver.count_posted(Kind::Call, input.len() as u64));
            posted.extend(sent.into_iter().map(|one| Ok(self.keep(Pending::new(driver, one)))));
        }
    }

    async fn post(&self, input: &[u8]) -> Result<Pending<'s>, CallError> {
        let driver: &'s Driver = &self.session.inner.driver;
        let posted = driver.post_request(self.parameters.node, &self.request(input)).await;
        posted.map_err(|failure| self.not_posted(failure))
    }

    /// Posts the call if there is room for it now; otherwise returns `None`.
    #[inline]
    pub(crate) fn try_post(&self, input: &[u8]) -> Option<Pending<'s>> {
        let driver: &'s Driver = &self.session.inner.driver;
        driver.try_post_request(self.parameters.node, &self.request(input)).ok()
    }

    pub(crate) async fn finish(
        &self,
        pending: &mut Pending<'s>,
        into: ReplyBuffer<'_>,
    ) -> Result<usize, CallError> {
        match pending.answered().await {
            ReplyState::Replied => self.take(pending, into).await,
            state => Err(self.failed(self.ended(state))),
        }
    }

    /// Takes the answer of a call, after it has arrived.
    pub(crate) async fn take(
        &self,
        pending: &mut Pending<'s>,
        mut into: ReplyBuffer<'_>,
    ) -> Result<usize, CallError> {
        match pending.take(into.reborrow()) {
            Reply::DoneAt(len, address) => self.fetch_output(pending, len, address, into).await,
            reply => self.output_of(reply),
        }
    }

    #[inline]
    fn output_of(&self, reply: Reply) -> Result<usize, CallError> {
        match reply {
            Reply::Done(len) | Reply::Lent(len) => Ok(len),
            Reply::Refused(status) => Err(self.failed(self.refused(status))),
            Reply::TooLong(len, max) => {
                Err(self.failed(CallCause::ReplyTooLong { len: len as u64, max: max as u64 }))
            }
            Reply::DoneAt(..) | Reply::NotUnderstood => Err(self.failed(CallCause::NotUnderstood)),
        }
    }

    /// Reads a long answer from the memory of the server's node.
    async fn fetch_output(
        &self,
        pending: &mut Pending<'s>,
        len: usize,
        address: RemoteAddress,
        mut into: ReplyBuffer<'_>,
    ) -> Result<usize, CallError> {
        let driver = &self.session.inner.driver;
        let target = match into.prepare(len) {
            Ok(target) => target,
            Err(refused) => return self.output_of(refused),
        };
        // The timeout also covers the fetch, for which the caller waits as well.
        let left = Duration::from_nanos(self.parameters.deadline_ns.saturating_sub(driver.now_ns()));
        match driver.within(left, fetch(driver, pending.target(), address, target)).await {
            Some(Ok(())) => Ok(len),
            Some(Err(_)) => Err(self.failed(CallCause::PeerDown)),
            None => Err(self.failed(self.ended(ReplyState::Overdue))),
        }
    }

    pub(crate) fn ended(&self, state: ReplyState) -> CallCause {
        let driver = &self.session.inner.driver;
        match state {
            _ if driver.is_closed() => {
                driver.closed_or_forked(CallCause::NodeClosed(driver.shared.node), CallCause::Forked)
            }
            ReplyState::Overdue => CallCause::Timeout,
            _ => CallCause::PeerDown,
        }
    }

    fn refused(&self, status: Status) -> CallCause {
        match status {
            Status::Unknown => CallCause::UnknownFunction,
            Status::Busy => CallCause::Busy,
            Status::Denied => CallCause::PermissionDenied,
            Status::TooLong(len) => {
                let max = u64::from(self.parameters.reply_bytes_max);
                CallCause::ReplyTooLong { len: u64::from(len), max }
            }
            Status::Dropped => CallCause::NoReply,
            Status::Closed => CallCause::ServerClosed,
            Status::Draining => CallCause::Draining,
            Status::NoMemory => CallCause::NoMemory,
            Status::Done(_) | Status::DoneAt(_) | Status::WouldBlock | Status::Granted(_) => {
                CallCause::NotUnderstood
            }
        }
    }

    /// Returns the error of a call that was posted.
    pub(crate) fn failed(&self, cause: CallCause) -> CallError {
        let may_have_run = cause.may_have_run_once_posted();
        self.count_failure();
        CallError { node: self.parameters.node, function: self.parameters.number, cause, may_have_run }
    }

    #[cold]
    fn count_failure(&self) {
        if !self.session.inner.driver.is_forked() {
            self.session.inner.path.count(Count::CallFailures, 1);
        }
    }

    /// Returns the time at which the call begins; `None` if this call is not in the sample that is timed.
    #[inline]
    fn begin(&self) -> Option<u64> {
        let inner = &self.session.inner;
        if inner.driver.is_forked() {
            return None;
        }
        Timed::is_next(inner.path.count(Count::Calls, 0)).then(|| inner.driver.now_ns())
    }

    #[inline]
    fn end(&self, begin_ns: Option<u64>) {
        if let Some(begin_ns) = begin_ns {
            let driver = &self.session.inner.driver;
            driver.shared.timings.of(Timed::Call).record(driver.now_ns().saturating_sub(begin_ns));
        }
    }

    fn not_posted(&self, failure: PostFailure) -> CallError {
        self.count_failure();
        CallError {
            node: self.parameters.node,
            function: self.parameters.number,
            cause: failure.into(),
            may_have_run: false,
        }
    }
}

impl From<PostFailure> for CallCause {
    fn from(failure: PostFailure) -> CallCause {
        match failure {
            PostFailure::UnknownNode => CallCause::UnknownNode,
            PostFailure::PeerDown => CallCause::PeerDown,
            PostFailure::NotMet => CallCause::NotMet,
            PostFailure::Timeout => CallCause::Timeout,
            PostFailure::TooLong { len } => CallCause::InputTooLong { len },
            PostFailure::NoMemory => CallCause::NoMemory,
            PostFailure::TooManyCalls => CallCause::TooManyCalls,
            PostFailure::NodeClosed(node) => CallCause::NodeClosed(node),
            PostFailure::Forked => CallCause::Forked,
        }
    }
}
